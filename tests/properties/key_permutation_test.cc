// Without a mask that speaks of positions, the order of keys has no meaning: permuting keys, values
// and the columns of bias and mask together changes no output and permutes dk and dv.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "support/call.h"

namespace sirdar::test {
namespace {

std::vector<int64_t> random_permutation(int64_t n, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
  Random random(seed);
  for (int64_t i = n - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(random.between(0, i))]);
  }
  return order;
}

// A call over the same sequence with key j at place order[j].
Call permuted(const Call& call, const std::vector<int64_t>& order) {
  Call result(call.problem);
  const Problem& p = call.problem;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t j = 0; j < p.seqlen_k; ++j) {
      const int64_t place = order[static_cast<size_t>(j)];
      copy_row(result.k, call.key_row(b, place), call.k, call.key_row(b, j));
      copy_row(result.v, call.key_row(b, place), call.v, call.key_row(b, j));
    }
  }
  const auto move_columns = [&](Tensor& to, const Tensor& from) {
    for (int64_t n = 0; n < from.size(); ++n) {
      const int64_t j = n % p.seqlen_k;
      to.set_flat(n - j + order[static_cast<size_t>(j)], from.flat(n));
    }
  };
  if (p.has_bias) move_columns(result.bias, call.bias);
  if (p.has_mask_tensor) move_columns(result.mask, call.mask);
  return result;
}

Problem random_problem() {
  Problem p;
  p.batch = 2;
  p.seqlen_q = *rc::gen::inRange<int64_t>(1, 20);
  p.seqlen_k = *rc::gen::inRange<int64_t>(1, 70);
  p.num_heads_q = 2;
  p.head_dim = *rc::gen::inRange<int64_t>(1, 33);
  p.has_bias = *rc::gen::arbitrary<bool>();
  p.has_mask_tensor = *rc::gen::arbitrary<bool>();
  p.needs_lse = true;
  return p;
}

RC_GTEST_PROP(KeyPermutation, ForwardDoesNotSeeTheOrder, ()) {
  Call call(random_problem());
  Call moved =
      permuted(call, random_permutation(call.problem.seqlen_k, *rc::gen::arbitrary<uint32_t>()));
  for (const Variant& variant : few_variants(call.problem)) {
    RC_ASSERT(call.run(variant).ok());
    RC_ASSERT(moved.run(variant).ok());
    RC_ASSERT(close(moved.out.values(), call.out.values()));
    RC_ASSERT(close(moved.lse.values(), call.lse.values()));
  }
}

RC_GTEST_PROP(KeyPermutation, GradientsOfKeysFollowThem, ()) {
  Problem p = random_problem();
  p.op = Op::backward;
  p.needs_lse = false;
  Call call(p);
  const auto order = random_permutation(p.seqlen_k, *rc::gen::arbitrary<uint32_t>());
  Call moved = permuted(call, order);
  call.run_forward_first();
  moved.run_forward_first();
  for (const Variant& variant : few_variants(p)) {
    RC_ASSERT(call.run(variant).ok());
    RC_ASSERT(moved.run(variant).ok());
    RC_ASSERT(close(moved.dq.values(), call.dq.values()));
    Call expected(p);
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t j = 0; j < p.seqlen_k; ++j) {
        const int64_t place = call.key_row(b, order[static_cast<size_t>(j)]);
        copy_row(expected.dk, place, call.dk, call.key_row(b, j));
        copy_row(expected.dv, place, call.dv, call.key_row(b, j));
      }
    }
    RC_ASSERT(close(moved.dk.values(), expected.dk.values()));
    RC_ASSERT(close(moved.dv.values(), expected.dv.values()));
  }
}

}  // namespace
}  // namespace sirdar::test
