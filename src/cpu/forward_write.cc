// How a tile of the forward pass ends: states are merged, normalised and written where the caller
// wants them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/geometry.h"
#include "cpu/forward_tile.h"

namespace sirdar::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

void Tile::merge(const Panel& panel, const AccumulatorState& total,
                 const AccumulatorState& state) const {
  if (*state.has_keys == 0) return;
  if (*total.has_keys == 0) {
    std::copy_n(state.out, int64_t{panel.width} * call_.shape.head_dim_v, total.out);
    std::copy_n(state.row_max, panel.width, total.row_max);
    std::copy_n(state.row_sum, panel.width, total.row_sum);
    *total.has_keys = 1;
    return;
  }
  call_.kernels.merge[panel.vectors - 1]({.out_a = total.out,
                                          .max_a = total.row_max,
                                          .sum_a = total.row_sum,
                                          .out_b = state.out,
                                          .max_b = state.row_max,
                                          .sum_b = state.row_sum,
                                          .head_dim_v = call_.shape.head_dim_v});
}

void Tile::write(const Panel& panel, const AccumulatorState& state) {
  const int end = std::min(panel.first_lane + call_.shape.width, num_rows_);
  for (int lane = panel.first_lane; lane < end; ++lane) {
    const int at = lane - panel.first_lane;
    const bool has_keys = lane < num_live_ && *state.has_keys != 0;
    write_row(lane, has_keys ? state.row_max[at] : -kInf, has_keys ? state.row_sum[at] : 0);
  }
  call_.kernels.unpack[call_.output_format][panel.vectors - 1](
      {.to_rows = scratch_.to_rows + panel.first_lane,
       .panel = state.out,
       .factor = scratch_.factor + panel.first_lane,
       .length = call_.shape.head_dim_v});
}

void Tile::write_unused() {
  for (int lane = num_panels_ * call_.shape.width; lane < num_rows_; ++lane)
    write_row(lane, -kInf, 0);
}

// lse and max_logit of a row; the factor that normalises its out, negative for an empty row.
// A sink may leave the keys a factor of 0, which is not the same: 0 times NaN is NaN.
void Tile::write_row(int lane, float row_max, float row_sum) {
  const bool is_live = lane < num_live_;
  const int64_t i = query_of(lane), h = head_of(lane);
  double base = row_max, sum = row_sum, weight = 1;
  if (is_live && call_.problem.has_sink) {
    const TensorView& view = call_.args.sink;
    const float sink = static_cast<const float*>(view.data)[h * stride_or_zero(view, 0)];
    // A NaN in either must come through.
    base = std::isnan(sink) || sink > row_max ? sink : row_max;
    if (base != -kInf) {
      weight = row_sum == 0 ? 0 : std::exp(row_max - base);
      sum = row_sum * weight + std::exp(sink - base);
    }
  }
  const bool is_empty = sum == 0;
  if (call_.problem.needs_lse) {
    static_cast<float*>(call_.args.lse.data)[call_.lse.offset(b_, q_, i, h)] =
        is_empty ? -kInf : static_cast<float>(base + std::log(sum));
  }
  if (call_.problem.needs_max_logit) {
    const bool is_nan = std::isnan(row_sum) && row_max < kInf;
    static_cast<float*>(call_.args.max_logit.data)[call_.max_logit.offset(b_, q_, i, h)] =
        is_nan ? std::numeric_limits<float>::quiet_NaN() : row_max;
  }
  if (is_live) {
    const double factor = call_.dropout.keep_scale * weight / sum;
    scratch_.factor[lane] = is_empty || row_sum == 0 ? -1 : static_cast<float>(factor);
  } else {
    void* out = row_at(call_.args.out, call_.out.offset(b_, q_, i, h), call_.output_bytes);
    // The bits of +0 in every format.
    std::memset(out, 0, static_cast<size_t>(call_.shape.head_dim_v * call_.output_bytes));
  }
}

}  // namespace sirdar::cpu
