// Outputs need memory of their own; addresses need the alignment of one element and no more; and
// whatever breaks a rule is refused by name before anything is written.
#include <algorithm>
#include <memory>

#include "edges/uniform.h"

namespace sirdar::test {
namespace {

Status run_args(const Problem& problem, const std::function<void(Args&)>& edit, Call& call,
                const std::string& implementation = "reference") {
  PlanOptions options;
  options.implementation = implementation;
  const Plan plan = Plan::create(problem, options).value();
  Args args = call.args();
  std::vector<std::byte> space(plan.workspace_bytes() + 64);
  void* start = space.data();
  size_t room = space.size();
  args.workspace = std::align(64, plan.workspace_bytes(), start, room);
  args.workspace_bytes = plan.workspace_bytes();
  edit(args);
  return plan.run(args);
}

void expect_refused(const std::string& text, const std::string& argument,
                    const std::function<void(Args&)>& edit) {
  Call call(text);
  for (Tensor tensor : call.outputs()) tensor.fill(kNan);
  const std::vector<uint8_t> before = call.output_bits();
  for (const Variant& variant : few_variants(call.problem)) {
    SCOPED_TRACE(text + " " + variant.str());
    const Status status = run_args(call.problem, edit, call, variant.implementation);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.argument(), argument) << status.message();
    EXPECT_TRUE(status.message().starts_with(argument + ": ")) << status.message();
    EXPECT_EQ(call.output_bits(), before) << "outputs were touched";
  }
}

constexpr const char* kForward = "fwd b2 sq4 sk4 hq2 hkv2 d4 fp32 lse";
constexpr const char* kBackward = "bwd b2 sq4 sk4 hq2 hkv2 d4 fp32";

TEST(AliasAndAlignment, AnOutputMayNotShareMemoryWithAnInput) {
  expect_refused(kForward, "out", [](Args& a) { a.out = a.q; });
  expect_refused(kForward, "out", [](Args& a) { a.out = a.v; });
  expect_refused(kForward, "out", [](Args& a) {
    a.out = a.k;
    a.out.data = static_cast<float*>(a.k.data) + 1;
  });
  expect_refused(kBackward, "dq", [](Args& a) { a.dq = a.q; });
  expect_refused(kBackward, "dk", [](Args& a) { a.dk = a.dout; });
}

TEST(AliasAndAlignment, OutputsMayNotShareMemoryWithEachOther) {
  expect_refused(kBackward, "dk", [](Args& a) { a.dk = a.dv; });
  expect_refused(kBackward, "dq", [](Args& a) { a.dq = a.dk; });
}

TEST(AliasAndAlignment, AnOutputMayNotShareMemoryWithItself) {
  expect_refused(kForward, "out", [](Args& a) { a.out.stride[0] = 1; });
  expect_refused(kForward, "out", [](Args& a) { a.out.stride[2] = 3; });
  expect_refused(kForward, "out", [](Args& a) { a.out.stride[1] = 0; });
  expect_refused(kForward, "out", [](Args& a) { a.out.stride[1] = -a.out.stride[1]; });
  expect_refused(kForward, "lse", [](Args& a) { a.lse.stride[2] = 0; });
}

// Rows of two outputs that interleave without sharing an element are fine.
TEST(AliasAndAlignment, OutputsMayInterleave) {
  Call call("bwd b1 sq4 sk4 hq1 hkv1 d4 fp32"), fused("bwd b1 sq4 sk4 hq1 hkv1 d4 fp32");
  call.run_forward_first();
  fused.run_forward_first();
  std::vector<float> memory(4 * 12, 0);
  const auto part = [&](int64_t n) {
    return TensorView::strided(memory.data() + n * 4, DType::fp32, {1, 4, 1, 4}, {48, 12, 4, 1});
  };
  ASSERT_TRUE(call.run_reference().ok());
  const Status status = run_args(
      fused.problem, [&](Args& a) { a.dq = part(0), a.dk = part(1), a.dv = part(2); }, fused);
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < 4; ++i) {
    for (size_t c = 0; c < 4; ++c) {
      const auto n = static_cast<int64_t>(i * 4 + c);
      EXPECT_EQ(memory[i * 12 + c], call.dq.flat(n));
      EXPECT_EQ(memory[i * 12 + 4 + c], call.dk.flat(n));
      EXPECT_EQ(memory[i * 12 + 8 + c], call.dv.flat(n));
    }
  }
}

// Inputs may share memory freely: self-attention of one tensor, K as V, a slice of the other.
TEST(AliasAndAlignment, InputsMayShareMemory) {
  Call shared("fwd b2 sq9 sk9 hq2 hkv2 d8 fp32 causal lse"),
      copied("fwd b2 sq9 sk9 hq2 hkv2 d8 fp32 causal lse");
  shared.k = shared.q;
  shared.v = shared.q;
  copied.k.fill(copied.q.values());
  copied.v.fill(copied.q.values());
  for (const Variant& variant : variants(shared.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(shared.run(variant).ok());
    ASSERT_TRUE(copied.run(variant).ok());
    EXPECT_EQ(shared.output_bits(), copied.output_bits());
  }
}

// B066, B067: any address that one element may have, for every head size, odd strides included.
TEST(AliasAndAlignment, AnyAddressOfAnElementWorks) {
  for (const char* dims : {"d7", "d46", "d59", "d64", "d100"}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      const std::string text =
          std::string("fwd b2 sq5 sk17 hq2 hkv1 causal lse ") + dims + " " + dtype;
      Call base(text);
      for (const Variant& variant : few_variants(base.problem)) {
        ASSERT_TRUE(base.run(variant).ok());
        const std::vector<uint8_t> expected = base.output_bits();
        for (int64_t offset = 0; offset < 9; ++offset) {
          SCOPED_TRACE(text + " " + variant.str() + " offset " + std::to_string(offset));
          Call moved = base;
          for (Tensor* tensor : {&moved.q, &moved.k, &moved.v, &moved.out}) {
            // A leading axis of one entry more moves the base address by `offset` elements.
            const Tensor from = *tensor;
            Shape stride(4, 1);
            stride[2] = from.shape()[3] + offset;
            stride[1] = stride[2] * from.shape()[2] + 1;
            stride[0] = stride[1] * from.shape()[1] + offset;
            *tensor = Tensor(from.view().dtype, from.shape(), stride, offset);
            for (int64_t n = 0; n < from.size(); ++n) tensor->set_flat(n, from.flat(n));
          }
          ASSERT_TRUE(moved.run(variant).ok());
          EXPECT_EQ(moved.output_bits(), expected);
        }
      }
    }
  }
}

TEST(AliasAndAlignment, HalfAnElementIsRefused) {
  const auto shift = [](TensorView Args::*member) {
    return [member](Args& a) { (a.*member).data = static_cast<char*>((a.*member).data) + 1; };
  };
  expect_refused(kForward, "q", shift(&Args::q));
  expect_refused(kForward, "v", shift(&Args::v));
  expect_refused(kForward, "out", shift(&Args::out));
  expect_refused(kForward, "lse", shift(&Args::lse));
  expect_refused(kBackward, "dout", shift(&Args::dout));
}

TEST(AliasAndAlignment, TheLastAxisMustBeContiguous) {
  expect_refused(kForward, "q", [](Args& a) { a.q.stride[3] = 2; });
  expect_refused(kForward, "k", [](Args& a) { a.k.stride[3] = -1; });
  expect_refused(kForward, "v", [](Args& a) { a.v.stride[3] = 0; });
  expect_refused(kForward, "out", [](Args& a) { a.out.stride[3] = 2; });
}

TEST(AliasAndAlignment, StridesThatLeaveTheAddressSpaceAreRefused) {
  for (const int64_t stride :
       {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(),
        std::numeric_limits<int64_t>::max() / 4}) {
    expect_refused(kForward, "q", [stride](Args& a) { a.q.stride[0] = stride; });
    expect_refused(kForward, "k", [stride](Args& a) { a.k.stride[1] = stride; });
  }
}

TEST(AliasAndAlignment, ShapesThatLieAreRefused) {
  expect_refused(kForward, "q", [](Args& a) { a.q.rank = 3; });
  expect_refused(kForward, "q", [](Args& a) { a.q.rank = 77; });
  expect_refused(kForward, "q", [](Args& a) { a.q.rank = -1; });
  expect_refused(kForward, "k", [](Args& a) { a.k.shape[1] = 5; });
  expect_refused(kForward, "k", [](Args& a) { a.k.shape[1] = -4; });
  expect_refused(kForward, "v", [](Args& a) { a.v.shape[2] = 1; });
  expect_refused(kForward, "out", [](Args& a) { a.out.shape[3] = 8; });
  expect_refused(kForward, "lse", [](Args& a) { std::swap(a.lse.shape[1], a.lse.shape[2]); });
  expect_refused(kForward, "q", [](Args& a) { a.q.dtype = static_cast<DType>(200); });
}

TEST(AliasAndAlignment, MissingTensorsAreNamed) {
  expect_refused(kForward, "q", [](Args& a) { a.q.data = nullptr; });
  expect_refused(kForward, "out", [](Args& a) { a.out = {}; });
  expect_refused(kForward, "lse", [](Args& a) { a.lse = {}; });
  expect_refused(kBackward, "dout", [](Args& a) { a.dout = {}; });
  expect_refused(kBackward, "lse", [](Args& a) { a.lse = {}; });
  expect_refused(kBackward, "dv", [](Args& a) { a.dv = {}; });
}

// The workspace: too small, missing, misaligned.
TEST(AliasAndAlignment, TheWorkspaceIsChecked) {
  for (const char* text : {kForward, kBackward}) {
    Call call(text);
    for (const Variant& variant : few_variants(call.problem)) {
      const Plan plan = Plan::create(call.problem, variant.options()).value();
      if (plan.workspace_bytes() == 0) continue;
      SCOPED_TRACE(text + variant.str());
      std::vector<std::byte> space(plan.workspace_bytes() + 128);
      const auto run = [&](size_t offset, size_t bytes) {
        void* start = space.data();
        size_t room = space.size();
        Args args = call.args();
        args.workspace = static_cast<std::byte*>(std::align(64, 64, start, room)) + offset;
        args.workspace_bytes = bytes;
        return plan.run(args);
      };
      EXPECT_EQ(run(0, plan.workspace_bytes() - 1).argument(), "workspace");
      EXPECT_EQ(run(4, plan.workspace_bytes()).argument(), "workspace");
      Args none = call.args();
      none.workspace_bytes = plan.workspace_bytes();
      EXPECT_EQ(plan.run(none).argument(), "workspace");
    }
  }
}

}  // namespace
}  // namespace sirdar::test
