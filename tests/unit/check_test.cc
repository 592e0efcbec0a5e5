// The check itself: it must see every kind of fault it claims to see, and its data must be valid.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "check/naive.h"
#include "check/run_check.h"
#include "core/elements.h"
#include "core/validate.h"
#include "shared/mask.h"

namespace sirdar {
namespace {

Problem parsed(const char* text) { return Problem::parse(text).value(); }

const char* const kForward =
    "fwd b2 sq9 sk12 hq4 hkv2 d8 fp32 causal bias:bhqk sink lse max_logit seqused_k";
const char* const kBackward =
    "bwd b2 sq9 sk12 hq4 hkv2 d8 bf16 ragged:15,20 bias:hk sink dlse dbias dsink dropout:0.2 "
    "softcap:20";

// The outputs as the reference leaves them.
void compute(check::Inputs& inputs) {
  PlanOptions options;
  options.implementation = "reference";
  const Status status = Plan::create(inputs.problem(), options).value().run(inputs.args());
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST(CheckInputs, AreValidAndReproducible) {
  for (const char* text : {kForward, kBackward, "fwd b3 sq4 sk19 h2 d5 fp8_e4m3 paged3 seqused_k",
                           "fwd b1 sq0 sk5 h1 d4 fp16", "fwd b0 sq3 sk5 h1 d4 fp32 ragged:0,0",
                           "bwd b2 sq3 sk0 h1 d4 fp32 mask:bhqk document"}) {
    const Problem problem = parsed(text);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      for (const check::Style style : {check::Style::hostile, check::Style::plain}) {
        check::Inputs inputs(problem, seed, style);
        const Status status = validate(problem, inputs.args(), DeviceKind::cpu);
        ASSERT_TRUE(status.ok()) << text << " seed " << seed << ": " << status.message();
        EXPECT_EQ(inputs.damage(), "");
      }
    }
  }
  const Problem problem = parsed(kForward);
  check::Inputs one(problem, 7), same(problem, 7), other(problem, 8);
  const double value = load_element(one.args().q, 0);
  EXPECT_EQ(value, load_element(same.args().q, 0));
  EXPECT_NE(value, load_element(other.args().q, 0));
}

TEST(CheckInputs, SeeWritesWhereNoneBelong) {
  const Problem problem = parsed(kForward);
  check::Inputs inputs(problem, 3);
  compute(inputs);
  EXPECT_EQ(inputs.damage(), "");
  char* out = static_cast<char*>(inputs.args().out.data);
  const char saved = out[-1];
  out[-1] = 1;  // before the first element: a guard
  EXPECT_NE(inputs.damage().find("out: memory outside"), std::string::npos);
  out[-1] = saved;
  char* q = static_cast<char*>(inputs.args().q.data);
  q[0] = static_cast<char>(q[0] + 1);
  EXPECT_NE(inputs.damage().find("q: an input was written"), std::string::npos);
  inputs.accept();
  EXPECT_EQ(inputs.damage(), "");
  inputs.set_workspace(256);
  char* workspace = static_cast<char*>(inputs.args().workspace);
  EXPECT_EQ(reinterpret_cast<size_t>(workspace) % 64, 0u);
  workspace[255] = 1;
  EXPECT_EQ(inputs.damage(), "");
  workspace[256] = 1;
  EXPECT_NE(inputs.damage().find("workspace: memory outside"), std::string::npos);
}

TEST(CheckInputs, SeeWritesIntoGaps) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    check::Inputs inputs(parsed("fwd b2 sq3 sk3 h2 d5 fp32"), seed);
    const TensorView& out = inputs.args().out;
    const int64_t row = std::min({out.stride[0], out.stride[1], out.stride[2]});
    if (row == 5) continue;  // no gap between rows this time
    static_cast<float*>(out.data)[5] = 0;
    EXPECT_NE(inputs.damage().find("out: memory between rows"), std::string::npos);
    return;
  }
  FAIL() << "no seed left a gap";
}

TEST(CheckCompare, TheReferencePassesAndEveryChangedElementFails) {
  for (const char* text : {kForward, kBackward}) {
    check::Inputs inputs(parsed(text), 5);
    const std::vector<check::Expected> all =
        check::expected_outputs(inputs.problem(), inputs.args());
    compute(inputs);
    for (const check::Expected& one : all) {
      const check::Deviation fine = check::compare(one);
      EXPECT_TRUE(fine.ok) << one.name << " " << fine.where << " " << fine.ratio;
      EXPECT_LE(fine.worst, 1) << one.name;
      for_each_element(one.view, [&](int64_t offset, int64_t index) {
        const double before = load_element(one.view, offset);
        const size_t n = static_cast<size_t>(index);
        const double wrong[] = {std::nan(""), std::numeric_limits<double>::infinity(),
                                before + 3 * one.allowed[n] + std::abs(before) * 0.02};
        for (const double value : wrong) {
          store_element(one.view, offset, value);
          EXPECT_FALSE(check::compare(one).ok) << one.name << " " << index << " " << value;
        }
        store_element(one.view, offset, before);
      });
    }
  }
}

double at(const TensorView& view, int64_t index) { return load_element(view, index); }

// Both limits together; `element` of the output that is `name` times `factor`.
bool accepts_scaled(const check::Oracle& oracle, const check::Expected& one, int64_t element,
                    double factor) {
  int64_t place = 0;
  for_each_element(one.view, [&](int64_t offset, int64_t index) {
    if (index == element) place = offset;
  });
  const double before = at(one.view, place);
  store_element(one.view, place, before * factor);
  const bool accepted = check::judge(oracle).faults.empty();
  store_element(one.view, place, before);
  return accepted;
}

TEST(CheckInputs, LieWhereTheyAreWanted) {
  const Problem problem = parsed("fwd b2 sq256 sk512 hq8 hkv4 d128 fp32");
  const check::Inputs inputs(problem, 1, check::Style::plain, 1,
                             {.pages = Pages::huge, .heads_first = true});
  const Status status = validate(problem, inputs.args(), DeviceKind::cpu);
  ASSERT_TRUE(status.ok()) << status.message();
  const Args& args = inputs.args();
  for (const TensorView* view : {&args.q, &args.k, &args.v, &args.out}) {
    EXPECT_EQ(view->stride[1], 128);
    EXPECT_EQ(view->stride[2], view->shape[1] * 128);
    EXPECT_LT(reinterpret_cast<uintptr_t>(view->data) % (2 << 20), 256u);  // a guard before it
  }
}

// Sums over many rows whose terms nearly cancel: a wrong sum is small beside the sizes of its
// terms.
TEST(CheckJudge, SeesWrongSumsOfGradients) {
  for (const char* text :
       {"bwd s256 h1 d64 fp32 bias sink dbias dsink", "bwd s256 h1 d64 bf16 bias sink dbias dsink",
        "bwd s256 h1 d64 fp16 bias sink dbias dsink"}) {
    check::Inputs inputs(parsed(text), 3, check::Style::plain);
    compute(inputs);
    const check::Oracle oracle = check::make_oracle(inputs.problem(), inputs.args());
    ASSERT_TRUE(check::judge(oracle).faults.empty()) << check::judge(oracle).faults.front();
    for (const check::Expected& one : oracle.expected) {
      const int64_t count = element_count(one.view);
      if (one.name == "dsink") {
        for (const double factor : {-20.0, -1.0, 0.0, 0.5, 2.0})
          EXPECT_FALSE(accepts_scaled(oracle, one, 0, factor)) << text << " dsink * " << factor;
      }
      if (one.name != "dbias") continue;
      for (int64_t n = 0; n < count; n += count / 7) {
        EXPECT_FALSE(accepts_scaled(oracle, one, n, -1)) << text << " " << n;
        EXPECT_FALSE(accepts_scaled(oracle, one, n, 0)) << text << " " << n;
      }
    }
  }
}

TEST(CheckJudge, LeavesTheOutputsAlone) {
  check::Inputs inputs(parsed(kForward), 5);
  compute(inputs);
  const double before = at(inputs.args().out, 0);
  (void)check::make_oracle(inputs.problem(), inputs.args());
  EXPECT_EQ(at(inputs.args().out, 0), before);
  EXPECT_EQ(inputs.damage(), "");
}

// Products near the smallest numbers of fp32 are rounded to whole steps of 2^-149.
TEST(CheckJudge, AllowsRoundingOfTheSmallestNumbersAndNoMore) {
  check::Inputs inputs(parsed("fwd s64 h1 d16 fp32"), 9, check::Style::plain);
  for_each_element(inputs.args().v, [&](int64_t offset, int64_t) {
    store_element(inputs.args().v, offset, at(inputs.args().v, offset) * 1e-42);
  });
  inputs.accept();
  const check::Oracle oracle = check::make_oracle(inputs.problem(), inputs.args());
  PlanOptions options;
  options.implementation = "cpu.forward";
  const Plan plan = Plan::create(inputs.problem(), options).value();
  inputs.set_workspace(plan.workspace_bytes());
  ASSERT_TRUE(plan.run(inputs.args()).ok());
  const check::Verdict verdict = check::judge(oracle);
  EXPECT_TRUE(verdict.faults.empty()) << verdict.faults.front();
  const double before = at(inputs.args().out, 0);
  store_element(inputs.args().out, 0, before + 100 * 0x1p-149);
  EXPECT_FALSE(check::judge(oracle).faults.empty());
}

TEST(CheckCompare, TheLargestErrorIsNotThatOfTheWorstElement) {
  check::Expected one;
  float actual[2] = {1.5F, 100.125F};
  one.name = "out";
  one.view = TensorView::contiguous(actual, DType::fp32, {2});
  one.epsilon = 0.25;
  one.value = {1, 100};
  one.scale = {1, 100};
  one.allowed = {1, 100};
  const check::Deviation deviation = check::compare(one);
  EXPECT_EQ(deviation.error, 0.5);
  one.allowed = {100, 0.5};
  EXPECT_EQ(check::compare(one).where, "out[1]");
  EXPECT_EQ(check::compare(one).error, 0.5);
}

TEST(CheckNaive, IsWithinItsOwnAllowance) {
  for (const char* text : {kForward, kBackward, "fwd b2 sq20 sk70 h2 d64 bf16 causal lse",
                           "bwd b1 sq20 sk33 h2 d32 fp16 window:5,2"}) {
    check::Inputs inputs(parsed(text), 11);
    const auto all = check::expected_outputs(inputs.problem(), inputs.args());
    check::run_naive(inputs.problem(), inputs.args());
    for (const check::Expected& one : all) {
      const check::Deviation deviation = check::compare(one);
      EXPECT_TRUE(deviation.ok) << text << " " << deviation.where << " " << deviation.ratio;
    }
    EXPECT_EQ(inputs.damage(), "");
  }
}

// Weights of e^-88 that a float holds no more, made larger by dropout's factor; slopes of a
// soft-cap of 1e-30 and less.
TEST(CheckRun, TakesWhatFp32CannotHoldForNoFault) {
  const std::pair<const char*, uint64_t> sound[] = {
      {"fwd sq2 sk8 h1 d32 fp32 scale:5 dropout:0.9", 3},
      {"bwd sq2 sk200 h1 d8 fp32 scale:5 alibi dropout:0.9", 1},
      {"bwd sq2 sk200 h1 d8 fp32 scale:10 alibi dropout:0.3", 9},
      {"bwd s64 h1 d32 fp32 softcap:0.02", 1},
      {"bwd s64 h1 d32 bf16 softcap:0.005", 1}};
  for (const auto& [text, seed] : sound) {
    PlanOptions options;
    options.implementation = parsed(text).op == Op::forward ? "cpu.forward" : "cpu.backward";
    const check::Report report = check::check(parsed(text), options, seed);
    EXPECT_TRUE(report.ok) << report.text;
  }
}

TEST(CheckRun, ReportsAreReadyToPrint) {
  PlanOptions options;
  options.implementation = "reference";
  const check::Report good = check::check(parsed(kForward), options, 1);
  EXPECT_TRUE(good.ok) << good.text;
  EXPECT_EQ(good.implementation, "reference");
  EXPECT_EQ(good.outputs.size(), 3u);
  options.implementation = "no such thing";
  const check::Report refused = check::check(parsed(kForward), options, 1);
  EXPECT_FALSE(refused.ok);
  EXPECT_FALSE(refused.status.ok());
  EXPECT_EQ(refused.text, refused.status.message());
}

}  // namespace
}  // namespace sirdar
