// The output is linear in V and the weights of a row sum to one.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "support/call.h"

namespace sirdar::test {
namespace {

Problem random_problem() {
  Problem p;
  p.batch = 2;
  p.seqlen_q = *rc::gen::inRange<int64_t>(1, 40);
  p.seqlen_k = *rc::gen::inRange<int64_t>(1, 70);
  p.num_heads_q = 2;
  p.head_dim = *rc::gen::inRange<int64_t>(1, 20);
  p.head_dim_v = *rc::gen::inRange<int64_t>(1, 40);
  p.mask.is_causal = *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>()) p.softcap = 5;
  p.needs_lse = true;
  return p;
}

// Scaling by a power of two is exact, so the bits must follow.
RC_GTEST_PROP(ValueLinearity, PowersOfTwoScaleTheBits, ()) {
  const Problem p = random_problem();
  Call one(p), eight(p);
  for (int64_t n = 0; n < one.v.size(); ++n) eight.v.set_flat(n, 8 * one.v.flat(n));
  for (const Variant& variant : few_variants(p)) {
    RC_ASSERT(one.run(variant).ok());
    RC_ASSERT(eight.run(variant).ok());
    for (int64_t n = 0; n < one.out.size(); ++n) {
      RC_ASSERT(eight.out.flat(n) == 8 * one.out.flat(n));
    }
  }
}

RC_GTEST_PROP(ValueLinearity, TheSumOfValuesGivesTheSumOfOutputs, ()) {
  const Problem p = random_problem();
  Call a(p), b(p), sum(p);
  b.v.fill_random(99);
  for (int64_t n = 0; n < a.v.size(); ++n) sum.v.set_flat(n, a.v.flat(n) + b.v.flat(n));
  for (const Variant& variant : few_variants(p)) {
    RC_ASSERT(a.run(variant).ok());
    RC_ASSERT(b.run(variant).ok());
    RC_ASSERT(sum.run(variant).ok());
    std::vector<double> expected = a.out.values();
    for (size_t n = 0; n < expected.size(); ++n) expected[n] += b.out.flat(static_cast<int64_t>(n));
    RC_ASSERT(close(sum.out.values(), expected));
  }
}

RC_GTEST_PROP(ValueLinearity, ValuesOfOneGiveOne, ()) {
  Problem p = random_problem();
  Call call(p);
  call.v.fill(1);
  for (const Variant& variant : few_variants(p)) {
    RC_ASSERT(call.run(variant).ok());
    for (int64_t n = 0; n < call.out.size(); ++n) {
      const int64_t row = n / p.value_dim();
      const int64_t h = row % 2, i = row / 2 % p.seqlen_q, b = row / 2 / p.seqlen_q;
      const bool empty = call.lse.flat(call.statistic(b, h, i)) < -1e300;
      if (empty) RC_ASSERT(call.out.flat(n) == 0);
      if (!empty) RC_ASSERT(std::fabs(call.out.flat(n) - 1) < 16 * 0x1p-23);
    }
  }
}

}  // namespace
}  // namespace sirdar::test
