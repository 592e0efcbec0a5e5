// Each rule about the arguments of a run is broken once, and nothing legal is refused.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <functional>
#include <set>

#include "core/validate.h"
#include "support/random_problem.h"
#include "support/rule_cases.h"
#include "support/small_call.h"

namespace sirdar::testing {
namespace {

constexpr std::string_view kDense = "b2 sq5 sk7 hq4 hkv2 d8 lse";
constexpr std::string_view kRagged = "b3 s4 h2 d8 ragged:10,9 seqused_k";
constexpr std::string_view kPaged = "b2 sq3 sk7 h2 d8 paged4";
constexpr std::string_view kBackward = "bwd b2 sq5 sk7 hq4 hkv2 d8 bias dbias";
constexpr std::string_view kMod = "s4 d8 score_mod:\"score+a[q]*w\" tensor:a:fp32:1 scalar:w";

int32_t* integers(const TensorView& view) { return static_cast<int32_t*>(view.data); }

void* shifted(void* data, std::ptrdiff_t bytes) { return static_cast<std::byte*>(data) + bytes; }

struct Case {
  std::string_view rule, problem;
  std::function<void(Args&)> breaks;
  std::string_view message;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"V040", kDense, [](Args& a) { a.k = {}; }, "k: it is missing; pass [batch, seqlen_k"},
      {"V040", kDense, [](Args& a) { a.lse.data = nullptr; }, "lse: it is missing"},
      {"V040", kPaged, [](Args& a) { a.k = {}; }, "k: it is missing"},
      {"V041", kDense, [](Args& a) { a.sink = a.lse; }, "sink: it is given although"},
      {"V041", kDense, [](Args& a) { a.dq = a.q; }, "dq: it is given although"},
      {"V042", kDense, [](Args& a) { a.q.rank = 3; }, "q: shape [2, 5, 4] has rank 3"},
      {"V043", kDense, [](Args& a) { a.q.shape[1] = 6; },
       "[batch, seqlen_q, num_heads_q, head_dim] = [2, 5, 4, 8]"},
      {"V044", kDense, [](Args& a) { a.v.dtype = DType::int32; }, "v: dtype int32"},
      {"V045", kDense, [](Args& a) { a.q.stride[3] = 2; }, "q: the last axis has stride 2"},
      {"V046", kDense, [](Args& a) { a.q.data = shifted(a.q.data, 2); }, "not a multiple of 4"},
      {"V047", kDense, [](Args& a) { a.q.stride[0] = INT64_MAX; }, "outside the address space"},
      {"V047", kDense, [](Args& a) { a.q.stride[0] = INT64_MIN; }, "outside the address space"},
      {"V048", kDense, [](Args& a) { a.out.stride[1] = -32; }, "out: axis 1 has stride -32"},
      {"V048", kDense, [](Args& a) { a.lse.stride[2] = 0; }, "lse: axis 2 has stride 0"},
      {"V049", kDense, [](Args& a) { a.out.stride[1] = 31; }, "two elements in one place"},
      {"V049", kDense,
       [](Args& a) {
         a.lse.stride = {15, 5, 2};
       },
       "two elements in one place"},
      {"V050", kDense, [](Args& a) { a.out.data = shifted(a.q.data, 4); },
       "out: it shares memory with q"},
      {"V050", kBackward, [](Args& a) { a.dk.data = a.dv.data; }, "dk: it shares memory with dv"},
      {"V050", kBackward, [](Args& a) { a.dbias.data = a.bias.data; }, "dbias: it shares"},
      {"V053", kRagged, [](Args& a) { integers(a.cu_seqlens_q)[0] = 1; }, "cu_seqlens_q[0] = 1"},
      {"V054", kRagged, [](Args& a) { integers(a.cu_seqlens_k)[2] = 3; },
       "cu_seqlens_k[2] = 3 is less than cu_seqlens_k[1] = 4; prefix sums must not decrease"},
      {"V055", kRagged, [](Args& a) { integers(a.cu_seqlens_q)[3] = 9; },
       "cu_seqlens_q[3] = 9 is not total_q = 10"},
      {"V056", kRagged, [](Args& a) { integers(a.cu_seqlens_q)[1] = 0; },
       "cu_seqlens_q[2] - cu_seqlens_q[1] = 8 is more than seqlen_q = 4"},
      {"V057", kRagged, [](Args& a) { integers(a.seqused_k)[2] = 2; },
       "seqused_k[2] = 2 is not from 0 to 1"},
      {"V057", kPaged, [](Args& a) { integers(a.seqused_k)[0] = 8; }, "not from 0 to 7"},
      {"V057", kPaged, [](Args& a) { integers(a.seqused_k)[1] = -1; }, "seqused_k[1] = -1"},
      {"V058", kPaged, [](Args& a) { a.page_table.shape[1] = 1; }, "it has room for 4 keys"},
      {"V059", kPaged, [](Args& a) { integers(a.page_table)[3] = 4; },
       "page_table[1, 1] = 4 is not a page; pages are from 0 to 3"},
      {"V059", kPaged, [](Args& a) { integers(a.page_table)[0] = -1; }, "page_table[0, 0] = -1"},
      {"V060", kMod, [](Args& a) { a.tensors.clear(); }, "tensors: 'a' is missing"},
      {"V060", kMod, [](Args& a) { a.tensors.push_back(a.tensors[0]); }, "'a' is given twice"},
      {"V060", kDense,
       [](Args& a) {
         a.tensors = {{"z", a.q}};
       },
       "'z' is given although"},
      {"V061", kMod, [](Args& a) { a.scalars.clear(); }, "scalars: 'w' is missing"},
      {"V062", kMod, [](Args& a) { a.dtensors = a.tensors; }, "dtensors: 'a' is given although"},
      {"V063", kDense, [](Args& a) { a.dropout_seed = 1; }, "dropout_seed: it is given although"},
      {"V063", kDense, [](Args& a) { a.dropout_offset = 1; }, "dropout_offset: "},
      {"V064", kDense, [](Args& a) { a.q.rank = 5; }, "q: rank 5"},
      {"V064", kDense, [](Args& a) { a.q.shape[0] = -2; }, "negative size"},
      {"V064", kDense, [](Args& a) { a.q.dtype = static_cast<DType>(77); }, "dtype 77"},
      {"V065", kPaged, [](Args& a) { a.v.shape[0] = 3; }, "v: it has 3 pages and k has 4"},
  };
  return all;
}

Status check(const SmallCall& call) { return validate(call.problem, call.args, DeviceKind::cpu); }

SmallCall call_of(std::string_view text) { return small_call(Problem::parse(text).value()); }

TEST(ValidateArgs, EachRuleIsSaid) {
  for (const Case& one : cases()) {
    SmallCall call = call_of(one.problem);
    ASSERT_EQ(check(call).message(), "") << one.problem;
    one.breaks(call.args);
    expect_broken(check(call), one.rule, one.message);
  }
}

// 4 * 5 of one stride is the first sum of two strides that falls on another.
TEST(ValidateArgs, StridesOfAnOutputNeedNotNest) {
  SmallCall call = call_of(kDense);
  call.args.lse.data = call.make(DType::fp32, {200}).data;
  call.args.lse.stride = {100, 5, 4};
  EXPECT_EQ(check(call).message(), "");
}

TEST(ValidateArgs, EveryRuleHasACase) {
  std::set<std::string_view> covered = {"V051", "V052"};  // WorkspaceRules below
  for (const Case& one : cases()) covered.insert(one.rule);
  for (const Rule& rule : rules())
    if (rule.id >= "V040" && rule.id < "V070") {
      EXPECT_TRUE(covered.contains(rule.id)) << rule.id;
    }
}

TEST(ValidateArgs, WorkspaceRules) {
  SmallCall call = call_of(kDense);
  const auto workspace = [&](std::ptrdiff_t offset, void* base, size_t bytes) {
    call.args.workspace = shifted(base, offset);
    call.args.workspace_bytes = bytes;
    return validate_workspace(call.problem, call.args, 64);
  };
  const TensorView own = call.make(DType::fp32, {64});
  expect_broken(workspace(0, own.data, 63), "V051", "63 bytes are given and the plan needs 64");
  expect_broken(workspace(8, own.data, 64), "V051", "multiple of 64");
  expect_broken(workspace(0, call.args.k.data, 64), "V052", "shares memory with k");
  EXPECT_EQ(workspace(0, own.data, 64).message(), "");
  call.args.workspace = nullptr;
  expect_broken(validate_workspace(call.problem, call.args, 64), "V051",
                "64 bytes are given at a null address and the plan needs 64");
  call.args.workspace_bytes = 0;
  expect_broken(validate_workspace(call.problem, call.args, 64), "V051",
                "0 bytes are given at a null address");
  EXPECT_TRUE(validate_workspace(call.problem, call.args, 0).ok());
}

RC_GTEST_PROP(ValidateArgs, WhatAProblemAsksForIsAccepted, (Problem problem)) {
  const auto smaller = [](int64_t& value, int64_t most) { value = value % most; };
  smaller(problem.seqlen_q, 9);
  smaller(problem.seqlen_k, 9);
  if (problem.layout_q == Layout::ragged)
    smaller(problem.total_q, problem.batch * problem.seqlen_q + 1);
  if (problem.layout_kv == Layout::ragged)
    smaller(problem.total_k, problem.batch * problem.seqlen_k + 1);
  problem.head_dim = problem.head_dim % 16 + 1;
  problem.head_dim_v %= 16;
  RC_ASSERT(problem.validate().message() == "");
  const SmallCall call = small_call(problem);
  RC_ASSERT(check(call).message() == "");
}

TEST(ValidateArgs, ContentsAreNotReadOnAnotherDevice) {
  SmallCall call = call_of(kRagged);
  for (TensorView* view : {&call.args.cu_seqlens_q, &call.args.cu_seqlens_k, &call.args.seqused_k})
    view->data = reinterpret_cast<void*>(uintptr_t{64});  // would fault if read
  EXPECT_EQ(validate(call.problem, call.args, DeviceKind::cuda).message(), "");
}

TEST(ValidateArgs, InputsMayHaveAnyStrides) {
  SmallCall call = call_of("b2 sq5 sk7 h4 d8 mask bias");
  call.args.k.stride = {0, 0, 0, 1};
  call.args.mask.stride = {0, 0, 0, 0};
  call.args.bias.stride[3] = 0;
  // The last row first.
  call.args.q.data = shifted(call.args.q.data, 4 * 32 * 4);
  call.args.q.stride[1] = -32;
  EXPECT_EQ(check(call).message(), "");
}

TEST(ValidateArgs, StridesOfSizeOneAxesAreNotRead) {
  SmallCall call = call_of("b1 sq1 sk7 h1 d1");
  call.args.q.stride = {-1, INT64_MIN, INT64_MAX, 77};
  call.args.out.stride = {0, -5, INT64_MAX, INT64_MIN};
  EXPECT_EQ(check(call).message(), "");
}

TEST(ValidateArgs, EmptyTensorsMayHaveAnyPointer) {
  SmallCall call = call_of("b2 sq5 sk0 h4 d8");
  call.args.k.data = call.args.v.data = nullptr;
  EXPECT_EQ(check(call).message(), "");
  call.args.k = {};
  expect_broken(check(call), "V040", "k: it is missing");
  call.args.k = call.args.v;
  call.args.v.data = reinterpret_cast<void*>(uintptr_t{3});
  EXPECT_EQ(check(call).message(), "");
}

TEST(ValidateArgs, HeadsFirstOutputsAreAccepted) {
  SmallCall call = call_of("b2 sq5 sk7 h4 d8");
  call.args.out =
      TensorView::contiguous(call.args.out.data, DType::fp32, {2, 4, 5, 8}).transposed(1, 2);
  EXPECT_EQ(check(call).message(), "");
}

// Cut to four sizes, or with its axes as they were, a view would have passed for another tensor.
TEST(ValidateArgs, ViewsThatCannotBeAreAbsent) {
  SmallCall call = call_of("b2 sq5 sk7 h4 d8");
  const TensorView q = call.args.q;
  for (const auto& [a, b] : {std::pair{1, 4}, {4, 1}, {-1, 2}, {2, -1}}) {
    call.args.q = q.transposed(a, b);
    expect_broken(check(call), "V040", "q: it is missing");
  }
  call.args.q = TensorView::contiguous(q.data, q.dtype, {2, 5, 4, 8, 3});
  expect_broken(check(call), "V040", "q: it is missing");
  call.args.q = TensorView::strided(q.data, q.dtype, {2, 5, 4, 8, 3}, {160, 32, 8, 1, 0});
  expect_broken(check(call), "V040", "q: it is missing");
  call.args.q = view_of_const(q.data, q.dtype, {2, 5, 4, 8, 3});
  expect_broken(check(call), "V040", "q: it is missing");
}

TEST(ValidateArgs, GradientsMayLieInOnePackedTensor) {
  SmallCall call = call_of("bwd b2 s5 hq4 hkv2 d8");
  const TensorView packed = call.make(DType::fp32, {2, 5, 8, 8});  // 4 + 2 + 2 heads
  const auto part = [&](int64_t first_head, int64_t heads) {
    TensorView view = packed;
    view.data = shifted(packed.data, first_head * 8 * 4);
    view.shape[2] = heads;
    return view;
  };
  call.args.dq = part(0, 4);
  call.args.dk = part(4, 2);
  call.args.dv = part(6, 2);
  EXPECT_EQ(check(call).message(), "");
  call.args.dv = part(5, 2);  // one head of dk
  expect_broken(check(call), "V050", "dk: it shares memory with dv");
}

}  // namespace
}  // namespace sirdar::testing
