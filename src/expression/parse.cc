// Recursive descent with C's precedence. The grammar stands in docs/expressions.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/suggest.h"
#include "expression/lex.h"
#include "expression/names.h"
#include "expression/types.h"

namespace sirdar::expression {
namespace {

class Parser {
 public:
  Parser(Kind kind, std::vector<Token> tokens, std::span<const ExpressionTensor> tensors,
         std::span<const std::string> scalars)
      : kind_(kind),
        tokens_(std::move(tokens)),
        tensors_(tensors),
        scalars_(scalars),
        builder_(kind) {}

  Result<Program::Tree> run() {
    const Operand value = parse_select();
    if (!is_end()) fail_here("expected an operator");
    builder_.finish(value);
    if (builder_.failed()) return builder_.status();
    for (const ExpressionTensor& tensor : tensors_) builder_.tree().tensors.push_back(tensor.name);
    builder_.tree().scalars.assign(scalars_.begin(), scalars_.end());
    return std::move(builder_.tree());
  }

 private:
  // Counts one level of nesting for as long as it lives.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxDepth) {
        parser_.fail(
            parser_.token().column,
            fmt::format("the expression is nested more than {} deep; move part of it into a "
                        "tensor",
                        kMaxDepth));
      }
    }
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  const Token& token() const { return tokens_[at_]; }
  bool is_end() const { return token().kind == Token::Kind::end; }
  bool is_symbol(std::string_view text) const {
    return token().kind == Token::Kind::symbol && token().text == text;
  }
  bool accept(std::string_view symbol) {
    if (!is_symbol(symbol)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view symbol, std::string_view after) {
    if (!accept(symbol)) fail_here(fmt::format("expected '{}' {}", symbol, after));
  }
  // An error also jumps to the end of the text, so that every loop stops.
  Operand fail(int column, std::string_view message) {
    builder_.fail(column, message);
    at_ = tokens_.size() - 1;
    return {};
  }
  Operand fail_here(std::string_view expected) {
    return fail(token().column,
                fmt::format("{}, found {}", expected, is_end() ? "the end" : quoted(token().text)));
  }

  Operand parse_select();
  Operand parse_binary(int least_precedence);
  Operand parse_unary();
  Operand parse_primary();
  Operand parse_number();
  Operand parse_name();
  Operand parse_call(const Function& function, int column);
  Operand parse_element(size_t tensor, int column);
  std::vector<Operand> parse_list(std::string_view closing, std::string_view after);
  Operand unknown_name(const Token& name);

  Kind kind_;
  std::vector<Token> tokens_;
  std::span<const ExpressionTensor> tensors_;
  std::span<const std::string> scalars_;
  TreeBuilder builder_;
  size_t at_ = 0;
  int depth_ = 0;
};

Operand Parser::parse_select() {
  const Level level(*this);
  const Operand condition = parse_binary(1);
  if (!accept("?")) return condition;
  const Operand if_true = parse_select();
  expect(":", "after the first value of '?:'");
  const Operand if_false = parse_select();
  return builder_.select(condition, if_true, if_false);
}

Operand Parser::parse_binary(int least_precedence) {
  Operand left = parse_unary();
  while (token().kind == Token::Kind::symbol) {
    const auto table = binary_operators();
    const auto row = std::ranges::find(table, token().text, &BinaryOperator::symbol);
    if (row == table.end() || row->precedence < least_precedence) break;
    ++at_;
    const Operand right = parse_binary(row->precedence + 1);
    left = builder_.binary(row->op, left, right);
    if (builder_.failed()) return fail(0, {});
  }
  return left;
}

Operand Parser::parse_unary() {
  const int column = token().column;
  const Op op = is_symbol("-") ? Op::negate : Op::logical_not;
  if (!accept("-") && !accept("!")) return parse_primary();
  const Level level(*this);
  const Operand operand = parse_unary();
  return builder_.unary(op, operand, column);
}

Operand Parser::parse_primary() {
  const int column = token().column;
  if (token().kind == Token::Kind::integer || token().kind == Token::Kind::real)
    return parse_number();
  if (token().kind == Token::Kind::name) return parse_name();
  if (accept("(")) {
    Operand inner = parse_select();
    expect(")", "to close the '('");
    inner.column = column;
    return inner;
  }
  return fail_here("expected a value");
}

Operand Parser::parse_number() {
  const Token& number = tokens_[at_++];
  const char* end = number.text.data() + number.text.size();
  Node node;
  if (number.kind == Token::Kind::integer) {
    if (std::from_chars(number.text.data(), end, node.integer).ec != std::errc()) {
      return fail(number.column,
                  fmt::format("{} is larger than an int can be; the largest is {}",
                              quoted(number.text), std::numeric_limits<int32_t>::max()));
    }
    return builder_.leaf(node, number.column);
  }
  float value = 0;
  if (std::from_chars(number.text.data(), end, value).ec != std::errc()) {
    return fail(number.column,
                fmt::format("{} is outside the range of fp32; write inf for infinity",
                            quoted(number.text)));
  }
  node.type = Type::real;
  node.real = value;
  return builder_.leaf(node, number.column);
}

Operand Parser::parse_name() {
  const Token name = tokens_[at_++];
  Node node;
  if (name.text == "true" || name.text == "false") {
    node.type = Type::boolean;
    node.integer = name.text == "true";
    return builder_.leaf(node, name.column);
  }
  if (name.text == "inf") {
    node.type = Type::real;
    node.real = std::numeric_limits<double>::infinity();
    return builder_.leaf(node, name.column);
  }
  const auto function = std::ranges::find(functions(), name.text, &Function::name);
  if (function != functions().end()) return parse_call(*function, name.column);
  const auto tensor = std::ranges::find(tensors_, name.text, &ExpressionTensor::name);
  if (tensor != tensors_.end()) return parse_element(tensor - tensors_.begin(), name.column);

  const auto variable = std::ranges::find(variables(), name.text, &Variable::name);
  const auto scalar = std::ranges::find(scalars_, name.text);
  if (variable != variables().end()) {
    if (variable->op == Op::score && kind_ == Kind::mask_mod) {
      return fail(name.column,
                  "'score' belongs to a score_mod; a mask_mod reads b, h, q, k and q_pos");
    }
    node.op = variable->op;
    node.type = node.op == Op::score ? Type::real : Type::integer;
  } else if (scalar != scalars_.end()) {
    node.op = Op::scalar;
    node.type = Type::real;
    node.integer = static_cast<int32_t>(scalar - scalars_.begin());
  } else {
    return unknown_name(name);
  }
  if (is_symbol("[") || is_symbol("(")) {
    return fail_here(fmt::format("'{}' is a single value and takes no '[' or '('", name.text));
  }
  return builder_.leaf(node, name.column);
}

std::vector<Operand> Parser::parse_list(std::string_view closing, std::string_view after) {
  std::vector<Operand> operands;
  if (accept(closing)) return operands;
  do {
    operands.push_back(parse_select());
  } while (accept(","));
  expect(closing, after);
  return operands;
}

Operand Parser::parse_call(const Function& function, int column) {
  if (!accept("("))
    return fail_here(fmt::format("expected '(' after the function '{}'", function.name));
  const std::vector<Operand> arguments = parse_list(")", "after the arguments");
  if (builder_.failed()) return {};
  if (static_cast<int>(arguments.size()) != function.num_arguments) {
    return fail(column, fmt::format("'{}' takes {} argument{}, found {}", function.name,
                                    function.num_arguments, function.num_arguments == 1 ? "" : "s",
                                    arguments.size()));
  }
  Operand value = function.num_arguments == 1
                      ? builder_.unary(function.op, arguments[0], column)
                      : builder_.binary(function.op, arguments[0], arguments[1]);
  value.column = column;
  return value;
}

Operand Parser::parse_element(size_t tensor, int column) {
  const ExpressionTensor& row = tensors_[tensor];
  if (!accept("[")) {
    return fail_here(fmt::format("expected '[' after the tensor '{}', which has {} ax{}", row.name,
                                 row.rank, row.rank == 1 ? "is" : "es"));
  }
  const std::vector<Operand> indices = parse_list("]", "after the indices");
  if (builder_.failed()) return {};
  if (static_cast<int>(indices.size()) != row.rank) {
    return fail(column,
                fmt::format("'{}' has rank {} and needs {} ind{}, found {}", row.name, row.rank,
                            row.rank, row.rank == 1 ? "ex" : "ices", indices.size()));
  }
  return builder_.element(row, static_cast<int32_t>(tensor), indices, column);
}

Operand Parser::unknown_name(const Token& name) {
  std::vector<std::string_view> known;
  const bool is_call = is_symbol("(");
  if (is_call) {
    for (const Function& function : functions()) known.push_back(function.name);
  } else {
    for (const Variable& variable : variables()) {
      if (variable.op != Op::score || kind_ == Kind::score_mod) known.push_back(variable.name);
    }
    for (const ExpressionTensor& tensor : tensors_) known.push_back(tensor.name);
    known.insert(known.end(), scalars_.begin(), scalars_.end());
  }
  constexpr size_t kShown = 30;
  const size_t shown = std::min(known.size(), kShown);
  std::string message = fmt::format(
      "unknown {} {}; known {}s are {}{}", is_call ? "function" : "name", quoted(name.text),
      is_call ? "function" : "name", fmt::join(known.begin(), known.begin() + shown, ", "),
      shown < known.size() ? ", ..." : "");
  const std::string_view written = name.text == "and"   ? "&&"
                                   : name.text == "or"  ? "||"
                                   : name.text == "not" ? "!"
                                                        : "";
  const std::string_view likely = written.empty() ? nearest(name.text, known) : written;
  if (!likely.empty()) message += fmt::format(" (did you mean '{}'?)", likely);
  return fail(name.column, message);
}

Status with_kind(Kind kind, std::string_view message) {
  return {StatusCode::invalid_argument, fmt::format("{}: {}", name_of(kind), message),
          std::string(name_of(kind))};
}

}  // namespace

Result<Program> Program::parse(Kind kind, std::string_view text,
                               std::span<const ExpressionTensor> tensors,
                               std::span<const std::string> scalars) {
  if (Status status = check_names(tensors, scalars); !status.ok()) return status;
  if (text.size() > kMaxTextBytes) {
    return with_kind(kind,
                     fmt::format("the text has {} bytes and {} are allowed; move part of it into "
                                 "a tensor",
                                 text.size(), kMaxTextBytes));
  }
  Result<std::vector<Token>> tokens = lex(text);
  if (!tokens.ok()) return with_kind(kind, tokens.status().message());
  Result<Tree> tree = Parser(kind, std::move(tokens).value(), tensors, scalars).run();
  if (!tree.ok()) return tree.status();
  Program program(std::make_shared<const Tree>(std::move(tree).value()));
  // The canonical text has more spaces than a dense original, and must be parsable too.
  if (const size_t size = program.str().size(); size > kMaxTextBytes) {
    return with_kind(kind,
                     fmt::format("the text has {} bytes when printed and {} are allowed; move part "
                                 "of it into a tensor",
                                 size, kMaxTextBytes));
  }
  return program;
}

bool Program::reads_tensor(size_t tensor) const {
  return std::ranges::any_of(tree_->nodes, [&](const Node& node) {
    return node.op == Op::element && static_cast<size_t>(node.integer) == tensor;
  });
}

bool Program::reads_scalar(size_t scalar) const {
  return std::ranges::any_of(tree_->nodes, [&](const Node& node) {
    return node.op == Op::scalar && static_cast<size_t>(node.integer) == scalar;
  });
}

}  // namespace sirdar::expression
