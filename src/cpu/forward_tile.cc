#include "cpu/forward_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/geometry.h"
#include "shared/float_bits.h"

namespace sirdar::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Range hull(const Range& a, const Range& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return {min_of(a.begin, b.begin), max_of(a.end, b.end)};
}

}  // namespace

Tile::Tile(const ForwardCall& call, Scratch& scratch, int64_t tile)
    : call_(call),
      scratch_(scratch),
      group_(static_cast<int>(call.problem.group_size())),
      terms_(call, scratch),
      expressions_(call, call.shape, scratch) {
  const WorkGrid& grid = call.grid;
  const int64_t block_m = call.config.block_m;
  b_ = tile / grid.tiles / grid.num_heads_kv;
  head_kv_ = tile / grid.tiles % grid.num_heads_kv;
  // Longest first: under a causal mask the last queries see the most keys.
  first_row_ = (grid.tiles - 1 - tile % grid.tiles) * block_m;
  q_ = call.query.sequence(b_);
  k_ = call.key.sequence(b_);
  const auto rows_here = [&](int64_t length) {
    return static_cast<int>(std::clamp<int64_t>(length * group_ - first_row_, 0, block_m));
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
  result.place = index % call_.shape.chunk_panels();
  result.first_lane = index * call_.shape.width;
  result.num_lanes = std::min(call_.shape.width, num_live_ - result.first_lane);
  result.vectors = result.num_lanes <= call_.kernels.lanes ? 1 : kMaxVectors;
  result.width = result.vectors * call_.kernels.lanes;
  result.rows = {query_of(result.first_lane),
                 query_of(result.first_lane + result.num_lanes - 1) + 1};
  result.keys = key_range(mask_, result.rows);
  if (call_.problem.has_document) {
    result.documents_q = document_range(scratch_.document_q + result.first_lane, result.num_lanes);
  }
  return result;
}

TileExpressions::Lanes Tile::lanes(const Panel& panel) const {
  return {panel.index, panel.first_lane, panel.vectors, panel.width};
}

void Tile::load_expressions() {
  if (num_live_ == 0) return;
  expression::Box rows{.b = b_,
                       .h = head_kv_ * group_,
                       .q = {query_of(0), query_of(num_live_ - 1) + 1},
                       .shift = k_.length - q_.length,
                       .num_heads = group_};
  expressions_.load_lanes(num_live_, static_cast<int>(first_row_ % group_), rows);
  for (int index = 0; index < num_panels_; ++index) {
    rows.q = panel(index).rows;
    expressions_.set_panel(index, rows);
  }
}

void Tile::load_lanes() {
  for (int lane = 0; lane < num_panels_ * call_.shape.width; ++lane) {
    scratch_.from_rows[lane] = scratch_.to_rows[lane] = nullptr;
    scratch_.lo[lane] = scratch_.hi[lane] = 0;
    if (lane >= num_live_) continue;
    const int64_t i = query_of(lane), h = head_of(lane);
    scratch_.from_rows[lane] =
        row_at(call_.args.q, call_.q.offset(b_, q_, i, h), call_.input_bytes);
    scratch_.to_rows[lane] =
        row_at(call_.args.out, call_.out.offset(b_, q_, i, h), call_.output_bytes);
    if (call_.shape.has_dropout) {
      scratch_.dropout_i[lane] = static_cast<int32_t>(i);
      scratch_.dropout_h[lane] = static_cast<int32_t>(h);
    }
    scratch_.lo[lane] = mask_.lo(i);
    scratch_.hi[lane] = mask_.hi(i);
    terms_.set_lane(lane, b_, h, i, i + k_.length - q_.length);
  }
}

void Tile::load_queries(const Panel& panel) {
  call_.products.pack_q[panel.vectors - 1]({.from_rows = scratch_.from_rows + panel.first_lane,
                                            .panel = queries_of(panel),
                                            .length = call_.shape.head_dim});
}

void Tile::reset(const AccumulatorState& state) const {
  *state.has_keys = 0;
  std::fill_n(state.row_max, call_.shape.width, -kInf);
  std::fill_n(state.row_sum, call_.shape.width, 0.0f);
}

Range Tile::keys_seen() const {
  if (num_live_ == 0) return {};
  const Range seen = key_range(mask_, Range{query_of(0), query_of(num_live_ - 1) + 1});
  return {seen.begin, min_of(seen.end, k_.length)};
}

Range Tile::group_from(Position begin, Position end) const {
  const Position block_n = call_.config.block_n;
  begin = expressions_.shown_from(begin, k_.length, block_n);
  if (begin >= end) return {begin, begin};
  const Position stop = (end + block_n - 1) / block_n * block_n;
  return {begin, min_of(min_of(stop, begin + call_.shape.group_n()), k_.length)};
}

template <class Start, class Visit, class Done>
void Tile::for_each_block(Range seen, const Start& start, const Visit& visit, const Done& done) {
  Range keys = group_from(seen.begin / call_.config.block_n * call_.config.block_n, seen.end);
  if (keys.empty()) {
    for (int index = 0; index < num_panels_; ++index) start(panel(index)), done(panel(index));
  }
  const int size = call_.shape.chunk_panels();
  bool is_first = true;
  for (Range next; !keys.empty(); keys = next, is_first = false) {
    next = group_from(keys.end, seen.end);
    start_group(keys, next);
    for (int begin = 0; begin < num_panels_; begin += size) {
      Panel chunk[kMaxChunkPanels];
      int count = 0;
      chunk_keys_ = {};
      const int end = std::min(begin + size, num_panels_);
      for (int index = begin; index < end; ++index) {
        const Panel one = panel(index);
        if (!is_first && one.keys.end <= keys.begin) continue;  // done before
        if (is_first) start(one);
        chunk[count++] = one;
        chunk_keys_ = hull(chunk_keys_, one.keys);
      }
      if (is_first || num_panels_ > size) std::fill_n(has_queries_, size, false);
      ask_for_panels(begin, end, next);
      if (is_first && count == num_panels_) ask_for_queries();
      for (int n = 0; n < num_blocks_; ++n) {
        if (blocks_[n].num_panels == 0) continue;
        // Not before it is needed: until then its rows are asked for.
        if (!blocks_[n].is_ready && is_seen(blocks_[n])) prepare_block(n, end - begin);
        expressions_.enter_block(blocks_[n].bounds, blocks_[n].keys, lanes_of(begin, end));
        for (int place = 0; place < count; ++place) visit(chunk[place], blocks_[n]);
      }
      for (int place = 0; place < count; ++place)
        if (next.empty() || chunk[place].keys.end <= next.begin) done(chunk[place]);
    }
  }
}

void Tile::accumulate(int64_t segment, AccumulatorState& states) {
  load_lanes();
  load_expressions();
  Range seen = keys_seen();
  seen.begin = max_of(seen.begin, segment * segments_.keys);
  seen.end = min_of(seen.end, (segment + 1) * segments_.keys);
  for_each_block(
      seen, [&](const Panel& panel) { reset(states.of_panel(panel.index, call_.shape)); },
      [&](const Panel& panel, const Block& block) {
        run_panel(panel, block, states.of_panel(panel.index, call_.shape));
      },
      [](const Panel&) {});
}

// A segment's keys are gathered from nothing and merged into the total; the first are the total,
// whose has_keys says which segment that was, counted from 1.
void Tile::run() {
  load_lanes();
  load_expressions();
  const Range seen = keys_seen();
  const Position first = seen.begin / call_.config.block_n * call_.config.block_n;
  const bool is_one_group = seen.end - first <= call_.shape.group_n();
  const auto state_of = [&](const AccumulatorState& states, const Panel& panel) {
    return states.of_panel(is_one_group ? panel.place : panel.index, call_.shape);
  };
  for_each_block(
      seen,
      [&](const Panel& panel) {
        reset(state_of(scratch_.total, panel));
        reset(state_of(scratch_.segment, panel));
      },
      [&](const Panel& panel, const Block& block) {
        const AccumulatorState total = state_of(scratch_.total, panel);
        // The first segment of which it sees anything is the total as it is.
        const auto number = static_cast<int32_t>(1 + block.keys.begin / segments_.keys);
        if (*total.has_keys == 0 || *total.has_keys == number) {
          run_panel(panel, block, total);
          if (*total.has_keys != 0) *total.has_keys = number;
          return;
        }
        const AccumulatorState own = state_of(scratch_.segment, panel);
        if (block.starts_segment) {
          merge(panel, total, own);
          reset(own);
        }
        run_panel(panel, block, own);
      },
      [&](const Panel& panel) {
        const AccumulatorState total = state_of(scratch_.total, panel);
        merge(panel, total, state_of(scratch_.segment, panel));
        write(panel, total);
      });
  write_unused();
}

void Tile::run_panel(const Panel& panel, const Block& block, const AccumulatorState& state) {
  Range keys;
  const Cover cover = visible_part(panel, block, keys);
  if (cover == Cover::none) return;
  if (!std::exchange(has_queries_[panel.place], true)) load_queries(panel);
  pairs_ = nullptr;
  if (block.is_narrow) {
    run_narrow(panel, block, keys, cover, state);
  } else {
    const float unit = make_logits(panel, block, keys, cover, state.row_max);
    make_weights(panel, keys, unit, state);
    add_values(panel, block, keys, state);
  }
  std::copy_n(scratch_.new_max, panel.width, state.row_max);
  *state.has_keys = 1;
}

void Tile::make_weights(const Panel& panel, Range keys, float unit, const AccumulatorState& state) {
  // Dropout works on floats.
  const auto& softmax = call_.shape.has_dropout ? call_.kernels.softmax : call_.products.softmax;
  softmax[panel.vectors - 1]({.scores = scratch_.scores,
                              .unit = unit,
                              .max_in = state.row_max,
                              .max_out = scratch_.new_max,
                              .row_sum = state.row_sum,
                              .alpha = scratch_.alpha,
                              .num_keys = static_cast<int>(keys.size())});
  if (call_.shape.has_dropout) apply_dropout(panel, keys);
}

float Tile::make_logits(const Panel& panel, const Block& block, Range run, Cover cover,
                        const float* row_max) {
  const bool has_pairs = has_terms() || call_.problem.has_document || terms_.has_pair_tensors();
  if (cover == Cover::all && !has_pairs) {
    score(panel, block, run, run, row_max, scratch_.new_max, call_.unit);
    return call_.unit;
  }
  // Such masks alone leave the middle of a run untouched, in whole register blocks.
  Range whole{run.end, run.end};
  if (!has_pairs) {
    const Position rows = call_.kernels.rows;
    const Range shown = expressions_.whole(panel.index);
    const Position first = max_of(mask_.lo(panel.rows.end - 1), shown.begin);
    const Position last = min_of(mask_.hi(panel.rows.begin), shown.end);
    const Position begin = max_of(first - run.begin, 0) + rows - 1;
    const Position end = max_of(last - run.begin, 0);
    whole.begin = min_of(run.begin + begin / rows * rows, run.end);
    whole.end = max_of(whole.begin, min_of(run.begin + end / rows * rows, run.end));
  }
  const float* max_in = row_max;
  if (!whole.empty()) {
    score(panel, block, run, whole, max_in, scratch_.new_max, 1);
    max_in = scratch_.new_max;
  }
  for (const Range part : {Range{run.begin, whole.begin}, Range{whole.end, run.end}}) {
    if (part.empty()) continue;
    score(panel, block, run, part, max_in, scratch_.part_max, 1);
    apply_logits(panel, block, run, part, cover, max_in);
    max_in = scratch_.new_max;
  }
  return 1;
}

void Tile::score(const Panel& panel, const Block& block, Range run, Range keys, const float* max_in,
                 float* max_out, float unit) {
  const int64_t words = call_.shape.key_words(), stride = call_.k.stride_row;
  const int64_t rows = call_.kernels.rows, skipped = keys.begin - block.keys.begin;
  QkArgs args{.q = queries_of(panel),
              .scores = scratch_.scores + (keys.begin - run.begin) * panel.width,
              .max_in = max_in,
              .max_out = max_out,
              .scale = call_.scale / unit,
              .unit = unit,
              .num_keys = static_cast<int>(keys.size()),
              .head_dim = call_.shape.head_dim};
  if (block.is_packed) {
    args.k = block.packed_k + skipped * words;
    args.block_stride = rows * words;
    args.row_stride = 1;
    args.column_stride = rows;
  } else {
    args.k = static_cast<const float*>(block.k[skipped]);
    args.block_stride = rows * stride;
    args.row_stride = stride;
    args.column_stride = 1;
  }
  args.next = take_ahead(args.num_keys / rows * (call_.shape.key_words() / 8));
  ask_for_surplus(args);
  call_.products.qk[panel.vectors - 1](args);
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
  if (const auto join = call_.products.join[panel.vectors - 1]; join != nullptr)
    join(scratch_.scores, static_cast<int>(keys.size()));
}

void Tile::apply_logits(const Panel& panel, const Block& block, Range run, Range keys, Cover cover,
                        const float* max_in) {
  LogitArgs args{.scores = scratch_.scores + (keys.begin - run.begin) * panel.width,
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
      args.document_k = block.document_k + (keys.begin - block.keys.begin);
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

void Tile::add_values(const Panel& panel, const Block& block, Range keys,
                      const AccumulatorState& state) {
  const int64_t skipped = keys.begin - block.keys.begin, stride = call_.v.stride_row;
  const int rows = call_.kernels.rows;
  call_.products.pv[panel.vectors - 1](
      {.v = block.is_packed ? block.packed_v + skipped / call_.shape.per_word * rows
                            : static_cast<const float*>(block.v[skipped]),
       .row_stride = block.is_packed ? rows : stride,
       .block_stride = block.is_packed ? call_.shape.value_stride() : rows,
       .p = scratch_.scores,
       .alpha = scratch_.alpha,
       .out = state.out,
       .is_first = *state.has_keys == 0,
       .num_keys = static_cast<int>(keys.size()),
       .head_dim_v = call_.shape.head_dim_v});
  if (!block.is_finite) add_nonfinite_values(panel, block, keys, state);
}

bool Tile::is_visible(const Panel& panel, const Block& block, Range keys, int lane,
                      int64_t key) const {
  const int at = panel.first_lane + lane;
  if (key < scratch_.lo[at] || key >= scratch_.hi[at]) return false;
  if (call_.problem.has_document &&
      scratch_.document_q[at] != block.document_k[key - block.keys.begin])
    return false;
  return pairs_ == nullptr || pairs_[(key - keys.begin) * panel.width + lane] != -kInf;
}

float Tile::weight_of(const Panel& panel, int lane, int64_t place) const {
  const int per_word = call_.shape.per_word;
  const float* word = scratch_.scores + place / per_word * panel.width + lane;
  if (per_word == 1) return *word;
  uint16_t half[2];
  std::memcpy(half, word, sizeof(half));
  return bf16_to_float(half[place % 2]);
}

void Tile::add_nonfinite_values(const Panel& panel, const Block& block, Range keys,
                                const AccumulatorState& state) {
  const bool is_masked = expressions_.cover(panel.index) == Cover::part;
  const int columns = call_.shape.head_dim_v;
  float* out = state.out;
  for (int64_t key = keys.begin; key < keys.end; ++key) {
    const void* const* row = block.v + (key - block.keys.begin);
    if (!has_nonfinite(row, 1)) continue;
    call_.kernels.decode[call_.input_format](*row, columns, scratch_.row);
    const int32_t* shown = is_masked ? expressions_.visible(lanes(panel), key, 1).first : nullptr;
    for (int lane = 0; lane < panel.num_lanes; ++lane) {
      if (!is_visible(panel, block, keys, lane, key)) continue;
      if (is_masked && shown[lane] == 0) continue;
      const float p = weight_of(panel, lane, key - keys.begin);
      for (int c = 0; c < columns; ++c) out[c * panel.width + lane] += p * scratch_.row[c];
    }
  }
}

}  // namespace sirdar::cpu
