// Strides say where elements lie, nothing else: contiguous, transposed, padded, reversed and
// broadcast memory give the same bits.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "support/call.h"

namespace sirdar::test {
namespace {

enum class Placing { contiguous, heads_first, padded, reversed };

Tensor place(const Tensor& from, Placing placing) {
  const Shape& s = from.shape();
  const int64_t heads_axis = static_cast<int64_t>(s.size()) - 2;
  Shape stride(s.size(), 1);
  const auto axes = [&](std::vector<int64_t> fastest_first, int64_t gap) {
    int64_t next = 1;
    for (const int64_t axis : fastest_first) {
      stride[static_cast<size_t>(axis)] = next;
      next = next * std::max<int64_t>(1, s[static_cast<size_t>(axis)]) + gap;
    }
  };
  const int64_t last = heads_axis + 1;
  std::vector<int64_t> usual{last, heads_axis, heads_axis - 1},
      swapped{last, heads_axis - 1, heads_axis};
  if (heads_axis == 2) usual.push_back(0), swapped.push_back(0);
  axes(placing == Placing::heads_first ? swapped : usual, placing == Placing::padded ? 5 : 0);
  if (placing == Placing::reversed) {
    for (size_t axis = 0; axis + 1 < stride.size(); ++axis) stride[axis] = -stride[axis];
  }
  Tensor to(from.view().dtype, s, stride);
  for (int64_t n = 0; n < from.size(); ++n) to.set_flat(n, from.flat(n));
  return to;
}

class StridesDoNotMatter : public ::testing::TestWithParam<const char*> {};

TEST_P(StridesDoNotMatter, BitForBit) {
  Call base(GetParam());
  if (base.problem.op == Op::backward) base.run_forward_first();
  const auto inputs = [](Call& call) {
    return std::vector<Tensor*>{&call.q, &call.k, &call.v, &call.dout};
  };
  const auto outputs = [](Call& call) {
    return std::vector<Tensor*>{&call.out, &call.dq, &call.dk, &call.dv};
  };
  for (const Variant& variant : few_variants(base.problem)) {
    ASSERT_TRUE(base.run(variant).ok());
    const std::vector<uint8_t> expected = base.output_bits();
    for (const Placing in :
         {Placing::contiguous, Placing::heads_first, Placing::padded, Placing::reversed}) {
      for (const Placing out : {Placing::contiguous, Placing::heads_first, Placing::padded}) {
        SCOPED_TRACE(variant.str() + " in " + std::to_string(static_cast<int>(in)) + " out " +
                     std::to_string(static_cast<int>(out)));
        Call call = base;
        for (Tensor* tensor : inputs(call)) {
          if (tensor->present()) *tensor = place(*tensor, in);
        }
        for (Tensor* tensor : outputs(call)) {
          if (tensor->present()) *tensor = place(*tensor, out);
        }
        ASSERT_TRUE(call.run(variant).ok());
        EXPECT_EQ(call.output_bits(), expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Problems, StridesDoNotMatter,
    ::testing::Values("fwd b2 sq17 sk33 hq4 hkv2 d16 fp32 causal lse max_logit",
                      "fwd b2 sq17 sk33 hq4 hkv2 d7 dv5 fp32 lse",
                      "fwd b2 sq17 sk33 hq4 hkv2 d16 bf16 lse",
                      "fwd b3 sq20 sk20 hq2 hkv2 d16 fp32 ragged_q:45 ragged_k:50 lse",
                      "fwd b2 sq5 sk20 hq2 hkv2 d16 fp32 paged8 causal lse",
                      "bwd b2 sq9 sk17 hq4 hkv2 d16 fp32 causal",
                      "bwd b2 sq17 sk140 hq4 hkv2 d7 dv5 bf16",
                      "bwd b2 sq17 sk33 hq2 hkv2 d33 fp16",
                      "bwd b3 sq20 sk20 hq2 hkv2 d16 fp32 ragged_q:45 ragged_k:50"),
    named_after_problem);

// B057: K and V expanded over heads and batch by zero strides, for every kv length around tiles.
TEST(StridesDoNotMatterBroadcast, ZeroStridesAreCopies) {
  for (int64_t seqlen_k = 1; seqlen_k <= 130; seqlen_k += seqlen_k < 30 ? 7 : 1) {
    const std::string text =
        "fwd b2 sq7 sk" + std::to_string(seqlen_k) + " hq3 hkv3 d16 fp32 mask:qk lse";
    Call expanded(text), copied(text);
    for (auto [to, from] : {std::pair(&expanded.k, &copied.k), std::pair(&expanded.v, &copied.v)}) {
      *to = Tensor(DType::fp32, {2, seqlen_k, 3, 16}, {0, 16, 0, 1}).fill_random(3);
      for (int64_t n = 0; n < from->size(); ++n) from->set_flat(n, to->flat(n));
    }
    for (const Variant& variant : few_variants(expanded.problem)) {
      SCOPED_TRACE(text + " " + variant.str());
      ASSERT_TRUE(expanded.run(variant).ok());
      ASSERT_TRUE(copied.run(variant).ok());
      EXPECT_EQ(expanded.output_bits(), copied.output_bits());
    }
  }
}

// Bias and mask may have any stride on every axis, the last included (B064).
RC_GTEST_PROP(StridesDoNotMatterBias, AnyOrderOfAxes, ()) {
  Call base("fwd b2 sq9 sk20 hq3 hkv3 d8 fp32 bias mask lse");
  Call moved = base;
  std::vector<int64_t> order =
      *rc::gen::element(std::vector<int64_t>{0, 1, 2, 3}, std::vector<int64_t>{3, 2, 1, 0},
                        std::vector<int64_t>{2, 0, 3, 1}, std::vector<int64_t>{1, 3, 0, 2});
  for (Tensor* tensor : {&moved.bias, &moved.mask}) {
    const Tensor from = *tensor;
    Shape stride(4);
    int64_t next = *rc::gen::element<int64_t>(1, 2);
    for (const int64_t axis : order) {
      stride[static_cast<size_t>(axis)] = next;
      next *= from.shape()[static_cast<size_t>(axis)];
    }
    if (*rc::gen::arbitrary<bool>()) stride[3] = -stride[3];
    *tensor = Tensor(from.view().dtype, from.shape(), stride);
    for (int64_t n = 0; n < from.size(); ++n) tensor->set_flat(n, from.flat(n));
  }
  for (const Variant& variant : few_variants(base.problem)) {
    RC_ASSERT(base.run(variant).ok());
    const std::vector<uint8_t> expected = base.output_bits();
    RC_ASSERT(moved.run(variant).ok());
    RC_ASSERT(moved.output_bits() == expected);
  }
}

}  // namespace
}  // namespace sirdar::test
