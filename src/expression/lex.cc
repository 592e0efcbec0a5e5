#include "expression/lex.h"

#include <fmt/format.h>

#include <algorithm>

namespace sirdar::expression {
namespace {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
constexpr bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// The length of the number at the start of `text`, and whether it is a real one.
struct Number {
  size_t length = 0;
  bool is_real = false;
};

Number scan_number(std::string_view text) {
  Number number;
  auto digits = [&] {
    while (number.length < text.size() && is_digit(text[number.length])) ++number.length;
  };
  digits();
  if (number.length < text.size() && text[number.length] == '.') {
    number.is_real = true;
    ++number.length;
    digits();
  }
  if (number.length < text.size() && (text[number.length] == 'e' || text[number.length] == 'E')) {
    size_t next = number.length + 1;
    if (next < text.size() && (text[next] == '+' || text[next] == '-')) ++next;
    if (next < text.size() && is_digit(text[next])) {
      number.is_real = true;
      number.length = next;
      digits();
    }
  }
  return number;
}

size_t scan_name(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && (is_letter(text[length]) || is_digit(text[length]))) ++length;
  return length;
}

size_t scan_symbol(std::string_view text) {
  for (std::string_view pair : {"&&", "||", "==", "!=", "<=", ">="}) {
    if (text.starts_with(pair)) return 2;
  }
  return std::string_view("+-*/%<>!?:()[],").find(text[0]) != std::string_view::npos ? 1 : 0;
}

// Bytes of the first character, in UTF-8.
size_t character_length(std::string_view text) {
  size_t length = 1;
  if ((static_cast<unsigned char>(text[0]) & 0xc0) != 0xc0) return length;
  while (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80)
    ++length;
  return length;
}

Status bad_character(std::string_view text, int column) {
  std::string_view hint = text[0] == '&'   ? "; 'and' is written '&&'"
                          : text[0] == '|' ? "; 'or' is written '||'"
                          : text[0] == '=' ? "; equality is written '=='"
                                           : "; remove it";
  return {StatusCode::invalid_argument,
          fmt::format("column {}: {} has no meaning here{}", column,
                      quoted(text.substr(0, character_length(text))), hint)};
}

}  // namespace

bool is_identifier(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && scan_name(text) == text.size();
}

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 40;
  std::string shown = "'";
  for (char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", byte);
    }
  }
  return shown + (text.size() > kShown ? "...'" : "'");
}

Result<std::vector<Token>> lex(std::string_view text) {
  std::vector<Token> tokens;
  size_t at = 0;
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    const int column = static_cast<int>(at) + 1;
    size_t length = 1;
    if (is_space(rest[0])) {
      at += 1;
      continue;
    }
    if (is_digit(rest[0]) || (rest[0] == '.' && rest.size() > 1 && is_digit(rest[1]))) {
      const Number number = scan_number(rest);
      length = number.length;
      const size_t tail = scan_name(rest.substr(length));
      if (tail > 0 || rest.substr(length).starts_with('.')) {
        return Status{StatusCode::invalid_argument,
                      fmt::format("column {}: {} is not a number; write 12, 0.5 or 1e-3", column,
                                  quoted(rest.substr(0, length + std::max<size_t>(tail, 1))))};
      }
      tokens.push_back({number.is_real ? Token::Kind::real : Token::Kind::integer,
                        rest.substr(0, length), column});
    } else if (is_letter(rest[0])) {
      length = scan_name(rest);
      tokens.push_back({Token::Kind::name, rest.substr(0, length), column});
    } else {
      length = scan_symbol(rest);
      if (length == 0) return bad_character(rest, column);
      tokens.push_back({Token::Kind::symbol, rest.substr(0, length), column});
    }
    at += length;
  }
  tokens.push_back({Token::Kind::end, {}, static_cast<int>(text.size()) + 1});
  return tokens;
}

}  // namespace sirdar::expression
