// Which kernels a CPU gets, for machines of every kind; what is forced and refused.
#include <gtest/gtest.h>
#include <sirdar/plan.hpp>

#include "cpu/dispatch.h"

namespace sirdar::cpu {
namespace {

Device recorded(const char* name) { return Device::named(name).value(); }

Isa chosen(const char* device) { return choose_isa(recorded(device), "").value(); }

#if defined(__x86_64__)
TEST(CpuDispatch, TakesTheBestKernelsOfEachMachine) {
  EXPECT_EQ(chosen("zen4"), Isa::avx512_bf16);
  EXPECT_EQ(chosen("emerald_rapids"), Isa::avx512);
  EXPECT_EQ(chosen("avx2"), Isa::avx2);
}

TEST(CpuDispatch, PairsOfBf16AreLeftAloneWhereTheyAreSlow) {
  const Problem problem = Problem::parse("fwd s64 bf16").value();
  EXPECT_EQ(choose_isa(recorded("sapphire_rapids"), "", problem).value(), Isa::avx512);
  EXPECT_EQ(choose_isa(recorded("sapphire_rapids"), "avx512_bf16", problem).value(),
            Isa::avx512_bf16);
}

TEST(CpuDispatch, OnlyTheForwardOfBf16HasKernelsForAvx512Bf16) {
  const auto chosen_for = [](const char* problem, const char* forced) {
    return choose_isa(recorded("zen4"), forced, Problem::parse(problem).value()).value();
  };
  for (const char* forced : {"", "avx512_bf16"}) {
    EXPECT_EQ(chosen_for("fwd s64 bf16", forced), Isa::avx512_bf16);
    EXPECT_EQ(chosen_for("fwd s64 fp32", forced), Isa::avx512);
    EXPECT_EQ(chosen_for("fwd s64 fp16", forced), Isa::avx512);
    EXPECT_EQ(chosen_for("bwd s64 bf16", forced), Isa::avx512);
  }
  EXPECT_EQ(chosen_for("fwd s64 bf16", "avx512"), Isa::avx512);
  EXPECT_EQ(product_kernels_for(Isa::avx512_bf16, DType::bf16).per_word, 2);
  EXPECT_EQ(product_kernels_for(Isa::avx512_bf16, DType::fp32).per_word, 1);
  EXPECT_EQ(product_kernels_for(Isa::avx512, DType::bf16).per_word, 1);
}

TEST(CpuDispatch, ForcesWeakerKernels) {
  EXPECT_EQ(choose_isa(recorded("zen4"), "avx2").value(), Isa::avx2);
  EXPECT_EQ(choose_isa(recorded("zen4"), "scalar").value(), Isa::scalar);
  EXPECT_EQ(choose_isa(recorded("avx2"), "avx2").value(), Isa::avx2);
}
#endif

TEST(CpuDispatch, FallsBackToTheBaseline) {
  EXPECT_EQ(chosen("scalar"), Isa::scalar);
#if defined(__aarch64__)
  EXPECT_EQ(chosen("neon"), Isa::neon);
#else
  EXPECT_EQ(chosen("neon"), Isa::scalar);
#endif
}

TEST(CpuDispatch, RefusesWhatTheMachineLacks) {
  for (const char* isa : {"avx512", "avx512_bf16", "neon"}) {
    const Result<Isa> refused = choose_isa(recorded("avx2"), isa);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().argument(), "isa");
    EXPECT_NE(refused.status().message().find(isa), std::string::npos);
    EXPECT_NE(refused.status().message().find("scalar"), std::string::npos);
  }
}

TEST(CpuDispatch, ARefusalNamesWhoRefuses) {
  PlanOptions options;
  options.knobs = {{"isa", "avx512"}};
  for (const std::string name : {"cpu.forward", "cpu.backward"}) {
    options.implementation = name;
    const Problem problem = Problem::parse(name == "cpu.forward" ? "fwd s8" : "bwd s8").value();
    const Result<Plan> refused = Plan::create(problem, options, recorded("avx2"));
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("cannot be used by " + name), std::string::npos)
        << refused.status().message();
  }
}

Problem example() {
  Problem problem;
  problem.seqlen_q = problem.seqlen_k = 2048;
  problem.num_heads_q = problem.num_heads_kv = 8;
  return problem;
}

TEST(CpuDispatch, PlansForMachinesThatAreNotHere) {
  const Plan plan = Plan::create(example(), {}, recorded("avx2")).value();
  EXPECT_EQ(plan.name(), "cpu.forward");
  EXPECT_NE(plan.config().find("num_threads=8"), std::string::npos) << plan.config();
}

// One long sequence among many short ones: the grid of the longest looks full, its rows are not.
TEST(CpuDispatch, CountsTheTilesOfARaggedBatchByItsRows) {
  Problem problem;
  problem.batch = 256;
  problem.seqlen_q = problem.seqlen_k = 2048;
  problem.num_heads_q = problem.num_heads_kv = 1;
  PlanOptions options;
  options.num_threads = 2;
  const std::string dense = Plan::create(problem, options).value().config();
  EXPECT_NE(dense.find("block_m=2048"), std::string::npos) << dense;
  problem.layout_q = problem.layout_kv = Layout::ragged;
  problem.total_q = problem.total_k = 2048 + 255 * 16;
  const std::string ragged = Plan::create(problem, options).value().config();
  EXPECT_NE(ragged.find("block_m=512"), std::string::npos) << ragged;
}

TEST(CpuDispatch, TakesKnobsByNameAndRefusesUnknownAndUnfitOnes) {
  PlanOptions options;
  options.knobs = {{"block_m", "64"}, {"block_n", "40"}};
  const std::string config = Plan::create(example(), options).value().config();
  EXPECT_NE(config.find("block_m=64 block_n=40"), std::string::npos) << config;
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"block_q", "64"}, {"block_m", "63"},         {"block_m", "sixty"}, {"block_n", "4"},
      {"split_n", "0"},  {"num_threads", "100000"}, {"isa", "mmx"}};
  for (const auto& knob : bad) {
    options.knobs = {knob};
    const Result<Plan> refused = Plan::create(example(), options);
    ASSERT_FALSE(refused.ok()) << knob.first << '=' << knob.second;
    EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  }
}

}  // namespace
}  // namespace sirdar::cpu
