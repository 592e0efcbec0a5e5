// The table of micro-kernels of one instruction set. All work on a panel: up to `width` query rows
// side by side, one per vector lane, so that maximum, sum, mask and rescale are lane-wise. Panels
// come in two widths, lanes and 2 * lanes; kernel[w - 1] serves w vectors per row.
#pragma once

#include <sirdar/device.hpp>

#include "expression/vector_program.h"

namespace sirdar::cpu {

inline constexpr int kMaxVectors = 2;
inline constexpr int kMaxLanes = 16;  // of a vector

// Formats that rows of q, k and v, and of out, come in; an index is that of the DType.
inline constexpr int kInputFormats = 4;   // fp32, bf16, fp16, fp8_e4m3
inline constexpr int kOutputFormats = 3;  // fp32, bf16, fp16
inline constexpr int kMaxColumns = 512;   // of a row

// Rows that will be needed soon; a kernel asks for them evenly between its own work.
struct Prefetch {
  const void* const* rows = nullptr;  // a null row asks for nothing
  int num_rows = 0, num_bytes = 0;
};

// Scores of a run of keys: scores[j][lane] = scale * dot(k[j], q[lane]).
struct QkArgs {
  // Element (j, c) is k[j / rows * block_stride + j % rows * row_stride + c * column_stride],
  // rows = MicroKernels::rows: the caller's K in place or a packed copy.
  const float* k = nullptr;  // [num_keys, head_dim]
  int64_t block_stride = 0, row_stride = 0, column_stride = 0;
  const float* q = nullptr;       // [head_dim, width]
  float* scores = nullptr;        // [num_keys, width], written
  const float* max_in = nullptr;  // [width] running row maximum
  float* max_out = nullptr;       // [width] max_in with these scores; NaN scores are passed over
  float scale = 1;
  float unit = 1;  // a power of two that scores are in units of, but the maxima are not
  int num_keys = 0, head_dim = 0;
  Prefetch next;
};

// From scores to masked logits, for panels that need more than the scaled dot product.
struct LogitArgs {
  float* scores = nullptr;  // [num_keys, width], in place; a masked pair becomes -inf
  const float* max_in = nullptr;
  float* max_out = nullptr;  // as in QkArgs, of the new scores
  int num_keys = 0;
  float softcap = 0;  // 0: off
  // ALiBi, null: off. distance = q_pos[lane] - j, both relative to the first key of this run.
  const float* slope = nullptr;  // [width]
  const int32_t* q_pos = nullptr;
  const float* bias = nullptr;  // [num_keys, width] added, -inf masks; null: off
  // Key j of this run is visible to a lane if lo <= j < hi; null: no test.
  const int32_t* lo = nullptr;  // [width]
  const int32_t* hi = nullptr;
  // ... and if the ids are equal; null: no test.
  const int32_t* document_q = nullptr;  // [width]
  const int32_t* document_k = nullptr;  // [num_keys]
};

// A tensor with an element for every pair of a run of keys, in the caller's memory.
struct PairArgs {
  const void* const* rows = nullptr;  // [width], each [num_keys]; null: no query
  float* panel = nullptr;             // [num_keys, width]
  int num_keys = 0;
};

// What a part of a boolean mask holds.
inline constexpr unsigned kShowsSome = 1, kHidesSome = 2;

// scores -> exp(unit * scores - max_out) in place; row_sum = row_sum * alpha + their sum.
struct SoftmaxArgs {
  float* scores = nullptr;
  float unit = 1;  // as in QkArgs
  const float* max_in = nullptr;
  const float* max_out = nullptr;
  float* row_sum = nullptr;  // [width], in and out
  float* alpha = nullptr;    // [width], written: exp(max_in - max_out)
  int num_keys = 0;
};

// out[c][lane] = alpha[lane] * out[c][lane] + sum_j p[j][lane] * v[j][c]
struct PvArgs {
  // Element (j, c) is v[c / rows * block_stride + j * row_stride + c % rows], rows =
  // MicroKernels::rows: the caller's V in place (block_stride = rows) or a packed copy.
  const float* v = nullptr;
  int64_t row_stride = 0, block_stride = 0;
  const float* p = nullptr;      // [num_keys, width]
  const float* alpha = nullptr;  // [width]
  float* out = nullptr;          // [head_dim_v, width]
  bool is_first = false;         // out holds nothing yet and is not read
  int num_keys = 0, head_dim_v = 0;
};

// The same as QkArgs, SoftmaxArgs and PvArgs for up to kNarrowLanes lanes, straight from the
// caller's rows. Scores lie along the lanes as there, or along the keys: then a lane has a run of
// `stride` floats, at least num_keys rounded up to whole vectors, and keys that are not there
// are -inf. The rows `next` are asked for evenly, as many as there are keys.
inline constexpr int kNarrowLanes = 16;
struct NarrowQkArgs {
  const void* const* k_rows = nullptr;  // [num_keys]
  const float* q = nullptr;             // [head_dim, width]
  float* scores = nullptr;              // [num_keys, width] or [num_lanes, stride], written
  int64_t stride = 0;                   // 0: along the lanes
  const float* max_in = nullptr;        // [width]
  float* max_out = nullptr;
  float scale = 1;
  int num_keys = 0, head_dim = 0, num_lanes = 0, width = 0;
  Prefetch next;
};
struct NarrowSoftmaxArgs {
  float* scores = nullptr;  // [num_lanes, stride], in place
  int64_t stride = 0;
  const float* max_in = nullptr;  // [width]
  const float* max_out = nullptr;
  float* row_sum = nullptr;
  float* alpha = nullptr;
  int num_keys = 0, num_lanes = 0, width = 0;
};
struct NarrowPvArgs {
  const void* const* v_rows = nullptr;  // [num_keys]
  const float* p = nullptr;             // at key * key_stride + lane * lane_stride
  int64_t key_stride = 0, lane_stride = 0;
  const float* alpha = nullptr;  // [width]
  float* out = nullptr;          // [head_dim_v, width]
  float* acc = nullptr;          // [num_lanes, head_dim_v rounded up to whole vectors], scratch
  bool is_first = false;
  int num_keys = 0, head_dim_v = 0, num_lanes = 0, width = 0;
  Prefetch next;
};

// p[j][lane] = 0 where dropout drops the pair (shared/philox.h).
struct DropArgs {
  float* p = nullptr;          // [num_keys, width], in place
  const int32_t* i = nullptr;  // [width] query position
  const int32_t* h = nullptr;  // [width] query head
  uint32_t b = 0;              // place in the batch
  uint32_t first_key = 0;      // position of the first key, a multiple of 4
  uint32_t key[2] = {};        // of the call
  uint32_t threshold = 0;      // smaller bits are dropped
  int num_keys = 0;
};

// V [num_keys, head_dim_v] -> packed [ceil(head_dim_v / rows), num_keys, rows], so that a column
// block is one contiguous stream of floats whatever the caller's strides, pages and format.
struct PackVArgs {
  const void* const* v_rows = nullptr;  // [num_keys]
  float* packed = nullptr;
  int64_t block_stride = 0;  // between column blocks; at least num_keys * rows
  int num_keys = 0, head_dim_v = 0;
};

// K [num_keys, head_dim] -> packed [ceil(num_keys / rows), head_dim, rows].
struct PackKArgs {
  const void* const* k_rows = nullptr;  // [num_keys]
  float* packed = nullptr;
  int num_keys = 0, head_dim = 0;
};

// out_a, max_a, sum_a <- their union with b; both as left by the kernels above.
struct MergeStateArgs {
  float* out_a = nullptr;  // [head_dim_v, width]
  float* max_a = nullptr;
  float* sum_a = nullptr;
  const float* out_b = nullptr;
  const float* max_b = nullptr;
  const float* sum_b = nullptr;
  int head_dim_v = 0;
};

// Between rows of the caller, in their format, and lanes of a panel.
struct TransposeArgs {
  const void* const* from_rows = nullptr;  // [width] pointers to `length` elements; null: zeros
  void* const* to_rows = nullptr;          // [width]; null: left out
  float* panel = nullptr;                  // [length, width]
  const float* factor = nullptr;           // [width], unpack only
  int length = 0;
};

// A tensor that an expression reads, in elements.
struct ElementArray {
  const void* data = nullptr;
  bool is_empty = false;   // every element is 0
  bool is_narrow = false;  // every offset is 32-bit
  int32_t last[4] = {};    // largest index of each axis
  int64_t stride[4] = {};
};

// One section of a vector program over `rows` rows of lanes.
struct EvaluateArgs {
  const expression::Instruction* instructions = nullptr;
  int num_instructions = 0;
  expression::Section section = expression::Section::lanes;
  int rows = 0;
  // Register r of a section starts at registers[section] + r * register_stride[section]; of `pairs`
  // at r - 1, as register 0 is the scores. Those of the section itself hold [rows, width], those of
  // `lanes` [width], those of `keys` [rows]; those of `distances` start at the first row's and move
  // by distance_stride from row to row.
  float* registers[expression::kNumSections] = {};
  int64_t register_stride[expression::kNumSections] = {};
  int64_t distance_stride = 0;
  float* scores = nullptr;  // [rows, width]
  const ElementArray* tensors = nullptr;
  const float* scalars = nullptr;
};

// The masks of a run of keys where a score_mod or mask_mod stands between the logits and them.
struct MaskArgs {
  float* scores = nullptr;  // [num_keys, width], in place; a masked pair becomes -inf
  const float* max_in = nullptr;
  float* max_out = nullptr;
  int num_keys = 0;
  int first_key = 0;  // what lo, hi count from is first_key before this run
  const int32_t* lo = nullptr;
  const int32_t* hi = nullptr;
  const int32_t* document_q = nullptr;
  const int32_t* document_k = nullptr;  // [num_keys]
  const float* bias = nullptr;          // [num_keys, width], -inf masks
  const int32_t* visible = nullptr;     // [num_keys, width], 0 masks
  int64_t visible_stride = 0;           // between its rows
};

struct MicroKernels {
  Isa isa;
  int lanes;  // per vector
  int rows;   // of a register block
  void (*qk[kMaxVectors])(const QkArgs&);
  void (*logits[kMaxVectors])(const LogitArgs&);
  // panel = bias, as floats; 0 where there is no query
  void (*bias[kOutputFormats][kMaxVectors])(const PairArgs&);
  // panel = -inf where a boolean mask hides a pair
  void (*hide[kMaxVectors])(const PairArgs&);
  unsigned (*mask_content)(const void* const* rows, int num_rows, int num_keys);
  // Expressions: one or two vectors a row.
  void (*evaluate[kMaxVectors])(const EvaluateArgs&);
  void (*mask[kMaxVectors])(const MaskArgs&);
  void (*softmax[kMaxVectors])(const SoftmaxArgs&);
  void (*pv[kMaxVectors])(const PvArgs&);
  void (*narrow_qk[kInputFormats])(const NarrowQkArgs&);
  void (*narrow_softmax)(const NarrowSoftmaxArgs&);
  void (*narrow_pv[kInputFormats])(const NarrowPvArgs&);
  void (*drop[kMaxVectors])(const DropArgs&);
  void (*pack_k[kInputFormats])(const PackKArgs&);
  void (*pack_v[kInputFormats])(const PackVArgs&);
  void (*merge[kMaxVectors])(const MergeStateArgs&);
  void (*pack[kInputFormats][kMaxVectors])(const TransposeArgs&);  // panel = rows
  // rows = panel * factor rounded to the format, +0 where factor is negative
  void (*unpack[kOutputFormats][kMaxVectors])(const TransposeArgs&);
  // Is there a NaN or infinity in any of the rows?
  bool (*has_nonfinite[kInputFormats])(const void* const* rows, int num_rows, int columns);
  // n elements as floats, exactly, and back, to nearest even. `to` of decode has room for n rounded
  // up to a multiple of lanes.
  void (*decode[kInputFormats])(const void* from, int n, float* to);
  void (*encode[kOutputFormats])(const float* from, int n, void* to);
  // exp(x) for x <= 0 and tanh(x), element by element; n is a multiple of lanes. For tests.
  void (*exp)(const float* x, float* y, int n);
  void (*tanh)(const float* x, float* y, int n);
  // row <- softmax(row), n >= 1: the softmax of the naive method at its best, for comparison.
  void (*softmax_row)(float* row, int64_t n);
  // Independent FMAs, `rounds` times `flops_per_round` operations; returns a value to keep.
  float (*fma_peak)(int64_t rounds);
  int flops_per_round;
};

// The kernels that see operands of the two products, for one format of rows. An operand consists of
// 32-bit words: each a float or, where per_word is 2, two bf16 that are neighbours along the
// reduction (columns in q and k, keys in p and v), the first in the low half and a missing second
// 0. Then k, q, p and v above, and their copies, are words; sizes count elements all the same, and
// softmax leaves p as words where the first of the scores were.
struct ProductKernels {
  int per_word = 1;
  void (*qk[kMaxVectors])(const QkArgs&) = {};
  void (*softmax[kMaxVectors])(const SoftmaxArgs&) = {};
  void (*pv[kMaxVectors])(const PvArgs&) = {};
  void (*narrow_qk)(const NarrowQkArgs&) = nullptr;
  void (*narrow_pv)(const NarrowPvArgs&) = nullptr;
  void (*pack_k)(const PackKArgs&) = nullptr;
  void (*pack_v)(const PackVArgs&) = nullptr;
  void (*pack_q[kMaxVectors])(const TransposeArgs&) = {};
  // [num_keys, width] floats become words in place; null where they are floats.
  void (*join[kMaxVectors])(float* p, int num_keys) = {};
  // As MicroKernels::fma_peak, of the instruction that adds up products.
  float (*peak)(int64_t rounds) = nullptr;
  int flops_per_round = 0;
};

extern const MicroKernels kScalarKernels;
extern const MicroKernels kAvx2Kernels;    // x86-64 only
extern const MicroKernels kAvx512Kernels;  // x86-64 only
extern const MicroKernels kNeonKernels;    // 64-bit Arm only
// bf16 by vdpbf16ps, beside kAvx512Kernels. x86-64 only.
extern const ProductKernels kAvx512Bf16Products;

}  // namespace sirdar::cpu
