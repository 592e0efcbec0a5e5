#include "cpu/backward.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/geometry.h"
#include "cpu/backward_item.h"
#include "cpu/backward_rows.h"
#include "cpu/dispatch.h"
#include "cpu/flush_denormals.h"

namespace sirdar::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Summed over queries and keys, a bias gradient is first summed over queries alone: items that run
// at once share no key.
bool sums_per_key(const Problem& problem) {
  return problem.needs_dbias && !problem.bias_axes.query && !problem.bias_axes.key;
}

int64_t bias_rows(const Problem& problem) {
  return (problem.bias_axes.batch ? problem.batch : 1) *
         (problem.bias_axes.head ? problem.num_heads_q : 1);
}

// Of the longest sequence; one at least, so that a gradient of nothing is written too.
int64_t key_ranges(const Problem& problem, const BackwardConfig& config) {
  return std::max<int64_t>(1, ceil_div(problem.seqlen_k, config.range_n));
}

// Where the pieces of a workspace lie: row states, sums, then the slots.
struct BackwardWorkspace {
  size_t slot_bytes = 0, slots_at = 0, total = 0;
  std::byte* base = nullptr;
  RowStates rows;
  float* bias_per_key = nullptr;  // [bias_rows][seqlen_k]
  int32_t* turns = nullptr;       // [batch][num_heads_q][query tile], as BackwardItem has them
  int64_t num_turns = 0;
  GradientSum dq;

  BackwardWorkspace(const Problem& problem, const BackwardConfig& config,
                    const Expressions* expressions, void* memory)
      : base(static_cast<std::byte*>(memory)) {
    const BackwardShape shape = backward_shape(problem, config, expressions);
    Carver carver(memory);
    if (expressions != nullptr) BoundExpressions{carver, *expressions};
    const bool is_ragged = problem.layout_q == Layout::ragged;
    rows.rows = is_ragged ? problem.total_q : problem.batch * problem.seqlen_q;
    const int64_t count = rows.rows * problem.num_heads_q;
    rows.base = carver.take<float>(count);
    rows.weight = carver.take<float>(count);
    rows.delta = carver.take<float>(count);
    const int64_t tiles = ceil_div(problem.seqlen_q, shape.block_m);
    rows.dsink =
        carver.take<double>(problem.needs_dsink ? problem.batch * problem.num_heads_q * tiles : 0);
    bias_per_key =
        carver.take<float>(sums_per_key(problem) ? bias_rows(problem) * problem.seqlen_k : 0);
    if (key_ranges(problem, config) > 1) {
      num_turns = problem.batch * problem.num_heads_q * tiles;
      turns = carver.take<int32_t>(num_turns);
    }
    if (key_ranges(problem, config) > 1 && problem.dtype_q != DType::fp32) {
      const int64_t columns = problem.head_dim;
      dq.sums = carver.take<float>(count * columns);
      dq.sums_map.stride_batch = problem.seqlen_q * columns;
      dq.sums_map.stride_row = columns;
      dq.sums_map.stride_head = rows.rows * columns;
    }
    slots_at = carver.used();
    Carver slot(nullptr);
    BackwardScratch{slot, shape};
    slot_bytes = slot.used();
    total = slots_at + static_cast<size_t>(config.num_threads) * slot_bytes;
  }
  BackwardScratch scratch(int slot, const BackwardShape& shape) const {
    Carver carver(base + slots_at + static_cast<size_t>(slot) * slot_bytes);
    return BackwardScratch(carver, shape);
  }
};

struct BackwardWork {
  BackwardCall& call;
  const BackwardWorkspace& workspace;
  const Executor& executor;
  const int64_t num_key_ranges;
  // Of the items at work: these sequences and K/V heads; the next one to take.
  int64_t first_batch = 0, num_batches = 0, first_head = 0, num_heads = 0;
  std::atomic<int64_t> next_item{0};

  void run(int64_t count, Executor::Function fn) {
    if (count == 0) return;
    executor.parallel_for(executor.context, count, call.config.num_threads, fn, this);
  }

  static void prepare_tile(void* arg, int64_t index, int slot) {
    BackwardWork& work = *static_cast<BackwardWork*>(arg);
    const FlushDenormals flush(work.call.forward.flushes_denormals);
    const int64_t tiles = work.call.query_tiles(), heads = work.call.problem.num_heads_q;
    const int64_t b = index / tiles / heads, h = index / tiles % heads, tile = index % tiles;
    BackwardScratch scratch = work.workspace.scratch(slot, work.call.shape);
    prepare_rows(work.call, scratch, b, h, tile);
  }

  static void clear_dbias(void* arg, int64_t index, int) {
    const TensorView& view = static_cast<BackwardWork*>(arg)->call.args.dbias;
    float* at = static_cast<float*>(view.data) +
                index / view.shape[2] / view.shape[1] * stride_or_zero(view, 0) +
                index / view.shape[2] % view.shape[1] * stride_or_zero(view, 1) +
                index % view.shape[2] * stride_or_zero(view, 2);
    for (int64_t j = 0; j < view.shape[3]; ++j) at[j * stride_or_zero(view, 3)] = 0;
  }

  void clear_rows(const GradientSum& sum, int64_t b, const Sequence& sequence, int64_t head,
                  Range rows, int64_t columns) const {
    for (int64_t row = max_of(rows.begin, sequence.length); row < min_of(rows.end, sequence.stored);
         ++row) {
      // The bits of +0 in every format.
      const int64_t bytes = call.forward.input_bytes;
      std::memset(
          static_cast<std::byte*>(sum.data) + sum.map.offset(b, sequence, row, head) * bytes, 0,
          static_cast<size_t>(columns * bytes));
    }
  }

  // Rows that take no part: those of the queries by the first range of keys.
  void clear_unused_rows(int64_t b, int64_t head_kv, Range keys) const {
    const int64_t group = call.problem.group_size();
    const Sequence q = call.forward.query.sequence(b), k = call.forward.key.sequence(b);
    for (int64_t h = head_kv * group; keys.begin == 0 && h < (head_kv + 1) * group; ++h)
      clear_rows(call.dq, b, q, h, {0, q.stored}, call.shape.head_dim);
    clear_rows(call.dk, b, k, head_kv, keys, call.shape.head_dim);
    clear_rows(call.dv, b, k, head_kv, keys, call.shape.head_dim_v);
  }

  void run_item(int64_t b, int64_t head_kv, int64_t key_range, int slot) const {
    const int64_t range_n = call.config.range_n;
    Range keys{key_range * range_n, (key_range + 1) * range_n};
    clear_unused_rows(b, head_kv, keys);
    const int64_t num_keys = call.forward.key.sequence(b).length;
    const int64_t last = std::max<int64_t>(1, ceil_div(num_keys, range_n)) - 1;
    if (key_range > last) return;
    keys.end = min_of(keys.end, num_keys);
    BackwardScratch scratch = workspace.scratch(slot, call.shape);
    BackwardItem item(call, scratch, b, head_kv);
    const bool is_alone = workspace.num_turns == 0;
    item.start(keys, is_alone
                         ? nullptr
                         : workspace.turns + b * call.problem.num_heads_q * call.query_tiles());
    const int64_t tiles = ceil_div(call.forward.query.sequence(b).length, call.shape.block_m);
    for (int64_t tile = tiles - 1; tile >= 0; --tile) item.run_tile(tile);
    item.finish();
  }

  // Takes items in their order; a range adds to the dq of a tile after the ranges before. Whoever
  // has an item waits for nobody behind it, so somebody always goes on, even if an executor has
  // fewer threads than workers or runs them one after the other. Under a causal mask the first
  // keys are seen by the most queries: long items come first.
  static void work(void* arg, int64_t, int slot) {
    BackwardWork& work = *static_cast<BackwardWork*>(arg);
    const FlushDenormals flush(work.call.forward.flushes_denormals);
    const int64_t ranges = work.num_key_ranges;
    const int64_t count = work.num_batches * work.num_heads * ranges;
    for (int64_t n = work.next_item++; n < count; n = work.next_item++) {
      work.run_item(work.first_batch + n / ranges / work.num_heads,
                    work.first_head + n / ranges % work.num_heads, n % ranges, slot);
    }
  }

  // All of a sequence and head, one item after the other.
  static void run_head(void* arg, int64_t index, int slot) {
    const BackwardWork& work = *static_cast<BackwardWork*>(arg);
    const FlushDenormals flush(work.call.forward.flushes_denormals);
    for (int64_t key_range = 0; key_range < work.num_key_ranges; ++key_range)
      work.run_item(work.first_batch, work.first_head + index, key_range, slot);
  }

  // Sequences and heads that add to the same dbias take turns.
  void run_items() {
    const Problem& problem = call.problem;
    const bool split_batch = problem.needs_dbias && !problem.bias_axes.batch;
    const bool split_heads = problem.needs_dbias && !problem.bias_axes.head;
    num_batches = split_batch ? 1 : problem.batch;
    num_heads = split_heads ? 1 : problem.num_heads_kv;
    std::fill_n(workspace.turns, workspace.num_turns, 0);
    if (call.shape.needs_dtensors) return run_heads(split_heads ? 1 : call.dtensors.num_sums());
    for (first_batch = 0; first_batch < problem.batch; first_batch += num_batches) {
      for (first_head = 0; first_head < problem.num_heads_kv; first_head += num_heads) {
        next_item = 0;
        run(call.config.num_threads, work);
      }
    }
  }

  // Where heads add to sums of tensors: at once those that have sums of their own.
  void run_heads(int64_t at_once) {
    const Problem& problem = call.problem;
    for (first_batch = 0; first_batch < problem.batch; ++first_batch) {
      for (first_head = 0; first_head < problem.num_heads_kv; first_head += at_once) {
        num_heads = std::min(at_once, problem.num_heads_kv - first_head);
        run(num_heads, run_head);
      }
    }
  }

  void start_dbias() {
    const TensorView& view = call.args.dbias;
    if (!call.problem.needs_dbias) return;
    run(view.shape[0] * view.shape[1] * view.shape[2], clear_dbias);
    if (sums_per_key(call.problem)) {
      const int64_t seqlen_k = call.problem.seqlen_k;
      std::fill_n(workspace.bias_per_key, bias_rows(call.problem) * seqlen_k, 0.0f);
      call.dbias = {workspace.bias_per_key,
                    call.problem.bias_axes.batch ? view.shape[1] * seqlen_k : 0,
                    call.problem.bias_axes.head ? seqlen_k : 0, 0, 1};
    } else {
      call.dbias = {static_cast<float*>(view.data), stride_or_zero(view, 0),
                    stride_or_zero(view, 1), stride_or_zero(view, 2), stride_or_zero(view, 3)};
    }
  }

  void finish_dbias() const {
    if (!sums_per_key(call.problem)) return;
    const TensorView& view = call.args.dbias;
    const int64_t seqlen_k = call.problem.seqlen_k;
    for (int64_t row = 0; row < bias_rows(call.problem); ++row) {
      const float* from = workspace.bias_per_key + row * seqlen_k;
      float sum = 0;
      for (int64_t j = 0; j < seqlen_k; ++j) sum += from[j];
      static_cast<float*>(view.data)[row / view.shape[1] * stride_or_zero(view, 0) +
                                     row % view.shape[1] * stride_or_zero(view, 1)] = sum;
    }
  }

  void finish_dsink() const {
    const Problem& problem = call.problem;
    if (!problem.needs_dsink) return;
    const int64_t tiles = call.query_tiles();
    for (int64_t h = 0; h < problem.num_heads_q; ++h) {
      double sum = 0;
      for (int64_t b = 0; b < problem.batch; ++b) {
        const double* parts = call.rows.dsink + (b * problem.num_heads_q + h) * tiles;
        for (int64_t tile = 0; tile < tiles; ++tile) sum += parts[tile];
      }
      const TensorView& view = call.args.dsink;
      static_cast<float*>(view.data)[h * stride_or_zero(view, 0)] = static_cast<float>(sum);
    }
  }
};

}  // namespace

BackwardShape backward_shape(const Problem& problem, const BackwardConfig& config,
                             const Expressions* expressions) {
  const MicroKernels& kernels = kernels_for(config.isa);
  BackwardShape shape;
  shape.width = kMaxVectors * kernels.lanes;
  shape.block_m = config.block_m;
  shape.block_n = config.block_n;
  shape.range_n = config.range_n;
  shape.head_dim = static_cast<int>(problem.head_dim);
  shape.head_dim_v = static_cast<int>(problem.value_dim());
  shape.has_softcap = problem.softcap > 0;
  shape.has_dropout = problem.dropout_p > 0;
  shape.needs_dbias = problem.needs_dbias;
  shape.sums_dbias_over_keys =
      problem.needs_dbias && problem.bias_axes.query && !problem.bias_axes.key;
  shape.has_score_mod = !problem.score_mod.empty();
  shape.needs_dtensors = needs_dtensors(problem);
  if (expressions != nullptr) shape.num_reads = expressions->num_reads();
  shape.terms.expressions = expressions;
  shape.terms.width = shape.width;
  shape.terms.num_panels = shape.terms.state_panels = shape.num_panels();
  shape.terms.distance_panels = shape.num_panels();
  shape.terms.block_n = config.block_n;
  shape.terms.rows = kernels.rows;
  shape.terms.has_dropout = shape.has_dropout;
  shape.terms.has_bias = problem.has_bias || problem.has_mask_tensor;
  return shape;
}

BackwardCall::BackwardCall(const Problem& problem_in, const BackwardConfig& config_in,
                           const Args& args_in, const Expressions* expressions)
    : problem(problem_in),
      config(config_in),
      args(args_in),
      kernels(kernels_for(config.isa)),
      backward(backward_kernels_for(config.isa)),
      shape(backward_shape(problem, config, expressions)),
      forward_config{config.isa, config.block_m, config.block_n, 1, config.num_threads},
      forward(problem, forward_config, args, expressions),
      out(forward.out),
      dout(row_map(args.dout, problem.layout_q)),
      lse(row_statistics_map(args.lse, problem.layout_q)) {
  if (problem.has_dlse) dlse = row_statistics_map(args.dlse, problem.layout_q);
}

size_t backward_workspace_bytes(const Problem& problem, const BackwardConfig& config,
                                const Expressions* expressions) {
  return BackwardWorkspace(problem, config, expressions, nullptr).total;
}

Status run_backward(BackwardCall& call, const Executor& executor) {
  const Problem& problem = call.problem;
  if (!call.dtensors.start(problem, call.args)) {
    return {
        StatusCode::out_of_memory,
        "dtensors: the sums of their gradients do not fit into memory, or one has 2^31 elements or "
        "more; make the tensors smaller."};
  }
  const BackwardWorkspace workspace(problem, call.config, call.shape.terms.expressions,
                                    call.args.workspace);
  const auto place = [](GradientSum sum, const TensorView& view, Layout layout) {
    sum.data = view.data;
    sum.map = row_map(view, layout);
    return sum;
  };
  call.rows = workspace.rows;
  call.dq = place(workspace.dq, call.args.dq, problem.layout_q);
  call.dk = place({}, call.args.dk, problem.layout_kv);
  call.dv = place({}, call.args.dv, problem.layout_kv);
  if (problem.seqlen_q == 0 && problem.seqlen_k == 0 && !problem.needs_dsink &&
      !problem.needs_dbias && !call.shape.needs_dtensors)
    return {};
  BackwardWork work{call, workspace, executor, key_ranges(problem, call.config)};
  work.start_dbias();
  work.run(problem.batch * problem.num_heads_q * call.query_tiles(), BackwardWork::prepare_tile);
  work.run_items();
  work.finish_dbias();
  work.finish_dsink();
  call.dtensors.finish(call.args);
  return {};
}

}  // namespace sirdar::cpu
