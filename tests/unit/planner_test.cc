// What the planner chooses, for machines that are here and that are not, and what it says when it
// refuses.
#include <gtest/gtest.h>

#include <cstdlib>

#include <sirdar/sirdar.hpp>

#include "core/device.h"

namespace sirdar {
namespace {

Result<Plan> planned(std::string_view text, const PlanOptions& options = {},
                     std::string_view device = "host") {
  return Plan::create(Problem::parse(text).value(), options, Device::named(device).value());
}

void expect_refused(const Result<Plan>& plan, StatusCode code, std::string_view part) {
  ASSERT_FALSE(plan.ok()) << part;
  EXPECT_EQ(plan.status().code(), code) << plan.status().message();
  EXPECT_NE(plan.status().message().find(part), std::string::npos) << plan.status().message();
}

PlanOptions named(std::string name) {
  PlanOptions options;
  options.implementation = std::move(name);
  return options;
}

PlanOptions with_reference() {
  PlanOptions options;
  options.allow_reference = true;
  return options;
}

// No implementation but the reference takes so many keys: these plans stay the reference's whatever
// else is registered.
constexpr std::string_view kOnlyReference = "bwd sq8 sk1073741825 d8 bf16";

TEST(Planner, ReferenceRunsOnlyWhenNamedOrAllowed) {
  expect_refused(planned(kOnlyReference), StatusCode::unsupported,
                 "reference: runs only when named or when allow_reference is set");
  EXPECT_EQ(planned(kOnlyReference, with_reference()).value().name(), "reference");
  EXPECT_EQ(planned(kOnlyReference, named("reference")).value().name(), "reference");
}

TEST(Planner, RefusalsNameTheProblemAndEveryImplementation) {
  const Result<Plan> plan = planned(kOnlyReference);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().argument(), "problem");
  EXPECT_NE(plan.status().message().find("bwd b1 sq8"), std::string::npos);
}

TEST(Planner, UnknownNamesListTheKnownOnes) {
  expect_refused(planned("s8", named("referense")), StatusCode::invalid_argument,
                 "did you mean 'reference'?");
  expect_refused(planned("s8", named("nothing.like.it")), StatusCode::invalid_argument,
                 "use one of");
}

PlanOptions with_knobs(std::string_view name,
                       std::vector<std::pair<std::string, std::string>> knobs) {
  PlanOptions options = named(std::string(name));
  options.knobs = std::move(knobs);
  return options;
}

// Of every implementation: the later value must not win without a word.
TEST(Planner, AKnobGivenTwiceIsRefusedWithBothValues) {
  struct Row {
    const char *problem, *name, *device;
  };
  for (const auto& [problem, name, device] : {Row{"fwd s64 d64", "cpu.forward", "host"},
                                              {"bwd s64 d64", "cpu.backward", "host"},
                                              {"fwd s64 d64", "reference", "host"},
                                              {"fwd s64 d64 bf16", "cuda.sm90.forward", "h200"},
                                              {"bwd s64 d64 bf16", "cuda.sm90.backward", "h200"},
                                              {"fwd s64 d64", "cuda.rows.forward", "h200"},
                                              {"bwd s64 d64", "cuda.rows.backward", "h200"}}) {
    const PlanOptions options =
        with_knobs(name, {{"block_m", "64"}, {"block_n", "128"}, {"block_m", "128"}});
    const Status status =
        Plan::create(Problem::parse(problem).value(), options, Device::named(device).value())
            .status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << name;
    EXPECT_EQ(status.message(),
              "knobs: 'block_m' is given twice, as '64' and as '128'; give it once.")
        << name;
  }
}

TEST(Planner, AKnobBesideTheOptionOfItsNameIsRefusedWithBothValues) {
  for (const std::string_view problem : {"fwd s64 d64", "bwd s64 d64"}) {
    const std::string_view name = problem.starts_with("fwd") ? "cpu.forward" : "cpu.backward";
    PlanOptions options = with_knobs(name, {{"num_threads", "2"}});
    options.num_threads = 1;
    expect_refused(planned(std::string(problem), options), StatusCode::invalid_argument,
                   "knobs: 'num_threads' is given twice, as the option '1' and as the knob '2'");
    options.num_threads = 2;
    EXPECT_TRUE(planned(std::string(problem), options).ok());
    options = with_knobs(name, {{"isa", "scalar"}});
    options.isa = "avx2";
    expect_refused(planned(std::string(problem), options, "zen4"), StatusCode::invalid_argument,
                   "knobs: 'isa' is given twice, as the option 'avx2' and as the knob 'scalar'");
    options.isa = "scalar";
    EXPECT_TRUE(planned(std::string(problem), options, "zen4").ok());
  }
}

// What the list of an unknown knob's refusal names can be given: none of it follows from the
// problem.
TEST(Planner, TheListOfKnobsNamesKnobs) {
  struct Row {
    const char *problem, *name, *device;
  };
  for (const auto& [problem, name, device] :
       {Row{"fwd s64 d64", "cpu.forward", "host"},
        {"bwd s64 d64", "cpu.backward", "host"},
        {"fwd s64 d64 bf16", "cuda.sm90.forward", "h200"},
        {"bwd s64 d64 bf16 causal", "cuda.sm90.backward", "h200"},
        {"fwd s64 d64", "cuda.rows.forward", "h200"}}) {
    const Problem p = Problem::parse(problem).value();
    const Device machine = Device::named(device).value();
    std::string message =
        Plan::create(p, with_knobs(name, {{"no", "1"}}), machine).status().message();
    const std::string before = "knobs: 'no' is not a field of this config; use one of ";
    ASSERT_EQ(message.find(before), 0u) << message;
    message = message.substr(before.size(), message.size() - before.size() - 1);
    const std::string config = Plan::create(p, named(name), machine).value().config() + " ";
    for (size_t begin = 0; begin < message.size();) {
      const size_t end = std::min(message.find(", ", begin), message.size());
      const std::string knob = message.substr(begin, end - begin);
      const size_t at = config.find(knob + "=");
      ASSERT_NE(at, std::string::npos) << name << ' ' << knob;
      const size_t value = at + knob.size() + 1;
      // Its own value, which the library chose, is accepted; nonsense is read and refused.
      const std::string own = config.substr(value, config.find(' ', value) - value);
      EXPECT_TRUE(Plan::create(p, with_knobs(name, {{knob, own}}), machine).ok()) << knob;
      const Status odd = Plan::create(p, with_knobs(name, {{knob, "odd"}}), machine).status();
      EXPECT_EQ(odd.message().find("knobs: " + knob + "='odd' cannot be read; give "), 0u)
          << odd.message();
      EXPECT_EQ(odd.message().find(".."), std::string::npos) << odd.message();
      begin = end + 2;
    }
    for (const char* fixed : {"element", "head_dim", "has_sink", "columns"})
      EXPECT_EQ(message.find(fixed), std::string::npos) << name << ' ' << fixed;
  }
}

TEST(Planner, TheEnvironmentMayNameTheImplementation) {
  ::setenv("SIRDAR_FORCE", "reference", 1);
  const Result<Plan> plan = planned("s8");
  ::setenv("SIRDAR_FORCE", "unknown", 1);
  const Result<Plan> unknown = planned("s8");
  const Result<Plan> option_wins = planned("s8", named("reference"));
  ::unsetenv("SIRDAR_FORCE");
  EXPECT_EQ(plan.value().name(), "reference");
  expect_refused(unknown, StatusCode::invalid_argument, "SIRDAR_FORCE: 'unknown'");
  EXPECT_TRUE(option_wins.ok());
}

TEST(Planner, AnInstructionSetBesideAForcedReferenceIsRefused) {
  PlanOptions options;
  options.isa = "scalar";
  ::setenv("SIRDAR_FORCE", "reference", 1);
  const Result<Plan> plan = planned("s8", options);
  ::unsetenv("SIRDAR_FORCE");
  expect_refused(plan, StatusCode::invalid_argument, "isa: it has no effect on the reference");
}

TEST(Planner, AnInstructionSetIsNoImplementation) {
  ::setenv("SIRDAR_FORCE", "avx2", 1);
  const Result<Plan> plan = planned("s8");
  ::unsetenv("SIRDAR_FORCE");
  expect_refused(plan, StatusCode::invalid_argument,
                 "SIRDAR_FORCE: 'avx2' is an instruction set, not an implementation");
}

TEST(Planner, SwitchesOfTheEnvironmentTakeEffectOrAreRefused) {
  struct Case {
    const char *name, *value, *message;  // null: allowed
  };
  constexpr Case kCases[] = {{"SIRDAR_NUM_THREADS", "3", nullptr},
                             {"SIRDAR_NUM_THREADS", "", nullptr},
                             {"SIRDAR_NUM_THREADS", "abc", "SIRDAR_NUM_THREADS: 'abc' is not"},
                             {"SIRDAR_NUM_THREADS", "0", "SIRDAR_NUM_THREADS: '0' is not"},
                             {"SIRDAR_LOG", "0", nullptr},
                             {"SIRDAR_LOG", "", nullptr},
                             {"SIRDAR_LOG", "banana", "SIRDAR_LOG: 'banana' is not 0 or 1"}};
  for (const Case& one : kCases) {
    ::setenv(one.name, one.value, 1);
    const Result<Plan> plan = planned("s8", named("reference"));
    ::unsetenv(one.name);
    if (one.message == nullptr) {
      EXPECT_TRUE(plan.ok()) << plan.status().message();
    } else {
      expect_refused(plan, StatusCode::invalid_argument, one.message);
    }
  }
}

TEST(Planner, InstructionSetsMustExistAndRunOnTheDevice) {
  PlanOptions options = with_reference();
  options.isa = "avx1024";
  expect_refused(planned("s8", options), StatusCode::invalid_argument, "isa: 'avx1024'");
  options.isa = "avx512";
  expect_refused(planned("s8", options, "avx2"), StatusCode::invalid_argument,
                 "whose best is avx2");
  expect_refused(planned("s8", options, "neon"), StatusCode::invalid_argument,
                 "whose best is neon");
  expect_refused(planned("s8", options, "h200"), StatusCode::invalid_argument, "is a GPU");
  options.isa = "avx2";
  EXPECT_EQ(planned("s8", options, "zen4").value().device().isa, Isa::avx2);
  options.isa = "scalar";
  EXPECT_EQ(planned("s8", options, "neon").value().device().isa, Isa::scalar);
}

TEST(Planner, ThreadsAndExecutorAreChecked) {
  PlanOptions options = with_reference();
  options.num_threads = -1;
  expect_refused(planned("s8", options), StatusCode::invalid_argument, "num_threads: -1");
  options.num_threads = 3;
  EXPECT_EQ(planned("s8", options).value().device().num_threads, 3);
  const Executor empty;
  options.executor = &empty;
  expect_refused(planned("s8", options), StatusCode::invalid_argument, "parallel_for is null");
}

TEST(Planner, TheReferenceSaysWhatItTakesNoNoticeOf) {
  PlanOptions options = named("reference");
  options.isa = "scalar";
  expect_refused(planned("s8", options), StatusCode::invalid_argument, "isa: it has no effect");
  options.implementation.clear();
  options.allow_reference = true;
  options.num_threads = 2;
  std::string said;
  set_log_sink([&](LogLevel, std::string_view text) { said = text; });
  EXPECT_TRUE(planned("bwd sq9 sk1073741825 d8 bf16", options).ok());
  set_log_sink({});
  EXPECT_NE(said.find("takes no notice of isa and num_threads"), std::string::npos) << said;
}

TEST(Planner, UnknownKnobsAreRefused) {
  PlanOptions options = named("reference");
  options.knobs = {{"block_m", "64"}};
  expect_refused(planned("s8", options), StatusCode::invalid_argument, "block_m");
}

TEST(Planner, ARecordedGpuIsRefusedByTheCpuForward) {
  expect_refused(planned("s4096 h8 d64 causal fp8_e4m3", {}, "h200"), StatusCode::unsupported,
                 "cpu.forward: runs on a CPU, and NVIDIA H200 is a GPU");
}

TEST(Planner, BrokenProblemsAreRefusedFirst) {
  Problem problem;
  problem.batch = -1;
  const Result<Plan> plan = Plan::create(problem, named("no such name"));
  EXPECT_EQ(plan.status().rule(), "V002");
}

TEST(Planner, ExplainTellsTheDecision) {
  const std::string text = planned("b2 s256 h2 causal", named("reference")).value().explain();
  for (const std::string_view part : {"problem         fwd b2 sq256", "features        causal",
                                      "implementation  reference", "visible pairs   131584",
                                      "tiles           6 all, 4 part, 6 none visible (64 x 64, one "
                                      "head of the longest sequence)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(Planner, ExplainSaysWhatOnlyTheDataTell) {
  const auto explained = [](std::string_view text) {
    return planned(text, named("reference")).value().explain();
  };
  const auto says = [](const std::string& text, std::string_view part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  };
  const std::string documents = explained("s256 document causal bias");
  says(documents, "visible pairs   at most 32896\n");
  says(documents, "arithmetic      at most ");
  says(documents, "0 all, 10 part, 6 none visible");
  says(documents, "part: perhaps, only the data tell document ids, where the bias is -inf)");
  const std::string expression = explained("s256 mask_mod:\"q >= k\"");
  says(expression, "visible pairs   at most 65536\n");
  says(expression, "6 all, 4 part, 6 none visible (64 x 64, one head of the longest sequence)");
}

TEST(Planner, ExplainPrintsEveryDigitOfLargeCounts) {
  const std::string text = planned("s3000000000 d64 causal", named("reference")).value().explain();
  EXPECT_NE(text.find("visible pairs   4500000001500000000\n"), std::string::npos) << text;
}

TEST(Planner, FallingBackToTheReferenceIsSaidOnce) {
  std::vector<std::string> notices;
  set_log_sink([&](LogLevel level, std::string_view text) {
    EXPECT_EQ(level, LogLevel::notice);
    notices.emplace_back(text);
  });
  const std::string text = "bwd sq77 sk1073741825 d8 bf16";  // of this test alone
  EXPECT_TRUE(planned(text, with_reference()).ok());
  EXPECT_TRUE(planned(text, with_reference()).ok());
  EXPECT_TRUE(planned(text, named("reference")).ok());
  set_log_sink({});
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find("float64 reference"), std::string::npos);
}

TEST(Planner, EmptyProblemsRunWithoutMemory) {
  for (const std::string_view text : {"b0 s4 d2", "sq0 sk0 d2"}) {
    const Problem p = Problem::parse(text).value();
    Args args;
    args.q = args.k = args.v = args.out =
        TensorView::contiguous(nullptr, DType::fp32, {p.batch, p.seqlen_q, 1, 2});
    EXPECT_EQ(planned(text, named("reference")).value().run(args).message(), "") << text;
    args.k = {};
    EXPECT_EQ(planned(text, named("reference")).value().run(args).rule(), "V040") << text;
  }
}

TEST(Planner, BackwardWithoutQueriesStillWritesZeros) {
  const Plan plan = planned("bwd sq0 sk2 d2", named("reference")).value();
  float kv[4] = {1, 2, 3, 4}, dk[4] = {9, 9, 9, 9}, dv[4] = {9, 9, 9, 9};
  const auto view = [](float* data) {
    return TensorView::contiguous(data, DType::fp32, {1, 2, 1, 2});
  };
  Args args;
  args.q = args.out = args.dout = args.dq =
      TensorView::contiguous(nullptr, DType::fp32, {1, 0, 1, 2});
  args.lse = TensorView::contiguous(nullptr, DType::fp32, {1, 1, 0});
  args.k = args.v = view(kv);
  args.dk = view(dk);
  args.dv = view(dv);
  alignas(64) static std::byte workspace[1 << 16];
  ASSERT_LE(plan.workspace_bytes(), sizeof workspace);
  args.workspace = workspace;
  args.workspace_bytes = sizeof workspace;
  EXPECT_EQ(plan.run(args).message(), "");
  for (const float value : dk) EXPECT_EQ(value, 0);
  for (const float value : dv) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace sirdar
