#include "cpu/forward.h"

#include <algorithm>
#include <cmath>

#include "core/geometry.h"
#include "cpu/dispatch.h"
#include "cpu/flush_denormals.h"
#include "cpu/forward_tile.h"

namespace sirdar::cpu {
namespace {

constexpr int64_t kMaxSegments = 32;

// Scores and their differences are exact multiples of it.
float unit_of(float scale) {
  int exponent;
  const bool is_power = scale > 0 && std::frexp(scale, &exponent) == 0.5f;
  return is_power && exponent > -30 && exponent <= 1 ? scale : 1;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Where the pieces of a workspace lie: what expressions read, slots, then the states of split
// tiles.
struct Workspace {
  size_t slot_bytes = 0, state_bytes = 0;
  size_t total = 0;
  std::byte* base = nullptr;

  Workspace(const TileShape& shape, const WorkGrid& grid, int num_slots, void* memory)
      : base(static_cast<std::byte*>(memory)) {
    Carver slot(nullptr), state(nullptr), bound(nullptr);
    if (shape.expressions != nullptr) BoundExpressions{bound, *shape.expressions};
    Scratch{slot, shape};
    AccumulatorState{state, shape, shape.num_panels};
    slot_bytes = slot.used();
    state_bytes = state.used();
    num_slots_ = static_cast<size_t>(num_slots);
    slots_ = bound.used();
    states_ = slots_ + num_slots_ * slot_bytes;
    total = states_;
    if (grid.is_split())
      total += static_cast<size_t>(grid.num_tiles() * grid.segments) * state_bytes;
  }
  Scratch scratch(int slot, const TileShape& shape) const {
    Carver carver(base + slots_ + static_cast<size_t>(slot) * slot_bytes);
    return Scratch(carver, shape);
  }
  AccumulatorState state(int64_t index, const TileShape& shape) const {
    Carver carver(base + states_ + static_cast<size_t>(index) * state_bytes);
    return AccumulatorState(carver, shape, shape.num_panels);
  }

 private:
  size_t num_slots_ = 0, slots_ = 0, states_ = 0;  // offsets of the first of each
};

struct Work {
  const ForwardCall& call;
  Workspace workspace;

  // Tiles are counted by the longest sequence; shorter ones have none of their own behind theirs.
  static bool has_rows(const ForwardCall& call, int64_t tile) {
    const WorkGrid& grid = call.grid;
    const int64_t first_row = (grid.tiles - 1 - tile % grid.tiles) * call.config.block_m;
    const Sequence q = call.query.sequence(tile / grid.tiles / grid.num_heads_kv);
    return first_row < q.stored * call.shape.group;
  }

  // All segments of one tile.
  static void whole_tile(void* arg, int64_t index, int slot) {
    const Work& work = *static_cast<const Work*>(arg);
    if (!has_rows(work.call, index)) return;
    const FlushDenormals flush(work.call.flushes_denormals);
    Scratch scratch = work.workspace.scratch(slot, work.call.shape);
    Tile(work.call, scratch, index).run();
  }

  static void one_segment(void* arg, int64_t index, int slot) {
    const Work& work = *static_cast<const Work*>(arg);
    if (!has_rows(work.call, index / work.call.grid.segments)) return;
    const FlushDenormals flush(work.call.flushes_denormals);
    const int64_t segments = work.call.grid.segments;
    Scratch scratch = work.workspace.scratch(slot, work.call.shape);
    Tile tile(work.call, scratch, index / segments);
    if (index % segments >= tile.num_segments()) return;
    AccumulatorState state = work.workspace.state(index, work.call.shape);
    tile.accumulate(index % segments, state);
  }

  static void merge_tile(void* arg, int64_t index, int slot) {
    const Work& work = *static_cast<const Work*>(arg);
    if (!has_rows(work.call, index)) return;
    const FlushDenormals flush(work.call.flushes_denormals);
    Scratch scratch = work.workspace.scratch(slot, work.call.shape);
    Tile(work.call, scratch, index).finish([&](int64_t segment) {
      return work.workspace.state(index * work.call.grid.segments + segment, work.call.shape);
    });
  }
};

}  // namespace

Segments segments_of(int64_t seqlen_k, const ForwardConfig& config) {
  const int64_t least = int64_t{config.split_n} * config.block_n;
  const int64_t even = ceil_div(ceil_div(seqlen_k, kMaxSegments), config.block_n) * config.block_n;
  const int64_t keys = std::max(least, even);
  return {keys, ceil_div(seqlen_k, keys)};
}

WorkGrid work_grid(const Problem& problem, const ForwardConfig& config) {
  WorkGrid grid;
  grid.batch = problem.batch;
  grid.num_heads_kv = problem.num_heads_kv;
  grid.tiles = ceil_div(problem.seqlen_q * problem.group_size(), config.block_m);
  if (grid.num_tiles() < enough_tiles(config.num_threads)) {
    // Shorter sequences of the batch have at most as many segments as the longest.
    grid.segments = std::max<int64_t>(1, segments_of(problem.seqlen_k, config).count);
  }
  return grid;
}

TileShape tile_shape(const Problem& problem, const ForwardConfig& config,
                     const Expressions* expressions) {
  const MicroKernels& kernels = kernels_for(config.isa);
  TileShape shape;
  shape.width = kMaxVectors * kernels.lanes;
  shape.num_panels = config.block_m / shape.width;
  shape.block_n = config.block_n;
  shape.head_dim = static_cast<int>(problem.head_dim);
  shape.head_dim_v = static_cast<int>(problem.value_dim());
  shape.rows = kernels.rows;
  shape.per_word = product_kernels_for(config.isa, problem.dtype_q).per_word;
  shape.group = static_cast<int>(problem.group_size());
  shape.group_blocks = config.group_n;
  shape.state_panels =
      problem.seqlen_k <= shape.group_n() ? shape.chunk_panels() : shape.num_panels;
  shape.distance_panels = shape.chunk_panels();
  shape.has_bias = problem.has_bias || problem.has_mask_tensor;
  shape.has_dropout = problem.dropout_p > 0;
  shape.expressions = expressions;
  return shape;
}

ForwardCall::ForwardCall(const Problem& problem_in, const ForwardConfig& config_in,
                         const Args& args_in, const Expressions* expressions)
    : problem(problem_in),
      config(config_in),
      args(args_in),
      kernels(kernels_for(config.isa)),
      products(product_kernels_for(config.isa, problem.dtype_q)),
      shape(tile_shape(problem, config, expressions)),
      grid(work_grid(problem, config)),
      query(query_extents(problem, args)),
      key(key_extents(problem, args)),
      q(row_map(args.q, problem.layout_q)),
      k(row_map(args.k, problem.layout_kv, problem.page_size, args.page_table)),
      v(row_map(args.v, problem.layout_kv, problem.page_size, args.page_table)),
      out(row_map(args.out, problem.layout_q)),
      scale(problem.scale()),
      unit(unit_of(scale)),
      dropout(Dropout::of(problem.dropout_p, args.dropout_seed, args.dropout_offset)),
      input_format(static_cast<size_t>(problem.dtype_q)),
      output_format(static_cast<size_t>(problem.output_dtype())),
      input_bytes(size_bytes(problem.dtype_q)),
      output_bytes(size_bytes(problem.output_dtype())) {
  if (problem.needs_lse) lse = row_statistics_map(args.lse, problem.layout_q);
  if (problem.needs_max_logit) max_logit = row_statistics_map(args.max_logit, problem.layout_q);
  if (expressions != nullptr) {
    Carver carver(args.workspace);
    bound = BoundExpressions(carver, *expressions);
    bound.bind(problem, args);
  }
  flushes_denormals = problem.has_alibi || !problem.score_mod.empty();
  has_logit_terms = problem.softcap > 0 || problem.has_alibi || problem.has_bias;
}

size_t forward_workspace_bytes(const Problem& problem, const ForwardConfig& config,
                               const Expressions* expressions) {
  return Workspace(tile_shape(problem, config, expressions), work_grid(problem, config),
                   config.num_threads, nullptr)
      .total;
}

void run_forward(const ForwardCall& call, const Executor& executor) {
  const int slots = call.config.num_threads;
  Work work{call, Workspace(call.shape, call.grid, slots, call.args.workspace)};
  const auto run = [&](int64_t count, Executor::Function fn) {
    executor.parallel_for(executor.context, count, slots, fn, &work);
  };
  const int64_t tiles = call.grid.num_tiles();
  if (!call.grid.is_split()) return run(tiles, Work::whole_tile);
  run(tiles * call.grid.segments, Work::one_segment);
  run(tiles, Work::merge_tile);
}

}  // namespace sirdar::cpu
