// Query head h uses K/V head h / group_size: the same as repeating every K/V head for its group.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "support/call.h"

namespace sirdar::test {
namespace {

// The same call with every K/V head copied group_size times.
Call repeated(const Call& call) {
  Problem p = call.problem;
  p.num_heads_kv = p.num_heads_q;
  Call result(p);
  const int64_t group = call.problem.group_size();
  const auto repeat = [&](Tensor& to, const Tensor& from) {
    to.fill_by([&](const int64_t* c) { return from.at({c[0], c[1], c[2] / group, c[3]}); });
  };
  repeat(result.k, call.k);
  repeat(result.v, call.v);
  return result;
}

// B086, B087, B088, B090: groups of 7, 16 and 24 and heads that are not a square.
Problem random_problem(Op op) {
  Problem p;
  p.op = op;
  p.batch = 2;
  p.seqlen_q = *rc::gen::inRange<int64_t>(1, 7);
  p.seqlen_k = *rc::gen::inRange<int64_t>(1, 40);
  p.num_heads_kv = *rc::gen::inRange<int64_t>(1, 4);
  p.num_heads_q = p.num_heads_kv * *rc::gen::element<int64_t>(1, 2, 3, 7, 16, 24);
  p.head_dim = *rc::gen::inRange<int64_t>(1, 20);
  p.head_dim_v = *rc::gen::inRange<int64_t>(1, 20);
  if (*rc::gen::arbitrary<bool>()) p.mask = Mask::causal();
  p.needs_lse = op == Op::forward;
  return p;
}

RC_GTEST_PROP(GqaEqualsRepeatedHeads, Forward, ()) {
  Call grouped(random_problem(Op::forward));
  Call full = repeated(grouped);
  for (const Variant& variant : few_variants(grouped.problem)) {
    RC_ASSERT(grouped.run(variant).ok());
    RC_ASSERT(full.run(variant).ok());
    RC_ASSERT(close(grouped.out.values(), full.out.values()));
    RC_ASSERT(close(grouped.lse.values(), full.lse.values()));
  }
}

RC_GTEST_PROP(GqaEqualsRepeatedHeads, GradientsOfTheGroupAreSummed, ()) {
  Call grouped(random_problem(Op::backward));
  Call full = repeated(grouped);
  grouped.run_forward_first();
  full.run_forward_first();
  const auto sum_groups = [&](const Tensor& tensor) {
    const int64_t group = grouped.problem.group_size();
    Tensor sums(DType::fp32, {tensor.shape()[0], tensor.shape()[1], tensor.shape()[2] / group,
                              tensor.shape()[3]});
    sums.fill_by([&](const int64_t* c) {
      double sum = 0;
      for (int64_t g = 0; g < group; ++g) sum += tensor.at({c[0], c[1], c[2] * group + g, c[3]});
      return sum;
    });
    return sums.values();
  };
  for (const Variant& variant : few_variants(grouped.problem)) {
    RC_ASSERT(grouped.run(variant).ok());
    RC_ASSERT(full.run(variant).ok());
    RC_ASSERT(close(grouped.dq.values(), full.dq.values()));
    RC_ASSERT(close(grouped.dk.values(), sum_groups(full.dk)));
    RC_ASSERT(close(grouped.dv.values(), sum_groups(full.dv)));
  }
}

}  // namespace
}  // namespace sirdar::test
