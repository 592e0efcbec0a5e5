// What the data hide is no work: counted pairs, rows and keys against asking the reference for
// each.
#include "check/data_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "check/inputs.h"
#include "core/geometry.h"
#include "reference/attention.h"

namespace sirdar::check {
namespace {

struct Counts {
  int64_t pairs = 0, rows = 0, keys = 0;  // keys: of K/V heads
};

Counts counted(const Problem& p, const Args& args) {
  Counts counts;
  const Extents queries = query_extents(p, args), keys = key_extents(p, args);
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t seqlen_q = queries.sequence(b).length, seqlen_k = keys.sequence(b).length;
    std::vector<bool> key_seen(static_cast<size_t>(p.num_heads_kv * seqlen_k));
    for (int64_t h = 0; h < p.num_heads_q; ++h) {
      for (int64_t i = 0; i < seqlen_q; ++i) {
        bool row_sees = false;
        for (int64_t j = 0; j < seqlen_k; ++j) {
          if (!reference::visible(p, args, b, h, i, j)) continue;
          ++counts.pairs;
          row_sees = true;
          key_seen[static_cast<size_t>(h / p.group_size() * seqlen_k + j)] = true;
        }
        counts.rows += row_sees ? 1 : 0;
      }
    }
    counts.keys += std::ranges::count(key_seen, true);
  }
  return counts;
}

constexpr const char* kProblems[] = {
    "b2 sq37 sk53 hq4 hkv2 d8 document",
    "b2 sq37 sk53 hq4 hkv2 d8 document causal",
    "b2 sq37 sk53 hq4 hkv2 d8 document window:9,3",
    "b2 sq37 sk53 hq4 hkv2 d8 mask",
    "b2 sq37 sk53 hq4 hkv2 d8 mask:bhqk causal",
    "b2 sq37 sk53 hq4 hkv2 d8 mask:k chunk:16",
    "b2 sq37 sk53 hq4 hkv2 d8 bias",
    "b2 sq37 sk53 hq4 hkv2 d8 bias:hqk document mask:hk causal",
    "b2 sq37 sk53 hq4 hkv2 d8 mask_mod:\"k % 3 != 0\"",
    "b2 sq37 sk53 hq4 hkv2 d8 mask_mod:\"q_pos - k < 5 + h && b > 0\" causal",
    "b2 sq37 sk53 hq4 hkv2 d8 mask_mod:\"k < n[h]\" tensor:n:int32:1 document",
    "b2 sq37 sk53 hq4 hkv2 d8 mask_mod:\"k < 20\" mask bias:q",
    "b3 sq37 sk53 hq4 hkv2 d8 ragged:60,70 causal",
    "b3 sq37 sk53 hq4 hkv2 d8 ragged:60,70 document",
    "b3 sq37 sk53 hq4 hkv2 d8 seqused_q seqused_k window:4,0 chunk:7",
    "b3 sq53 sk37 hq4 hkv2 d8 seqused_q seqused_k causal mask",
    "b2 sq53 sk37 hq2 hkv2 d8 causal",
    "b2 sq1 sk99 hq2 hkv1 d8 window:9,0",
};

TEST(DataCost, CountsWhatTheReferenceSees) {
  for (const char* text : kProblems) {
    const Result<Problem> problem = Problem::parse(text);
    ASSERT_TRUE(problem.ok() && problem.value().validate().ok()) << text;
    const Problem& p = problem.value();
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const Inputs inputs(p, seed, seed == 4 ? Style::timed : Style::hostile);
      const Counts wanted = counted(p, inputs.args());
      const Cost cost = data_cost(p, inputs.args());
      EXPECT_TRUE(cost.is_exact) << text;
      EXPECT_EQ(static_cast<int64_t>(cost.visible_pairs), wanted.pairs) << text << " " << seed;
      EXPECT_EQ(cost.flops, static_cast<double>(wanted.pairs * 4 * 8)) << text;
      if (p.has_bias || p.has_mask_tensor) continue;  // their own bytes are among those read
      EXPECT_EQ(cost.bytes_read, static_cast<double>(4 * 8 * (wanted.rows + 2 * wanted.keys)))
          << text << " " << seed;
    }
  }
}

// [1, 1, 4, 4] booleans and biases for two heads of 8 numbers, counted on paper.
TEST(DataCost, ATensorIsReadWhereItIsSeen) {
  const Problem p = Problem::parse("b1 s4 h2 d8 mask:qk bias:hqk causal").value();
  Inputs inputs(p, 1, Style::timed);
  auto* mask = static_cast<uint8_t*>(inputs.args().mask.data);
  for (int i = 0; i < 16; ++i) mask[i] = i % 4 == 0 ? 1 : 0;  // the first key alone
  const Cost cost = data_cost(p, inputs.args());
  EXPECT_TRUE(cost.visible_pairs == 2 * 4);
  // q, one key, one value; 4 elements of the mask, 4 of each head's bias.
  EXPECT_EQ(cost.bytes_read, 4 * (2 * 4 * 8 + 2 * 8 + 2 * 8) + 4 + 4 * 8);
  EXPECT_EQ(cost.bytes_written, 4 * 2 * 4 * 8);
}

TEST(DataCost, WhatTakesTooLongToCountIsNotExact) {
  const Problem p = Problem::parse("s64 d8 mask_mod:\"(q * 7 + k * 3) % 5 < 2\"").value();
  const Inputs inputs(p, 1, Style::timed);
  EXPECT_TRUE(data_cost(p, inputs.args()).is_exact);
  const Cost cost = data_cost(p, inputs.args(), 1000);
  EXPECT_FALSE(cost.is_exact);
  EXPECT_TRUE(cost.visible_pairs == 64 * 64) << "a bound";
}

}  // namespace
}  // namespace sirdar::check
