#include "cuda/rows/backward/arguments.h"

#include <algorithm>
#include <cstring>

#include "cuda/modified_params.h"
#include "cuda/rows/backward/choose.h"
#include "cuda/rows/scores.h"

namespace sirdar::rows {
namespace {

constexpr int64_t kMaxBlocks = int64_t{1} << 30;  // of a grid; more rows are further rounds
constexpr size_t kPieceBytes = 256;               // pieces of the workspace begin at multiples

int64_t num_query_rows(const Problem& problem) {
  return problem.layout_q == Layout::ragged ? problem.total_q : problem.batch * problem.seqlen_q;
}
int64_t num_key_rows(const Problem& problem) {
  return problem.layout_kv == Layout::ragged ? problem.total_k : problem.batch * problem.seqlen_k;
}

// Which rows leave something of dbias; a bias of both positions has a kernel of its own.
bool leaves_bias_of_keys(const Problem& problem) {
  return problem.needs_dbias && problem.bias_axes.key && !problem.bias_axes.query;
}
bool leaves_bias_of_rows(const Problem& problem) {
  return problem.needs_dbias && !problem.bias_axes.key;
}
bool has_pair_bias(const Problem& problem) {
  return problem.needs_dbias && problem.bias_axes.key && problem.bias_axes.query;
}

// Where the pieces of a workspace lie.
struct Workspace {
  size_t states = 0, bias_of_rows = 0, bias_of_keys = 0, total = 0;

  explicit Workspace(const Problem& problem) {
    const auto take = [&](size_t& at, int64_t rows, size_t bytes) {
      at = total;
      const size_t size = static_cast<size_t>(rows * problem.num_heads_q) * bytes;
      total += (size + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
    };
    take(states, num_query_rows(problem), sizeof(QueryState));
    take(bias_of_rows, leaves_bias_of_rows(problem) ? num_query_rows(problem) : 0, sizeof(float));
    take(bias_of_keys, leaves_bias_of_keys(problem) ? num_key_rows(problem) : 0, sizeof(float));
  }
};

void add_rows(const Problem& problem, const Args& args, BackwardParams& params) {
  params.q = args.q.data;
  params.k = args.k.data;
  params.v = args.v.data;
  params.out = args.out.data;
  params.dout = args.dout.data;
  params.dq = args.dq.data;
  params.dk = args.dk.data;
  params.dv = args.dv.data;
  params.lse = static_cast<const float*>(args.lse.data);
  params.dlse = static_cast<const float*>(args.dlse.data);
  params.q_rows = row_map(args.q, problem.layout_q);
  params.k_rows = row_map(args.k, problem.layout_kv);
  params.v_rows = row_map(args.v, problem.layout_kv);
  params.out_rows = row_map(args.out, problem.layout_q);
  params.dout_rows = row_map(args.dout, problem.layout_q);
  params.dq_rows = row_map(args.dq, problem.layout_q);
  params.dk_rows = row_map(args.dk, problem.layout_kv);
  params.dv_rows = row_map(args.dv, problem.layout_kv);
  params.lse_rows = row_statistics_map(args.lse, problem.layout_q);
  if (problem.has_dlse) params.dlse_rows = row_statistics_map(args.dlse, problem.layout_q);
  params.query = query_extents(problem, args);
  params.key = key_extents(problem, args);
}

void add_alignment(const BackwardConfig& config, const Args& args, BackwardParams& params) {
  // Whether a row can be read by all lanes together, some neighbouring columns each.
  const auto adds = [&](const TensorView& view, const RowMap& map, Element element, int columns,
                        int64_t dim) {
    const int group = neighbours(element, columns);
    return dim % group == 0 && is_aligned(view, map, int64_t{group} * element_bytes(element));
  };
  params.reads_q_vectors = is_aligned(args.q, params.q_rows, 16);
  params.reads_k_vectors = is_aligned(args.k, params.k_rows, 16);
  params.reads_v_vectors = is_aligned(args.v, params.v_rows, 16);
  params.reads_dout_vectors = is_aligned(args.dout, params.dout_rows, 16);
  params.adds_q_vectors =
      adds(args.q, params.q_rows, config.element, config.columns, params.head_dim);
  params.adds_k_vectors =
      adds(args.k, params.k_rows, config.element, config.columns, params.head_dim);
  params.adds_dout_vectors =
      adds(args.dout, params.dout_rows, config.element_out, config.columns_v, params.head_dim_v);
}

TermSums bias_sums(const Problem& problem, const Args& args, const BackwardParams& params) {
  const bool are_keys = leaves_bias_of_keys(problem);
  const int axis = are_keys ? 3 : 2;
  const auto shape = [&](int a) {
    return static_cast<int>(args.dbias.shape[static_cast<size_t>(a)]);
  };
  return {.terms = are_keys ? params.bias_of_keys : params.bias_of_rows,
          .stride = 1,
          .gradient = static_cast<float*>(args.dbias.data),
          .num_batches = shape(0),
          .num_heads = shape(1),
          .num_rows = shape(axis),
          .stride_batch = stride_or_zero(args.dbias, 0),
          .stride_head = stride_or_zero(args.dbias, 1),
          .stride_row = stride_or_zero(args.dbias, axis),
          .are_keys = are_keys};
}

void add_sums(const Problem& problem, const Args& args, BackwardParams& params) {
  auto* const memory = static_cast<std::byte*>(args.workspace);
  const Workspace places(problem);
  params.states = reinterpret_cast<QueryState*>(memory + places.states);
  params.rows_of_head = num_query_rows(problem);
  params.keys_of_head = num_key_rows(problem);
  if (leaves_bias_of_rows(problem))
    params.bias_of_rows = reinterpret_cast<float*>(memory + places.bias_of_rows);
  if (leaves_bias_of_keys(problem))
    params.bias_of_keys = reinterpret_cast<float*>(memory + places.bias_of_keys);
  if (has_pair_bias(problem)) {
    params.dbias = {static_cast<float*>(args.dbias.data),  static_cast<int>(args.dbias.shape[0]),
                    static_cast<int>(args.dbias.shape[1]), stride_or_zero(args.dbias, 0),
                    stride_or_zero(args.dbias, 1),         stride_or_zero(args.dbias, 2),
                    stride_or_zero(args.dbias, 3)};
  } else if (problem.needs_dbias) {
    params.bias_sums = bias_sums(problem, args, params);
  }
  if (problem.needs_dsink) {
    params.sink_sums = {.terms = &params.states->sink,
                        .stride = sizeof(QueryState) / sizeof(float),
                        .gradient = static_cast<float*>(args.dsink.data),
                        .num_batches = 1,
                        .num_heads = static_cast<int>(problem.num_heads_q),
                        .num_rows = 1,
                        .stride_batch = 0,
                        .stride_head = stride_or_zero(args.dsink, 0),
                        .stride_row = 0,
                        .are_keys = 0};
  }
}

BackwardParams make_params(const Problem& problem, const Args& args) {
  BackwardParams params{};
  params.head_dim = static_cast<int>(problem.head_dim);
  params.head_dim_v = static_cast<int>(problem.value_dim());
  params.batch = static_cast<int>(problem.batch);
  params.num_heads = static_cast<int>(problem.num_heads_q);
  params.num_heads_kv = static_cast<int>(problem.num_heads_kv);
  params.group_size = static_cast<int>(problem.group_size());
  params.num_rows = problem.batch * problem.num_heads_q * problem.seqlen_q;
  params.num_keys = problem.batch * problem.num_heads_kv * problem.seqlen_k;
  add_rows(problem, args, params);
  add_alignment(choose_backward_config(problem), args, params);
  add_scores(problem, args, params);
  add_sums(problem, args, params);
  return params;
}

int64_t num_blocks(const BackwardParams& params, Pass pass) {
  const auto elements = [](const TermSums& sums) {
    return sums.gradient == nullptr ? 0
                                    : int64_t{sums.num_batches} * sums.num_heads * sums.num_rows;
  };
  const auto by_warps = [](int64_t count) { return (count + kWarps - 1) / kWarps; };
  switch (pass) {
    case Pass::query_rows:
      return by_warps(params.num_rows);
    case Pass::key_rows:
      return by_warps(params.num_keys);
    case Pass::bias_rows:
      return params.key.seqlen == 0 ? 0
                                    : by_warps(int64_t{params.dbias.num_batches} *
                                               params.dbias.num_heads * params.query.seqlen);
    case Pass::term_sums:
      break;
  }
  return std::max(elements(params.sink_sums), elements(params.bias_sums));
}

}  // namespace

std::vector<Pass> passes_of(const Problem& problem) {
  std::vector<Pass> passes = {Pass::query_rows, Pass::key_rows};
  if (has_pair_bias(problem)) passes.push_back(Pass::bias_rows);
  if (problem.needs_dsink || leaves_bias_of_rows(problem) || leaves_bias_of_keys(problem))
    passes.push_back(Pass::term_sums);
  return passes;
}

size_t backward_workspace_bytes(const Problem& problem) { return Workspace(problem).total; }

Result<std::vector<cuda::Step>> make_steps(const Problem& problem,
                                           const expression::DeviceModification& modification,
                                           const Args& args) {
  const BackwardParams params = make_params(problem, args);
  const Result<std::vector<std::byte>> modified =
      cuda::modified_params(params, modification, problem, args);
  if (!modified.ok()) return modified.status();
  std::vector<cuda::Step> steps;
  const std::vector<Pass> passes = passes_of(problem);
  for (size_t n = 0; n < passes.size(); ++n) {
    const int64_t blocks = std::min(num_blocks(params, passes[n]), kMaxBlocks);
    if (blocks == 0) continue;
    cuda::Step step{.kernel = n, .grid = {}, .cluster = {}, .params = modified.value()};
    step.grid.x = static_cast<unsigned>(blocks);
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace sirdar::rows
