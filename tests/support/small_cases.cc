#include "support/small_cases.h"

#include <cmath>

namespace sirdar::testing {
namespace {

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

}  // namespace

Case CaseMaker::make() {
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

void CaseMaker::dtypes(Problem& p) {
  const DType all[] = {DType::fp32, DType::bf16, DType::fp16, DType::fp8_e4m3};
  p.dtype_q = p.dtype_kv = all[random_() % (p.op == Op::forward ? 4 : 3)];
  if (p.dtype_q != DType::fp32 && one_in(3)) p.dtype_out = DType::fp32;
}

void CaseMaker::layouts(Problem& p) {
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

void CaseMaker::masks(Problem& p) {
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

void CaseMaker::logits(Problem& p) {
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

void CaseMaker::expressions(Case& result) {
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

}  // namespace sirdar::testing
