// Knobs of the Hopper kernels change how a problem is computed, never what; a bad one is refused.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include <array>

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
  EXPECT_EQ(status.message().find("knobs: "), 0u) << status.message();
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
      for (const char* name : {"num_consumers", "num_packed_heads", "block_n", "num_stages_k",
                               "num_stages_v", "num_q_buffers", "cluster_size", "head_dim"}) {
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

TEST(CudaBackwardKnobs, OrdersOfWorkUnderMasksWantOne) {
  for (const char* name : {"is_persistent", "mirrors_tail"}) {
    expect_refused("bwd s64 h2 d128 bf16", name, "true");
    expect_refused("bwd s64 h2 d128 bf16 causal document", name, "true");
    EXPECT_TRUE(planned("bwd s64 h2 d128 bf16 causal", name, "true").ok());
  }
}

}  // namespace
}  // namespace sirdar::test
