#include "expression/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "expression/lex.h"

namespace sirdar::expression {
namespace {

constexpr Function kFunctions[] = {
    {"min", Op::min, 2},     {"max", Op::max, 2},   {"abs", Op::abs, 1},
    {"floor", Op::floor, 1}, {"exp", Op::exp, 1},   {"exp2", Op::exp2, 1},
    {"log", Op::log, 1},     {"tanh", Op::tanh, 1}, {"sigmoid", Op::sigmoid, 1},
    {"sqrt", Op::sqrt, 1},
};

constexpr Variable kVariables[] = {
    {"score", Op::score}, {"b", Op::b}, {"h", Op::h},
    {"q", Op::q},         {"k", Op::k}, {"q_pos", Op::q_pos},
};

constexpr BinaryOperator kBinaryOperators[] = {
    {"||", Op::logical_or, 1}, {"&&", Op::logical_and, 2},   {"==", Op::equal, 3},
    {"!=", Op::not_equal, 3},  {"<", Op::less, 4},           {"<=", Op::less_equal, 4},
    {">", Op::greater, 4},     {">=", Op::greater_equal, 4}, {"+", Op::add, 5},
    {"-", Op::subtract, 5},    {"*", Op::multiply, 6},       {"/", Op::divide, 6},
    {"%", Op::remainder, 6},
};

constexpr std::string_view kLiterals[] = {"true", "false", "inf"};

bool is_builtin(std::string_view name) {
  return std::ranges::find(kLiterals, name) != std::end(kLiterals) ||
         std::ranges::find(kFunctions, name, &Function::name) != std::end(kFunctions) ||
         std::ranges::find(kVariables, name, &Variable::name) != std::end(kVariables);
}

Status bad_list(std::string_view argument, std::string message) {
  return {StatusCode::invalid_argument, fmt::format("{}: {}", argument, message),
          std::string(argument)};
}

Status check_name(std::string_view argument, std::string_view name,
                  std::vector<std::string_view>& seen) {
  if (!is_identifier(name) || name.size() > kMaxNameBytes) {
    return bad_list(argument, fmt::format("{} is not a name; use a letter or underscore, then "
                                          "letters, digits and underscores, {} at most",
                                          quoted(name), kMaxNameBytes));
  }
  if (is_builtin(name)) {
    return bad_list(argument,
                    fmt::format("'{}' is a word of the language; choose another name", name));
  }
  if (std::ranges::find(seen, name) != seen.end()) {
    return bad_list(argument, fmt::format("'{}' is given twice; names of tensors and scalars must "
                                          "all differ",
                                          name));
  }
  seen.push_back(name);
  return {};
}

}  // namespace

std::span<const Function> functions() { return kFunctions; }
std::span<const Variable> variables() { return kVariables; }
std::span<const BinaryOperator> binary_operators() { return kBinaryOperators; }

std::string_view name_of(Kind kind) { return kind == Kind::score_mod ? "score_mod" : "mask_mod"; }

std::string_view name_of(Type type) {
  return type == Type::integer ? "int" : type == Type::real ? "fp32" : "bool";
}

std::string_view symbol_of(Op op) {
  if (op == Op::negate) return "-";
  if (op == Op::logical_not) return "!";
  for (const BinaryOperator& row : kBinaryOperators) {
    if (row.op == op) return row.symbol;
  }
  for (const Function& row : kFunctions) {
    if (row.op == op) return row.name;
  }
  return "?:";
}

Status check_names(std::span<const ExpressionTensor> tensors,
                   std::span<const std::string> scalars) {
  std::vector<std::string_view> seen;
  for (const ExpressionTensor& tensor : tensors) {
    if (Status status = check_name("tensors", tensor.name, seen); !status.ok()) return status;
    if (tensor.rank < 1 || tensor.rank > kMaxRank) {
      return bad_list("tensors",
                      fmt::format("'{}' has rank {}; an expression reads tensors of rank "
                                  "1 to {}",
                                  tensor.name, tensor.rank, kMaxRank));
    }
    const bool is_known = tensor.dtype == DType::fp32 || tensor.dtype == DType::int32 ||
                          tensor.dtype == DType::boolean;
    if (!is_known) {
      return bad_list("tensors", fmt::format("'{}' has a dtype that an expression cannot read; "
                                             "convert it to fp32, int32 or boolean",
                                             tensor.name));
    }
    if (tensor.needs_grad && tensor.dtype != DType::fp32) {
      return bad_list("tensors", fmt::format("'{}' asks for a gradient and is not fp32; only fp32 "
                                             "tensors have gradients",
                                             tensor.name));
    }
  }
  for (const std::string& scalar : scalars) {
    if (Status status = check_name("scalars", scalar, seen); !status.ok()) return status;
  }
  return {};
}

}  // namespace sirdar::expression
