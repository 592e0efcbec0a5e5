// Random masks of ints and bools through the whole CPU forward and backward, where their bounds
// decide which keys are read at all, against float64 that looks at every pair.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "check/run_check.h"
#include "expression/ast.h"
#include "support/random_expression.h"

namespace sirdar::testing {
namespace {

using expression::Kind;
using expression::Program;

// A problem with the text as its mask_mod that declares what it reads and no more.
Problem problem_with(const Program& mask, const ExpressionWorld& world, Op op) {
  Problem problem;
  problem.op = op;
  problem.batch = 1 + below(2);
  problem.seqlen_q = 1 + below(60);
  problem.seqlen_k = 1 + below(400);
  problem.num_heads_kv = 1 + below(2);
  problem.num_heads_q = problem.num_heads_kv * (1 + below(3));
  problem.head_dim = 8;
  problem.mask.is_causal = below(3) == 0;
  problem.mask_mod = mask.str();
  for (size_t t = 0; t < world.tensors.size(); ++t)
    if (mask.reads_tensor(t)) problem.tensors.push_back(world.tensors[t]);
  return problem;
}

bool is_exact(const Program& program) {
  return std::ranges::none_of(program.tree().nodes, [](const expression::Node& node) {
    return node.type == expression::Type::real;
  });
}

void expect_attention(Op op, const char* implementation) {
  const ExpressionWorld world;
  const Program mask = random_program(world, Kind::mask_mod);
  RC_PRE(is_exact(mask));
  PlanOptions options;
  options.implementation = implementation;
  const check::Report report = check::check(problem_with(mask, world, op), options, 1);
  RC_LOG() << report.text << std::endl;
  RC_ASSERT(report.ok);
}

RC_GTEST_PROP(ExpressionAttention, HiddenKeysAreLeftOut, ()) {
  expect_attention(Op::forward, "cpu.forward");
}

RC_GTEST_PROP(ExpressionAttention, HiddenKeysHaveNoGradient, ()) {
  expect_attention(Op::backward, "cpu.backward");
}

}  // namespace
}  // namespace sirdar::testing
