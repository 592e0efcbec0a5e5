#include "parse.h"

#include <fmt/format.h>

#include <charconv>

namespace sirdar::cli {
namespace {

template <class T>
bool read_all(std::string_view text, T& value) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  return error == std::errc() && end == last;
}

template <class T>
Result<T> parse_real(std::string_view flag, std::string_view text, std::string_view range) {
  T value = 0;
  if (read_all(text, value)) return value;
  return bad_flag(
      flag, fmt::format("'{}' is not a number {} can hold; write one like 0.125.", text, range));
}

}  // namespace

Status bad_flag(std::string_view flag, const std::string& sentence) {
  return Status(StatusCode::invalid_argument, fmt::format("{}: {}", flag, sentence),
                std::string(flag));
}

Result<double> parse_double(std::string_view flag, std::string_view text) {
  return parse_real<double>(flag, text, "float64");
}

Result<float> parse_float(std::string_view flag, std::string_view text) {
  return parse_real<float>(flag, text, "float32");
}

Result<int64_t> parse_integer(std::string_view flag, std::string_view text, int64_t least,
                              int64_t most) {
  int64_t value = 0;
  if (read_all(text, value) && value >= least && value <= most) return value;
  const std::string range = most == INT64_MAX ? fmt::format("{} or more", least)
                                              : fmt::format("from {} to {}", least, most);
  return bad_flag(flag, fmt::format("'{}' is not allowed; give a whole number, {}.", text, range));
}

Result<uint64_t> parse_unsigned(std::string_view flag, std::string_view text) {
  uint64_t value = 0;
  if (read_all(text, value)) return value;
  return bad_flag(flag, fmt::format("'{}' is not allowed; give a whole number, 0 or more.", text));
}

Result<std::pair<std::string, std::string>> parse_assignment(std::string_view flag,
                                                             std::string_view text,
                                                             std::string_view value) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string_view::npos) {
    return bad_flag(flag, fmt::format("'{}' is not NAME={}; write both.", text, value));
  }
  return std::pair(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
}

}  // namespace sirdar::cli
