// The words of a problem string: one row each, used by the parser and its error messages.
#pragma once

#include <sirdar/problem.hpp>

#include <span>
#include <vector>

namespace sirdar {

// How a word carries its value: none (causal), digits glued on (sq4096), after a colon (chunk:512).
enum class Form : uint8_t { plain, glued, colon };

// What has been read so far, and what can only be settled when every word is known.
struct Draft {
  Problem problem;
  bool fill_total_q = false, fill_total_k = false;  // a ragged side without its total
  std::optional<DType> dtype_kv;
};

constexpr std::string_view kSize = "a whole number from 0 to 9223372036854775807";

struct Word {
  std::string_view name;
  Form form;
  std::string_view sets;  // fields, between commas; two words may not set the same one
  // Returns what is allowed when the value is not it, and nothing when it is.
  std::string (*apply)(Draft&, std::string_view value);
  std::string_view usage;    // "window:LEFT,RIGHT"
  std::string_view meaning;  // one line for a person
};
std::span<const Word> problem_words();

std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace sirdar
