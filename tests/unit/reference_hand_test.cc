// The reference on cases small enough to compute by hand; the arithmetic is in the comments.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/attention.h"
#include "shared/float_bits.h"

namespace sirdar {
namespace {

using reference::Forward;
using reference::Gradients;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// One sequence, one head, fp32, contiguous.
struct Small {
  std::vector<float> q, k, v, extra, sink, dout, dlse;
  std::vector<uint8_t> mask;
  Problem problem;
  Args args;

  Small(int64_t head_dim, std::vector<float> queries, std::vector<float> keys,
        std::vector<float> values)
      : q(std::move(queries)), k(std::move(keys)), v(std::move(values)) {
    problem.head_dim = head_dim;
    problem.seqlen_q = static_cast<int64_t>(q.size()) / head_dim;
    problem.seqlen_k = static_cast<int64_t>(k.size()) / head_dim;
    problem.head_dim_v =
        problem.seqlen_k > 0 ? static_cast<int64_t>(v.size()) / problem.seqlen_k : 1;
    problem.softmax_scale = 1.0f;
    args.q = view(q, problem.seqlen_q, head_dim);
    args.k = view(k, problem.seqlen_k, head_dim);
    args.v = view(v, problem.seqlen_k, problem.head_dim_v);
  }
  static TensorView view(std::vector<float>& data, int64_t rows, int64_t columns) {
    return TensorView::contiguous(data.data(), DType::fp32, {1, rows, 1, columns});
  }
  void bias(std::vector<float> values) {
    extra = std::move(values);
    problem.has_bias = true;
    args.bias = TensorView::contiguous(extra.data(), DType::fp32,
                                       {1, 1, problem.seqlen_q, problem.seqlen_k});
  }
  void with_sink(float value) {
    sink = {value};
    problem.has_sink = true;
    args.sink = TensorView::contiguous(sink.data(), DType::fp32, {1});
  }
  void with_mask(std::vector<uint8_t> values) {
    mask = std::move(values);
    problem.has_mask_tensor = true;
    args.mask = TensorView::contiguous(mask.data(), DType::boolean,
                                       {1, 1, problem.seqlen_q, problem.seqlen_k});
  }
  Forward forward() { return reference::forward(problem, args); }
  Gradients backward(std::vector<float> gradient) {
    problem.op = Op::backward;
    dout = std::move(gradient);
    args.dout = view(dout, problem.seqlen_q, problem.head_dim_v);
    return reference::backward(problem, args, forward());
  }
};

const float kLn2 = std::log(2.0f), kLn3 = std::log(3.0f);

// Scores ln 1, ln 3: weights 1/4, 3/4. out = 4/4 + 8 * 3/4 = 7; lse = ln 4; largest logit ln 3.
TEST(ByHand, TwoKeys) {
  const Forward r = Small(1, {1}, {0, kLn3}, {4, 8}).forward();
  EXPECT_NEAR(r.out[0], 7, 1e-6);
  EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-7);
  EXPECT_EQ(r.max_logit[0], double{kLn3});
}

// Default scale 1/sqrt(4): dot 2 ln 3 gives the score ln 3, so the result is that of TwoKeys.
TEST(ByHand, DefaultScale) {
  Small one(4, {1, 1, 0, 0}, {0, 0, 0, 0, kLn3, kLn3, 9, 9}, {4, 8});
  one.problem.softmax_scale.reset();
  EXPECT_NEAR(one.forward().out[0], 7, 1e-6);
}

// Scale 0: every score is 0, the mean (4 + 8) / 2 = 6. Scale -1: scores 0, -ln 3, weights 3/4, 1/4:
// 3 + 2 = 5.
TEST(ByHand, ZeroAndNegativeScale) {
  Small one(1, {1}, {0, kLn3}, {4, 8});
  one.problem.softmax_scale = 0.0f;
  EXPECT_EQ(one.forward().out[0], 6);
  one.problem.softmax_scale = -1.0f;
  EXPECT_NEAR(one.forward().out[0], 5, 1e-6);
}

// Two queries, three keys, equal scores. Bottom-right (d = 1): row 0 sees keys 0, 1: mean 1.5; row
// 1 sees all: (1 + 2 + 6) / 3 = 3. Top-left: row 0 sees key 0: 1; row 1 keys 0, 1: 1.5.
TEST(ByHand, CausalInBothAlignments) {
  Small one(1, {0, 0}, {0, 0, 0}, {1, 2, 6});
  one.problem.mask = Mask::causal();
  Forward r = one.forward();
  EXPECT_DOUBLE_EQ(r.out[0], 1.5);
  EXPECT_DOUBLE_EQ(r.out[1], 3);
  one.problem.mask = Mask::causal(Alignment::top_left);
  r = one.forward();
  EXPECT_DOUBLE_EQ(r.out[0], 1);
  EXPECT_DOUBLE_EQ(r.out[1], 1.5);
}

// Three queries, one key, bottom-right causal: d = -2, so rows 0 and 1 see nothing.
TEST(ByHand, MoreQueriesThanKeysGivesEmptyRows) {
  Small one(1, {0, 0, 0}, {0}, {5});
  one.problem.mask = Mask::causal();
  const Forward r = one.forward();
  for (size_t i : {0u, 1u}) {
    EXPECT_EQ(r.out[i], 0);
    EXPECT_EQ(r.lse[i], -kInf);
    EXPECT_EQ(r.max_logit[i], -kInf);
  }
  EXPECT_EQ(r.out[2], 5);
  EXPECT_EQ(r.lse[2], 0);
}

// Window (2, 0) on 5 keys: row 4 sees itself and the two before: (3 + 4 + 5) / 3 = 4; row 1 sees
// keys 0 and 1: 1.5. Chunk 2: row 3 sees keys 2, 3: 3.5; row 4 sees key 4 alone: 5.
TEST(ByHand, WindowAndChunk) {
  Small one(1, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {1, 2, 3, 4, 5});
  one.problem.mask = Mask::window(2, 0);
  Forward r = one.forward();
  EXPECT_DOUBLE_EQ(r.out[4], 4);
  EXPECT_DOUBLE_EQ(r.out[1], 1.5);
  one.problem.mask = Mask::chunk(2);
  r = one.forward();
  EXPECT_DOUBLE_EQ(r.out[3], 3.5);
  EXPECT_DOUBLE_EQ(r.out[4], 5);
}

// Score 0 twice, sink ln 2: sum 1 + 1 + 2 = 4; weights 1/4 each: (4 + 8) / 4 = 3; lse = ln 4.
// Nothing visible: out 0, lse = ln 2.
TEST(ByHand, Sink) {
  Small one(1, {0}, {0, 0}, {4, 8});
  one.with_sink(kLn2);
  Forward r = one.forward();
  EXPECT_NEAR(r.out[0], 3, 1e-6);
  EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-7);
  EXPECT_EQ(r.max_logit[0], 0);
  one.with_mask({0, 0});
  r = one.forward();
  EXPECT_EQ(r.out[0], 0);
  EXPECT_EQ(r.lse[0], double{kLn2});
}

// Softcap 2 comes before the bias: dot 1e4 gives 2 tanh(5000) = 2, minus the bias 2 - ln 3 is ln 3;
// the other score is 0: weights 3/4, 1/4: 4 * 3/4 + 8 / 4 = 5.
TEST(ByHand, SoftcapThenBias) {
  Small one(1, {1}, {1e4f, 0}, {4, 8});
  one.problem.softcap = 2;
  one.bias({kLn3 - 2, 0});
  EXPECT_NEAR(one.forward().out[0], 5, 1e-6);
}

// ALiBi slope ln 2, 1 query at q_pos 1 over keys 0, 1: scores -ln 2, 0: weights 1/3, 2/3:
// 3 / 3 + 6 * 2/3 = 5. Two queries over one key (d = -1): q_pos -1 and 0; lse -ln 2 and 0.
TEST(ByHand, Alibi) {
  std::vector<float> slope = {kLn2};
  Small one(1, {0}, {0, 0}, {3, 6});
  one.problem.has_alibi = true;
  one.args.alibi = TensorView::contiguous(slope.data(), DType::fp32, {1});
  EXPECT_NEAR(one.forward().out[0], 5, 1e-6);
  Small two(1, {0, 0}, {0}, {3});
  two.problem.has_alibi = true;
  two.args.alibi = one.args.alibi;
  EXPECT_EQ(two.forward().lse[0], -double{kLn2});
  EXPECT_EQ(two.forward().lse[1], 0);
}

// A -inf bias masks and the lowest finite number does not: a row of only lowest numbers is the mean
// (4 + 8) / 2 (at that level the scores round to the same number).
TEST(ByHand, MinusInfinityBiasMasksAndTheLowestFiniteDoesNot) {
  Small one(1, {1}, {0, kLn3}, {4, 8});
  one.bias({0, -kInf});
  EXPECT_EQ(one.forward().out[0], 4);
  const float lowest = std::numeric_limits<float>::lowest();
  one.bias({lowest, lowest});
  EXPECT_EQ(one.forward().out[0], 6);
  one.bias({lowest, 0});
  EXPECT_EQ(one.forward().out[0], 8);
  one.bias({-kInf, -kInf});
  EXPECT_EQ(one.forward().lse[0], -kInf);
}

// Scores of +-1e30 and of fp32's largest squared: only differences matter. Two equal: the mean.
TEST(ByHand, ScoresOfAnyLevel) {
  const float big = std::numeric_limits<float>::max();
  for (float level : {1e15f, -1e15f, big}) {
    const Forward r = Small(1, {1e15f}, {level, level}, {4, 8}).forward();
    EXPECT_EQ(r.out[0], 6) << level;
    EXPECT_EQ(Small(1, {1e15f}, {level, 0}, {4, 8}).forward().out[0], level > 0 ? 4 : 8);
  }
  EXPECT_EQ(Small(1, {big}, {big, -big}, {4, 8}).forward().out[0], 4);
  Small one(1, {1e15f}, {1e15f, 1e15f}, {4, 8});
  // dP = 4, 8; D = 6; dS = (4 - 6) / 2, (8 - 6) / 2 = -1, 1; dv = 1/2, 1/2.
  const Gradients g = one.backward({1});
  EXPECT_EQ(g.dv[0], 0.5);
  EXPECT_EQ(g.dv[1], 0.5);
  EXPECT_EQ(g.dk[0], -1e15f);
  EXPECT_EQ(g.dk[1], 1e15f);
}

// NaN and infinity in keys and values that no mask shows have no effect; a visible one spoils the
// rows that see it and no other.
TEST(ByHand, MaskedMemoryIsNeverRead) {
  for (float bad : {kNaN, kInf, -kInf}) {
    Small one(2, {0, 1, 2, 3}, {0, 1, bad, 3}, {7, 8, bad, 9});
    one.with_mask({1, 0, 1, 0});
    const Forward r = one.forward();
    EXPECT_EQ(r.out[0], 7);
    EXPECT_EQ(r.out[1], 8);
    EXPECT_EQ(r.out[2], 7);
    EXPECT_EQ(r.out[3], 8);
    const Gradients g = one.backward({1, 1, 1, 1});
    for (size_t c : {2u, 3u}) {
      EXPECT_EQ(g.dk[c], 0);
      EXPECT_EQ(g.dv[c], 0);
    }
    for (double x : g.dq) EXPECT_EQ(x, 0);  // one visible key: the softmax is constant
    // As an additive -inf the mask is a mask all the same.
    one.problem.has_mask_tensor = false;
    one.bias({0, -kInf, 0, -kInf});
    EXPECT_EQ(one.forward().out[0], 7);
    // Visible to row 1 alone.
    one.bias({0, -kInf, 0, 0});
    const Forward spoilt = one.forward();
    EXPECT_EQ(spoilt.out[0], 7);
    EXPECT_FALSE(std::isfinite(spoilt.out[2])) << bad;
  }
}

// A visible +inf score is inf - inf = NaN, as in float64; a visible -inf score weighs nothing, and
// a row of them is empty.
TEST(ByHand, InfiniteScores) {
  EXPECT_TRUE(std::isnan(Small(1, {1}, {kInf, 0}, {4, 8}).forward().out[0]));
  EXPECT_EQ(Small(1, {1}, {-kInf, 0}, {4, 8}).forward().out[0], 8);
  const Forward r = Small(1, {1}, {-kInf, -kInf}, {4, 8}).forward();
  EXPECT_EQ(r.out[0], 0);
  EXPECT_EQ(r.lse[0], -kInf);
}

// Weights 1/4, 3/4; dout 1: dv = 1/4, 3/4. out = 7, dP = 4, 8, D = 7: dS = (4 - 7) / 4, 3 (8 - 7) /
// 4 = -3/4, 3/4. q = 1: dk = dS; dq = -3/4 * 0 + 3/4 ln 3. With dlse = 2: D = 5; dS = -1/4, 9/4.
TEST(ByHand, BackwardWithAndWithoutDlse) {
  Small one(1, {1}, {0, kLn3}, {4, 8});
  Gradients g = one.backward({1});
  EXPECT_NEAR(g.dv[0], 0.25, 1e-7);
  EXPECT_NEAR(g.dv[1], 0.75, 1e-7);
  EXPECT_NEAR(g.dk[0], -0.75, 1e-6);
  EXPECT_NEAR(g.dk[1], 0.75, 1e-6);
  EXPECT_NEAR(g.dq[0], 0.75 * kLn3, 1e-6);
  one.dlse = {2};
  one.problem.has_dlse = true;
  one.args.dlse = TensorView::contiguous(one.dlse.data(), DType::fp32, {1, 1, 1});
  g = one.backward({1});
  EXPECT_NEAR(g.dk[0], -0.25, 1e-6);
  EXPECT_NEAR(g.dk[1], 2.25, 1e-6);
}

// Two keys of score 0 and a sink of ln 2: p = 1/4, 1/4, sink 1/2; out = 3, D = 3 for dout 1: dsink
// = -3/2; dbias = dS = (4 - 3) / 4, (8 - 3) / 4 = 1/4, 5/4 (they and dsink add up to 0). An empty
// row with a sink passes dlse on to it: dsink = dlse = 2, and nothing else.
TEST(ByHand, GradientsOfSinkAndBias) {
  Small one(1, {0}, {0, 0}, {4, 8});
  one.with_sink(kLn2);
  one.bias({0, 0});
  one.problem.needs_dsink = one.problem.needs_dbias = true;
  Gradients g = one.backward({1});
  EXPECT_NEAR(g.dsink[0], -1.5, 1e-6);
  EXPECT_NEAR(g.dbias[0], 0.25, 1e-6);
  EXPECT_NEAR(g.dbias[1], 1.25, 1e-6);
  one.with_mask({0, 0});
  one.dlse = {2};
  one.problem.has_dlse = true;
  one.args.dlse = TensorView::contiguous(one.dlse.data(), DType::fp32, {1, 1, 1});
  g = one.backward({1});
  EXPECT_EQ(g.dsink[0], 2);
  EXPECT_EQ(g.dbias[0], 0);
  EXPECT_EQ(g.dv[0], 0);
}

// The gradient honours an lse of a larger problem: with lse = ln 4 + ln 2 these keys hold half of
// the softmax, p = 1/8, 3/8; with the merged out 7 and dout 1, dS = (4 - 7) / 8 and 3 (8 - 7) / 8.
TEST(ByHand, BackwardOfAMergedProblem) {
  Small one(1, {1}, {0, kLn3}, {4, 8});
  (void)one.backward({1});
  const Gradients g = reference::backward(one.problem, one.args, Forward{{7}, {std::log(8.0)}, {}});
  EXPECT_NEAR(g.dv[0], 0.125, 1e-7);
  EXPECT_NEAR(g.dv[1], 0.375, 1e-7);
  EXPECT_NEAR(g.dk[0], -0.375, 1e-6);
  EXPECT_NEAR(g.dk[1], 0.375, 1e-6);
}

// Equal scores over keys [1, 2 | 3] in a ragged batch of lengths 2 and 1 with an empty one between;
// seqused_k 1 shortens the first to key 0.
TEST(ByHand, RaggedWithEmptyAndShortenedSequences) {
  std::vector<float> q = {0, 0, 0}, k = {0, 0, kNaN}, v = {1, 2, 3};
  std::vector<int32_t> cu_q = {0, 1, 2, 3}, cu_k = {0, 2, 2, 3}, used = {1, 0, 0};
  Problem p;
  p.batch = 3;
  p.seqlen_q = 1, p.seqlen_k = 2, p.total_q = 3, p.total_k = 3;
  p.layout_q = p.layout_kv = Layout::ragged;
  p.head_dim = 1;
  Args args;
  args.q = TensorView::contiguous(q.data(), DType::fp32, {3, 1, 1});
  args.k = TensorView::contiguous(k.data(), DType::fp32, {3, 1, 1});
  args.v = TensorView::contiguous(v.data(), DType::fp32, {3, 1, 1});
  args.cu_seqlens_q = TensorView::contiguous(cu_q.data(), DType::int32, {4});
  args.cu_seqlens_k = TensorView::contiguous(cu_k.data(), DType::int32, {4});
  Forward r = reference::forward(p, args);
  EXPECT_EQ(r.out[0], 1.5);
  EXPECT_EQ(r.out[1], 0);
  EXPECT_EQ(r.lse[1], -kInf);
  EXPECT_TRUE(std::isnan(r.out[2]));
  p.has_seqused_k = true;
  args.seqused_k = TensorView::contiguous(used.data(), DType::int32, {3});
  r = reference::forward(p, args);
  EXPECT_EQ(r.out[0], 1);
  EXPECT_EQ(r.out[2], 0);
}

}  // namespace
}  // namespace sirdar
