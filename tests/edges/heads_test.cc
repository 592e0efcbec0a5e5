// Head counts, groups and head dims: which K/V head a query head uses, and every size right.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// B086, B087, B088: groups of 7, 16 and 24: query head h uses K/V head h / group, read off values
// that name their head.
TEST(Heads, EveryQueryHeadUsesItsOwnGroup) {
  for (const auto& [heads, heads_kv] :
       {std::pair(28, 4), std::pair(14, 2), std::pair(64, 4), std::pair(48, 2), std::pair(6, 2),
        std::pair(71, 1), std::pair(16, 16)}) {
    for (const int seqlen_q : {1, 5}) {
      for (const char* layout : {"", " paged16"}) {
        Call call("fwd b2 sq" + std::to_string(seqlen_q) + " sk20 hq" + std::to_string(heads) +
                  " hkv" + std::to_string(heads_kv) + " d16 fp32" + layout);
        for (int64_t n = 0; n < call.v.size(); ++n) {
          const bool in_use = call.v.flat(n) == call.v.flat(n);
          if (in_use) call.v.set_flat(n, static_cast<double>(n / 16 % heads_kv));
        }
        for (const Variant& variant : few_variants(call.problem)) {
          SCOPED_TRACE(call.problem.str() + variant.str());
          ASSERT_TRUE(call.run(variant).ok());
          for (int64_t h = 0; h < heads; ++h) {
            EXPECT_NEAR(call.out.at({1, seqlen_q - 1, h, 15}),
                        static_cast<double>(h / (heads / heads_kv)), 1e-4);
          }
        }
      }
    }
  }
}

// B066, B095, B096, B099, B103: head dims that suit no vector or tile, forward and backward.
TEST(Heads, EveryHeadDim) {
  for (const char* d : {"d1", "d2", "d3", "d7", "d40", "d46", "d59", "d80", "d96", "d100", "d160",
                        "d224", "d256", "d320", "d512"}) {
    for (const char* dtype : {"fp32", "fp16", "bf16"}) {
      Call forward(std::string("fwd b2 sq9 sk17 hq2 hkv1 causal lse ") + d + " " + dtype);
      expect_all_match_float64(forward);
      Call backward(std::string("bwd b2 sq5 sk9 hq2 hkv1 causal ") + d + " " + dtype);
      expect_all_match_float64(backward);
    }
  }
}

// B090, B102: value dims on either side of head dims; the output has the value's columns.
TEST(Heads, ValueDimsOfTheirOwn) {
  for (const char* dims :
       {"d64 dv128", "d128 dv64", "d1 dv33", "d33 dv1", "d192 dv128", "d16 dv512"}) {
    for (const char* rest : {"hq6 hkv2", "hq2 hkv2"}) {
      const std::string text =
          std::string(" b3 sq7 sk11 ragged_q:15 ragged_k:25 causal fp32 ") + dims + " " + rest;
      Call forward("fwd lse" + text), backward("bwd" + text);
      EXPECT_EQ(forward.out.shape().back(), forward.problem.value_dim());
      expect_all_match_float64(forward);
      expect_all_match_float64(backward);
    }
  }
}

// B093: a large head dim, a batch of two and activations with a few enormous channels.
TEST(Heads, OutlierChannels) {
  for (const char* dtype : {"bf16", "fp32"}) {
    for (const char* op : {"fwd", "bwd"}) {
      Call call(std::string(op) + " b2 sq33 sk33 hq4 hkv1 d256 causal " + dtype);
      for (Tensor* tensor : {&call.q, &call.k, &call.v}) {
        for (int64_t n = 0; n < tensor->size(); ++n) {
          const int64_t c = n % 256;
          if (c == 3 || c == 200) tensor->set_flat(n, 40 * tensor->flat(n));
        }
      }
      expect_all_match_float64(call);
    }
  }
}

TEST(Heads, SizesOutsideTheirRangeAreRefused) {
  const Problem base = Problem::parse("fwd sq4 sk4 hq2 hkv2 d8 fp32").value();
  const auto argument_of = [&](const std::function<void(Problem&)>& edit) {
    Problem p = base;
    edit(p);
    return p.validate().argument();
  };
  EXPECT_EQ(argument_of([](Problem& p) { p.head_dim = 0; }), "head_dim");
  EXPECT_EQ(argument_of([](Problem& p) { p.head_dim = 513; }), "head_dim");
  EXPECT_EQ(argument_of([](Problem& p) { p.head_dim = -8; }), "head_dim");
  EXPECT_EQ(argument_of([](Problem& p) { p.head_dim_v = 513; }), "head_dim_v");
  EXPECT_EQ(argument_of([](Problem& p) { p.num_heads_q = 0; }), "num_heads_q");
  EXPECT_EQ(argument_of([](Problem& p) { p.num_heads_kv = 0; }), "num_heads_kv");
  EXPECT_EQ(argument_of([](Problem& p) { p.num_heads_q = 3; }), "num_heads_q");
  EXPECT_EQ(argument_of([](Problem& p) { p.batch = -1; }), "batch");
  EXPECT_EQ(argument_of([](Problem& p) { p.seqlen_q = -1; }), "seqlen_q");
  EXPECT_EQ(argument_of([](Problem& p) { p.mask.window_left = -1; }), "window_left");
  EXPECT_EQ(argument_of([](Problem& p) { p.mask.chunk_size = -1; }), "chunk_size");
  EXPECT_EQ(argument_of([](Problem& p) { p.softmax_scale = kNan; }), "softmax_scale");
  EXPECT_NE(argument_of([](Problem& p) { p.seqlen_q = std::numeric_limits<int64_t>::max(); }), "");
}

}  // namespace
}  // namespace sirdar::test
