// When items of the last round of the Hopper forward are shared out, without a GPU.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include "cuda/sm90/forward/choose.h"
#include "cuda/sm90/forward/last_round.h"

namespace sirdar::sm90 {
namespace {

bool shares(std::string_view text) {
  return choose_config(Problem::parse(text).value()).shares_last_round;
}

// Where it was measured to pay (README.md), and where not.
TEST(CudaLastRound, IsSharedOutWhereItPays) {
  for (const char* text :
       {"fwd b4 s4096 h8 d256 bf16", "fwd b1 s16384 h8 d256 bf16 lse",
        "fwd b4 s4096 h16 d128 bf16 lse", "fwd b2 s8192 h16 d128 fp16", "fwd b8 s2048 h32 d64 bf16",
        "fwd b4 s4096 h32 d64 bf16", "fwd b4 s4096 h8 d192 dv128 bf16 lse"})
    EXPECT_TRUE(shares(text)) << text;
  for (const char* text :
       {"fwd b8 s2048 h8 d256 bf16", "fwd b16 s1024 h8 d256 bf16", "fwd b8 s2048 h16 d128 bf16",
        "fwd b4 s4096 h16 d128 bf16 causal", "fwd b4 s4096 h16 d128 bf16 ragged",
        "fwd b4 s4096 h16 d128 bf16 seqused_k", "fwd b4 s4096 h16 d128 bf16 batch_invariant",
        "fwd b4 s4096 h16 d128 bf16 mask", "fwd b4 s4096 h16 d128 bf16 bias",
        "fwd b4 s4096 h32 d64 bf16 lse", "fwd b1 s16384 h32 d64 bf16", "fwd b4 s4224 h1 d128 bf16",
        "fwd b1 s4096 h4 d128 bf16"})
    EXPECT_FALSE(shares(text)) << text;
}

// Ten items of four thread blocks: two rounds, and two items of seven key blocks in shares of four.
TEST(CudaLastRound, IsTwoTicketsForEachThreadBlock) {
  ForwardConfig config;
  config.num_q_buffers = 1;
  config.shares_last_round = true;
  ForwardParams params{};
  params.num_items = 10;
  params.seqlen_k = 7 * 128 - 5;
  share_last_round(config, 4, nullptr, params);
  EXPECT_EQ(params.last.first_item, 8);
  EXPECT_EQ(params.last.num_items, 2);
  EXPECT_EQ(params.last.num_blocks, 7);
  EXPECT_EQ(params.last.share, 4);
  EXPECT_EQ(params.num_items, 8 + 2 * 4);
  params.num_items = 8;  // whole rounds
  share_last_round(config, 4, nullptr, params);
  EXPECT_EQ(params.num_items, 8);
}

// 132 slots of 64 bytes of flags, and what eight warps hold of a tile: 128 columns, references,
// sums.
TEST(CudaLastRound, WorkspaceHoldsTheSlots) {
  PlanOptions options;
  options.implementation = "cuda.sm90.forward";
  const Result<Plan> plan = Plan::create(Problem::parse("fwd b4 s4096 h16 d128 bf16").value(),
                                         options, Device::named("h200").value());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan.value().workspace_bytes(), 132u * (64 + 8 * 32 * 4 * (64 + 4)));
}

// What the library has chosen stands in no knob's way.
TEST(CudaLastRound, GivesWayToKnobs) {
  const Problem problem = Problem::parse("fwd b4 s4096 h16 d128 bf16").value();
  for (const auto& [name, value] : {std::pair{"cluster_size", "2"}, {"is_persistent", "false"}}) {
    PlanOptions options;
    options.implementation = "cuda.sm90.forward";
    options.knobs = {{name, value}};
    const Device device = Device::named("h200").value();
    EXPECT_TRUE(Plan::create(problem, options, device).ok()) << name;
    options.knobs.emplace_back("shares_last_round", "true");
    EXPECT_EQ(Plan::create(problem, options, device).status().code(), StatusCode::invalid_argument)
        << name;
  }
}

TEST(CudaLastRound, KnobIsRefusedWhereItCannotBe) {
  PlanOptions options;
  options.implementation = "cuda.sm90.forward";
  options.knobs = {{"shares_last_round", "true"}};
  const auto code = [&](std::string_view text) {
    return Plan::create(Problem::parse(text).value(), options, Device::named("h200").value())
        .status()
        .code();
  };
  EXPECT_EQ(code("fwd b1 s100 h2 d128 bf16"), StatusCode::ok);
  for (const char* text : {"fwd b1 s100 h2 d128 bf16 causal", "fwd b2 s100 h2 d128 bf16 ragged",
                           "fwd b1 s100 h2 d128 bf16 bias", "fwd b1 s100 h2 d128 bf16 mask"})
    EXPECT_EQ(code(text), StatusCode::invalid_argument) << text;
}

}  // namespace
}  // namespace sirdar::sm90
