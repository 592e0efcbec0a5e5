// Knobs of the Hopper kernels change how a problem is computed, never what; a bad one is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include <array>
#include <random>

#include "cuda/sm90/backward/check_config.h"
#include "cuda/sm90/backward/choose.h"
#include "cuda/sm90/forward/check_config.h"
#include "cuda/sm90/forward/choose.h"

namespace sirdar::test {
namespace {

Status planned(const char* text, const char* name, const char* value) {
  PlanOptions options;
  options.implementation = text[0] == 'f' ? "cuda.sm90.forward" : "cuda.sm90.backward";
  options.knobs = {{name, value}};
  return Plan::create(Problem::parse(text).value(), options, Device::named("h200").value())
      .status();
}

void expect_refused(const char* text, const char* name, const char* value) {
  const Status status = planned(text, name, value);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << text << ' ' << name << '=' << value;
  EXPECT_EQ(status.message().find(fmt::format("knobs: {}={} cannot be", name, value)), 0u)
      << status.message();
  EXPECT_LT(status.message().size(), 240u) << status.message();
}

TEST(CudaForwardKnobs, WhatFollowsFromTheProblemIsNone) {
  for (const auto& [text, name, value] : {
           std::array{"fwd s100 h2 d64 fp16 softcap:20", "has_softcap", "false"},
           {"fwd s100 h2 d64 bf16 alibi", "has_alibi", "false"},
           {"fwd s100 h2 d64 bf16 sink", "has_sink", "false"},
           {"fwd b2 s100 h2 d64 bf16 seqused_k", "has_lengths", "false"},
           {"fwd s100 h2 d64 bf16 lse", "writes_lse", "false"},
           {"fwd s100 h2 d64 bf16 document", "has_mask_mod", "false"},
           {"fwd s100 h2 d128 bf16 causal", "mask", "full"},
           {"fwd s100 h2 d128 bf16 bias", "bias", "none"},
           {"fwd s100 h2 d128 bf16", "element", "fp16"},
           {"fwd s100 h2 d128 bf16", "head_dim", "64"},
           {"fwd s100 h2 d128 bf16", "has_sink", "true"},
           {"fwd s100 h2 d128 bf16 max_logit", "softmax", "guarded"},
       }) {
    expect_refused(text, name, value);
  }
}

TEST(CudaForwardKnobs, NumbersOutOfRangeAreRefused) {
  for (const char* text : {"fwd s100 h2 d128 bf16", "fwd s100 h2 d128 bf16 causal",
                           "fwd s100 h2 d64 bf16 document", "fwd s100 h2 d256 bf16"}) {
    for (const char* value : {"0", "-1", "-16", "2147483647"}) {
      for (const char* name :
           {"num_consumers", "num_packed_heads", "block_n", "num_stages_k", "num_stages_v",
            "num_q_buffers", "num_splits", "cluster_size", "head_dim"}) {
        expect_refused(text, name, value);
      }
    }
    for (const char* name : {"trim", "num_polynomial", "num_stages_bias"}) {
      expect_refused(text, name, "-1");
      expect_refused(text, name, "1000");
    }
    expect_refused(text, "cluster_size", "3");
    expect_refused(text, "block_n", "24");
  }
  EXPECT_TRUE(planned("fwd s100 h2 d128 bf16", "cluster_size", "2").ok());
  EXPECT_TRUE(planned("fwd s100 h2 d128 bf16 causal", "trim", "0").ok());
}

// What the library itself chose gives way.
TEST(CudaForwardKnobs, SplitsAndSharesGiveWay) {
  EXPECT_TRUE(planned("fwd b1 sq1 sk8192 hq8 hkv2 d128 bf16", "num_q_buffers", "2").ok());
  EXPECT_TRUE(planned("fwd b1 sq128 sk8192 h2 d256 bf16", "cluster_size", "2").ok());
  EXPECT_TRUE(planned("fwd b4 s4096 h8 d256 bf16", "cluster_size", "2").ok());
  expect_refused("fwd b4 s4096 h8 d256 bf16 batch_invariant", "shares_last_round", "true");
}

TEST(CudaBackwardKnobs, NumbersOutOfRangeAreRefused) {
  for (const char* text : {"bwd s64 h2 d64 bf16", "bwd s64 h2 d64 bf16 causal",
                           "bwd s64 h2 d128 bf16", "bwd s64 h2 d256 bf16", "bwd s64 h2 d64 fp16"}) {
    for (const char* value : {"0", "-1", "2147483647"}) {
      for (const char* name : {"block_m", "num_stages_q", "num_stages_dout", "num_ds", "num_slots",
                               "num_sums", "hop_steps", "cluster_size"}) {
        expect_refused(text, name, value);
      }
    }
    for (const char* value : {"-1", "1", "17"}) expect_refused(text, "num_stages_bias", value);
  }
}

// What is refused in words is what no kernel is compiled for.
TEST(CudaForwardKnobs, TheWordsAreTheRule) {
  std::mt19937 random(1);
  const auto draw = [&](std::initializer_list<int> of) { return of.begin()[random() % of.size()]; };
  for (const char* text : {"fwd s100 h8 d64 bf16", "fwd s100 hq8 hkv2 d128 bf16 causal",
                           "fwd s100 h2 d64 fp16 document", "fwd s100 h2 d256 bf16 causal lse",
                           "fwd s100 h2 d128 bf16 bias:qk:bf16", "fwd s9 h2 d64 bf16 max_logit"}) {
    const sm90::ForwardConfig chosen = sm90::choose_config(Problem::parse(text).value());
    EXPECT_FALSE(sm90::fault_of(chosen, chosen).is_fault()) << text;
    for (int n = 0; n < 500; ++n) {
      sm90::ForwardConfig config = chosen;
      config.num_consumers = draw({1, 2, 3});
      config.block_n = draw({24, 32, 80, 128, 176});
      config.num_stages_k = draw({1, 2, 9});
      config.num_stages_v = draw({1, 2, 3});
      config.num_packed_heads = draw({1, 3, 4, 128});
      config.trim = draw({0, 0, 1});
      config.cluster_size = draw({1, 1, 2});
      config.num_splits = draw({1, 1, 3});
      config.shares_last_round = draw({0, 0, 1}) != 0;
      config.takes_turns = draw({0, 1}) != 0;
      config.softmax = static_cast<sm90::Softmax>(draw({0, 1, 2}));
      config.num_q_buffers = draw({1, 2});
      config.num_stages_bias = draw({0, 0, 1});
      EXPECT_EQ(!sm90::fault_of(chosen, config).is_fault(), is_valid(config))
          << print_fields(config);
    }
  }
}

TEST(CudaBackwardKnobs, TheWordsAreTheRule) {
  std::mt19937 random(1);
  const auto draw = [&](std::initializer_list<int> of) { return of.begin()[random() % of.size()]; };
  for (const char* text :
       {"bwd s64 h2 d64 bf16", "bwd s64 h2 d128 bf16 causal", "bwd s64 h2 d256 bf16",
        "bwd s64 h2 d256 fp16 causal", "bwd s64 h2 d64 bf16 nondeterministic",
        "bwd s64 h2 d128 bf16 document causal", "bwd s64 h2 d64 bf16 bias:qk:fp32"}) {
    const sm90::BackwardConfig chosen = sm90::choose_backward_config(Problem::parse(text).value());
    EXPECT_FALSE(sm90::fault_of(chosen, chosen).is_fault()) << text;
    for (int n = 0; n < 500; ++n) {
      sm90::BackwardConfig config = chosen;
      config.block_m = draw({64, 64, 96, 128});
      config.num_stages_q = draw({1, 2, 3, 17});
      config.num_stages_dout = draw({1, 2, 5});
      config.num_ds = draw({1, 2});
      config.num_slots = draw({1, 2, 4, 7});
      config.num_sums = draw({1, 1, 2, 3});
      config.cluster_size = draw({1, 1, 2});
      config.num_stages_bias = draw({0, 0, 1});
      config.is_persistent = draw({0, 1}) != 0;
      config.mirrors_tail = draw({0, 1}) != 0;
      config.converts_early = draw({0, 1}) != 0;
      config.num_spare = draw({0, 0, 3, 65});
      EXPECT_EQ(!sm90::fault_of(chosen, config).is_fault(), is_valid(config))
          << print_fields(config);
      // A call whose bias TMA cannot bring runs this one.
      EXPECT_EQ(is_valid(config), is_valid(config) && is_valid(without_staged_bias(config)))
          << print_fields(config);
    }
  }
}

TEST(CudaBackwardKnobs, AMirroredTailWantsAMask) {
  expect_refused("bwd s64 h2 d128 bf16", "mirrors_tail", "true");
  EXPECT_TRUE(planned("bwd s64 h2 d128 bf16 causal document", "mirrors_tail", "true").ok());
}

TEST(CudaBackwardKnobs, EarlyConversionWantsAFixedOrder) {
  const char* const fixed = "bwd s64 h2 d64 bf16 causal";
  for (const char* value : {"0", "3", "64"}) EXPECT_TRUE(planned(fixed, "num_spare", value).ok());
  for (const char* value : {"-1", "65"}) expect_refused(fixed, "num_spare", value);
  expect_refused("bwd s64 h2 d128 bf16 nondeterministic", "converts_early", "true");
  expect_refused("bwd s64 h2 d128 bf16 nondeterministic", "num_spare", "1");
  // Where it is the default, with multiprocessors of its own, that alone turns it off.
  EXPECT_TRUE(planned("bwd b2 s1024 h16 d64 bf16 causal", "converts_early", "false").ok());
}

// 2^18 tiles of 64 rows times 2^13 groups of keys are one thread block more than a grid has.
TEST(CudaBackwardKnobs, SmallerTilesMayBeTooManyForAMask) {
  PlanOptions options;
  options.implementation = "cuda.sm90.backward";
  const Problem problem =
      Problem::parse("bwd b1 s16777216 h1 d64 bf16 document window:99,0").value();
  const Device device = Device::named("h200").value();
  EXPECT_TRUE(Plan::create(problem, options, device).ok());
  options.knobs = {{"block_m", "64"}, {"num_slots", "3"}};
  const Status status = Plan::create(problem, options, device).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("thread blocks"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace sirdar::test
