#include "support/random_problem.h"

#include <cmath>

namespace sirdar::testing {
namespace {

bool coin() { return *rc::gen::arbitrary<bool>(); }

int64_t size(int64_t least, int64_t most) { return *rc::gen::inRange<int64_t>(least, most + 1); }

float finite() {
  const float value = *rc::gen::arbitrary<float>();
  return std::isfinite(value) ? value : 0.3F;
}

void layouts(Problem& p) {
  if (coin()) {
    p.layout_q = Layout::ragged;
    p.total_q = size(0, p.batch * p.seqlen_q);
  }
  switch (size(0, p.op == Op::backward ? 1 : 2)) {
    case 1:
      p.layout_kv = Layout::ragged;
      p.total_k = size(0, p.batch * p.seqlen_k);
      break;
    case 2:
      p.layout_kv = Layout::paged;
      p.page_size = size(1, 300);
      p.has_seqused_k = true;
      break;
    default:
      break;
  }
  p.has_seqused_q = coin();
  p.has_seqused_k = p.has_seqused_k || coin();
}

void masks(Problem& p) {
  p.mask.is_causal = coin();
  if (coin()) p.mask.window_left = size(0, 1 << 20);
  if (coin()) p.mask.window_right = size(0, 1 << 20);
  if (coin()) p.mask.chunk_size = size(1, 5000);
  const bool lines_up =
      p.mask.is_causal || p.mask.window_left || p.mask.window_right || p.mask.chunk_size != 0;
  if (lines_up && coin()) p.mask.alignment = Alignment::top_left;
  p.has_document = coin();
  p.has_mask_tensor = coin();
  if (p.has_mask_tensor) p.mask_axes = {coin(), coin(), coin(), coin()};
}

void logits(Problem& p) {
  if (coin()) p.softmax_scale = finite();
  if (coin()) p.softcap = std::abs(finite());
  p.has_bias = coin();
  if (p.has_bias) {
    p.bias_axes = {coin(), coin(), coin(), coin()};
    p.dtype_bias = *rc::gen::element(DType::fp32, DType::bf16, DType::fp16);
  }
  p.has_alibi = coin();
  p.has_sink = coin();
  if (coin()) p.dropout_p = static_cast<float>(size(0, (1 << 24) - 1)) / (1 << 24);
}

void expressions(Problem& p) {
  if (coin()) return;
  p.score_mod =
      *rc::gen::element<std::string>("score * 2 + gain[h] * w", "max(score, gain[h]) + w");
  p.mask_mod = *rc::gen::element<std::string>("", "k <= q_pos  &&  q >= 0");
  p.tensors.push_back({"gain", DType::fp32, 1, p.op == Op::backward && coin()});
  p.scalars.emplace_back("w");
}

void outputs(Problem& p) {
  if (p.op == Op::forward) {
    p.needs_lse = coin();
    p.needs_max_logit = coin();
  } else {
    p.has_dlse = coin();
    p.needs_dbias = p.has_bias && coin();
    p.needs_dsink = p.has_sink && coin();
    p.deterministic = coin();
  }
  p.batch_invariant = coin();
}

Problem draw() {
  Problem p;
  p.op = coin() ? Op::forward : Op::backward;
  p.batch = size(0, 5);
  p.seqlen_q = size(0, 100000);
  p.seqlen_k = size(0, 100000);
  p.num_heads_kv = size(1, 9);
  p.num_heads_q = p.num_heads_kv * size(1, 9);
  p.head_dim = size(1, 512);
  p.head_dim_v = coin() ? size(0, 512) : 0;
  p.dtype_q = *rc::gen::element(DType::fp32, DType::bf16, DType::fp16, DType::fp8_e4m3);
  if (p.op == Op::backward && p.dtype_q == DType::fp8_e4m3) p.dtype_q = DType::bf16;
  p.dtype_kv = p.dtype_q;
  if (coin()) p.dtype_out = coin() ? DType::fp32 : p.output_dtype();
  layouts(p);
  masks(p);
  logits(p);
  expressions(p);
  outputs(p);
  return p;
}

}  // namespace

rc::Gen<Problem> valid_problem() { return rc::gen::exec(draw); }

}  // namespace sirdar::testing
