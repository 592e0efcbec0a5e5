#include "cpu/backward_item.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <thread>

namespace sirdar::cpu {
namespace {

// As WeightArgs marks a masked pair.
bool is_masked(float weight) { return std::bit_cast<uint32_t>(weight) == 0x80000000u; }

bool is_finite(const float* row, int columns) {
  for (int c = 0; c < columns; ++c)
    if (!std::isfinite(row[c])) return false;
  return true;
}

// row[c] += factor * from[c], where row lies in panels.
void add_row(float* panels, int64_t panel_stride, int width, const float* from, int columns,
             float factor) {
  for (int c = 0; c < columns; ++c)
    panels[c / width * panel_stride + c % width] += factor * from[c];
}

}  // namespace

BackwardItem::BackwardItem(const BackwardCall& call, BackwardScratch& scratch, int64_t b,
                           int64_t head_kv)
    : call_(call), scratch_(scratch), tile_(call, scratch, b), b_(b), head_kv_(head_kv) {}

void BackwardItem::clear_sum(const Rows& rows) const {
  for (int n = 0; n < call_.shape.panels_of(rows.columns); ++n) {
    std::fill_n(rows.panels + n * rows.panel_stride, int64_t{rows.num_rows} * call_.shape.width,
                0.0f);
  }
}

void BackwardItem::add_terms(const Rows& rows, const float* terms) const {
  for (int n = 0; n < call_.shape.panels_of(rows.columns); ++n) {
    call_.backward.add(rows.panels + n * rows.panel_stride, terms + n * rows.panel_stride,
                       int64_t{rows.num_rows} * call_.shape.width);
  }
}

void BackwardItem::load_sum(const Rows& rows) const {
  const bool is_apart = rows.sum.sums != nullptr;
  const RowMap& map = is_apart ? rows.sum.sums_map : rows.sum.map;
  const float* from = is_apart ? rows.sum.sums : static_cast<const float*>(rows.sum.data);
  call_.backward.load_rows[0]({.rows = from + map.offset(b_, rows.sequence, rows.first, rows.head),
                               .row_stride = map.stride_row,
                               .panels = rows.panels,
                               .panel_stride = rows.panel_stride,
                               .num_rows = rows.num_rows,
                               .columns = rows.columns});
}

void BackwardItem::store_sum(const Rows& rows, bool is_last) const {
  const bool is_apart = rows.sum.sums != nullptr && !is_last;
  const RowMap& map = is_apart ? rows.sum.sums_map : rows.sum.map;
  const int64_t offset = map.offset(b_, rows.sequence, rows.first, rows.head);
  void* to = is_apart ? static_cast<void*>(rows.sum.sums + offset)
                      : static_cast<std::byte*>(rows.sum.data) + offset * call_.forward.input_bytes;
  call_.backward.store_rows[is_apart ? 0 : call_.forward.input_format](
      {.panels = rows.panels,
       .panel_stride = rows.panel_stride,
       .rows = to,
       .row_stride = map.stride_row,
       .num_rows = rows.num_rows,
       .columns = rows.columns});
}

BackwardItem::Rows BackwardItem::dq_rows(int64_t h, int64_t first, int64_t num_rows) const {
  return {call_.dq,
          tile_.queries(),
          h,
          first,
          static_cast<int>(num_rows),
          call_.shape.head_dim,
          scratch_.tile.dq,
          call_.shape.query_stride()};
}
BackwardItem::Rows BackwardItem::dk_rows() const {
  return {call_.dk,
          tile_.keys(),
          head_kv_,
          keys_.begin,
          static_cast<int>(keys_.size()),
          call_.shape.head_dim,
          scratch_.dk,
          call_.shape.key_stride()};
}
BackwardItem::Rows BackwardItem::dv_rows() const {
  return {call_.dv,
          tile_.keys(),
          head_kv_,
          keys_.begin,
          static_cast<int>(keys_.size()),
          call_.shape.head_dim_v,
          scratch_.dv,
          call_.shape.key_stride()};
}

void BackwardItem::start(Range keys, int32_t* turns) {
  keys_ = keys;
  range_ = keys.begin / call_.shape.range_n;
  turns_ = turns;
  Range seen = key_range(tile_.mask(), Range{0, tile_.queries().length});
  seen = {max_of(seen.begin, keys_.begin), min_of(seen.end, keys_.end)};
  if (tile_.queries().length > 0 && !seen.empty()) load_keys(seen);
  clear_sum(dk_rows());
  clear_sum(dv_rows());
}

// The blocks that any query may see.
void BackwardItem::load_keys(Range seen) {
  const BackwardShape& shape = call_.shape;
  for (int64_t key = keys_.begin; key < seen.end; key += shape.block_n) {
    if (key + shape.block_n <= seen.begin) continue;
    const int64_t row = key - keys_.begin;
    const auto load = [&](const TensorView& view, const RowMap& map, int columns, float* to) {
      return call_.backward.load_rows[call_.forward.input_format](
          {.rows = row_at(view, map, b_, tile_.keys(), key, head_kv_),
           .row_stride = map.stride_row,
           .panels = to + row * shape.width,
           .panel_stride = shape.key_stride(),
           .num_rows = static_cast<int>(min_of(shape.block_n, keys_.end - key)),
           .columns = columns});
    };
    scratch_.k_is_finite[row / shape.block_n] =
        load(call_.args.k, call_.forward.k, shape.head_dim, scratch_.k);
    load(call_.args.v, call_.forward.v, shape.head_dim_v, scratch_.v);
  }
}

void BackwardItem::finish() {
  if (keys_.empty()) return;
  store_sum(dk_rows(), true);
  store_sum(dv_rows(), true);
}

// A tile that no range sees is the first one's.
BackwardItem::Place BackwardItem::place_of(Range rows) const {
  const Range seen = key_range(tile_.mask(), rows);
  const int64_t range_n = call_.shape.range_n;
  const int64_t first = seen.empty() ? 0 : seen.begin / range_n;
  const int64_t last = seen.empty() ? 0 : (seen.end - 1) / range_n;
  return {first <= range_ && range_ <= last, range_ == first, range_ == last};
}

void BackwardItem::wait_for_turn(int64_t h, int64_t tile) const {
  const std::atomic_ref turn(turns_[h * call_.query_tiles() + tile]);
  while (turn.load(std::memory_order_acquire) < range_) std::this_thread::yield();
}

void BackwardItem::end_turn(int64_t h, int64_t tile) const {
  if (turns_ == nullptr) return;
  std::atomic_ref(turns_[h * call_.query_tiles() + tile])
      .store(static_cast<int32_t>(range_ + 1), std::memory_order_release);
}

void BackwardItem::run_tile(int64_t tile) {
  const int64_t first = tile * call_.shape.block_m;
  const Range rows{first, min_of(first + call_.shape.block_m, tile_.queries().length)};
  const Place place = place_of(rows);
  if (!place.takes_part) return;
  const int64_t group = call_.problem.group_size();
  const int64_t first_head = head_kv_ * group;
  // Ranges that add to one element of dbias do not meet.
  if (call_.shape.sums_dbias_over_keys && !place.is_first)
    wait_for_turn(first_head + group - 1, tile);
  for (int64_t g = 0; g < group; ++g) run_tile(first_head + g, tile, rows, place);
}

void BackwardItem::run_tile(int64_t h, int64_t tile, Range rows, const Place& place) {
  Range seen = key_range(tile_.mask(), rows);
  seen = {max_of(seen.begin, keys_.begin), min_of(seen.end, keys_.end)};
  if (!seen.empty()) {
    tile_.start(h, rows.begin, &call_.rows);
    find_dout_rows();
    load_tile();
  }
  const Rows dq = dq_rows(h, rows.begin, rows.size());
  if (place.is_first) clear_sum(dq);
  num_terms_ = 0;
  if (!seen.empty()) run_blocks(seen, dq, place.is_first);
  if (!place.is_first) {
    wait_for_turn(h, tile);
    load_sum(dq);
    for (int64_t n = 0; n < num_terms_; ++n)
      add_terms(dq, scratch_.dq_terms + n * call_.shape.dq_size());
  }
  store_sum(dq, place.is_last);
  end_turn(h, tile);
}

// The first range has the sum at hand and starts it; the others keep theirs until it is their turn.
void BackwardItem::run_blocks(Range seen, const Rows& dq, bool is_first) {
  const int64_t block_n = call_.shape.block_n;
  const int64_t run = keys_per_sum(tile_.keys().length, block_n) / block_n;
  const int64_t first_block = (seen.begin - keys_.begin) / block_n;
  const int64_t end_block = (seen.end - 1 - keys_.begin) / block_n + 1;
  for (int64_t n = first_block; n < end_block;) {
    const bool is_start = is_first && n == first_block;
    dq_ = is_start ? dq.panels : scratch_.dq_terms + num_terms_ * call_.shape.dq_size();
    Rows terms = dq;
    terms.panels = dq_;
    if (!is_start) clear_sum(terms);
    for (const int64_t end = min_of((n / run + 1) * run, end_block); n < end; ++n) {
      Block block;
      block.row = n * block_n;
      block.keys = {keys_.begin + block.row, min_of(keys_.begin + block.row + block_n, keys_.end)};
      block.is_finite = scratch_.k_is_finite[n] != 0;
      run_block(block);
    }
    if (is_first && !is_start) add_terms(dq, dq_);
    if (!is_first) ++num_terms_;
  }
}

void BackwardItem::load_tile() {
  const BackwardShape& shape = call_.shape;
  const Sequence& q = tile_.queries();
  const int num_rows = tile_.num_rows();
  const auto load = [&](const TensorView& view, const RowMap& map, size_t format, int columns,
                        float* to) {
    const bool finite = call_.backward.load_rows[format](
        {.rows = row_at(view, map, b_, q, tile_.first(), tile_.head()),
         .row_stride = map.stride_row,
         .panels = to,
         .panel_stride = shape.query_stride(),
         .num_rows = num_rows,
         .columns = columns});
    const int missing = tile_.num_panels() * shape.width - num_rows;
    for (int n = 0; n < shape.panels_of(columns); ++n) {
      std::fill_n(to + n * shape.query_stride() + int64_t{num_rows} * shape.width,
                  missing * shape.width, 0.0f);
    }
    return finite;
  };
  const bool q_is_finite = load(call_.args.q, call_.forward.q, call_.forward.input_format,
                                shape.head_dim, scratch_.tile.q);
  const bool dout_is_finite = load(call_.args.dout, call_.dout, call_.forward.output_format,
                                   shape.head_dim_v, scratch_.tile.dout);
  scratch_.tile.is_finite = q_is_finite && dout_is_finite;
  for (int p = 0; p < tile_.num_panels(); ++p) {
    const int64_t lane = int64_t{p} * shape.width;
    call_.kernels.pack[call_.forward.output_format][kMaxVectors - 1](
        {.from_rows = scratch_.dout_rows + lane,
         .panel = scratch_.tile.dout_transposed + lane * shape.head_dim_v,
         .length = shape.head_dim_v});
  }
}

void BackwardItem::find_dout_rows() {
  for (int lane = 0; lane < tile_.num_panels() * call_.shape.width; ++lane) {
    scratch_.dout_rows[lane] = lane < tile_.num_rows()
                                   ? row_at(call_.args.dout, call_.dout, b_, tile_.queries(),
                                            tile_.first() + lane, tile_.head())
                                   : nullptr;
  }
}

const float* BackwardItem::q_row(int lane) const {
  call_.kernels.decode[call_.forward.input_format](scratch_.terms.from_rows[lane],
                                                   call_.shape.head_dim, scratch_.q_row);
  return scratch_.q_row;
}
const float* BackwardItem::dout_row(int lane) const {
  call_.kernels.decode[call_.forward.output_format](scratch_.dout_rows[lane],
                                                    call_.shape.head_dim_v, scratch_.dout_row);
  return scratch_.dout_row;
}
const float* BackwardItem::k_row(int64_t key) const {
  call_.kernels.decode[call_.forward.input_format](
      row_at(call_.args.k, call_.forward.k, b_, tile_.keys(), key, head_kv_), call_.shape.head_dim,
      scratch_.k_row);
  return scratch_.k_row;
}

void BackwardItem::run_block(const Block& block) {
  if (!tile_.start_block(block.keys)) return;
  bool is_whole = true, has_part = false, has_any = false;
  for (int p = 0; p < tile_.num_panels(); ++p) {
    const BackwardTile::Panel panel = tile_.panel(p);
    const PanelPart& part = scratch_.parts[p] = tile_.part(panel);
    is_whole &= part.cover != Cover::none && part.keys.size() == block.keys.size();
    has_part |= part.cover != Cover::all;
    has_any |= part.cover != Cover::none;
    if (part.cover != Cover::none) run_panel(panel, part, block);
  }
  if (!has_any) return;
  if (call_.shape.needs_dtensors) tile_.end_block();
  const bool add_apart = has_part && !scratch_.tile.is_finite;
  if (add_apart) clear_rows_of_tile(true);
  if (is_whole) {
    add_dkv(block.row, static_cast<int>(block.keys.size()), 0, tile_.num_panels());
  } else {
    add_dkv(block);
  }
  if (!add_apart) return;
  clear_rows_of_tile(false);
  add_visible_rows(block);
}

void BackwardItem::run_panel(const BackwardTile::Panel& panel, const PanelPart& part,
                             const Block& block) {
  make_weights(panel, part, block);
  const BackwardShape& shape = call_.shape;
  const int64_t key = part.keys.begin - block.keys.begin, lane = panel.first_lane;
  if (shape.has_dropout) tile_.keep_factors(panel, part, scratch_.keep);
  call_.backward.gradient({.product = {.a = scratch_.v + (block.row + key) * shape.width,
                                       .a_stride = shape.key_stride(),
                                       .b = scratch_.tile.dout_transposed + lane * shape.head_dim_v,
                                       .c = gradients(panel.index, key),
                                       .num_rows = static_cast<int>(part.keys.size()),
                                       .depth = shape.head_dim_v,
                                       .scale = call_.forward.scale},
                           .p = weights(panel.index, key),
                           .keep = shape.has_dropout ? scratch_.keep : nullptr,
                           .delta = scratch_.delta + lane,
                           .slope = shape.has_softcap ? scratch_.slope : nullptr,
                           .dlogit = shape.needs_dbias ? scratch_.dlogit : nullptr,
                           .mod_slope = shape.has_score_mod ? scratch_.mod_slope : nullptr,
                           .dvalue = shape.needs_dtensors ? scratch_.dvalue : nullptr,
                           .has_masks = part.cover == Cover::part});
  if (shape.needs_dbias) add_dbias(panel, part);
  if (shape.needs_dtensors) tile_.add_dtensors(panel, part);
  const bool add_apart = part.cover == Cover::part && !block.is_finite;
  if (add_apart) clear_keys(block, true);
  add_dq(panel, part, block);
  if (!add_apart) return;
  clear_keys(block, false);
  add_visible_keys(panel, part, block);
}

void BackwardItem::make_weights(const BackwardTile::Panel& panel, const PanelPart& part,
                                const Block& block) {
  const int64_t key = part.keys.begin - block.keys.begin;
  float* scores = weights(panel.index, key);
  tile_.logits(panel, part, scratch_.k + (block.row + key) * call_.shape.width, scores);
  WeightArgs args{.scores = scores,
                  .base = scratch_.base + panel.first_lane,
                  .weight = tile_.has_weights() ? scratch_.weight + panel.first_lane : nullptr,
                  .num_keys = static_cast<int>(part.keys.size())};
  if (part.cover == Cover::part) {
    const BackwardTile::Masks masks = tile_.masks(panel, part);
    args.has_masks = true;
    args.lo = masks.lo;
    args.hi = masks.hi;
    args.bias = masks.bias;
    args.document_q = masks.document_q;
    args.document_k = masks.document_k;
  }
  if (part.cover == Cover::part && tile_.is_cut(panel, part)) {
    make_cut_weights(panel, part, args);
  } else {
    call_.backward.weights(args);
  }
}

// A mask_mod is looked at in strips.
void BackwardItem::make_cut_weights(const BackwardTile::Panel& panel, const PanelPart& part,
                                    const WeightArgs& whole) {
  WeightArgs args = whole;
  for (int first = 0; first < whole.num_keys; first += kStripKeys) {
    const int64_t at = int64_t{first} * call_.shape.width;
    args.num_keys = std::min(kStripKeys, whole.num_keys - first);
    args.first_key = first;
    args.scores = whole.scores + at;
    if (whole.bias != nullptr) args.bias = whole.bias + at;
    if (whole.document_k != nullptr) args.document_k = whole.document_k + first;
    const TileExpressions::Visible rows =
        tile_.visible(panel, part.keys.begin + first, args.num_keys);
    args.visible = rows.first;
    args.visible_stride = rows.stride;
    call_.backward.weights(args);
  }
}

void BackwardItem::add_dbias(const BackwardTile::Panel& panel, const PanelPart& part) const {
  const BiasGradient& dbias = call_.dbias;
  float* at = dbias.data + b_ * dbias.stride_batch + tile_.head() * dbias.stride_head +
              panel.rows.begin * dbias.stride_query + part.keys.begin * dbias.stride_key;
  const float* dlogit = scratch_.dlogit;
  for (int64_t j = 0; j < part.keys.size(); ++j, dlogit += call_.shape.width) {
    for (int lane = 0; lane < panel.num_lanes; ++lane)
      at[lane * dbias.stride_query + j * dbias.stride_key] += dlogit[lane];
  }
}

void BackwardItem::add_dq(const BackwardTile::Panel& panel, const PanelPart& part,
                          const Block& block) {
  const BackwardShape& shape = call_.shape;
  const int64_t key = part.keys.begin - block.keys.begin, lane = panel.first_lane;
  ProductArgs args{.a = gradients(panel.index, key),
                   .num_rows = panel.num_lanes,
                   .depth = static_cast<int>(part.keys.size())};
  for (int n = 0; n < shape.panels_of(shape.head_dim); ++n) {
    args.b = scratch_.k + n * shape.key_stride() + (block.row + key) * shape.width;
    args.c = dq_ + n * shape.query_stride() + lane * shape.width;
    const bool is_narrow = shape.head_dim - n * shape.width <= call_.kernels.lanes;
    call_.backward.accumulate_transposed[is_narrow ? 0 : 1](args);
  }
}

void BackwardItem::add_dkv(const Block& block) {
  const int64_t width = call_.shape.width;
  for (int64_t key = block.keys.begin; key < block.keys.end; key += width)
    add_stripe(block, {key, min_of(key + width, block.keys.end)});
}

// The panels that see any of a few keys; those between them that do not weigh nothing.
void BackwardItem::add_stripe(const Block& block, Range keys) {
  const int64_t at = keys.begin - block.keys.begin;
  const auto has = [&](int p) {
    const Range seen = scratch_.parts[p].keys;
    return !seen.empty() && seen.begin <= keys.begin && keys.begin < seen.end;
  };
  int begin = 0, end = tile_.num_panels();
  while (begin < end && !has(begin)) ++begin;
  while (begin < end && !has(end - 1)) --end;
  if (begin == end) return;
  for (int p = begin + 1; p < end - 1; ++p) {
    if (has(p)) continue;
    std::fill_n(weights(p, at), keys.size() * call_.shape.width, 0.0f);
    std::fill_n(gradients(p, at), keys.size() * call_.shape.width, 0.0f);
  }
  add_dkv(block.row + at, static_cast<int>(keys.size()), begin, end);
}

void BackwardItem::add_dkv(int64_t row, int num_keys, int first_panel, int end_panel) {
  const BackwardShape& shape = call_.shape;
  const int64_t key = row % shape.block_n, lane = int64_t{first_panel} * shape.width;
  const auto add = [&](const float* a, const float* b, float* c, int columns) {
    for (int n = 0; n < shape.panels_of(columns); ++n) {
      const bool is_narrow = columns - n * shape.width <= call_.kernels.lanes;
      call_.backward.accumulate[is_narrow ? 0 : 1](
          {.a = a,
           .a_stride = shape.score_stride(),
           .b = b + n * shape.query_stride() + lane * shape.width,
           .c = c + n * shape.key_stride() + row * shape.width,
           .num_rows = num_keys,
           .depth = (end_panel - first_panel) * shape.width});
    }
  };
  add(weights(first_panel, key), scratch_.tile.dout, scratch_.dv, shape.head_dim_v);
  add(gradients(first_panel, key), scratch_.tile.q, scratch_.dk, shape.head_dim);
}

void BackwardItem::clear_rows_of_tile(bool clear) {
  const BackwardShape& shape = call_.shape;
  const auto set = [&](const float* from, float* panels, int columns, int lane) {
    for (int c = 0; c < columns; ++c) {
      panels[c / shape.width * shape.query_stride() + lane * shape.width + c % shape.width] =
          clear ? 0 : from[c];
    }
  };
  for (int lane = 0; lane < tile_.num_rows(); ++lane) {
    const float *q = q_row(lane), *dout = dout_row(lane);
    if (!is_finite(q, shape.head_dim)) set(q, scratch_.tile.q, shape.head_dim, lane);
    if (!is_finite(dout, shape.head_dim_v)) set(dout, scratch_.tile.dout, shape.head_dim_v, lane);
  }
}

void BackwardItem::clear_keys(const Block& block, bool clear) {
  const BackwardShape& shape = call_.shape;
  for (int64_t n = 0; n < block.keys.size(); ++n) {
    const float* from = k_row(block.keys.begin + n);
    if (is_finite(from, shape.head_dim)) continue;
    float* row = scratch_.k + (block.row + n) * shape.width;
    for (int c = 0; c < shape.head_dim; ++c)
      row[c / shape.width * shape.key_stride() + c % shape.width] = clear ? 0 : from[c];
  }
}

void BackwardItem::add_visible_rows(const Block& block) {
  const BackwardShape& shape = call_.shape;
  for (int lane = 0; lane < tile_.num_rows(); ++lane) {
    const float *q = q_row(lane), *dout = dout_row(lane);
    const bool add_q = !is_finite(q, shape.head_dim);
    const bool add_dout = !is_finite(dout, shape.head_dim_v);
    if (!add_q && !add_dout) continue;
    const int p = lane / shape.width, in_panel = lane % shape.width;
    const Range seen = scratch_.parts[p].keys;
    for (int64_t key = seen.begin; key < seen.end; ++key) {
      const int64_t n = key - block.keys.begin, row = (block.row + n) * shape.width;
      const float weight = weights(p, n)[in_panel];
      if (is_masked(weight)) continue;
      if (add_dout) {
        add_row(scratch_.dv + row, shape.key_stride(), shape.width, dout, shape.head_dim_v, weight);
      }
      if (add_q) {
        add_row(scratch_.dk + row, shape.key_stride(), shape.width, q, shape.head_dim,
                gradients(p, n)[in_panel]);
      }
    }
  }
}

void BackwardItem::add_visible_keys(const BackwardTile::Panel& panel, const PanelPart& part,
                                    const Block& block) {
  const BackwardShape& shape = call_.shape;
  for (int64_t key = part.keys.begin; key < part.keys.end; ++key) {
    const float* k = k_row(key);
    if (is_finite(k, shape.head_dim)) continue;
    const int64_t n = key - block.keys.begin;
    for (int lane = 0; lane < panel.num_lanes; ++lane) {
      if (is_masked(weights(panel.index, n)[lane])) continue;
      add_row(dq_ + int64_t{panel.first_lane + lane} * shape.width, shape.query_stride(),
              shape.width, k, shape.head_dim, gradients(panel.index, n)[lane]);
    }
  }
}

}  // namespace sirdar::cpu
