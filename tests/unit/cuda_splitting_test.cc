// When the keys of a query block of the Hopper forward are split among items, without a GPU.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include "cuda/sm90/forward/choose.h"
#include "cuda/sm90/forward/split.h"
#include "plan/implementation.h"

namespace sirdar::sm90 {
namespace {

ForwardConfig config_of(std::string_view text) {
  return choose_config(Problem::parse(text).value());
}

Result<Plan> planned(std::string_view text, const char* splits = nullptr) {
  PlanOptions options;
  options.implementation = "cuda.sm90.forward";
  if (splits != nullptr) options.knobs = {{"num_splits", splits}};
  return Plan::create(Problem::parse(text).value(), options, Device::named("h200").value());
}

// As many as bring all of the memory's bandwidth, or one round of 132; of 256 keys and more each.
TEST(CudaSplitting, FewItemsOfManyKeysAreSplit) {
  for (const auto& [text, splits] : {std::pair{"fwd b1 sq1 sk65536 hq32 hkv8 d128 bf16 causal", 9},
                                     {"fwd b16 sq1 sk8192 hq32 hkv1 d128 bf16", 5},
                                     {"fwd b1 sq1 sk2048 hq32 hkv8 d128 bf16", 8},
                                     {"fwd b1 sq128 sk32768 h8 d128 bf16 seqused_k", 16},
                                     {"fwd b1 sq1 sk65536 h1 d128 bf16", 86}}) {
    const ForwardConfig config = config_of(text);
    EXPECT_EQ(config.num_splits, splits) << text;
    EXPECT_EQ(config.num_q_buffers, 1) << text;
    EXPECT_TRUE(is_valid(config)) << text;
  }
}

// Of such problems, the kernel is the one that there was before keys were split.
TEST(CudaSplitting, WhatFillsTheMachineIsNotSplit) {
  for (const char* text :
       {"fwd b16 sq1 sk8192 hq32 hkv8 d128 bf16", "fwd b8 sq16 sk4096 hq32 hkv8 d128 bf16 causal",
        "fwd b1 s1024 h8 d128 bf16", "fwd b2 s8192 h16 d128 bf16 causal",
        "fwd b4 s4096 h8 d256 bf16", "fwd b1 sq1 sk512 h8 d128 bf16", "fwd b1 s100 h2 d64 bf16",
        "fwd b1 sq1 sk65536 h8 d128 bf16 window:400,0",
        "fwd b1 sq1 sk65536 hq32 hkv8 d128 bf16 batch_invariant",
        "fwd b1 sq1 sk65536 h8 d128 bf16 mask", "fwd b0 sq1 sk65536 h8 d128 bf16",
        "fwd b1 sq0 sk65536 h8 d128 bf16", "fwd b1 sq1 sk0 h8 d128 bf16"}) {
    const ForwardConfig config = config_of(text);
    EXPECT_EQ(config.num_splits, 1) << text;
    EXPECT_EQ(config, choose_config(Problem::parse(text).value(), true, {{}, 1})) << text;
  }
}

// Packed heads are fewer items, as long as before: it pays where their keys are split.
TEST(CudaSplitting, FewHeadsArePackedToBeSplit) {
  const ForwardConfig config = config_of("fwd b1 sq64 sk32768 hq32 hkv8 d128 bf16");
  EXPECT_EQ(config.num_packed_heads, 4);
  EXPECT_EQ(config.num_splits, 8);  // 16 items
  EXPECT_EQ(config_of("fwd b1 sq128 sk32768 hq32 hkv8 d128 bf16").num_packed_heads, 1);
}

// Kernels know only whether keys are split: a sequence that grows compiles nothing.
TEST(CudaSplitting, AnotherNumberIsTheSameKernel) {
  const auto kernels = [](const char* text) {
    return kernels_of(Problem::parse(text).value(), Device::named("h200").value()).value().sources;
  };
  const auto few = kernels("fwd b1 sq1 sk2048 h8 d128 bf16"),
             many = kernels("fwd b1 sq1 sk65536 h8 d128 bf16");
  ASSERT_EQ(few.size(), 2u);
  ASSERT_EQ(many.size(), 2u);
  for (size_t n = 0; n < 2; ++n) EXPECT_EQ(few[n].config_text, many[n].config_text);
}

// 64 bytes of counters, and for each split and row 128 sums and two numbers more.
TEST(CudaSplitting, WorkspaceHoldsTheParts) {
  const Result<Plan> plan = planned("fwd b2 sq3 sk4096 hq8 hkv2 d128 bf16", "5");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan.value().workspace_bytes(), 64u + 4 * 5 * (2 * 3 * 8) * (128 + 2));
}

TEST(CudaSplitting, ExplainSaysWhy) {
  const auto note = [](std::string_view text) {
    const Problem problem = Problem::parse(text).value();
    return splitting_note(problem, choose_config(problem));
  };
  EXPECT_EQ(note("fwd b1 sq1 sk65536 hq32 hkv8 d128 bf16"),
            "the keys of a query block are up to 9 items: the busiest of 132 multiprocessors takes "
            "the time of 69 key blocks, whole 514");
  EXPECT_EQ(note("fwd b16 sq1 sk8192 hq32 hkv8 d128 bf16"),
            "the keys of a query block are one item: the busiest of 132 multiprocessors takes the "
            "time of 128 key blocks, no less with more");
  EXPECT_EQ(note("fwd b64 s8192 hq32 hkv8 d128 bf16"),
            "the keys of a query block are one item: there are enough of them");
  EXPECT_EQ(note("fwd b1 sq1 sk65536 hq32 hkv8 d128 bf16 mask"),
            "the keys of a query block are one item: a mask that reads data is walked as a whole");
}

TEST(CudaSplitting, KnobTakesWhatFits) {
  constexpr const char* kProblem = "fwd b2 s512 h4 d128 bf16 causal";
  for (const char* splits : {"1", "2", "7", "128"}) {
    const Result<Plan> plan = planned(kProblem, splits);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_NE(plan.value().config().find(std::string("num_splits=") + splits), std::string::npos);
  }
  for (const char* splits : {"0", "-2", "129", "x"})
    EXPECT_EQ(planned(kProblem, splits).status().code(), StatusCode::invalid_argument) << splits;
  EXPECT_EQ(planned("fwd b2 s512 h4 d128 bf16 document", "2").status().code(),
            StatusCode::invalid_argument);
}

}  // namespace
}  // namespace sirdar::sm90
