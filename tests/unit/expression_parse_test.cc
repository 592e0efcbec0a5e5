// What the language refuses, each with its sentence and column; canonical text; limits.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "expression/expression.h"

namespace sirdar::expression {
namespace {

const std::vector<ExpressionTensor> kTensors{
    {"doc", DType::int32, 2}, {"slope", DType::fp32, 1}, {"keep", DType::boolean, 1}};
const std::vector<std::string> kScalars{"cap"};

Result<Program> parse_text(Kind kind, std::string_view text) {
  return Program::parse(kind, text, kTensors, kScalars);
}

std::string error(Kind kind, std::string_view text) {
  const Result<Program> program = parse_text(kind, text);
  EXPECT_FALSE(program.ok()) << text;
  EXPECT_EQ(program.status().code(), StatusCode::invalid_argument);
  return program.status().message();
}
std::string score_error(std::string_view text) { return error(Kind::score_mod, text); }
std::string mask_error(std::string_view text) { return error(Kind::mask_mod, text); }

TEST(ExpressionParse, UnknownNames) {
  EXPECT_EQ(
      score_error("score + slop * k"),
      "score_mod: column 9: unknown name 'slop'; known names are score, b, h, q, k, q_pos, doc, "
      "slope, keep, cap (did you mean 'slope'?)");
  EXPECT_EQ(
      mask_error("q >= kv_position"),
      "mask_mod: column 6: unknown name 'kv_position'; known names are b, h, q, k, q_pos, doc, "
      "slope, keep, cap");
  EXPECT_EQ(
      score_error("tan(score)"),
      "score_mod: column 1: unknown function 'tan'; known functions are min, max, abs, floor, "
      "exp, exp2, log, tanh, sigmoid, sqrt (did you mean 'tanh'?)");
  EXPECT_EQ(
      mask_error("score > 0"),
      "mask_mod: column 1: 'score' belongs to a score_mod; a mask_mod reads b, h, q, k and q_pos");
  EXPECT_NE(mask_error("(q > k) and (q < 4)").find("column 9: expected an operator, found 'and'"),
            std::string::npos);
  EXPECT_NE(mask_error("not (q > k)").find("(did you mean '!'?)"), std::string::npos);
}

TEST(ExpressionParse, Grammar) {
  EXPECT_EQ(score_error(""), "score_mod: column 1: expected a value, found the end");
  EXPECT_EQ(score_error("  "), "score_mod: column 3: expected a value, found the end");
  EXPECT_EQ(score_error("score +"), "score_mod: column 8: expected a value, found the end");
  EXPECT_EQ(score_error("score score"), "score_mod: column 7: expected an operator, found 'score'");
  EXPECT_EQ(score_error("(score"),
            "score_mod: column 7: expected ')' to close the '(', found the end");
  EXPECT_EQ(score_error("score)"), "score_mod: column 6: expected an operator, found ')'");
  EXPECT_EQ(score_error("q > k ? 1"),
            "score_mod: column 10: expected ':' after the first value of '?:', found the end");
  EXPECT_EQ(score_error("slope[h"),
            "score_mod: column 8: expected ']' after the indices, found the end");
  EXPECT_EQ(score_error("slope[h,]"), "score_mod: column 9: expected a value, found ']'");
  EXPECT_EQ(score_error("+score"), "score_mod: column 1: expected a value, found '+'");
}

TEST(ExpressionParse, Characters) {
  EXPECT_EQ(mask_error("q > k & h > 0"),
            "mask_mod: column 7: '&' has no meaning here; 'and' is written '&&'");
  EXPECT_EQ(mask_error("q > k | h > 0"),
            "mask_mod: column 7: '|' has no meaning here; 'or' is written '||'");
  EXPECT_EQ(mask_error("q = k"),
            "mask_mod: column 3: '=' has no meaning here; equality is written '=='");
  EXPECT_EQ(mask_error("q @ k"), "mask_mod: column 3: '@' has no meaning here; remove it");
  EXPECT_EQ(mask_error(std::string_view("q\0k", 3)),
            "mask_mod: column 2: '\\x00' has no meaning here; remove it");
  EXPECT_EQ(mask_error("\xff"), "mask_mod: column 1: '\\xff' has no meaning here; remove it");
  EXPECT_EQ(mask_error("q + \u00e9"),
            "mask_mod: column 5: '\\xc3\\xa9' has no meaning here; remove it");
}

TEST(ExpressionParse, Numbers) {
  EXPECT_EQ(score_error("1.0f"),
            "score_mod: column 1: '1.0f' is not a number; write 12, 0.5 or 1e-3");
  EXPECT_EQ(score_error("1.2.3"),
            "score_mod: column 1: '1.2.' is not a number; write 12, 0.5 or 1e-3");
  EXPECT_EQ(score_error("0x10"),
            "score_mod: column 1: '0x10' is not a number; write 12, 0.5 or 1e-3");
  EXPECT_EQ(score_error("2e"), "score_mod: column 1: '2e' is not a number; write 12, 0.5 or 1e-3");
  EXPECT_EQ(
      score_error("2147483648"),
      "score_mod: column 1: '2147483648' is larger than an int can be; the largest is 2147483647");
  EXPECT_EQ(score_error("1e39"),
            "score_mod: column 1: '1e39' is outside the range of fp32; write inf for infinity");
  EXPECT_FALSE(parse_text(Kind::score_mod, "1e-60").ok());
  EXPECT_TRUE(parse_text(Kind::score_mod, "1. + .5 + 1e3 + 1E-3 + 007").ok());
}

TEST(ExpressionParse, Types) {
  EXPECT_EQ(
      mask_error("q - k"),
      "mask_mod: column 1: the value is int and a mask_mod must be bool: true where the key is "
      "visible");
  EXPECT_EQ(
      mask_error("slope[h]"),
      "mask_mod: column 1: the value is fp32 and a mask_mod must be bool: true where the key is "
      "visible");
  EXPECT_EQ(
      score_error("q > k"),
      "score_mod: column 1: the value is bool and a score_mod must be a number; write 'condition "
      "? score : -inf'");
  EXPECT_EQ(
      score_error("score + (q > k)"),
      "score_mod: column 9: the right side of '+' is bool and must be int or fp32; a bool becomes "
      "a number by 'condition ? 1 : 0'");
  EXPECT_EQ(
      mask_error("q > k && h"),
      "mask_mod: column 10: the right side of '&&' is int and must be bool; compare it, as in "
      "'x != 0'");
  EXPECT_EQ(
      mask_error("0 <= q < k"),
      "mask_mod: column 1: the left side of '<' is bool and must be int or fp32; comparisons do "
      "not chain: write 'a < b && b < c'");
  EXPECT_EQ(
      mask_error("!q"),
      "mask_mod: column 2: the operand of '!' is int and must be bool; compare it, as in 'x != 0'");
  EXPECT_EQ(
      mask_error("keep[k] == 1"),
      "mask_mod: column 1: the left side of '==' is bool and must be int or fp32; a bool becomes "
      "a number by 'condition ? 1 : 0'");
  EXPECT_EQ(
      mask_error("q % 2.0 == 0"),
      "mask_mod: column 5: the right side of '%' is fp32 and must be int; scalars, '/' with an "
      "fp32 side and functions such as floor are fp32");
  EXPECT_EQ(score_error("q ? 1 : 2"),
            "score_mod: column 1: the condition of '?:' is int and must be bool; compare it, as in "
            "'x != 0'");
  EXPECT_EQ(
      score_error("q > k ? score : true"),
      "score_mod: column 17: the values of '?:' are fp32 and bool; both must be numbers or both "
      "bool");
  EXPECT_EQ(
      score_error("exp(true)"),
      "score_mod: column 5: the argument of 'exp' is bool and must be int or fp32; a bool becomes "
      "a number by 'condition ? 1 : 0'");
  EXPECT_EQ(
      score_error("max(score, q > k)"),
      "score_mod: column 12: argument 2 of 'max' is bool and must be int or fp32; a bool becomes a "
      "number by 'condition ? 1 : 0'");
}

TEST(ExpressionParse, TensorsAndCalls) {
  EXPECT_EQ(
      score_error("slope * 2"),
      "score_mod: column 7: expected '[' after the tensor 'slope', which has 1 axis, found '*'");
  EXPECT_EQ(mask_error("doc[q] == 1"),
            "mask_mod: column 1: 'doc' has rank 2 and needs 2 indices, found 1");
  EXPECT_EQ(mask_error("doc[] == 1"),
            "mask_mod: column 1: 'doc' has rank 2 and needs 2 indices, found 0");
  EXPECT_EQ(mask_error("doc[b, score]").substr(0, 18), "mask_mod: column 8");
  EXPECT_EQ(
      mask_error("doc[b, cap] == 1"),
      "mask_mod: column 8: index 1 of 'doc' is fp32 and must be int; scalars, '/' with an fp32 "
      "side and functions such as floor are fp32");
  EXPECT_EQ(mask_error("doc[b, 3 - 4] == 1"),
            "mask_mod: column 8: index 1 of 'doc' is -1; an axis starts at 0");
  EXPECT_EQ(score_error("cap[0]"),
            "score_mod: column 4: 'cap' is a single value and takes no '[' or '(', found '['");
  EXPECT_EQ(score_error("min(1)"), "score_mod: column 1: 'min' takes 2 arguments, found 1");
  EXPECT_EQ(score_error("exp(1, 2)"), "score_mod: column 1: 'exp' takes 1 argument, found 2");
  EXPECT_EQ(score_error("exp"),
            "score_mod: column 4: expected '(' after the function 'exp', found the end");
}

TEST(ExpressionParse, DivisorsThatAreAlwaysZero) {
  EXPECT_EQ(mask_error("q / 0 == k"),
            "mask_mod: column 5: the right side of '/' is always 0; an int cannot be divided by 0");
  EXPECT_EQ(mask_error("q % (2 - min(2, 3)) == k"),
            "mask_mod: column 5: the right side of '%' is always 0; an int cannot be divided by 0");
  EXPECT_TRUE(parse_text(Kind::score_mod, "score / 0").ok());
}

TEST(ExpressionParse, Limits) {
  const auto nested = [](int depth) {
    return std::string(depth, '(') + "score" + std::string(depth, ')');
  };
  EXPECT_TRUE(parse_text(Kind::score_mod, nested(255)).ok());
  EXPECT_EQ(
      score_error(nested(256)),
      "score_mod: column 257: the expression is nested more than 256 deep; move part of it into a "
      "tensor");
  EXPECT_FALSE(parse_text(Kind::score_mod, nested(8000)).ok());
  EXPECT_FALSE(parse_text(Kind::score_mod, std::string(16000, '-') + "1").ok());
  EXPECT_FALSE(parse_text(Kind::score_mod, std::string(16000, '(')).ok());

  std::string sum = "k";
  for (int i = 1; i < 2048; ++i) sum += "+k";
  EXPECT_TRUE(parse_text(Kind::score_mod, sum).ok());  // 4095 nodes and the step to fp32
  EXPECT_EQ(
      score_error(sum + "+k").substr(0, 86),
      "score_mod: column 4097: the expression has more than 4096 operators and operands; move");

  EXPECT_TRUE(parse_text(Kind::score_mod, "1" + std::string((16 << 10) - 1, ' ')).ok());
  EXPECT_EQ(
      score_error("1" + std::string(16 << 10, ' ')),
      "score_mod: the text has 16385 bytes and 16384 are allowed; move part of it into a tensor");
}

TEST(ExpressionParse, CanonicalText) {
  const auto print = [](std::string_view text) {
    return parse_text(Kind::score_mod, text).value().str();
  };
  EXPECT_EQ(print("((score))+slope [ h ]*(k-q_pos)"), "score + slope[h] * (k - q_pos)");
  EXPECT_EQ(print("cap*tanh(score/cap)"), "cap * tanh(score / cap)");
  EXPECT_EQ(print("1-(2-3)-(4-5)"), "1 - (2 - 3) - (4 - 5)");
  EXPECT_EQ(print("(1*2)+(3/4)%5"), "1 * 2 + 3 / 4 % 5");
  EXPECT_EQ(print("-(-score)*-(1+2)"), "--score * -(1 + 2)");
  EXPECT_EQ(print("(q>k?true:false)?(q<k?1:2):(q==k?3:4)"),
            "(q > k ? true : false) ? q < k ? 1 : 2 : q == k ? 3 : 4");
  EXPECT_EQ(print("!(q>k&&(q>1||k>1))||keep[k]?1.50:inf"),
            "!(q > k && (q > 1 || k > 1)) || keep[k] ? 1.5 : inf");
  EXPECT_EQ(print("1.0+1e20+1e-20+0.1"), "1.0 + 1e+20 + 1e-20 + 0.1");
  EXPECT_EQ(print("doc[b,k]+max(q,k)"), "doc[b, k] + max(q, k)");
}

TEST(ExpressionParse, NamesAreChecked) {
  const auto message = [](std::vector<ExpressionTensor> tensors, std::vector<std::string> scalars) {
    return Program::parse(Kind::score_mod, "score", tensors, scalars).status().message();
  };
  EXPECT_EQ(message({{"", DType::fp32, 1}}, {}),
            "tensors: '' is not a name; use a letter or underscore, then letters, digits and "
            "underscores, 64 at most");
  EXPECT_EQ(message({}, {"2x"}).substr(0, 28), "scalars: '2x' is not a name;");
  EXPECT_EQ(message({}, {std::string(65, 'x')}).substr(0, 13), "scalars: 'xxx");
  EXPECT_EQ(message({{"k", DType::fp32, 1}}, {}),
            "tensors: 'k' is a word of the language; choose another name");
  EXPECT_EQ(message({}, {"tanh"}),
            "scalars: 'tanh' is a word of the language; choose another name");
  EXPECT_EQ(message({{"a", DType::fp32, 1}}, {"a"}),
            "scalars: 'a' is given twice; names of tensors and scalars must all differ");
  EXPECT_EQ(message({{"a", DType::fp32, 5}}, {}),
            "tensors: 'a' has rank 5; an expression reads tensors of rank 1 to 4");
  EXPECT_EQ(message({{"a", DType::fp32, 0}}, {}),
            "tensors: 'a' has rank 0; an expression reads tensors of rank 1 to 4");
  EXPECT_EQ(message({{"a", DType::bf16, 1}}, {}),
            "tensors: 'a' has a dtype that an expression cannot read; convert it to fp32, int32 or "
            "boolean");
  EXPECT_EQ(message({{"a", DType::int32, 1, true}}, {}),
            "tensors: 'a' asks for a gradient and is not fp32; only fp32 tensors have gradients");
}

TEST(ExpressionParse, WhatNoExpressionReadsIsRefused) {
  Problem problem;
  problem.tensors = {{"doc", DType::int32, 1}, {"slope", DType::fp32, 1}};
  problem.scalars = {"cap"};
  problem.mask_mod = "doc[q] == doc[k]";
  problem.score_mod = "cap * score";
  EXPECT_EQ(parse(problem).status().message(),
            "tensors: 'slope' is read by neither score_mod nor mask_mod; remove it or use it");
  problem.score_mod = "score + slope[h]";
  EXPECT_EQ(parse(problem).status().message(),
            "scalars: 'cap' is read by neither score_mod nor mask_mod; remove it or use it");
  problem.score_mod = "cap * score + slope[h]";
  const Modifications modifications = parse(problem).value();
  EXPECT_TRUE(modifications.score_mod && modifications.mask_mod);
  problem.score_mod = "cap * ";
  EXPECT_EQ(parse(problem).status().argument(), "score_mod");
}

}  // namespace
}  // namespace sirdar::expression
