#include "cpu/logit_terms.h"

#include <algorithm>
#include <limits>

#include "core/geometry.h"
#include "shared/float_bits.h"

namespace sirdar::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float to_float(float value) { return value; }
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};
float to_float(Bf16 value) { return bf16_to_float(value.bits); }
float to_float(Fp16 value) { return fp16_to_float(value.bits); }

// column[j * width] = row[j * stride] for every key.
template <class T>
void read_column(const void* data, int64_t offset, int64_t stride, int64_t num_keys, float* column,
                 int width) {
  const T* row = static_cast<const T*>(data) + offset;
  for (int64_t j = 0; j < num_keys; ++j) column[j * width] = to_float(row[j * stride]);
}

}  // namespace

DocumentRange document_range(const int32_t* ids, int count) {
  const auto [least, most] = std::minmax_element(ids, ids + count);
  return {*least, *most};
}

Cover coverage(const DocumentRange& q, const DocumentRange& k) {
  if (q.most < k.least || k.most < q.least) return Cover::none;
  return q.least == q.most && k.least == k.most ? Cover::all : Cover::part;
}

Cover both(Cover a, Cover b) {
  if (a == Cover::none || b == Cover::none) return Cover::none;
  return a == Cover::all ? b : a;
}

LogitTerms::LogitTerms(const ForwardCall& call, Scratch& scratch)
    : call_(call),
      scratch_(scratch),
      has_bias_(call.problem.has_bias),
      has_mask_(call.problem.has_mask_tensor) {
  if (has_bias_) bias_ = pair_tensor(call.args.bias);
  if (has_mask_) mask_ = pair_tensor(call.args.mask);
}

LogitTerms::PairTensor LogitTerms::pair_tensor(const TensorView& view) {
  return {view.data,
          view.dtype,
          stride_or_zero(view, 0),
          stride_or_zero(view, 1),
          stride_or_zero(view, 2),
          stride_or_zero(view, 3)};
}

void LogitTerms::set_lane(int lane, int64_t b, int64_t h, int64_t i, int64_t q_pos) {
  const Args& args = call_.args;
  scratch_.query[lane] = {b, h, i, q_pos};
  if (call_.problem.has_document) {
    const TensorView& ids = args.document_q;
    scratch_.document_q[lane] = static_cast<const int32_t*>(
        ids.data)[b * stride_or_zero(ids, 0) + i * stride_or_zero(ids, 1)];
  }
  if (call_.problem.has_alibi) {
    const TensorView& slopes = args.alibi;
    const int64_t offset = slopes.rank == 1
                               ? h * stride_or_zero(slopes, 0)
                               : b * stride_or_zero(slopes, 0) + h * stride_or_zero(slopes, 1);
    scratch_.slope[lane] = static_cast<const float*>(slopes.data)[offset];
  }
}

DocumentRange LogitTerms::load_documents(int64_t b, Range keys, int32_t* ids) const {
  const TensorView& view = call_.args.document_k;
  const int64_t stride = stride_or_zero(view, 1);
  const int32_t* from =
      static_cast<const int32_t*>(view.data) + b * stride_or_zero(view, 0) + keys.begin * stride;
  const int count = static_cast<int>(keys.size());
  for (int j = 0; j < count; ++j) ids[j] = from[j * stride];
  return document_range(ids, count);
}

void LogitTerms::fill(LogitArgs& args, int first_lane, int num_lanes, int width, Range keys) {
  if (call_.problem.has_alibi) {
    for (int lane = 0; lane < num_lanes; ++lane) {
      scratch_.q_pos_in_block[lane] =
          static_cast<int32_t>(scratch_.query[first_lane + lane].q_pos - keys.begin);
    }
    args.slope = scratch_.slope + first_lane;
    args.q_pos = scratch_.q_pos_in_block;
  }
  if (!has_pair_tensors()) return;
  load_pairs(first_lane, num_lanes, width, keys);
  args.bias = scratch_.bias;
}

LogitTerms::PairRows LogitTerms::pair_rows(const PairTensor& tensor, int first_lane, int num_lanes,
                                           Position first_key) const {
  PairRows rows;
  for (int lane = 0; lane < num_lanes; ++lane) {
    const int64_t offset = row_offset(tensor, first_lane + lane) + first_key;
    rows.at[lane] = static_cast<const std::byte*>(tensor.data) + offset * size_bytes(tensor.dtype);
  }
  return rows;
}

Cover LogitTerms::pair_cover(int first_lane, int num_lanes, Range keys) const {
  // Any bias may be -inf.
  const Cover otherwise = has_bias_ ? Cover::part : Cover::all;
  if (!has_mask_) return otherwise;
  if (mask_.stride_key != 1) return Cover::part;
  const PairRows rows = pair_rows(mask_, first_lane, num_lanes, keys.begin);
  switch (call_.kernels.mask_content(rows.at, num_lanes, static_cast<int>(keys.size()))) {
    case kShowsSome:
      return otherwise;
    case kHidesSome:
      return Cover::none;
    default:
      return Cover::part;
  }
}

void LogitTerms::load_pairs(int first_lane, int num_lanes, int width, Range keys) const {
  const MicroKernels& kernels = call_.kernels;
  const int vectors = width / kernels.lanes, num_keys = static_cast<int>(keys.size());
  if (has_bias_ && bias_.stride_key == 1) {
    const PairRows rows = pair_rows(bias_, first_lane, num_lanes, keys.begin);
    const auto format = static_cast<size_t>(bias_.dtype);
    kernels.bias[format][vectors - 1]({rows.at, scratch_.bias, num_keys});
  } else {
    std::fill_n(scratch_.bias, keys.size() * width, 0.0f);
    for (int lane = 0; has_bias_ && lane < num_lanes; ++lane)
      fill_bias(first_lane + lane, keys, scratch_.bias + lane, width);
  }
  if (has_mask_ && mask_.stride_key == 1) {
    const PairRows rows = pair_rows(mask_, first_lane, num_lanes, keys.begin);
    kernels.hide[vectors - 1]({rows.at, scratch_.bias, num_keys});
  } else {
    for (int lane = 0; has_mask_ && lane < num_lanes; ++lane)
      fill_mask(first_lane + lane, keys, scratch_.bias + lane, width);
  }
}

int64_t LogitTerms::row_offset(const PairTensor& tensor, int lane) const {
  const LaneQuery& query = scratch_.query[lane];
  return query.b * tensor.stride_batch + query.h * tensor.stride_head +
         query.i * tensor.stride_query;
}

void LogitTerms::fill_bias(int lane, Range keys, float* column, int width) const {
  const int64_t stride = bias_.stride_key;
  const int64_t offset = row_offset(bias_, lane) + keys.begin * stride;
  if (bias_.dtype == DType::fp32) {
    read_column<float>(bias_.data, offset, stride, keys.size(), column, width);
  } else if (bias_.dtype == DType::bf16) {
    read_column<Bf16>(bias_.data, offset, stride, keys.size(), column, width);
  } else {
    read_column<Fp16>(bias_.data, offset, stride, keys.size(), column, width);
  }
}

void LogitTerms::fill_mask(int lane, Range keys, float* column, int width) const {
  const int64_t stride = mask_.stride_key;
  const uint8_t* row =
      static_cast<const uint8_t*>(mask_.data) + row_offset(mask_, lane) + keys.begin * stride;
  for (int64_t j = 0; j < keys.size(); ++j) {
    if (row[j * stride] == 0) column[j * width] = -kInf;
  }
}

}  // namespace sirdar::cpu
