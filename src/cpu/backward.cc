#include "cpu/backward.h"

#include <algorithm>

#include "core/geometry.h"
#include "cpu/backward_item.h"
#include "cpu/backward_rows.h"
#include "cpu/dispatch.h"

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

// Where the pieces of a workspace lie: row states, sums, then the slots.
struct BackwardWorkspace {
  size_t slot_bytes = 0, slots_at = 0, total = 0;
  std::byte* base = nullptr;
  RowStates rows;
  float* bias_per_key = nullptr;  // [bias_rows][seqlen_k]

  BackwardWorkspace(const Problem& problem, const BackwardConfig& config, void* memory)
      : base(static_cast<std::byte*>(memory)) {
    const BackwardShape shape = backward_shape(problem, config);
    Carver carver(memory);
    rows.rows =
        problem.layout_q == Layout::ragged ? problem.total_q : problem.batch * problem.seqlen_q;
    const int64_t count = rows.rows * problem.num_heads_q;
    rows.base = carver.take<float>(count);
    rows.weight = carver.take<float>(count);
    rows.delta = carver.take<float>(count);
    const int64_t tiles = ceil_div(problem.seqlen_q, shape.block_m);
    rows.dsink =
        carver.take<double>(problem.needs_dsink ? problem.batch * problem.num_heads_q * tiles : 0);
    bias_per_key =
        carver.take<float>(sums_per_key(problem) ? bias_rows(problem) * problem.seqlen_k : 0);
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
  // Of the items that run at once: these sequences and K/V heads, and ranges of queries and keys
  // whose indices differ by `diagonal`.
  int64_t first_batch = 0, first_head = 0, num_heads = 0, diagonal = 0;

  int64_t query_ranges() const { return ceil_div(call.problem.seqlen_q, call.config.range_m); }
  int64_t key_ranges() const { return ceil_div(call.problem.seqlen_k, call.config.range_n); }

  void run(int64_t count, Executor::Function fn) {
    if (count == 0) return;
    executor.parallel_for(executor.context, count, call.config.num_threads, fn, this);
  }

  static void prepare_tile(void* arg, int64_t index, int slot) {
    BackwardWork& work = *static_cast<BackwardWork*>(arg);
    const int64_t tiles = work.call.query_tiles(), heads = work.call.problem.num_heads_q;
    BackwardScratch scratch = work.workspace.scratch(slot, work.call.shape);
    prepare_rows(work.call, scratch, index / tiles / heads, index / tiles % heads, index % tiles);
  }

  static void clear_keys(void* arg, int64_t index, int) {
    const BackwardCall& call = static_cast<BackwardWork*>(arg)->call;
    const int64_t ranges = static_cast<BackwardWork*>(arg)->key_ranges();
    const int64_t heads = call.problem.num_heads_kv;
    const int64_t b = index / ranges / heads, head = index / ranges % heads;
    const Sequence k = call.forward.key.sequence(b);
    const int64_t begin = index % ranges * call.config.range_n;
    for (int64_t j = begin; j < min_of(begin + call.config.range_n, k.stored); ++j) {
      std::fill_n(row_of<float>(call.args.dk, call.dk, b, k, j, head), call.shape.head_dim, 0.0f);
      std::fill_n(row_of<float>(call.args.dv, call.dv, b, k, j, head), call.shape.head_dim_v, 0.0f);
    }
  }

  static void clear_dbias(void* arg, int64_t index, int) {
    const TensorView& view = static_cast<BackwardWork*>(arg)->call.args.dbias;
    float* at = static_cast<float*>(view.data) +
                index / view.shape[2] / view.shape[1] * stride_or_zero(view, 0) +
                index / view.shape[2] % view.shape[1] * stride_or_zero(view, 1) +
                index % view.shape[2] * stride_or_zero(view, 2);
    for (int64_t j = 0; j < view.shape[3]; ++j) at[j * stride_or_zero(view, 3)] = 0;
  }

  static void run_item(void* arg, int64_t index, int slot) {
    const BackwardWork& work = *static_cast<BackwardWork*>(arg);
    const BackwardConfig& config = work.call.config;
    const int64_t ranges = work.key_ranges();
    const int64_t key_range = index % ranges, query_range = key_range + work.diagonal;
    if (query_range < 0 || query_range >= work.query_ranges()) return;
    BackwardScratch scratch = work.workspace.scratch(slot, work.call.shape);
    BackwardItem item(work.call, scratch, work.first_batch + index / ranges / work.num_heads,
                      work.first_head + index / ranges % work.num_heads);
    const int64_t first_query = query_range * config.range_m,
                  first_key = key_range * config.range_n;
    item.run({first_query, first_query + config.range_m}, {first_key, first_key + config.range_n});
  }

  // Items of one diagonal share no query and no key. Queries ascend and keys descend along
  // diagonals, as the sums want it, and under a causal mask the early ones are empty.
  void run_diagonals(int64_t num_batches) {
    for (diagonal = 1 - key_ranges(); diagonal < query_ranges(); ++diagonal)
      run(num_batches * num_heads * key_ranges(), run_item);
  }

  // Sequences and heads that add to the same dbias take turns.
  void run_items() {
    const Problem& problem = call.problem;
    const bool split_batch = problem.needs_dbias && !problem.bias_axes.batch;
    const bool split_heads = problem.needs_dbias && !problem.bias_axes.head;
    const int64_t batches = split_batch ? 1 : problem.batch;
    num_heads = split_heads ? 1 : problem.num_heads_kv;
    for (first_batch = 0; first_batch < problem.batch; first_batch += batches) {
      for (first_head = 0; first_head < problem.num_heads_kv; first_head += num_heads)
        run_diagonals(batches);
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

BackwardShape backward_shape(const Problem& problem, const BackwardConfig& config) {
  const MicroKernels& kernels = kernels_for(config.isa);
  BackwardShape shape;
  shape.width = kMaxVectors * kernels.lanes;
  shape.block_m = config.block_m;
  shape.block_n = config.block_n;
  shape.range_n = config.range_n;
  shape.head_dim = static_cast<int>(problem.head_dim);
  shape.head_dim_v = static_cast<int>(problem.value_dim());
  shape.has_softcap = problem.softcap > 0;
  shape.needs_dbias = problem.needs_dbias;
  shape.terms.width = shape.width;
  shape.terms.num_panels = shape.num_panels();
  shape.terms.block_n = config.block_n;
  shape.terms.rows = kernels.rows;
  shape.terms.has_bias = problem.has_bias || problem.has_mask_tensor;
  return shape;
}

BackwardCall::BackwardCall(const Problem& problem_in, const BackwardConfig& config_in,
                           const Args& args_in)
    : problem(problem_in),
      config(config_in),
      args(args_in),
      kernels(kernels_for(config.isa)),
      backward(backward_kernels_for(config.isa)),
      shape(backward_shape(problem, config)),
      forward_config{config.isa, config.block_m, config.block_n, 1, config.num_threads},
      forward(problem, forward_config, args),
      out(forward.out),
      dout(row_map(args.dout, problem.layout_q)),
      dq(row_map(args.dq, problem.layout_q)),
      dk(row_map(args.dk, problem.layout_kv)),
      dv(row_map(args.dv, problem.layout_kv)),
      lse(row_statistics_map(args.lse, problem.layout_q)) {
  if (problem.has_dlse) dlse = row_statistics_map(args.dlse, problem.layout_q);
}

size_t backward_workspace_bytes(const Problem& problem, const BackwardConfig& config) {
  return BackwardWorkspace(problem, config, nullptr).total;
}

void run_backward(BackwardCall& call, const Executor& executor) {
  const Problem& problem = call.problem;
  const BackwardWorkspace workspace(problem, call.config, call.args.workspace);
  call.rows = workspace.rows;
  BackwardWork work{call, workspace, executor};
  work.start_dbias();
  work.run(problem.batch * problem.num_heads_q * call.query_tiles(), BackwardWork::prepare_tile);
  work.run(problem.batch * problem.num_heads_kv * work.key_ranges(), BackwardWork::clear_keys);
  work.run_items();
  work.finish_dbias();
  work.finish_dsink();
}

}  // namespace sirdar::cpu
