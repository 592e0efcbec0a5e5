// The micro-kernels that only the backward pass needs. Its matrices lie in panels: columns side by
// side in groups of width = kMaxVectors * lanes, as [ceil(columns / width)][rows][width] with a
// stride between panels. One form serves as either operand of every product, so that nothing is
// packed for one of them alone; Q and dO also exist transposed, a panel a vector of queries.
#pragma once

#include "cpu/microkernel.h"

namespace sirdar::cpu {

// Row r, column c of A is a[c / width * a_stride + r * width + c % width].
struct ProductArgs {
  const float* a = nullptr;  // [num_rows, depth] in panels; transposed: [depth, width]
  int64_t a_stride = 0;
  const float* b = nullptr;  // [depth, width]
  float* c = nullptr;        // [num_rows, width]
  int num_rows = 0, depth = 0;
  float scale = 1;  // scores only
};

// Scores to weights, in place: weight[lane] * exp(score - base[lane]). A masked pair becomes -0,
// which no visible pair can be: it counts as nothing and can still be told.
struct WeightArgs {
  float* scores = nullptr;        // [num_keys, width]
  const float* base = nullptr;    // [width]
  const float* weight = nullptr;  // [width]; null: all are 1
  int num_keys = 0;
  bool has_masks = false;  // else the rest is not read
  // As in LogitArgs, relative to the first of these keys.
  const int32_t *lo = nullptr, *hi = nullptr;
  const float* bias = nullptr;
  const int32_t *document_q = nullptr, *document_k = nullptr;
  // As in MaskArgs.
  int first_key = 0;
  const int32_t* visible = nullptr;
  int64_t visible_stride = 0;
};

// c = dS = p * (keep * a b - delta) * mod_slope * slope * scale, where a b = dP; then p = p * keep.
struct GradientArgs {
  ProductArgs product;
  float* p = nullptr;            // [num_rows, width], as WeightArgs leaves it
  const float* keep = nullptr;   // [num_rows, width] dropout: 0 or 1 / (1 - dropout_p); null: 1
  const float* delta = nullptr;  // [width]
  const float* slope = nullptr;  // [num_rows, width] derivative of the soft-cap; null: 1
  float* dlogit = nullptr;       // [num_rows, width] dS before slope and scale; null: not wanted
  const float* mod_slope = nullptr;  // [num_rows, width] derivative of the score_mod; null: 1
  float* dvalue = nullptr;           // [num_rows, width] dlogit before mod_slope; null: not wanted
  bool has_masks = false;
};

// Scores to soft-capped scores in place, and the derivative there.
struct SoftcapArgs {
  float* scores = nullptr;
  float* slope = nullptr;  // [num_keys, width]
  float softcap = 0;
  int num_keys = 0;
};

// Rows of the caller in their format, and the same rows as floats in panels. Strides in elements.
struct RowsArgs {
  const void* rows = nullptr;
  int64_t row_stride = 0;
  float* panels = nullptr;
  int64_t panel_stride = 0;
  int num_rows = 0, columns = 0;
};
struct StoreRowsArgs {
  const float* panels = nullptr;
  int64_t panel_stride = 0;
  void* rows = nullptr;
  int64_t row_stride = 0;
  int num_rows = 0, columns = 0;
};

// sums[lane] = sum over c of a[c][lane] * b[c][lane]
struct DotArgs {
  const float *a = nullptr, *b = nullptr;  // [depth, width]
  float* sums = nullptr;                   // [width]
  int depth = 0;
};

// What pairs add to the gradient of an element that they read: dvalue * slope, 0 where dvalue is or
// the slope is -0.
// Rows of [width] have as many zeros before and behind them: [num_keys, 3 * width].
struct TermArgs {
  const float* dvalue = nullptr;  // [num_keys, width]
  const float* slope = nullptr;   // rows of [width]
  int64_t slope_stride = 0;
  float* terms = nullptr;
  int num_keys = 0;
};
// Sums of terms: per lane over the keys, sums[width]; per key, sums[num_keys]; per distance,
// sums[n] of lane - key + num_keys - 1 = n, in whole vectors.
struct TermSumArgs {
  const float* terms = nullptr;
  int num_keys = 0;
  float* sums = nullptr;  // added to
};

struct BackwardKernels {
  void (*scores)(const ProductArgs&);                              // c = scale * a b
  void (*accumulate[kMaxVectors])(const ProductArgs&);             // c += a b
  void (*accumulate_transposed[kMaxVectors])(const ProductArgs&);  // c += a^T b
  void (*weights)(const WeightArgs&);
  void (*gradient)(const GradientArgs&);
  void (*softcap)(const SoftcapArgs&);
  // panels = rows, columns that are not there = 0; true if all elements are finite
  bool (*load_rows[kOutputFormats])(const RowsArgs&);
  void (*store_rows[kOutputFormats])(const StoreRowsArgs&);  // rows = panels, rounded
  void (*dot)(const DotArgs&);
  void (*add)(float* sums, const float* terms, int64_t count);  // of whole panel rows
  void (*terms)(const TermArgs&);
  void (*sum_terms[3])(const TermSumArgs&);  // per lane, per key, per distance
};

extern const BackwardKernels kScalarBackward;
extern const BackwardKernels kAvx2Backward;    // x86-64 only
extern const BackwardKernels kAvx512Backward;  // x86-64 only
extern const BackwardKernels kNeonBackward;    // 64-bit Arm only

// The kernels of an instruction set that choose_isa() returned on this machine.
const BackwardKernels& backward_kernels_for(Isa isa);

}  // namespace sirdar::cpu
