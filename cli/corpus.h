// The conformance corpus, as it was when this program was built.
#pragma once

#include <span>
#include <string_view>

namespace sirdar::cli {

struct CorpusFile {
  std::string_view name;  // "edges.txt"
  std::string_view text;  // a problem string a line; lines that start with # are comments
};
std::span<const CorpusFile> corpus_files();

}  // namespace sirdar::cli
