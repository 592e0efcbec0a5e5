// The reference against an independent matrix formula on random problems, until every pair of
// features that can meet has met.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "check/inputs.h"
#include "reference/attention.h"
#include "support/second_formula.h"

namespace sirdar {
namespace {

using testing::HandWritten;
using testing::Matrices;
using At = HandWritten::At;

// The same expressions as text and as C++; the numbers are exact in fp32, as literals are.
std::vector<HandWritten> score_mods() {
  const auto one = [](double, const At&) { return 1.0; };
  return {
      {"0.5 * score + 0.0625 * k - 0.03125 * q_pos",
       [](double s, const At& a) {
         return 0.5 * s + 0.0625 * static_cast<double>(a.k) -
                0.03125 * static_cast<double>(a.q_pos);
       },
       [](double, const At&) { return 0.5; }, nullptr, nullptr, nullptr},
      {"tanh(score) * x + t[h]",
       [](double s, const At& a) { return std::tanh(s) * a.scalar + a.tensor("t", a.h, 0); },
       [](double s, const At& a) { return a.scalar / std::pow(std::cosh(s), 2); }, one,
       [](const At& a, int64_t) { return a.h; }, nullptr},
      {"score > 0 ? score : 0.25 * score + t[b, k]",
       [](double s, const At& a) { return s > 0 ? s : 0.25 * s + a.tensor("t", a.b, a.k); },
       [](double s, const At&) { return s > 0 ? 1.0 : 0.25; },
       [](double s, const At&) { return s > 0 ? 0.0 : 1.0; },
       [](const At& a, int64_t columns) { return a.b * columns + a.k; }, nullptr},
  };
}

std::vector<HandWritten> mask_mods() {
  return {
      {"k <= q_pos || k % 3 == 0", nullptr, nullptr, nullptr, nullptr,
       [](const At& a) { return a.k <= a.q_pos || a.k % 3 == 0; }},
      {"!(h == 1 && q > k + 2)", nullptr, nullptr, nullptr, nullptr,
       [](const At& a) { return !(a.h == 1 && a.q > a.k + 2); }},
  };
}

struct Case {
  Problem problem;
  const HandWritten* score_mod = nullptr;
  const HandWritten* mask_mod = nullptr;
};

class Maker {
 public:
  explicit Maker(unsigned seed) : random_(seed) {}

  Case make() {
    Case result;
    Problem& p = result.problem;
    p.op = one_in(2) ? Op::backward : Op::forward;
    p.batch = size(1, 3);
    p.seqlen_q = size(1, 9), p.seqlen_k = size(1, 11);
    p.num_heads_kv = size(1, 2), p.num_heads_q = p.num_heads_kv * size(1, 3);
    p.head_dim = size(1, 6);
    if (one_in(3)) p.head_dim_v = size(1, 6);
    dtypes(p);
    layouts(p);
    masks(p);
    logits(p);
    p.needs_lse = p.op == Op::forward && one_in(2);
    p.needs_max_logit = p.op == Op::forward && one_in(3);
    p.has_dlse = p.op == Op::backward && one_in(2);
    p.needs_dbias = p.op == Op::backward && p.has_bias && one_in(2);
    p.needs_dsink = p.op == Op::backward && p.has_sink && one_in(2);
    expressions(result);
    return result;
  }

 private:
  bool one_in(unsigned n) { return random_() % n == 0; }
  int64_t size(unsigned least, unsigned most) { return least + random_() % (most - least + 1); }
  Axes axes() { return {one_in(2), one_in(2), one_in(2), one_in(2)}; }

  void dtypes(Problem& p) {
    const DType all[] = {DType::fp32, DType::bf16, DType::fp16, DType::fp8_e4m3};
    p.dtype_q = p.dtype_kv = all[random_() % (p.op == Op::forward ? 4 : 3)];
    if (p.dtype_q != DType::fp32 && one_in(3)) p.dtype_out = DType::fp32;
  }
  void layouts(Problem& p) {
    if (one_in(3)) {
      p.layout_q = Layout::ragged;
      p.total_q = size(0, static_cast<unsigned>(p.batch * p.seqlen_q));
    }
    if (one_in(3)) {
      p.layout_kv = Layout::ragged;
      p.total_k = size(0, static_cast<unsigned>(p.batch * p.seqlen_k));
    } else if (p.op == Op::forward && one_in(2)) {
      p.layout_kv = Layout::paged;
      p.page_size = size(1, 5);
    }
    p.has_seqused_q = one_in(4);
    p.has_seqused_k = p.layout_kv == Layout::paged || one_in(4);
  }
  void masks(Problem& p) {
    p.mask.is_causal = one_in(4);
    if (one_in(5)) p.mask.window_left = size(0, 6);
    if (one_in(5)) p.mask.window_right = size(0, 6);
    if (one_in(5)) p.mask.chunk_size = size(1, 6);
    const bool lines_up = p.mask != Mask{};
    if (lines_up && one_in(2)) p.mask.alignment = Alignment::top_left;
    p.has_document = one_in(5);
    p.has_mask_tensor = one_in(4);
    if (p.has_mask_tensor) p.mask_axes = axes();
  }
  void logits(Problem& p) {
    const float scales[] = {0, -0.7f, 0.3f, 1.5f};
    if (one_in(3)) p.softmax_scale = scales[random_() % 4];
    if (one_in(3)) p.softcap = static_cast<float>(size(1, 20));
    p.has_bias = one_in(2);
    if (p.has_bias) {
      const DType all[] = {DType::fp32, DType::bf16, DType::fp16};
      p.bias_axes = axes();
      p.dtype_bias = all[random_() % 3];
    }
    p.has_alibi = one_in(3);
    p.has_sink = one_in(2);
    if (one_in(3)) p.dropout_p = 0.3f;
  }
  void expressions(Case& result) {
    static const std::vector<HandWritten> scores = score_mods(), masks = mask_mods();
    Problem& p = result.problem;
    if (one_in(3)) {
      const size_t which = random_() % scores.size();
      result.score_mod = &scores[which];
      p.score_mod = scores[which].text;
      if (which > 0) {
        const bool needs_grad = p.op == Op::backward && one_in(2);
        p.tensors = {{"t", DType::fp32, static_cast<int>(which), needs_grad}};
      }
      if (which == 1) p.scalars = {"x"};
    }
    if (one_in(3)) {
      result.mask_mod = &masks[random_() % masks.size()];
      p.mask_mod = result.mask_mod->text;
    }
  }

  std::mt19937 random_;
};

void expect_same(const std::vector<double>& actual, const std::vector<double>& expected,
                 const char* name) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0);
  for (size_t n = 0; n < expected.size(); ++n) {
    if (std::isinf(expected[n])) {
      ASSERT_EQ(actual[n], expected[n]) << name << " " << n;
    } else {
      ASSERT_NEAR(actual[n], expected[n], 1e-11 * largest) << name << " " << n;
    }
  }
}

void compare_once(const Case& one, uint64_t seed) {
  const Problem& p = one.problem;
  SCOPED_TRACE(p.str() + " seed " + std::to_string(seed));
  ASSERT_TRUE(p.validate().ok()) << p.validate().message();
  check::Inputs inputs(p, seed);
  const Matrices expected = testing::second_formula(p, inputs.args(), one.score_mod, one.mask_mod);
  const reference::Forward forward = reference::forward(p, inputs.args());
  expect_same(forward.out, expected.out, "out");
  expect_same(forward.lse, expected.lse, "lse");
  expect_same(forward.max_logit, expected.max_logit, "max_logit");
  if (p.op == Op::forward) return;
  const reference::Gradients gradients = reference::backward(p, inputs.args(), forward);
  expect_same(gradients.dq, expected.dq, "dq");
  expect_same(gradients.dk, expected.dk, "dk");
  expect_same(gradients.dv, expected.dv, "dv");
  expect_same(gradients.dbias, expected.dbias, "dbias");
  expect_same(gradients.dsink, expected.dsink, "dsink");
  if (!expected.dtensor.empty()) expect_same(gradients.dtensors[0], expected.dtensor, "dtensor");
}

// Pairs that no valid problem can have.
bool can_meet(FeatureSet a, FeatureSet b) {
  namespace f = feature;
  const FeatureSet dtypes = f::dtype_fp32 | f::dtype_bf16 | f::dtype_fp16 | f::dtype_fp8;
  const FeatureSet forward_only = f::paged_kv | f::lse | f::max_logit | f::dtype_fp8;
  const FeatureSet backward_only = f::backward | f::dlse | f::dbias | f::dsink | f::dtensor;
  const auto both = [&](FeatureSet x, FeatureSet y) {
    return (x.contains(a) && y.contains(b)) || (x.contains(b) && y.contains(a));
  };
  if (a != b && dtypes.contains(a) && dtypes.contains(b)) return false;
  return !both(forward_only, backward_only) && !both(f::ragged_kv, f::paged_kv) &&
         !both(f::dtype_out, f::dtype_fp32);
}

TEST(ReferenceVsSecondFormula, EveryPairOfFeatures) {
  Maker maker(20240607);
  std::set<uint64_t> met;
  for (uint64_t n = 0; n < 1500; ++n) {
    const Case one = maker.make();
    compare_once(one, n);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    const uint64_t bits = one.problem.features().bits;
    for (uint64_t rest = bits; rest != 0; rest &= rest - 1) {
      for (uint64_t other = rest; other != 0; other &= other - 1) {
        met.insert((rest & -rest) | (other & -other));
      }
    }
  }
  for (int a = 0; a < 32; ++a) {
    for (int b = a; b < 32; ++b) {
      const FeatureSet x{uint64_t{1} << a}, y{uint64_t{1} << b};
      if (can_meet(x, y)) {
        EXPECT_TRUE(met.contains((x | y).bits)) << x.str() << " and " << y.str();
      }
    }
  }
}

}  // namespace
}  // namespace sirdar
