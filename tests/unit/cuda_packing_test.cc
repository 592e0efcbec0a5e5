// When query heads that share a K/V head are rows of one tile of the Hopper forward, without a GPU.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include "cuda/sm90/forward/choose.h"
#include "cuda/sm90/forward/pack.h"

namespace sirdar::sm90 {
namespace {

ForwardConfig config_of(std::string_view text) {
  return choose_config(Problem::parse(text).value());
}

Result<Plan> planned(std::string_view text, const char* heads) {
  PlanOptions options;
  options.implementation = "cuda.sm90.forward";
  options.knobs = {{"num_packed_heads", heads}};
  return Plan::create(Problem::parse(text).value(), options, Device::named("h200").value());
}

TEST(CudaPacking, FewRowsAreOneTile) {
  for (const auto& [text, heads, consumers] :
       {std::tuple{"fwd b1 sq1 sk4096 hq32 hkv8 d128 bf16", 4, 1},
        {"fwd b64 sq16 sk4096 hq32 hkv8 d128 bf16 causal", 4, 1},
        {"fwd b64 sq17 sk4096 hq32 hkv8 d128 bf16 causal", 4, 2},
        {"fwd b2 sq5 sk200 hq12 hkv2 d128 bf16", 8, 1},  // 6 of 8 rows are somebody's
        {"fwd b64 sq5 sk200 hq12 hkv2 d256 bf16", 8, 2},
        {"fwd b9 sq16 sk200 hq12 hkv1 d64 bf16", 4, 1},  // three tiles, side by side
        {"fwd b1 sq1 sk4096 hq128 hkv1 d128 bf16", 64, 1},
        {"fwd b132 sq1 sk4096 hq128 hkv1 d128 bf16", 128, 2}}) {
    const ForwardConfig config = config_of(text);
    EXPECT_EQ(config.num_packed_heads, heads) << text;
    EXPECT_EQ(config.num_consumers, consumers) << text;
    EXPECT_TRUE(is_valid(config)) << text;
  }
}

// Of such problems, the kernel is the one that there was before packing.
TEST(CudaPacking, WhatFillsTilesIsNotPacked) {
  for (const char* text :
       {"fwd b1 sq1 sk4096 h32 d128 bf16", "fwd b2 s4096 hq32 hkv8 d128 bf16 causal",
        "fwd b64 sq1 sk4096 hq32 hkv8 d128 bf16 batch_invariant",
        "fwd b64 sq1 sk4096 hq32 hkv8 d128 bf16 mask_mod:\"h % 2 == 0 || k < 9\"",
        "fwd b64 sq1 sk4096 hq129 hkv1 d128 bf16", "fwd b64 sq0 sk4096 hq32 hkv8 d128 bf16"}) {
    const ForwardConfig config = config_of(text);
    EXPECT_EQ(config.num_packed_heads, 1) << text;
    EXPECT_EQ(config, choose_config(Problem::parse(text).value(), true, {1, {}})) << text;
  }
}

// An average of 8 rows a sequence, one of them of 4096.
TEST(CudaPacking, RaggedBatchesAreTakenAtTheirAverage) {
  EXPECT_EQ(config_of("fwd b600 sq4096 sk4096 ragged:4695,90000 hq32 hkv8 d128 bf16 causal")
                .num_packed_heads,
            4);
  EXPECT_EQ(config_of("fwd b4 sq4096 sk4096 ragged:16384,16384 hq32 hkv8 d128 bf16 causal")
                .num_packed_heads,
            1);
}

TEST(CudaPacking, ExplainSaysWhy) {
  const auto note = [](std::string_view text) {
    const Problem problem = Problem::parse(text).value();
    return packing_note(problem, choose_config(problem));
  };
  EXPECT_EQ(note("fwd b1 sq1 sk4096 h32 d128 bf16"), "");
  EXPECT_EQ(note("fwd b64 sq1 sk4096 hq32 hkv8 d128 bf16"),
            "4 query heads of a K/V head are rows of one tile: the busiest of 132 multiprocessors "
            "multiplies 256 rows by each key, unpacked 2048");
  EXPECT_EQ(note("fwd b2 s4096 hq32 hkv8 d128 bf16"),
            "query heads of a K/V head have tiles of their own: the busiest of 132 multiprocessors "
            "multiplies 2048 rows by each key, with 4 heads a tile 2048");
  EXPECT_EQ(note("fwd b64 sq1 sk4096 hq32 hkv8 d128 bf16 mask_mod:\"h % 2 == 0 || k < 9\""),
            "query heads of a K/V head have tiles of their own: the mask differs between heads");
}

TEST(CudaPacking, KnobTakesWhatFits) {
  constexpr const char* kProblem = "fwd b2 s512 hq12 hkv2 d128 bf16";
  for (const char* heads : {"1", "2", "8"}) {
    const Result<Plan> plan = planned(kProblem, heads);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_NE(plan.value().config().find(std::string("num_packed_heads=") + heads),
              std::string::npos);
  }
  for (const char* heads : {"0", "-2", "3", "4", "16", "256", "x"})
    EXPECT_EQ(planned(kProblem, heads).status().code(), StatusCode::invalid_argument) << heads;
}

}  // namespace
}  // namespace sirdar::sm90
