// Views with unusual strides: axes of one entry, slices of larger tensors, fused tensors.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// B058: strides of axes with one entry are not looked at, the last axis included.
TEST(Strides, OfAxesWithOneEntryMeanNothing) {
  for (const int64_t odd :
       {int64_t{2}, int64_t{0}, int64_t{-7}, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min()}) {
    Problem p = Problem::parse("fwd b1 sq2 sk1 hq1 hkv1 d1 fp32").value();
    float q[] = {1, 2}, k[] = {1}, v[] = {1}, out[] = {-9, -9};
    Args args;
    args.q = TensorView::strided(q, DType::fp32, {1, 2, 1, 1}, {odd, 1, odd, odd});
    args.k = TensorView::strided(k, DType::fp32, {1, 1, 1, 1}, {odd, odd, odd, odd});
    args.v = TensorView::strided(v, DType::fp32, {1, 1, 1, 1}, {odd, odd, odd, odd});
    args.out = TensorView::strided(out, DType::fp32, {1, 2, 1, 1}, {odd, 1, odd, odd});
    for (const Variant& variant : variants(p)) {
      SCOPED_TRACE(variant.str() + " stride " + std::to_string(odd));
      const Plan plan = Plan::create(p, variant.options()).value();
      std::vector<std::byte> space(plan.workspace_bytes() + 64);
      void* start = space.data();
      size_t room = space.size();
      args.workspace = std::align(64, plan.workspace_bytes(), start, room);
      args.workspace_bytes = plan.workspace_bytes();
      const Status status = plan.run(args);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(out[0], 1);
      EXPECT_EQ(out[1], 1);
    }
  }
}

// B059: K and V are the first rows of longer tensors; gradients go into the same slice of zeros.
TEST(Strides, SlicesAlongTheSequence) {
  const std::string text = "bwd b1 sq64 sk50 hq4 hkv4 d16 fp32";
  Call copied(text), sliced(text);
  // [batch, heads, 64, 16] in memory, of which 50 rows are used.
  const Shape stride{4 * 64 * 16, 16, 64 * 16, 1}, shape{1, 50, 4, 16};
  for (auto member : {&Call::k, &Call::v, &Call::dk, &Call::dv}) {
    Tensor slice(DType::fp32, shape, stride);
    for (int64_t n = 0; n < slice.size(); ++n) slice.set_flat(n, (copied.*member).flat(n));
    sliced.*member = slice;
  }
  copied.run_forward_first();
  sliced.run_forward_first();
  for (const Variant& variant : variants(copied.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(copied.run(variant).ok());
    ASSERT_TRUE(sliced.run(variant).ok());
    EXPECT_EQ(sliced.output_bits(), copied.output_bits());
    EXPECT_TRUE(sliced.dk.gaps_intact());
  }
}

// B062: q, k and v are thirds of one fused tensor [batch, seqlen, 3, heads, dim].
TEST(Strides, FusedTensors) {
  Call copied("fwd b2 sq17 sk17 hq2 hkv2 d8 fp32 causal lse"),
      fused("fwd b2 sq17 sk17 hq2 hkv2 d8 fp32 causal lse");
  std::vector<float> memory(2 * 17 * 3 * 16);
  const auto third = [&](int64_t which, const Tensor& from) {
    TensorView view = TensorView::strided(memory.data() + which * 16, DType::fp32, {2, 17, 2, 8},
                                          {17 * 48, 48, 8, 1});
    for (int64_t n = 0; n < from.size(); ++n) {
      memory[static_cast<size_t>(n / 16 * 48 + which * 16 + n % 16)] =
          static_cast<float>(from.flat(n));
    }
    return view;
  };
  const TensorView q = third(0, copied.q), k = third(1, copied.k), v = third(2, copied.v);
  for (const Variant& variant : variants(copied.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(copied.run(variant).ok());
    const Plan plan = Plan::create(fused.problem, variant.options()).value();
    Args args = fused.args();
    args.q = q, args.k = k, args.v = v;
    std::vector<std::byte> space(plan.workspace_bytes() + 64);
    void* start = space.data();
    size_t room = space.size();
    args.workspace = std::align(64, plan.workspace_bytes(), start, room);
    args.workspace_bytes = plan.workspace_bytes();
    ASSERT_TRUE(plan.run(args).ok());
    EXPECT_EQ(fused.output_bits(), copied.output_bits());
  }
}

// B063, B147: one query, many keys, heads in groups: outputs with rows apart, statistics per head
// and sequence where they belong.
TEST(Strides, StatisticsOfOneQueryGoToTheirHeadAndSequence) {
  for (const char* heads : {"hq8 hkv1", "hq8 hkv8"}) {
    Call call(std::string("fwd b3 sq1 sk300 d8 fp32 lse max_logit ") + heads);
    make_uniform(call);
    call.lse = Tensor(DType::fp32, {3, 8, 1}, {1, 5, 1});
    call.max_logit = Tensor(DType::fp32, {3, 8, 1}, {40, 2, 1});
    for (const Variant& variant : variants(call.problem)) {
      expect_uniform(call, variant, [](auto, auto, auto, auto) { return true; });
    }
    Call random(std::string("fwd b3 sq1 sk300 d64 fp32 lse ") + heads);
    random.lse = Tensor(DType::fp32, {3, 8, 1}, {1, 5, 1});
    expect_all_match_float64(random);
  }
}

TEST(Strides, MetadataMayBeStrided) {
  Call call(
      "fwd b3 sq8 sk9 hq2 hkv1 d8 fp32 ragged_q:14 ragged_k:17 seqused_q seqused_k causal lse");
  Call strided = call;
  for (auto member :
       {&Call::cu_seqlens_q, &Call::cu_seqlens_k, &Call::seqused_q, &Call::seqused_k}) {
    const Tensor from = call.*member;
    Tensor to(DType::int32, from.shape(), {3});
    for (int64_t n = 0; n < from.size(); ++n) to.set_flat(n, from.flat(n));
    strided.*member = to;
  }
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    const std::vector<uint8_t> expected = call.output_bits();
    ASSERT_TRUE(strided.run(variant).ok());
    EXPECT_EQ(strided.output_bits(), expected);
  }
}

// B083, B176: one mask for all heads, all sequences or all rows, read in place.
TEST(Strides, BroadcastMasksEqualExpandedOnes) {
  for (const char* axes : {"qk", "bk", "hk", "k", "q", "b", "bhq", "1"}) {
    for (const char* op : {"fwd", "bwd"}) {
      const std::string sizes = std::string(op) + " b2 sq9 sk17 hq4 hkv2 d16 bf16 ";
      Call narrow(sizes + "mask:" + axes), wide(sizes + "mask");
      wide.mask.fill_by([&](const int64_t* c) {
        const Shape& s = narrow.mask.shape();
        return narrow.mask.at(
            {s[0] > 1 ? c[0] : 0, s[1] > 1 ? c[1] : 0, s[2] > 1 ? c[2] : 0, s[3] > 1 ? c[3] : 0});
      });
      if (narrow.problem.op == Op::backward) narrow.run_forward_first(), wide.run_forward_first();
      for (const Variant& variant : variants(narrow.problem)) {
        SCOPED_TRACE(sizes + axes + variant.str());
        ASSERT_TRUE(narrow.run(variant).ok());
        ASSERT_TRUE(wide.run(variant).ok());
        EXPECT_EQ(narrow.output_bits(), wide.output_bits());
      }
    }
  }
}

}  // namespace
}  // namespace sirdar::test
