// Attention over any split of the keys, merged, is attention over all of them; and the backward
// pass of each part, taken at the merged out and lse, sums to the whole gradient.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fmt/format.h>

#include <cmath>

#include "check/compare.h"
#include "support/call.h"

namespace sirdar::test {
namespace {

constexpr int kParts = 3;

Problem random_problem(Op op) {
  Problem p;
  p.op = op;
  p.batch = 2;
  p.seqlen_q = *rc::gen::inRange<int64_t>(1, 20);
  p.seqlen_k = *rc::gen::inRange<int64_t>(1, 50);
  p.num_heads_q = 2;
  p.head_dim = *rc::gen::inRange<int64_t>(1, 33);
  p.has_mask_tensor = true;
  p.mask_axes = {false, false, true, true};
  p.mask.is_causal = *rc::gen::arbitrary<bool>();
  p.needs_lse = op == Op::forward;
  return p;
}

// part[i * seqlen_k + j] says which split owns a pair; -1: nobody sees it. Some splits see nothing.
std::vector<int> random_parts(const Problem& p, uint64_t seed) {
  Random random(seed);
  std::vector<int> parts;
  const int64_t fewest = random.between(-1, kParts - 1);
  for (int64_t n = 0; n < p.seqlen_q * p.seqlen_k; ++n) {
    parts.push_back(static_cast<int>(random.between(fewest, kParts - 1)));
  }
  return parts;
}

void show(Call* call, const std::vector<int>& parts, int which) {
  for (size_t n = 0; n < parts.size(); ++n) {
    const bool visible = which < 0 ? parts[n] >= 0 : parts[n] == which;
    call->mask.set_flat(static_cast<int64_t>(n), visible);
  }
}

MergeArgs merge_args(const Call& a, const Call& b, const Call& into) {
  MergeArgs args;
  args.out_a = a.out, args.lse_a = a.lse, args.out_b = b.out, args.lse_b = b.lse;
  args.out = into.out, args.lse = into.lse;
  return args;
}

RC_GTEST_PROP(SplitMerge, MergedPartsEqualTheWhole, ()) {
  const Problem p = random_problem(Op::forward);
  const auto parts = random_parts(p, *rc::gen::arbitrary<uint32_t>());
  for (const Variant& variant : few_variants(p)) {
    Call whole(p), merged(p);
    show(&whole, parts, -1);
    RC_ASSERT(whole.run(variant).ok());
    show(&merged, parts, 0);
    RC_ASSERT(merged.run(variant).ok());
    for (int which = 1; which < kParts; ++which) {
      Call part(p);
      show(&part, parts, which);
      RC_ASSERT(part.run(variant).ok());
      const Status status = merge(merge_args(merged, part, merged));
      RC_ASSERT(status.ok());
    }
    RC_ASSERT(close(merged.out.values(), whole.out.values()));
    RC_ASSERT(close(merged.lse.values(), whole.lse.values()));
  }
}

// The parts and the whole share the caller's lse, whose rounding the whole may leave out of account
// and a part cannot; either may be off by what is allowed for the whole (check/compare.h). Empty,
// or what differs.
std::string gradients_of_parts(const Problem& p, const std::vector<int>& parts) {
  for (const Variant& variant : few_variants(p)) {
    Call whole(p);
    show(&whole, parts, -1);
    whole.run_forward_first();
    if (!whole.run(variant).ok()) return variant.str() + ": the whole was not computed";
    std::vector<std::vector<double>> sums;
    for (const Tensor* tensor : {&whole.dq, &whole.dk, &whole.dv})
      sums.emplace_back(static_cast<size_t>(tensor->size()));
    for (int which = 0; which < kParts; ++which) {
      Call part(p);
      show(&part, parts, which);
      part.out = whole.out;
      part.lse = whole.lse;
      if (!part.run(variant).ok()) return variant.str() + ": a part was not computed";
      const Tensor* gradients[] = {&part.dq, &part.dk, &part.dv};
      for (size_t t = 0; t < sums.size(); ++t)
        for (size_t n = 0; n < sums[t].size(); ++n)
          sums[t][n] += gradients[t]->flat(static_cast<int64_t>(n));
    }
    const auto expected = check::expected_outputs(p, whole.args());
    const Tensor* gradients[] = {&whole.dq, &whole.dk, &whole.dv};
    for (size_t t = 0; t < sums.size(); ++t)
      for (size_t n = 0; n < sums[t].size(); ++n) {
        const double error = std::fabs(sums[t][n] - gradients[t]->flat(static_cast<int64_t>(n)));
        if (!(error <= 2 * expected[t].allowed[n]))
          return fmt::format("{}: {} element {} differs by {}, allowed are {}", variant.str(),
                             expected[t].name, n, error, 2 * expected[t].allowed[n]);
      }
  }
  return "";
}

RC_GTEST_PROP(SplitMerge, GradientsAtTheMergedStateSumToTheWhole, ()) {
  const Problem p = random_problem(Op::backward);
  const auto parts = random_parts(p, *rc::gen::arbitrary<uint32_t>());
  RC_ASSERT(gradients_of_parts(p, parts) == std::string());
}

// Parts of dk are three times as large as their sum, and the rounding of lse is all of the error.
TEST(SplitMerge, GradientsOfPartsThatCancel) {
  Problem p;
  p.op = Op::backward;
  p.batch = 2;
  p.seqlen_q = 13;
  p.seqlen_k = 19;
  p.num_heads_q = 2;
  p.head_dim = 9;
  p.has_mask_tensor = true;
  p.mask_axes = {false, false, true, true};
  EXPECT_EQ(gradients_of_parts(p, random_parts(p, 18630641)), "");
}

// A prefix and a suffix given as two calls over slices of K and V (B148, B151).
RC_GTEST_PROP(SplitMerge, APrefixAndASuffixEqualOnePass, ()) {
  Problem p;
  p.batch = 2;
  p.seqlen_q = *rc::gen::inRange<int64_t>(1, 9);
  p.seqlen_k = *rc::gen::inRange<int64_t>(10, 90);
  p.num_heads_q = 4;
  p.num_heads_kv = 2;
  p.head_dim = 16;
  p.mask = Mask::causal();
  p.needs_lse = true;
  const int64_t prefix = *rc::gen::inRange<int64_t>(0, p.seqlen_k - p.seqlen_q);
  Problem first = p, second = p;
  first.seqlen_k = prefix;
  first.mask = Mask::full();
  second.seqlen_k = p.seqlen_k - prefix;
  for (const Variant& variant : few_variants(p)) {
    Call whole(p), head(first), tail(second);
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t j = 0; j < p.seqlen_k; ++j) {
        const bool early = j < prefix;
        const Call& part = early ? head : tail;
        const int64_t row = early ? part.key_row(b, j) : part.key_row(b, j - prefix);
        copy_row(part.k, row, whole.k, whole.key_row(b, j));
        copy_row(part.v, row, whole.v, whole.key_row(b, j));
      }
    }
    RC_ASSERT(whole.run(variant).ok());
    RC_ASSERT(head.run(variant).ok());
    RC_ASSERT(tail.run(variant).ok());
    const Status status = merge(merge_args(head, tail, head));
    RC_ASSERT(status.ok());
    RC_ASSERT(close(head.out.values(), whole.out.values()));
    RC_ASSERT(close(head.lse.values(), whole.lse.values()));
  }
}

}  // namespace
}  // namespace sirdar::test
