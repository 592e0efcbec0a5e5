// A score or mask written as a built-in and as an expression is the same attention; what a mask_mod
// hides is as if never read; and bits depend neither on tiles nor on threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "check/run_check.h"
#include "core/elements.h"

namespace sirdar {
namespace {

const std::string kSizes = "fwd b2 sq90 sk150 hq4 hkv2 d32 lse ";

// The outputs, out then lse, from the given arguments.
std::vector<double> run(const Problem& problem, Args args, const PlanOptions& options = {}) {
  PlanOptions named = options;
  if (named.implementation.empty()) named.implementation = "cpu.forward";
  const Result<Plan> plan = Plan::create(problem, named);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return {};
  std::vector<double> memory(plan.value().workspace_bytes() / 8 + 8);
  void* start = memory.data();
  size_t room = memory.size() * 8;
  args.workspace = std::align(64, plan.value().workspace_bytes(), start, room);
  args.workspace_bytes = plan.value().workspace_bytes();
  const Status status = plan.value().run(args);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<double> values;
  for (const TensorView& view : {args.out, args.lse}) {
    if (!view.present()) continue;
    for_each_element(
        view, [&](int64_t offset, int64_t) { values.push_back(load_element(view, offset)); });
  }
  return values;
}

Problem parsed(const std::string& text) {
  const Result<Problem> problem = Problem::parse(text);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  return problem.value();
}

void expect_same(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t n = 0; n < a.size(); ++n) {
    if (std::isinf(a[n])) {
      ASSERT_EQ(a[n], b[n]) << n;
    } else {
      ASSERT_NEAR(a[n], b[n], 4e-6 * (1 + std::abs(a[n]))) << n;
    }
  }
}

// The built-in's inputs, with what it reads handed over by name instead.
struct Both {
  Problem builtin, expression;
  check::Inputs inputs;
  Args args;
  Both(const std::string& one, const std::string& other)
      : builtin(parsed(kSizes + one)),
        expression(parsed(kSizes + other)),
        inputs(builtin, 7, check::Style::plain),
        args(inputs.args()) {}
  // On both implementations, and of each with the other.
  void expect_agreement() {
    PlanOptions reference;
    reference.implementation = "reference";
    const std::vector<double> expected = run(builtin, inputs.args(), reference);
    expect_same(expected, run(expression, args, reference));
    expect_same(expected, run(builtin, inputs.args()));
    expect_same(expected, run(expression, args));
  }
};

TEST(CpuExpressionMeaning, AlibiAsExpression) {
  Both both("alibi", "score_mod:\"score - slope[h] * abs(q_pos - k)\" tensor:slope:fp32:1");
  both.args.alibi = {};
  TensorView slope = both.inputs.args().alibi;
  if (slope.rank == 2) slope = TensorView::strided(slope.data, DType::fp32, {4}, {slope.stride[1]});
  both.args.tensors.push_back({"slope", slope});
  both.expect_agreement();
}

TEST(CpuExpressionMeaning, SoftcapAsExpression) {
  Both both("softcap:2", "score_mod:\"cap * tanh(score / cap)\" scalar:cap");
  both.args.scalars.emplace_back("cap", 2.0);
  both.expect_agreement();
}

TEST(CpuExpressionMeaning, DocumentsAsExpression) {
  Both both("causal document",
            "mask_mod:\"q_pos >= k && doc_q[b, q] == doc_k[b, k]\" tensor:doc_q:int32:2 "
            "tensor:doc_k:int32:2");
  both.args.tensors = {{"doc_q", both.args.document_q}, {"doc_k", both.args.document_k}};
  both.args.document_q = both.args.document_k = {};
  both.expect_agreement();
}

TEST(CpuExpressionMeaning, WindowAndChunkAsExpression) {
  Both window("causal window:20,", "mask_mod:\"q_pos >= k && q_pos - k <= 20\"");
  window.expect_agreement();
  Both chunk("chunk:33", "mask_mod:\"q_pos / 33 == k / 33\"");
  chunk.expect_agreement();
}

TEST(CpuExpressionMeaning, PrefixAsBooleanMask) {
  Both both("mask:bqk", "mask_mod:\"k < prefix[b] || k <= q_pos\" tensor:prefix:int32:1");
  int32_t prefix[] = {5, 97};
  const TensorView& mask = both.inputs.args().mask;
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t i = 0; i < 90; ++i)
      for (int64_t j = 0; j < 150; ++j)
        static_cast<uint8_t*>(
            mask.data)[b * mask.stride[0] + i * mask.stride[2] + j * mask.stride[3]] =
            j < prefix[b] || j <= i + 60;
  both.args.mask = {};
  both.args.tensors.push_back({"prefix", TensorView::contiguous(prefix, DType::int32, {2})});
  both.expect_agreement();
}

TEST(CpuExpressionMeaning, RelativeTableAsBias) {
  Both both(
      "bias:hqk",
      "score_mod:\"score + table[h, min(max(q_pos - k, -12), 12) + 12]\" tensor:table:fp32:2");
  std::vector<float> table(4 * 25);
  for (size_t n = 0; n < table.size(); ++n) table[n] = std::sin(static_cast<float>(n));
  const TensorView& bias = both.inputs.args().bias;
  for (int64_t h = 0; h < 4; ++h)
    for (int64_t i = 0; i < 90; ++i)
      for (int64_t j = 0; j < 150; ++j)
        static_cast<float*>(
            bias.data)[h * bias.stride[1] + i * bias.stride[2] + j * bias.stride[3]] =
            table[static_cast<size_t>(h * 25 + std::clamp<int64_t>(i + 60 - j, -12, 12) + 12)];
  both.args.bias = {};
  both.args.tensors.push_back(
      {"table", TensorView::contiguous(table.data(), DType::fp32, {4, 25})});
  both.expect_agreement();
}

// Rows of K and V that no query sees hold NaN, and so do those that only some see.
TEST(CpuExpressionMeaning, HiddenRowsAreAsIfNeverRead) {
  const Problem problem = parsed(
      "fwd b1 sq70 sk300 hq2 hkv1 d16 lse score_mod:\"score + 0.0 * sqrt(k - 2)\" "
      "mask_mod:\"k % 3 != 1 && k > 1 && (k != 40 || q % 2 == 0) && (k < 200 || q_pos - k > 90)\"");
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    PlanOptions options;
    options.implementation = "cpu.forward";
    options.isa = isa;
    if (!Plan::create(problem, options).ok()) continue;
    check::Inputs inputs(problem, 3);
    const Args& args = inputs.args();
    for (int64_t key = 0; key < 300; ++key) {
      if (key % 3 != 1 && key > 1 && key != 40) continue;
      for (int64_t c = 0; c < 16; ++c) {
        const double bad = key % 2 == 0 ? INFINITY : NAN;
        if (key != 40) store_element(args.k, key * args.k.stride[1] + c, bad);
        store_element(args.v, key * args.v.stride[1] + c, bad);
      }
    }
    inputs.accept();
    const check::Report report = check::check(inputs, options, 3);
    EXPECT_TRUE(report.ok) << isa << ": " << report.text;
  }
}

TEST(CpuExpressionMeaning, BitsDependOnNeitherTilesNorThreads) {
  const Problem problem = parsed(
      "fwd b2 sq500 sk1300 hq4 hkv2 d32 lse score_mod:\"score - 0.02 * abs(q_pos - k)\" "
      "mask_mod:\"q_pos >= k && (k < 9 || q_pos - k < 300) && k % 7 != h\"");
  check::Inputs inputs(problem, 5, check::Style::plain);
  const std::vector<double> expected = run(problem, inputs.args());
  for (const char* block_m : {"32", "64", "512"}) {
    for (const char* threads : {"1", "3"}) {
      PlanOptions options;
      options.knobs = {{"block_m", block_m}, {"num_threads", threads}};
      const std::vector<double> actual = run(problem, inputs.args(), options);
      ASSERT_EQ(actual.size(), expected.size());
      EXPECT_EQ(std::memcmp(actual.data(), expected.data(), 8 * actual.size()), 0)
          << block_m << " " << threads;
    }
  }
}

}  // namespace
}  // namespace sirdar
