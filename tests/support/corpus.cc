#include "support/corpus.h"

#include <fstream>
#include <stdexcept>
#include <string_view>

#include "support/sanitized.h"

namespace sirdar::test {
namespace {

// Combinations of features are many: under a sanitizer every fourth.
bool is_left_out(std::string_view file, int number) {
  return kIsSanitized && file == "features.txt" && number % 4 != 0;
}

}  // namespace

std::vector<CorpusLine> corpus(const std::string& directory, const std::string& op) {
  std::vector<CorpusLine> lines;
  for (const char* file : {"smoke.txt", "edges.txt", "models.txt", "features.txt", "bugs.txt"}) {
    std::ifstream stream(directory + "/" + file);
    if (!stream) throw std::runtime_error("cannot read " + directory + "/" + file);
    std::string text;
    for (int number = 1; std::getline(stream, text); ++number) {
      if (text.starts_with(op + " ") && !is_left_out(file, number))
        lines.push_back({file, number, text});
    }
  }
  if (lines.empty()) throw std::runtime_error("no " + op + " problem in " + directory);
  return lines;
}

}  // namespace sirdar::test
