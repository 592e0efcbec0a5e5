#include "commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace sirdar::cli {
namespace {

// A message is one line, even when a file name or a library's text has control characters in it.
std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += line.empty() || line.back() == ' ' ? "" : " ";
    } else if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

int fail(std::string_view sentence) {
  fmt::print(stderr, "sirdar: {}\n", one_line(sentence));
  return kExitBadInput;
}

int fail(const Status& status) { return fail(status.message()); }

void notice(std::string_view sentence) { fmt::print(stderr, "note: {}\n", one_line(sentence)); }

std::vector<std::string> problems_from_words(const std::vector<std::string>& words) {
  std::vector<std::string> problems;
  bool is_open = false;  // may the next bare word join the last problem?
  for (const std::string& word : words) {
    const bool is_whole = word.find(' ') != std::string::npos;
    if (is_open && !is_whole && word != "fwd" && word != "bwd") {
      problems.back() += " " + word;
    } else {
      problems.push_back(word);
    }
    is_open = !is_whole;
  }
  return problems;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

}  // namespace sirdar::cli
