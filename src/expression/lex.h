// Text to tokens.
#pragma once

#include "expression/ast.h"

namespace sirdar::expression {

struct Token {
  enum class Kind : uint8_t { integer, real, name, symbol, end };
  Kind kind = Kind::end;
  std::string_view text;  // part of the text given to lex()
  int column = 1;         // in bytes, from 1
};

// The text's tokens, the last one Token::Kind::end; or a Status whose message starts at "column".
Result<std::vector<Token>> lex(std::string_view text);

bool is_identifier(std::string_view text);

// Text of the caller's fit for a message: in quotes, short, no control characters.
std::string quoted(std::string_view text);

}  // namespace sirdar::expression
