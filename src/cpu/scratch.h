// The working memory of a forward call: one Scratch per slot and, where keys are split between
// threads, one AccumulatorState per (tile, segment). Carved from Args::workspace; nothing is
// allocated in a run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/expressions.h"
#include "cpu/microkernel.h"

namespace sirdar::cpu {

// Hands out consecutive 64-byte aligned pieces of a buffer; over a null buffer it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

inline constexpr int kMaxGroupBlocks = 16;
inline constexpr int kChunkPanels = 8, kMaxChunkPanels = 32;
inline constexpr int64_t kResidentFloats = 1 << 18;  // half of a usual second cache

struct TileShape {
  int width = 0;       // lanes of a full panel
  int num_panels = 0;  // per tile
  int block_n = 0, head_dim = 0, head_dim_v = 0;
  int group_blocks = 1;  // blocks of keys that are packed together
  int rows = 0;          // of a register block
  int per_word = 1;      // elements of q, k, v and p in a 32-bit word of the kernels
  int group = 1;         // query heads per K/V head
  bool has_bias = false, has_dropout = false;
  const Expressions* expressions = nullptr;  // null: none
  int state_panels = 1;     // whose states are kept: a chunk, or all from one group to the next
  int distance_panels = 1;  // whose distances to a block are known at once
  // Panels that pass over a group together, block by block: their queries and states are few
  // enough to stay in the cache beside it. Beside a single block there is room for all of a tile.
  int chunk_panels() const {
    int most = head_dim <= 64 ? kChunkPanels : kChunkPanels / 2;
    const int64_t floats = int64_t{num_lanes()} * (head_dim + 2 * head_dim_v);
    if (group_blocks == 1 && num_panels <= kMaxChunkPanels && floats <= kResidentFloats)
      most = num_panels;
    return num_panels < most ? num_panels : most;
  }
  int num_lanes() const { return width * num_panels; }
  int64_t group_n() const { return int64_t{group_blocks} * block_n; }
  // Words of a row of q and k.
  int key_words() const { return (head_dim + per_word - 1) / per_word; }
  // Words of a packed block.
  int64_t packed_keys() const { return int64_t{block_n + rows} * key_words(); }
  int64_t packed_values() const { return value_stride() * ((head_dim_v + rows - 1) / rows); }
  // Keys that a panel may skip at the start of a block come in runs of this many: whole register
  // blocks, and whole groups of the four that sums and dropout work in.
  int key_step() const { return rows % 4 == 0 ? rows : 2 * rows; }
  int num_steps() const { return (block_n + key_step() - 1) / key_step(); }
  // Between the column blocks of packed values: one line more than they fill, or all blocks would
  // start in the same set of the cache.
  int64_t value_stride() const { return int64_t{block_n} / per_word * rows + 16; }
};

// What a tile knows after some of its keys.
struct AccumulatorState {
  float* out = nullptr;         // [panel][head_dim_v][lane], not normalised
  float* row_max = nullptr;     // [panel][lane]
  float* row_sum = nullptr;     // [panel][lane]
  int32_t* has_keys = nullptr;  // [panel]; 0: the rest is undefined

  AccumulatorState() = default;
  AccumulatorState(Carver& carver, const TileShape& shape, int num_panels)
      : out(carver.take<float>(int64_t{num_panels} * shape.width * shape.head_dim_v)),
        row_max(carver.take<float>(num_panels * shape.width)),
        row_sum(carver.take<float>(num_panels * shape.width)),
        has_keys(carver.take<int32_t>(num_panels)) {}
  AccumulatorState of_panel(int index, const TileShape& shape) const {
    const int64_t lane = int64_t{index} * shape.width;
    AccumulatorState result = *this;
    result.out += lane * shape.head_dim_v;
    result.row_max += lane;
    result.row_sum += lane;
    result.has_keys += index;
    return result;
  }
};

// A group of keys: where their rows lie, in the caller's format, and what is known of them before
// they are brought in.
struct KeyGroup {
  int64_t begin = -1, end = -1;
  const void **k = nullptr, **v = nullptr;  // [group_n]
  int32_t* document_k = nullptr;            // [group_n]
  uint8_t* is_used = nullptr;  // [group_blocks][steps of a block]: some panel sees a run of these
  int first_bounds = 0;        // of its blocks in ExpressionScratch::shown

  KeyGroup(Carver& carver, const TileShape& shape, int first)
      : k(carver.take<const void*>(shape.group_n())),
        v(carver.take<const void*>(shape.group_n())),
        document_k(carver.take<int32_t>(shape.group_n())),
        is_used(carver.take<uint8_t>(shape.group_blocks * shape.num_steps())),
        first_bounds(first) {}
};

// The query that a lane stands for. q_pos = i + seqlen_k - seqlen_q.
struct LaneQuery {
  int64_t b, h, i, q_pos;
};

struct Scratch {
  AccumulatorState segment, total;
  float* q;              // [panel][words of head_dim][lane] of a chunk of panels
  float* scores;         // [block_n][lane], then weights in words
  float* new_max;        // [lane]
  float* part_max;       // [lane]
  float* alpha;          // [lane]
  float* bias;           // [block_n][lane]
  float *keys, *values;  // [group_blocks] packed blocks of K and of V
  float* row;            // one row of V as floats
  float* narrow_acc;     // [lane][head_dim_v, rounded up]
  KeyGroup keys_now, keys_next;
  // Per lane of the tile.
  int64_t *lo, *hi;  // visible keys, from the structured masks
  LaneQuery* query;
  int32_t *document_q, *lo_in_block, *hi_in_block, *q_pos_in_block;
  int32_t *dropout_i, *dropout_h;  // counters
  float *slope, *factor;
  const void** rows_ahead;   // [2 * (group_n + chunk)]
  const void** block_ahead;  // [2][block_n]
  const void** from_rows;
  void** to_rows;
  ExpressionScratch expressions;

  Scratch(Carver& carver, const TileShape& shape)
      : segment(carver, shape, shape.state_panels),
        total(carver, shape, shape.state_panels),
        keys_now(carver, shape, 0),
        keys_next(carver, shape, shape.group_blocks) {
    const int64_t lanes = shape.num_lanes(), width = shape.width, block_n = shape.block_n;
    q = carver.take<float>(int64_t{shape.chunk_panels()} * width * shape.key_words());
    scores = carver.take<float>(block_n * width);
    new_max = carver.take<float>(width);
    part_max = carver.take<float>(width);
    alpha = carver.take<float>(width);
    bias = carver.take<float>(shape.has_bias ? block_n * width : 0);
    keys = carver.take<float>(shape.group_blocks * shape.packed_keys());
    values = carver.take<float>(shape.group_blocks * shape.packed_values());
    row = carver.take<float>(shape.head_dim_v + width);
    narrow_acc = carver.take<float>(kNarrowLanes * (shape.head_dim_v + width));
    lo = carver.take<int64_t>(lanes);
    hi = carver.take<int64_t>(lanes);
    query = carver.take<LaneQuery>(lanes);
    document_q = carver.take<int32_t>(lanes);
    lo_in_block = carver.take<int32_t>(width);
    hi_in_block = carver.take<int32_t>(width);
    q_pos_in_block = carver.take<int32_t>(width);
    dropout_i = carver.take<int32_t>(shape.has_dropout ? lanes : 0);
    dropout_h = carver.take<int32_t>(shape.has_dropout ? lanes : 0);
    slope = carver.take<float>(lanes);
    factor = carver.take<float>(lanes);
    rows_ahead = carver.take<const void*>(2 * (shape.group_n() + shape.chunk_panels() * width));
    block_ahead = carver.take<const void*>(2 * block_n);
    from_rows = carver.take<const void*>(lanes);
    to_rows = carver.take<void*>(lanes);
    if (shape.expressions != nullptr)
      expressions = ExpressionScratch(carver, shape, *shape.expressions);
  }
};

}  // namespace sirdar::cpu
