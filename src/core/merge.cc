// Merging partial results over disjoint keys of the same queries, in float64 per row. An empty side
// (lse = -inf) is not read at all, so the other side passes through bit for bit.
#include <sirdar/plan.hpp>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/elements.h"
#include "core/geometry.h"
#include "core/validate.h"
#include "shared/softmax_state.h"

namespace sirdar {
namespace {

void copy_elements(const TensorView& from, int64_t from_offset, const TensorView& to,
                   int64_t to_offset, int64_t count) {
  if (from.dtype == to.dtype) {
    const int64_t bytes = size_bytes(to.dtype);
    std::memmove(static_cast<char*>(to.data) + to_offset * bytes,
                 static_cast<const char*>(from.data) + from_offset * bytes,
                 static_cast<size_t>(count * bytes));
    return;
  }
  for (int64_t c = 0; c < count; ++c) {
    store_element(to, to_offset + c, load_element(from, from_offset + c));
  }
}

// One row: `a`, `b` and `to` are element offsets in out_a, out_b and out.
void merge_row(const MergeArgs& args, int64_t a, int64_t b, int64_t to, int64_t head_dim_v,
               const MergeWeights<double>& weights) {
  std::array<double, 128> row_a, row_b;
  for (int64_t c = 0; c < head_dim_v; c += 128) {
    const size_t count = static_cast<size_t>(std::min<int64_t>(128, head_dim_v - c));
    load_row(args.out_a, a + c, {row_a.data(), count});
    load_row(args.out_b, b + c, {row_b.data(), count});
    for (size_t n = 0; n < count; ++n) row_a[n] = weights.a * row_a[n] + weights.b * row_b[n];
    store_row(args.out, to + c, {row_a.data(), count});
  }
}

}  // namespace

Status merge(const MergeArgs& args) {
  if (Status status = validate(args); !status.ok()) return status;
  const bool is_ragged = args.out.rank == 3;
  const Layout layout = is_ragged ? Layout::ragged : Layout::dense;
  const size_t axis = is_ragged ? 0 : 1;
  const int64_t batch = is_ragged ? 1 : args.out.shape[0];
  const int64_t rows = args.out.shape[axis], heads = args.out.shape[axis + 1];
  const int64_t head_dim_v = args.out.shape[axis + 2];
  const RowMap out_a = row_map(args.out_a, layout), out_b = row_map(args.out_b, layout);
  const RowMap lse_a = row_statistics_map(args.lse_a, layout);
  const RowMap lse_b = row_statistics_map(args.lse_b, layout);
  const RowMap out = row_map(args.out, layout), lse = row_statistics_map(args.lse, layout);
  const double empty = -kInfinity<double>;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t at_a = lse_a.offset(b, {}, i, h), at_b = lse_b.offset(b, {}, i, h);
        const int64_t row_a = out_a.offset(b, {}, i, h), row_b = out_b.offset(b, {}, i, h);
        const int64_t to = out.offset(b, {}, i, h), to_lse = lse.offset(b, {}, i, h);
        const double value_a = load_element(args.lse_a, at_a);
        const double value_b = load_element(args.lse_b, at_b);
        if (value_a == empty && value_b == empty) {
          // Neither side is read.
          for (int64_t c = 0; c < head_dim_v; ++c) store_element(args.out, to + c, 0);
          store_element(args.lse, to_lse, empty);
        } else if (value_b == empty) {
          copy_elements(args.out_a, row_a, args.out, to, head_dim_v);
          copy_elements(args.lse_a, at_a, args.lse, to_lse, 1);
        } else if (value_a == empty) {
          copy_elements(args.out_b, row_b, args.out, to, head_dim_v);
          copy_elements(args.lse_b, at_b, args.lse, to_lse, 1);
        } else {
          const MergeWeights<double> weights = merge_weights(value_a, value_b);
          merge_row(args, row_a, row_b, to, head_dim_v, weights);
          store_element(args.lse, to_lse, weights.lse);
        }
      }
    }
  }
  return {};
}

}  // namespace sirdar
