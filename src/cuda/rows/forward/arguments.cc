#include "cuda/rows/forward/arguments.h"

#include <algorithm>

#include "cuda/rows/scores.h"

namespace sirdar::rows {
namespace {

RowMap key_map(const Problem& problem, const TensorView& view, const Args& args) {
  // Positions are below 2^30: a larger page is a page of all keys.
  const int64_t page_size = std::min(problem.page_size, int64_t{1} << 30);
  return row_map(view, problem.layout_kv, page_size, args.page_table);
}

void add_rows(const Problem& problem, const ForwardConfig& config, const Args& args,
              ForwardParams& params) {
  params.q = args.q.data;
  params.k = args.k.data;
  params.v = args.v.data;
  params.out = args.out.data;
  params.lse = static_cast<float*>(args.lse.data);
  params.max_logit = static_cast<float*>(args.max_logit.data);
  params.q_rows = row_map(args.q, problem.layout_q);
  params.k_rows = key_map(problem, args.k, args);
  params.v_rows = key_map(problem, args.v, args);
  params.out_rows = row_map(args.out, problem.layout_q);
  params.lse_rows = row_statistics_map(args.lse, problem.layout_q);
  params.max_logit_rows = row_statistics_map(args.max_logit, problem.layout_q);
  params.query = query_extents(problem, args);
  params.key = key_extents(problem, args);
  const int group = group_columns(config);
  params.reads_k_vectors = is_aligned(args.k, params.k_rows, 16);
  params.reads_v_vectors =
      problem.value_dim() % group == 0 &&
      is_aligned(args.v, params.v_rows, int64_t{group} * size_bytes(args.v.dtype));
}

}  // namespace

ForwardParams make_params(const Problem& problem, const ForwardConfig& config, const Args& args) {
  ForwardParams params{};
  params.head_dim = static_cast<int>(problem.head_dim);
  params.head_dim_v = static_cast<int>(problem.value_dim());
  params.num_heads_kv = static_cast<int>(problem.num_heads_kv);
  params.group_size = static_cast<int>(problem.group_size());
  params.num_rows = problem.batch * problem.num_heads_q * problem.seqlen_q;
  add_rows(problem, config, args, params);
  add_scores(problem, args, params);
  return params;
}

}  // namespace sirdar::rows
