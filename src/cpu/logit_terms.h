// What enters a logit or masks a pair besides the dot product and the structured masks: ALiBi,
// bias, boolean mask and document ids, brought from the caller's views into the lanes of a panel.
#pragma once

#include "cpu/forward_call.h"
#include "shared/mask.h"

namespace sirdar::cpu {

// The smallest and largest id among some positions.
struct DocumentRange {
  int32_t least = 0, most = 0;
};
DocumentRange document_range(const int32_t* ids, int count);
Cover coverage(const DocumentRange& q, const DocumentRange& k);
Cover both(Cover a, Cover b);

class LogitTerms {
 public:
  LogitTerms(const ForwardCall& call, Scratch& scratch);

  // Once per lane of a tile; h and i are those of its query, q_pos = i + seqlen_k - seqlen_q.
  void set_lane(int lane, int64_t b, int64_t h, int64_t i, int64_t q_pos);
  // Ids of the keys of a block.
  DocumentRange load_documents(int64_t b, Range keys, int32_t* ids) const;
  // Bias or boolean mask: read for every pair.
  bool has_pair_tensors() const { return has_bias_ || has_mask_; }
  // What they may hide of these keys from these lanes.
  Cover pair_cover(int first_lane, int num_lanes, Range keys) const;
  // Completes args for the keys of a panel, except for lo, hi and the document ids.
  void fill(LogitArgs& args, int first_lane, int num_lanes, int width, Range keys);

 private:
  // A view of [batch | 1, num_heads_q | 1, seqlen_q | 1, seqlen_k | 1], stride 0 where broadcast.
  struct PairTensor {
    const void* data = nullptr;
    DType dtype = DType::fp32;
    int64_t stride_batch = 0, stride_head = 0, stride_query = 0, stride_key = 0;
  };
  static PairTensor pair_tensor(const TensorView& view);
  int64_t row_offset(const PairTensor& tensor, int lane) const;
  // Where the elements of a panel's lanes start, for a stride of 1 along the keys; null for lanes
  // that stand for no query.
  struct PairRows {
    const void* at[kMaxVectors * kMaxLanes] = {};
  };
  PairRows pair_rows(const PairTensor& tensor, int first_lane, int num_lanes,
                     Position first_key) const;
  void load_pairs(int first_lane, int num_lanes, int width, Range keys) const;
  void fill_bias(int lane, Range keys, float* column, int width) const;
  void fill_mask(int lane, Range keys, float* column, int width) const;

  const ForwardCall& call_;
  Scratch& scratch_;
  bool has_bias_, has_mask_;
  PairTensor bias_, mask_;
};

}  // namespace sirdar::cpu
