#include "cpu/forward_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/geometry.h"

namespace sirdar::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

Tile::Tile(const ForwardCall& call, Scratch& scratch, int64_t tile)
    : call_(call), scratch_(scratch), terms_(call, scratch), expressions_(call, scratch) {
  const WorkGrid& grid = call.grid;
  const int64_t block_m = call.config.block_m;
  group_ = static_cast<int>(call.problem.group_size());
  b_ = tile / grid.tiles / grid.num_heads_kv;
  head_kv_ = tile / grid.tiles % grid.num_heads_kv;
  // Longest first: under a causal mask the last queries see the most keys.
  first_row_ = (grid.tiles - 1 - tile % grid.tiles) * block_m;
  q_ = call.query.sequence(b_);
  k_ = call.key.sequence(b_);
  const auto rows_here = [&](int64_t length) {
    return static_cast<int>(std::clamp<int64_t>(length * group() - first_row_, 0, block_m));
  };
  num_rows_ = rows_here(q_.stored);
  num_live_ = rows_here(q_.length);
  num_panels_ = (num_live_ + call.shape.width - 1) / call.shape.width;
  mask_ = structured_mask(call.problem.mask, q_.length, k_.length);
  segments_ = segments_of(k_.length, call.config);
}

Tile::Panel Tile::panel(int index) const {
  Panel result;
  result.index = index;
  result.first_lane = index * call_.shape.width;
  result.num_lanes = std::min(call_.shape.width, num_live_ - result.first_lane);
  result.vectors = result.num_lanes <= call_.kernels.lanes ? 1 : kMaxVectors;
  result.width = result.vectors * call_.kernels.lanes;
  result.rows = {query_of(result.first_lane),
                 query_of(result.first_lane + result.num_lanes - 1) + 1};
  if (call_.problem.has_document) {
    result.documents_q = document_range(scratch_.document_q + result.first_lane, result.num_lanes);
  }
  return result;
}

TileExpressions::Lanes Tile::lanes(const Panel& panel) const {
  return {panel.index, panel.first_lane, panel.vectors, panel.width};
}

void Tile::load_expressions() {
  expression::Box rows{.b = b_,
                       .h = head_kv_ * group(),
                       .q = {query_of(0), query_of(num_live_ - 1) + 1},
                       .shift = k_.length - q_.length,
                       .num_heads = group()};
  expressions_.load_lanes(num_live_, static_cast<int>(first_row_ % group()), rows);
  for (int index = 0; index < num_panels_; ++index) {
    rows.q = panel(index).rows;
    expressions_.set_panel(index, rows);
  }
}

void Tile::load_queries() {
  for (int lane = 0; lane < num_panels_ * call_.shape.width; ++lane) {
    scratch_.from_rows[lane] = nullptr;
    scratch_.lo[lane] = scratch_.hi[lane] = 0;
    if (lane >= num_live_) continue;
    const int64_t i = query_of(lane), h = head_of(lane);
    scratch_.from_rows[lane] =
        row_at(call_.args.q, call_.q.offset(b_, q_, i, h), call_.input_bytes);
    if (call_.shape.has_dropout) {
      scratch_.dropout_i[lane] = static_cast<int32_t>(i);
      scratch_.dropout_h[lane] = static_cast<int32_t>(h);
    }
    scratch_.lo[lane] = mask_.lo(i);
    scratch_.hi[lane] = mask_.hi(i);
    terms_.set_lane(lane, b_, h, i, i + k_.length - q_.length);
  }
  for (int index = 0; index < num_panels_; ++index) {
    const Panel one = panel(index);
    const int64_t head_dim = call_.shape.head_dim;
    const auto& pack = call_.kernels.pack[call_.input_format];
    pack[one.vectors - 1]({.from_rows = scratch_.from_rows + one.first_lane,
                           .panel = scratch_.q + one.first_lane * head_dim,
                           .length = call_.shape.head_dim});
  }
}

void Tile::reset(AccumulatorState& state) const {
  std::fill_n(state.has_keys, call_.shape.num_panels, 0);
  std::fill_n(state.row_max, call_.shape.num_lanes(), -kInf);
  std::fill_n(state.row_sum, call_.shape.num_lanes(), 0.0f);
}

void Tile::accumulate(int64_t segment, AccumulatorState& state) {
  reset(state);
  if (num_live_ == 0) return;
  load_expressions();
  Range seen = key_range(mask_, Range{query_of(0), query_of(num_live_ - 1) + 1});
  seen.begin = max_of(seen.begin, segment * segments_.keys);
  seen.end = min_of(seen.end, min_of((segment + 1) * segments_.keys, k_.length));
  const Position block_n = call_.config.block_n;
  const auto keys_at = [&](Position begin) -> Range {
    return {begin, begin < seen.end ? min_of(begin + block_n, k_.length) : begin};
  };
  const auto shown_from = [&](Position begin) {
    return expressions_.shown_from(begin, k_.length, block_n);
  };
  Position next = shown_from(seen.begin / block_n * block_n);
  while (next < seen.end) {
    Block block;
    block.keys = keys_at(next);
    next = shown_from(next + block_n);
    if (expressions_.begin_block(block.keys, num_panels_) == Cover::none) continue;
    prepare_block(block, keys_at(next));
    if (block.num_panels == 0) continue;
    for (int index = 0; index < num_panels_; ++index) run_panel(panel(index), block, state);
  }
}

void Tile::run_panel(const Panel& panel, const Block& block, AccumulatorState& state) {
  Range keys;
  const Cover cover = visible_part(panel, block, keys);
  if (cover == Cover::none) return;
  const MicroKernels& kernels = call_.kernels;
  const int num_keys = static_cast<int>(keys.size());
  float* row_max = state.row_max + panel.first_lane;
  pairs_ = nullptr;
  if (block.is_narrow) {
    score_narrow(panel, block, keys, row_max);
  } else {
    score(panel, block, keys, row_max);
  }
  if (call_.has_logit_terms || expressions_.has_score_mod() || cover == Cover::part) {
    apply_logits(panel, block, keys, cover, row_max);
  }
  kernels.softmax[panel.vectors - 1]({.scores = scratch_.scores,
                                      .max_in = row_max,
                                      .max_out = scratch_.new_max,
                                      .row_sum = state.row_sum + panel.first_lane,
                                      .alpha = scratch_.alpha,
                                      .num_keys = num_keys});
  if (call_.shape.has_dropout) apply_dropout(panel, keys);
  if (block.is_narrow) {
    add_values_narrow(panel, block, keys, state);
  } else {
    add_values(panel, block, keys, state);
  }
  std::copy_n(scratch_.new_max, panel.width, row_max);
  state.has_keys[panel.index] = 1;
}

void Tile::score(const Panel& panel, const Block& block, Range keys, const float* row_max) {
  const int64_t head_dim = call_.shape.head_dim, stride = call_.k.stride_row;
  const int64_t rows = call_.kernels.rows, skipped = keys.begin - block.keys.begin;
  QkArgs args{.q = scratch_.q + panel.first_lane * head_dim,
              .scores = scratch_.scores,
              .max_in = row_max,
              .max_out = scratch_.new_max,
              .scale = call_.scale,
              .num_keys = static_cast<int>(keys.size()),
              .head_dim = call_.shape.head_dim};
  if (block.is_packed) {
    args.k = scratch_.keys + skipped * head_dim;
    args.block_stride = rows * head_dim;
    args.row_stride = 1;
    args.column_stride = rows;
  } else {
    args.k = static_cast<const float*>(block.k[skipped]);
    args.block_stride = rows * stride;
    args.row_stride = stride;
    args.column_stride = 1;
  }
  // Each panel asks for its share of the next block, so that packing it finds it in the cache.
  const int64_t share = (keys.size() + rows - 1) / rows;
  const KeyRows& next = scratch_.next_rows;
  args.next_k = coming(next.k, panel.index * share, share, call_.shape.head_dim);
  args.next_v = coming(next.v, panel.index * share, share, call_.shape.head_dim_v);
  call_.kernels.qk[panel.vectors - 1](args);
}

void Tile::score_narrow(const Panel& panel, const Block& block, Range keys, const float* row_max) {
  const KeyRows& next = scratch_.next_rows;
  call_.kernels.narrow_qk[call_.input_format](
      {.k_rows = block.k + (keys.begin - block.keys.begin),
       .q = scratch_.q + int64_t{panel.first_lane} * call_.shape.head_dim,
       .scores = scratch_.scores,
       .max_in = row_max,
       .max_out = scratch_.new_max,
       .transposed = scratch_.keys,
       .scale = call_.scale,
       .num_keys = static_cast<int>(keys.size()),
       .head_dim = call_.shape.head_dim,
       .num_lanes = panel.num_lanes,
       .width = panel.width,
       .next_k = coming(next.k, 0, keys.size(), call_.shape.head_dim)});
}

Prefetch Tile::coming(const void* const* rows, int64_t first, int64_t count, int columns) const {
  const int64_t available = scratch_.next_rows.end - scratch_.next_rows.begin - first;
  return {rows + first, static_cast<int>(std::clamp<int64_t>(available, 0, count)),
          static_cast<int>(columns * call_.input_bytes)};
}

// The sum of a row is taken before this, and the factor 1 / (1 - p) at the end (write_row).
void Tile::apply_dropout(const Panel& panel, Range keys) {
  const Dropout& dropout = call_.dropout;
  call_.kernels.drop[panel.vectors - 1]({.p = scratch_.scores,
                                         .i = scratch_.dropout_i + panel.first_lane,
                                         .h = scratch_.dropout_h + panel.first_lane,
                                         .b = static_cast<uint32_t>(b_),
                                         .first_key = static_cast<uint32_t>(keys.begin),
                                         .key = {dropout.key.x, dropout.key.y},
                                         .threshold = static_cast<uint32_t>(dropout.threshold),
                                         .num_keys = static_cast<int>(keys.size())});
}

void Tile::apply_logits(const Panel& panel, const Block& block, Range keys, Cover cover,
                        const float* max_in) {
  LogitArgs args{.scores = scratch_.scores,
                 .max_in = max_in,
                 .max_out = scratch_.new_max,
                 .num_keys = static_cast<int>(keys.size()),
                 .softcap = call_.problem.softcap};
  if (cover == Cover::part) {
    const auto in_run = [&](int64_t key) {
      return static_cast<int32_t>(std::clamp<int64_t>(key - keys.begin, 0, keys.size()));
    };
    for (int lane = 0; lane < panel.width; ++lane) {
      scratch_.lo_in_block[lane] = in_run(scratch_.lo[panel.first_lane + lane]);
      scratch_.hi_in_block[lane] = in_run(scratch_.hi[panel.first_lane + lane]);
    }
    args.lo = scratch_.lo_in_block;
    args.hi = scratch_.hi_in_block;
    if (call_.problem.has_document) {
      args.document_q = scratch_.document_q + panel.first_lane;
      args.document_k = scratch_.document_k + (keys.begin - block.keys.begin);
    }
  }
  terms_.fill(args, panel.first_lane, panel.num_lanes, panel.width, keys);
  pairs_ = args.bias;
  if (expressions_.has_score_mod() || expressions_.cover(panel.index) == Cover::part)
    return apply_expressions(panel, keys, args);
  call_.kernels.logits[panel.vectors - 1](args);
}

// The terms, the expressions, and only then the masks.
void Tile::apply_expressions(const Panel& panel, Range keys, LogitArgs args) {
  const MaskArgs masks{.scores = args.scores,
                       .max_in = args.max_in,
                       .max_out = args.max_out,
                       .lo = args.lo,
                       .hi = args.hi,
                       .document_q = args.document_q,
                       .document_k = args.document_k,
                       .bias = args.bias};
  args.lo = args.hi = args.document_q = nullptr;
  if (call_.has_logit_terms) call_.kernels.logits[panel.vectors - 1](args);
  expressions_.apply(lanes(panel), keys, masks);
}

void Tile::add_values(const Panel& panel, const Block& block, Range keys, AccumulatorState& state) {
  const int64_t skipped = keys.begin - block.keys.begin, stride = call_.v.stride_row;
  const int rows = call_.kernels.rows;
  const int64_t head_dim_v = call_.shape.head_dim_v;
  call_.kernels.pv[panel.vectors - 1](
      {.v = block.is_packed ? scratch_.values + skipped * rows
                            : static_cast<const float*>(block.v[skipped]),
       .row_stride = block.is_packed ? rows : stride,
       .block_stride = block.is_packed ? call_.shape.value_stride() : rows,
       .p = scratch_.scores,
       .alpha = scratch_.alpha,
       .out = state.out + panel.first_lane * head_dim_v,
       .is_first = state.has_keys[panel.index] == 0,
       .num_keys = static_cast<int>(keys.size()),
       .head_dim_v = call_.shape.head_dim_v});
  if (!block.is_finite) add_nonfinite_values(panel, block, keys, state);
}

void Tile::add_values_narrow(const Panel& panel, const Block& block, Range keys,
                             AccumulatorState& state) {
  const int64_t head_dim_v = call_.shape.head_dim_v;
  call_.kernels.narrow_pv[call_.input_format]({.v_rows = block.v + (keys.begin - block.keys.begin),
                                               .p = scratch_.scores,
                                               .alpha = scratch_.alpha,
                                               .out = state.out + panel.first_lane * head_dim_v,
                                               .acc = scratch_.narrow_acc,
                                               .values = scratch_.narrow_values,
                                               .is_first = state.has_keys[panel.index] == 0,
                                               .num_keys = static_cast<int>(keys.size()),
                                               .head_dim_v = call_.shape.head_dim_v,
                                               .num_lanes = panel.num_lanes,
                                               .width = panel.width});
}

bool Tile::is_visible(const Panel& panel, const Block& block, Range keys, int lane,
                      int64_t key) const {
  const int at = panel.first_lane + lane;
  if (key < scratch_.lo[at] || key >= scratch_.hi[at]) return false;
  if (call_.problem.has_document &&
      scratch_.document_q[at] != scratch_.document_k[key - block.keys.begin])
    return false;
  return pairs_ == nullptr || pairs_[(key - keys.begin) * panel.width + lane] != -kInf;
}

void Tile::add_nonfinite_values(const Panel& panel, const Block& block, Range keys,
                                AccumulatorState& state) {
  const bool is_masked = expressions_.cover(panel.index) == Cover::part;
  const int columns = call_.shape.head_dim_v;
  float* out = state.out + static_cast<int64_t>(panel.first_lane) * columns;
  for (int64_t key = keys.begin; key < keys.end; ++key) {
    const void* const* row = block.v + (key - block.keys.begin);
    if (!has_nonfinite(row, 1)) continue;
    call_.kernels.decode[call_.input_format](*row, columns, scratch_.row);
    const float* p = scratch_.scores + (key - keys.begin) * panel.width;
    const int32_t* shown = is_masked ? expressions_.visible(lanes(panel), key, 1).first : nullptr;
    for (int lane = 0; lane < panel.num_lanes; ++lane) {
      if (!is_visible(panel, block, keys, lane, key)) continue;
      if (is_masked && shown[lane] == 0) continue;
      for (int c = 0; c < columns; ++c) out[c * panel.width + lane] += p[lane] * scratch_.row[c];
    }
  }
}

void Tile::merge(AccumulatorState& total, const AccumulatorState& state) const {
  const int64_t head_dim_v = call_.shape.head_dim_v;
  for (int index = 0; index < num_panels_; ++index) {
    if (state.has_keys[index] == 0) continue;
    const Panel one = panel(index);
    const int64_t lane = one.first_lane;
    if (total.has_keys[index] == 0) {
      std::copy_n(state.out + lane * head_dim_v, one.width * head_dim_v,
                  total.out + lane * head_dim_v);
      std::copy_n(state.row_max + lane, one.width, total.row_max + lane);
      std::copy_n(state.row_sum + lane, one.width, total.row_sum + lane);
      total.has_keys[index] = 1;
      continue;
    }
    call_.kernels.merge[one.vectors - 1]({.out_a = total.out + lane * head_dim_v,
                                          .max_a = total.row_max + lane,
                                          .sum_a = total.row_sum + lane,
                                          .out_b = state.out + lane * head_dim_v,
                                          .max_b = state.row_max + lane,
                                          .sum_b = state.row_sum + lane,
                                          .head_dim_v = call_.shape.head_dim_v});
  }
}

void Tile::write(const AccumulatorState& state) {
  for (int lane = 0; lane < num_panels_ * call_.shape.width; ++lane) {
    scratch_.to_rows[lane] = nullptr;
  }
  for (int lane = 0; lane < num_rows_; ++lane) {
    const bool has_keys = lane < num_live_ && state.has_keys[lane / call_.shape.width] != 0;
    write_row(lane, has_keys ? state.row_max[lane] : -kInf, has_keys ? state.row_sum[lane] : 0);
  }
  for (int index = 0; index < num_panels_; ++index) {
    const Panel one = panel(index);
    const int64_t head_dim_v = call_.shape.head_dim_v;
    const auto& unpack = call_.kernels.unpack[call_.output_format];
    unpack[one.vectors - 1]({.to_rows = scratch_.to_rows + one.first_lane,
                             .panel = state.out + one.first_lane * head_dim_v,
                             .factor = scratch_.factor + one.first_lane,
                             .length = call_.shape.head_dim_v});
  }
}

// lse and max_logit of a row; the factor that normalises its out, negative for an empty row.
// A sink may leave the keys a factor of 0, which is not the same: 0 times NaN is NaN.
void Tile::write_row(int lane, float row_max, float row_sum) {
  const bool is_live = lane < num_live_;
  const int64_t i = query_of(lane), h = head_of(lane);
  void* out = row_at(call_.args.out, call_.out.offset(b_, q_, i, h), call_.output_bytes);
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
    scratch_.to_rows[lane] = out;
    const double factor = call_.dropout.keep_scale * weight / sum;
    scratch_.factor[lane] = is_empty || row_sum == 0 ? -1 : static_cast<float>(factor);
  } else {
    // The bits of +0 in every format.
    std::memset(out, 0, static_cast<size_t>(call_.shape.head_dim_v * call_.output_bytes));
  }
}

}  // namespace sirdar::cpu
