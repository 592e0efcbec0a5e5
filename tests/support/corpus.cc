#include "support/corpus.h"

#include <fstream>
#include <stdexcept>

namespace sirdar::test {

std::vector<CorpusLine> corpus(const std::string& directory, const std::string& op) {
  std::vector<CorpusLine> lines;
  for (const char* file : {"smoke.txt", "edges.txt", "models.txt", "features.txt", "bugs.txt"}) {
    std::ifstream stream(directory + "/" + file);
    if (!stream) throw std::runtime_error("cannot read " + directory + "/" + file);
    std::string text;
    for (int number = 1; std::getline(stream, text); ++number) {
      if (text.starts_with(op + " ")) lines.push_back({file, number, text});
    }
  }
  if (lines.empty()) throw std::runtime_error("no " + op + " problem in " + directory);
  return lines;
}

}  // namespace sirdar::test
