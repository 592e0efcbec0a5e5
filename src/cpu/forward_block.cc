// A block of keys made ready for the panels of a tile: where its rows lie, who sees which of them,
// and their packed copies.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/geometry.h"
#include "cpu/forward_tile.h"

namespace sirdar::cpu {

void Tile::locate(KeyGroup& group, Range keys) const {
  const auto fill = [&](const TensorView& view, const RowMap& map, const void** row) {
    const int64_t step = map.stride_row * call_.input_bytes;
    for (int64_t key = keys.begin; key < keys.end;) {
      const int64_t page_end =
          map.page_table == nullptr ? keys.end : (key / map.page_size + 1) * map.page_size;
      const int64_t end = min_of(page_end, keys.end);
      const auto* first = static_cast<const std::byte*>(
          row_at(view, map.offset(b_, k_, key, head_kv_), call_.input_bytes));
      for (int64_t n = 0; n < end - key; ++n) *row++ = first + n * step;
      key = end;
    }
  };
  group.begin = keys.begin;
  group.end = keys.end;
  fill(call_.args.k, call_.k, group.k);
  fill(call_.args.v, call_.v, group.v);
}

template <class Visit>
void Tile::for_each_used_run(const Block& block, Visit visit) const {
  const int64_t step = call_.shape.key_step(), count = num_steps(block);
  for (int64_t first = 0; first < count;) {
    int64_t end = first;
    while (end < count && block.is_used[end] != 0) ++end;
    if (end > first) visit(first * step, min_of(end * step, block.keys.size()) - first * step);
    first = end + 1;
  }
}

void Tile::start_group(Range keys, Range next) {
  if (scratch_.keys_next.begin == keys.begin && scratch_.keys_next.end == keys.end) {
    std::swap(scratch_.keys_now, scratch_.keys_next);
    std::swap(blocks_, next_blocks_);
    num_blocks_ = num_next_blocks_;
  } else {
    num_blocks_ = look_at_group(scratch_.keys_now, keys, blocks_);
  }
  num_next_blocks_ = look_at_group(scratch_.keys_next, next, next_blocks_);
}

int Tile::look_at_group(KeyGroup& group, Range keys, Block* blocks) {
  locate(group, keys);
  int count = 0;
  for (Position begin = keys.begin; begin < keys.end; begin += call_.config.block_n, ++count) {
    const Position first = begin - keys.begin;
    Block& block = blocks[count] = Block{};
    block.keys = {begin, min_of(begin + call_.config.block_n, keys.end)};
    block.starts_segment =
        begin / segments_.keys != std::exchange(segment_, begin / segments_.keys);
    block.k = group.k + first;
    block.v = group.v + first;
    block.document_k = group.document_k + first;
    block.is_used = group.is_used + count * call_.shape.num_steps();
    block.bounds = group.first_bounds + count;
    block.packed_k = scratch_.keys + count * call_.shape.packed_keys();
    block.packed_v = scratch_.values + count * call_.shape.packed_values();
    look_at_block(block);
  }
  return count;
}

void Tile::look_at_block(Block& block) {
  if (expressions_.bound_block(block.bounds, block.keys, num_panels_) == Cover::none) return;
  expressions_.enter_block(block.bounds, block.keys, {});
  if (call_.problem.has_document)
    block.documents_k = terms_.load_documents(b_, block.keys, block.document_k);
  std::fill_n(block.is_used, num_steps(block), 0);
  for (int index = 0; index < num_panels_; ++index) {
    Range keys;
    const Cover cover = visible_part(panel(index), block, keys);
    if (cover == Cover::none) continue;
    ++block.num_panels;
    block.num_keys_used += keys.size();
    block.has_part |= cover == Cover::part;
    mark_used(block, keys);
  }
  for_each_used_run(block, [&](int64_t, int64_t count) { block.num_keys_seen += count; });
}

void Tile::prepare_block(int n, int64_t panels) {
  Block& block = blocks_[n];
  block.is_ready = true;
  prepare_values(block);
  const int64_t calls = (block.num_panels * panels + num_panels_ - 1) / num_panels_;
  const Block* const next = seen_after(n, panels == num_panels_);
  if (next != nullptr && (next->keys.begin >= blocks_[num_blocks_ - 1].keys.end || is_seen(*next)))
    ask_for_block(*next, calls);
}

const Tile::Block* Tile::seen_after(int n, bool looks_further) const {
  const auto is_seen = [](const Block& block) { return block.num_panels > 0; };
  const Block* const here = std::find_if(blocks_ + n + 1, blocks_ + num_blocks_, is_seen);
  if (here != blocks_ + num_blocks_) return here;
  const Block* const end = next_blocks_ + (looks_further ? num_next_blocks_ : 0);
  const Block* const there = std::find_if<const Block*>(next_blocks_, end, is_seen);
  return there == end ? nullptr : there;
}

// Rows that will be needed are asked for while panels work, so that they are found in the cache:
// those of the next block to be prepared, the next panels' queries, and where results will go. One
// line of each is asked for at once: where a page's address is not known, a kernel would stand
// still for each until it is, and here several are found at a time.
void Tile::ask_for_block(const Block& block, int64_t calls) {
  const void *const *k = block.k, *const *v = block.v;
  if (block.num_keys_seen < block.keys.size()) {
    const void** const seen_k = scratch_.block_ahead;
    const void** const seen_v = seen_k + call_.config.block_n;
    int64_t at = 0;
    for_each_used_run(block, [&](int64_t first, int64_t count) {
      std::copy_n(k + first, count, seen_k + at);
      std::copy_n(v + first, count, seen_v + at);
      at += count;
    });
    k = seen_k, v = seen_v;
  }
  ask(ahead_[0] = {k, block.num_keys_seen, calls});
  ask(ahead_[1] = {v, block.num_keys_seen, calls});
}

void Tile::ask_for_panels(int first, int end, Range next) {
  const int width = call_.shape.width;
  int64_t visits = 0;  // of the tile's panels to blocks
  for (int n = 0; n < num_blocks_; ++n) visits += blocks_[n].num_panels;
  const int64_t calls = min_of(visits * (end - first) / num_panels_, num_calls(first, end)) + 1;
  const int next_end = std::min(end + call_.shape.chunk_panels(), num_panels_);
  if (end < next_end) {
    ask(ahead_[2] = {scratch_.from_rows + end * width, (next_end - end) * width, calls});
    // What the next panels see first, as under a causal mask.
    const Position seen_end = panel(next_end - 1).keys.end;
    for (int n = 0; n < num_blocks_ && blocks_[n].keys.begin < seen_end; ++n) {
      if (blocks_[n].is_ready || blocks_[n].num_panels == 0 || is_seen(blocks_[n])) continue;
      ask_for_block(blocks_[n], calls);
      break;
    }
  } else if (const Block* block = seen_after(num_blocks_ - 1, true)) {
    ask_for_block(*block, calls);
  }
  if (next.empty())
    ask(ahead_[3] = {scratch_.to_rows + first * width, (end - first) * width, calls});
}

int64_t Tile::num_calls(int first, int end) const {
  const Position block_n = call_.config.block_n, begin = blocks_[0].keys.begin;
  int64_t calls = 0;
  for (int index = first; index < end; ++index) {
    const Range seen = panel(index).keys;
    const Position from = max_of(seen.begin - begin, 0);
    const Position to = min_of(seen.end, blocks_[num_blocks_ - 1].keys.end) - begin;
    if (from < to) calls += (to - 1) / block_n - from / block_n + 1;
  }
  return calls;
}

// Of a tile that is one chunk: each panel's by the one before it.
void Tile::ask_for_queries() {
  const int width = call_.shape.width, count = num_panels_ - 1;
  ahead_[2] = {scratch_.from_rows + width, int64_t{count} * width, count};
}

void Tile::ask(const RowsAhead& ahead) const {
  if (num_panels_ == 1) return;  // it waits for memory whatever is done
  for (int64_t n = 0; n < ahead.count; ++n) __builtin_prefetch(ahead.rows[n], 0, 2);
}

Prefetch Tile::take_ahead(int64_t most_lines) {
  const int64_t columns = std::max(call_.shape.head_dim, call_.shape.head_dim_v);
  Prefetch result{.rows = scratch_.rows_ahead,
                  .num_bytes = static_cast<int>(columns * call_.input_bytes)};
  const int64_t most_rows = most_lines / max_of((result.num_bytes + 63) / 64, 1);
  for (RowsAhead& ahead : ahead_) {
    if (ahead.count == 0) continue;
    int64_t share = (ahead.count + ahead.calls - 1) / ahead.calls;
    if (ahead.calls > 1) share = max_of(min_of(share, most_rows - result.num_rows), 0);
    std::copy_n(ahead.rows, share, scratch_.rows_ahead + result.num_rows);
    result.num_rows += static_cast<int>(share);
    ahead.rows += share;
    ahead.count -= share;
    ahead.calls = max_of(ahead.calls - 1, 1);
  }
  return result;
}

// Short runs do not reach to ask for all: the rest at once.
void Tile::ask_for_surplus(QkArgs& args) const {
  const int lines = (args.next.num_bytes + 63) / 64;
  const int most = args.num_keys / call_.kernels.rows * (call_.shape.key_words() / 8);
  const int reached = lines == 0 ? args.next.num_rows : most / lines;
  for (int n = reached; n < args.next.num_rows; ++n) {
    const char* row = static_cast<const char*>(args.next.rows[n]);
    if (row == nullptr) continue;
    for (int line = 0; line < lines; ++line) __builtin_prefetch(row + line * 64, 0, 2);
  }
}

int64_t Tile::num_steps(const Block& block) const {
  return (block.keys.size() + call_.shape.key_step() - 1) / call_.shape.key_step();
}

void Tile::mark_used(Block& block, Range keys) const {
  const int64_t step = call_.shape.key_step();
  const int64_t first = (keys.begin - block.keys.begin) / step;
  const int64_t end = (keys.end - block.keys.begin + step - 1) / step;
  std::fill_n(block.is_used + first, end - first, 1);
}

Cover Tile::visible_part(const Panel& panel, const Block& block, Range& keys) const {
  const Range shown = expressions_.has_mask_mod() ? expressions_.seen(panel.index) : block.keys;
  keys = {max_of(panel.keys.begin, shown.begin), min_of(panel.keys.end, shown.end)};
  if (keys.empty()) return Cover::none;
  keys.begin -= (keys.begin - block.keys.begin) % call_.shape.key_step();
  Cover cover = coverage(mask_, panel.rows, keys);
  if (call_.problem.has_document)
    cover = both(cover, coverage(panel.documents_q, block.documents_k));
  cover = both(cover, expressions_.cover(panel.index));
  if (cover != Cover::none && terms_.has_pair_tensors())
    cover = both(cover, terms_.pair_cover(panel.first_lane, panel.num_lanes, keys));
  return cover;
}

// A NaN or infinity times the weight 0 of a masked pair would be a NaN: where pairs are masked,
// such rows of V are left out of the copy and added pair by pair (add_nonfinite_values).
void Tile::prepare_values(Block& block) {
  if (block.has_part) {
    for_each_used_run(block, [&](int64_t first, int64_t count) {
      block.is_finite = block.is_finite && !has_nonfinite(block.v + first, count);
    });
  }
  block.is_narrow = block.is_finite && num_panels_ == 1 && num_live_ <= kNarrowLanes;
  if (block.is_narrow) return;
  // Floats at a fixed stride can be used where they are; for one use of each a copy does not pay.
  const bool is_usable = call_.problem.dtype_kv == DType::fp32 && call_.k.page_table == nullptr;
  block.is_packed = !is_usable || block.num_keys_used > 2 * block.num_keys_seen || !block.is_finite;
  if (block.is_packed) pack_values(block);
}

void Tile::pack_values(const Block& block) {
  const TileShape& shape = call_.shape;
  const int columns = shape.head_dim_v, per_word = shape.per_word;
  for_each_used_run(block, [&](int64_t first, int64_t count) {
    const int num_keys = static_cast<int>(count);
    call_.products.pack_k(
        {block.k + first, block.packed_k + first * shape.key_words(), num_keys, shape.head_dim});
    call_.products.pack_v({block.v + first, block.packed_v + first / per_word * shape.rows,
                           shape.value_stride(), num_keys, columns});
  });
  if (block.is_finite) return;
  const auto bytes = sizeof(float) / static_cast<size_t>(per_word);  // of an element
  for (int64_t j = 0; j < block.keys.size(); ++j) {
    if (!has_nonfinite(block.v + j, 1)) continue;
    for (int c = 0; c < columns; ++c) {
      float* word = block.packed_v + c / shape.rows * shape.value_stride() +
                    j / per_word * shape.rows + c % shape.rows;
      std::memset(reinterpret_cast<std::byte*>(word) + static_cast<size_t>(j % per_word) * bytes, 0,
                  bytes);
    }
  }
}

bool Tile::has_nonfinite(const void* const* v, int64_t num_keys) const {
  return call_.kernels.has_nonfinite[call_.input_format](v, static_cast<int>(num_keys),
                                                         call_.shape.head_dim_v);
}

}  // namespace sirdar::cpu
