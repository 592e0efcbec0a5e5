// What a Problem means where a field was left unset, and the features it uses.
#include <sirdar/problem.hpp>

#include "core/validate.h"

#include <cmath>

namespace sirdar {

std::string FeatureSet::str() const {
  std::string text;
  const auto add = [&](FeatureSet one, std::string_view name) {
    if (contains(one)) text += (text.empty() ? "" : ", ") + std::string(name);
  };
#define SIRDAR_ROW(name, bit, meaning) add(feature::name, #name);
  SIRDAR_FEATURES(SIRDAR_ROW)
#undef SIRDAR_ROW
  return text;
}

int64_t Problem::value_dim() const { return head_dim_v != 0 ? head_dim_v : head_dim; }

DType Problem::output_dtype() const {
  if (dtype_out) return *dtype_out;
  const bool is_fp8 = dtype_q == DType::fp8_e4m3 || dtype_q == DType::fp8_e5m2;
  return is_fp8 ? DType::bf16 : dtype_q;
}

float Problem::scale() const {
  if (softmax_scale) return *softmax_scale;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

FeatureSet Problem::features() const {
  FeatureSet set;
  const auto add = [&](bool used, FeatureSet one) {
    if (used) set = set | one;
  };
  add(op == Op::backward, feature::backward);
  add(num_heads_q != num_heads_kv, feature::gqa);
  add(value_dim() != head_dim, feature::head_dim_v);
  add(layout_q == Layout::ragged, feature::ragged_q);
  add(layout_kv == Layout::ragged, feature::ragged_kv);
  add(layout_kv == Layout::paged, feature::paged_kv);
  add(has_seqused_q, feature::seqused_q);
  add(has_seqused_k, feature::seqused_k);
  add(mask.is_causal, feature::causal);
  add(mask.window_left || mask.window_right, feature::window);
  add(mask.chunk_size != 0, feature::chunk);
  add(mask.alignment == Alignment::top_left, feature::top_left);
  add(has_document, feature::document);
  add(has_mask_tensor, feature::mask_tensor);
  add(!mask_mod.empty(), feature::mask_mod);
  add(!score_mod.empty(), feature::score_mod);
  add(softcap != 0, feature::softcap);
  add(has_bias, feature::bias);
  add(has_alibi, feature::alibi);
  add(has_sink, feature::sink);
  add(dropout_p != 0, feature::dropout);
  add(needs_lse, feature::lse);
  add(needs_max_logit, feature::max_logit);
  add(has_dlse, feature::dlse);
  add(needs_dbias, feature::dbias);
  add(needs_dsink, feature::dsink);
  for (const ExpressionTensor& tensor : tensors) add(tensor.needs_grad, feature::dtensor);
  add(dtype_q == DType::fp32, feature::dtype_fp32);
  add(dtype_q == DType::bf16, feature::dtype_bf16);
  add(dtype_q == DType::fp16, feature::dtype_fp16);
  add(dtype_q == DType::fp8_e4m3 || dtype_q == DType::fp8_e5m2, feature::dtype_fp8);
  add(output_dtype() != dtype_q, feature::dtype_out);
  return set;
}

Status Problem::validate() const { return sirdar::validate(*this); }

}  // namespace sirdar
