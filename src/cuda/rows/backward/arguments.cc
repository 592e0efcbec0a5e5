#include "cuda/rows/backward/arguments.h"

#include <fmt/format.h>

#include <algorithm>

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

// Sums of a tensor's gradient; a problem does not say how many elements the tensor has. Warps that
// have sums of their own fill a GPU several times over; their number decides the order of
// additions, so it must not depend on the GPU.
constexpr int64_t kTensorSums = int64_t{1} << 22;
constexpr int64_t kMaxSumsOfTensor = 2048;

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

bool needs_dtensors(const Problem& problem) {
  return std::ranges::any_of(problem.tensors, &ExpressionTensor::needs_grad);
}

// Where the pieces of a workspace lie.
struct Workspace {
  size_t states = 0, bias_of_rows = 0, bias_of_keys = 0, tensor_sums = 0, total = 0;

  explicit Workspace(const Problem& problem) {
    const auto take = [&](size_t& at, int64_t count, size_t bytes) {
      at = total;
      const size_t size = static_cast<size_t>(count) * bytes;
      total += (size + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
    };
    const int64_t queries = num_query_rows(problem) * problem.num_heads_q;
    const int64_t keys = num_key_rows(problem) * problem.num_heads_q;
    take(states, queries, sizeof(QueryState));
    take(bias_of_rows, leaves_bias_of_rows(problem) ? queries : 0, sizeof(float));
    take(bias_of_keys, leaves_bias_of_keys(problem) ? keys : 0, sizeof(float));
    take(tensor_sums, needs_dtensors(problem) ? kTensorSums : 0, sizeof(double));
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
    case Pass::query_states:
      return by_warps(params.num_rows);
    case Pass::key_rows:
    case Pass::key_terms:
      return by_warps(params.num_keys);
    case Pass::bias_rows:
      return params.key.seqlen == 0 ? 0
                                    : by_warps(int64_t{params.dbias.num_batches} *
                                               params.dbias.num_heads * params.query.seqlen);
    case Pass::tensor_sums:
      return by_warps(params.tensor_sums.num_sums);
    case Pass::tensor_gradient:
      return by_warps(params.tensor_sums.num_elements);
    case Pass::term_sums:
      break;
  }
  return std::max(elements(params.sink_sums), elements(params.bias_sums));
}

// A tensor that wants a gradient.
Result<TensorSums> tensor_sums(const Problem& problem,
                               const expression::DeviceModification& modification, const Args& args,
                               size_t tensor) {
  const std::string& name = problem.tensors[tensor].name;
  const TensorView& view = std::ranges::find(args.dtensors, name, &NamedTensor::name)->view;
  TensorSums result{};
  int64_t count = 1;
  for (int axis = 0; axis < 4; ++axis) {
    const int own_axis = axis - (4 - view.rank);
    const int64_t size = own_axis < 0 ? 1 : view.shape[static_cast<size_t>(own_axis)];
    if (size > 0 && count > kTensorSums / size) {
      return Status(StatusCode::unsupported,
                    fmt::format("dtensors: the gradient of '{}' has more than {} elements, which "
                                "cuda.rows.backward does not add up; use a smaller tensor, or the "
                                "CPU.",
                                name, kTensorSums),
                    "dtensors");
    }
    count *= size;
    result.shape[axis] = static_cast<int>(size);
    result.stride[axis] = own_axis < 0 ? 0 : stride_or_zero(view, own_axis);
  }
  const int64_t rows = problem.batch * problem.num_heads_q * problem.seqlen_q;
  const int64_t fitting = kTensorSums / std::max<int64_t>(count, 1);
  result.gradient = static_cast<float*>(view.data);
  result.num_elements = static_cast<int>(count);
  result.num_sums =
      static_cast<int>(std::clamp<int64_t>(std::min(fitting, rows), 1, kMaxSumsOfTensor));
  const auto place =
      std::ranges::find_if(modification.tensors, [&](const expression::DeviceTensor& one) {
        return one.source == expression::DeviceTensor::Source::expression &&
               one.place == static_cast<int32_t>(tensor);
      });
  result.tensor = static_cast<int>(place - modification.tensors.begin());
  result.sums = reinterpret_cast<double*>(static_cast<std::byte*>(args.workspace) +
                                          Workspace(problem).tensor_sums);
  return result;
}

// The launches of a call, one after the other.
class Steps {
 public:
  Steps(const Problem& problem, const expression::DeviceModification& modification,
        const Args& args, const std::vector<Pass>& passes)
      : problem_(problem),
        modification_(modification),
        args_(args),
        passes_(passes),
        params_(make_params(problem, args)) {
    // Whoever makes dq makes dsink.
    if (passes.front() != Pass::query_rows) params_.sink_sums = {};
  }

  Status list() {
    Status status;
    for (size_t n = 0; n < passes_.size() && status.ok(); ++n) {
      if (passes_[n] == Pass::tensor_sums) return list_tensors(n);
      status = add(n, passes_[n]);
    }
    return status;
  }
  std::vector<cuda::Step> take() { return std::move(steps_); }

 private:
  Status add(size_t kernel, Pass pass) {
    const int64_t blocks = std::min(num_blocks(params_, pass), kMaxBlocks);
    if (blocks == 0) return {};
    const Result<std::vector<std::byte>> bytes =
        cuda::modified_params(params_, modification_, problem_, args_);
    if (!bytes.ok()) return bytes.status();
    cuda::Step step{.kernel = kernel, .grid = {}, .cluster = {}, .params = bytes.value()};
    step.grid.x = static_cast<unsigned>(blocks);
    steps_.push_back(std::move(step));
    return {};
  }

  // The two kernels from `first` on, for each tensor that has elements.
  Status list_tensors(size_t first) {
    Status status;
    for (size_t t = 0; t < problem_.tensors.size() && status.ok(); ++t) {
      if (!problem_.tensors[t].needs_grad) continue;
      const Result<TensorSums> sums = tensor_sums(problem_, modification_, args_, t);
      if (!sums.ok()) return sums.status();
      if (sums.value().num_elements == 0) continue;
      params_.tensor_sums = sums.value();
      status = add(first, Pass::tensor_sums);
      if (status.ok()) status = add(first + 1, Pass::tensor_gradient);
    }
    return status;
  }

  const Problem& problem_;
  const expression::DeviceModification& modification_;
  const Args& args_;
  const std::vector<Pass>& passes_;
  BackwardParams params_;
  std::vector<cuda::Step> steps_;
};

void add_sum_passes(const Problem& problem, bool makes_dsink, std::vector<Pass>& passes) {
  if (has_pair_bias(problem)) passes.push_back(Pass::bias_rows);
  if (makes_dsink || leaves_bias_of_rows(problem) || leaves_bias_of_keys(problem))
    passes.push_back(Pass::term_sums);
  if (needs_dtensors(problem)) {
    passes.push_back(Pass::tensor_sums);
    passes.push_back(Pass::tensor_gradient);
  }
}

}  // namespace

std::vector<Pass> passes_of(const Problem& problem) {
  std::vector<Pass> passes = {Pass::query_rows, Pass::key_rows};
  add_sum_passes(problem, problem.needs_dsink, passes);
  return passes;
}

std::vector<Pass> companions_of(const Problem& problem) {
  if (!problem.needs_dbias && !needs_dtensors(problem)) return {};
  std::vector<Pass> passes = {Pass::query_states};
  if (leaves_bias_of_keys(problem)) passes.push_back(Pass::key_terms);
  add_sum_passes(problem, false, passes);
  return passes;
}

size_t backward_workspace_bytes(const Problem& problem) { return Workspace(problem).total; }

Result<std::vector<cuda::Step>> make_steps(const Problem& problem,
                                           const expression::DeviceModification& modification,
                                           const Args& args, const std::vector<Pass>& passes) {
  Steps steps(problem, modification, args, passes);
  if (Status status = steps.list(); !status.ok()) return status;
  return steps.take();
}

}  // namespace sirdar::rows
