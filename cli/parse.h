// Words of the command line as values. `flag` is named in the message when a word is not one.
#pragma once

#include <sirdar/status.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace sirdar::cli {

Status bad_flag(std::string_view flag, const std::string& sentence);

Result<double> parse_double(std::string_view flag, std::string_view text);
Result<float> parse_float(std::string_view flag, std::string_view text);
// A whole number from `least` to `most`.
Result<int64_t> parse_integer(std::string_view flag, std::string_view text, int64_t least,
                              int64_t most = INT64_MAX);
Result<uint64_t> parse_unsigned(std::string_view flag, std::string_view text);

// "NAME=VALUE", split at the first '='.
Result<std::pair<std::string, std::string>> parse_assignment(std::string_view flag,
                                                             std::string_view text,
                                                             std::string_view value);

}  // namespace sirdar::cli
