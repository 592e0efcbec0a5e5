// Expressions built in C++ print what the parser reads and the tree of it prints.
#include <gtest/gtest.h>

#include <sirdar/expression.hpp>

#include <cmath>
#include <limits>

#include "expression/expression.h"

namespace sirdar::expressions {
namespace {

const Tensor doc{"doc", DType::int32, 2}, table{"table", DType::fp32, 2, true},
    prefix{"prefix", DType::int32, 1};
const Scalar cap{"cap"};

// The problem's text is what was built, and a problem that is valid.
void expect(const Expression& value, const std::string& text, bool is_mask) {
  EXPECT_EQ(value.str(), text);
  Problem problem;
  problem.seqlen_q = problem.seqlen_k = 16;
  if (!value.tensors().empty() && value.tensors()[0].needs_grad) problem.op = Op::backward;
  const Status status = is_mask ? set_mask_mod(problem, value) : set_score_mod(problem, value);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(problem.validate().ok()) << problem.validate().message();
  EXPECT_EQ(is_mask ? problem.mask_mod : problem.score_mod, text);
  const auto parsed = expression::parse(problem);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ((is_mask ? parsed.value().mask_mod : parsed.value().score_mod)->str(), text);
}
void expect_mask(const Expression& value, const std::string& text) { expect(value, text, true); }
void expect_score(const Expression& value, const std::string& text) { expect(value, text, false); }

TEST(ExpressionBuild, Masks) {
  expect_mask(q_pos >= k, "q_pos >= k");
  expect_mask(q_pos >= k && (k < 4 || q_pos - k < 256), "q_pos >= k && (k < 4 || q_pos - k < 256)");
  expect_mask(q_pos >= k && doc(b, q) == doc(b, k), "q_pos >= k && doc[b, q] == doc[b, k]");
  expect_mask(k < prefix(b) || k <= q_pos, "k < prefix[b] || k <= q_pos");
  expect_mask(!((q_pos - k) % 4 == 0) != true, "!((q_pos - k) % 4 == 0) != true");
  expect_mask(Expression(false), "false");
}

TEST(ExpressionBuild, Scores) {
  expect_score(cap * tanh(score / cap), "cap * tanh(score / cap)");
  expect_score(score + table(h, min(max(q_pos - k, -128), 128) + 128),
               "score + table[h, min(max(q_pos - k, -128), 128) + 128]");
  expect_score(select(q > k, score, select(h == 1, score * 2, -INFINITY)),
               "q > k ? score : h == 1 ? score * 2 : -inf");
  expect_score(select(select(q > k, true, h == 0), score, 0.5),
               "(q > k ? true : h == 0) ? score : 0.5");
  expect_score(score - (score - (score + 1)) * 2.0f, "score - (score - (score + 1)) * 2.0");
  expect_score(abs(-score) + floor(exp(exp2(log(sigmoid(sqrt(score)))))),
               "abs(-score) + floor(exp(exp2(log(sigmoid(sqrt(score))))))");
}

TEST(ExpressionBuild, Numbers) {
  expect_score(score * 1e-7, "score * 1e-07");
  expect_score(score * -3.0, "score * -3.0");
  expect_score(score + std::numeric_limits<int32_t>::min(), "score + (-2147483647 - 1)");
  expect_score(score + 2147483647u, "score + 2147483647");
  EXPECT_NE(Expression(int64_t{1} << 31).status().message(), "");
  EXPECT_NE((score + NAN).status().message(), "");
}

TEST(ExpressionBuild, WhatIsWrongIsSaidAndTheProblemKept) {
  Problem problem;
  const Problem before = problem;
  EXPECT_EQ(set_mask_mod(problem, q_pos + k).message().substr(0, 9), "mask_mod:");
  EXPECT_NE(set_mask_mod(problem, score > 0).message().find("column 1"), std::string::npos);
  EXPECT_NE(set_mask_mod(problem, doc(b) == 0).message().find("rank 2"), std::string::npos);
  EXPECT_NE(set_mask_mod(problem, prefix(b) == Tensor{"prefix"}(b)).message().find("twice"),
            std::string::npos);
  EXPECT_FALSE(set_score_mod(problem, score + Scalar{"no name"}).ok());
  EXPECT_FALSE(set_score_mod(problem, score + Scalar{"exp"}).ok());
  EXPECT_EQ(problem, before);
  ASSERT_TRUE(set_score_mod(problem, score + prefix(b)).ok());
  EXPECT_NE(set_mask_mod(problem, prefix(b, 0) > 1).message(), "");
  EXPECT_NE(set_mask_mod(problem, Tensor{"prefix"}(b) > 1).message().find("twice"),
            std::string::npos);
  // One name may serve both.
  ASSERT_TRUE(set_mask_mod(problem, prefix(b) > k).ok());
  EXPECT_EQ(problem.tensors.size(), 1u);
}

TEST(ExpressionBuild, TextsDoNotGrowWithoutEnd) {
  Expression sum = score;
  for (int n = 0; n < 200; ++n) sum = sum + sum;
  EXPECT_NE(sum.status().message().find("16384 bytes"), std::string::npos);
  EXPECT_LT(sum.str().size(), 20000u);
  Expression deep = score;
  for (int n = 0; n < 300; ++n) deep = -deep;
  Problem problem;
  EXPECT_NE(set_score_mod(problem, deep).message().find("column"), std::string::npos);
}

}  // namespace
}  // namespace sirdar::expressions
