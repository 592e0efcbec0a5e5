// The problem strings of tests/conformance/corpus, one a line, # starts a comment line.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace sirdar::test {

struct CorpusLine {
  std::string file;  // "edges.txt"
  int line = 0;      // from 1
  std::string text;
};

// What a failed test prints of it.
inline void PrintTo(const CorpusLine& line, std::ostream* stream) {
  *stream << line.file << ":" << line.line << " " << line.text;
}

// Every line of every file that starts with `op` ("fwd", "bwd"); throws when there is none.
std::vector<CorpusLine> corpus(const std::string& directory, const std::string& op);

}  // namespace sirdar::test
