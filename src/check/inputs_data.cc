// What the arguments hold: random values, lengths, pages and masks that are valid for the problem.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "check/inputs.h"
#include "core/elements.h"
#include "core/geometry.h"
#include "core/memory.h"
#include "reference/attention.h"
#include "shared/dtype.h"

namespace sirdar::check {
namespace {

void put(const TensorView& view, int64_t offset, int32_t value) {
  static_cast<int32_t*>(view.data)[offset] = value;
}
void put(const TensorView& view, int64_t offset, bool value, uint64_t bits) {
  static_cast<uint8_t*>(view.data)[offset] = value ? (bits & 1 ? 255 : 1) : 0;
}

std::vector<int64_t> rows_shape(const Problem& problem, Layout layout, bool is_query, int64_t heads,
                                int64_t dim) {
  if (layout == Layout::ragged) return {is_query ? problem.total_q : problem.total_k, heads, dim};
  return {problem.batch, is_query ? problem.seqlen_q : problem.seqlen_k, heads, dim};
}

std::vector<int64_t> statistics_shape(const Problem& problem) {
  if (problem.layout_q == Layout::ragged) return {problem.num_heads_q, problem.total_q};
  return {problem.batch, problem.num_heads_q, problem.seqlen_q};
}

std::vector<int64_t> axes_shape(const Problem& problem, const Axes& axes) {
  return {axes.batch ? problem.batch : 1, axes.head ? problem.num_heads_q : 1,
          axes.query ? problem.seqlen_q : 1, axes.key ? problem.seqlen_k : 1};
}

// Big enough for the indices that expressions use: b or h first, positions last.
std::vector<int64_t> expression_tensor_shape(const Problem& problem, int rank) {
  const int64_t sequences = std::max(problem.batch, problem.num_heads_q);
  const int64_t positions = std::max(problem.seqlen_q, problem.seqlen_k);
  const int64_t all = std::max(sequences, positions);
  switch (rank) {
    case 1:
      return {all};
    case 2:
      return {sequences, all};
    case 3:
      return {sequences, positions, positions};
    default:
      return {problem.batch, problem.num_heads_q, problem.seqlen_q, problem.seqlen_k};
  }
}

// A length of 0..bound that likes the ends.
int64_t odd_length(int64_t bound, int64_t choice, int64_t random) {
  switch (choice) {
    case 0:
      return 0;
    case 1:
      return std::min<int64_t>(1, bound);
    case 2:
      return bound;
    default:
      return random;
  }
}

}  // namespace

Inputs::Inputs(const Problem& problem, uint64_t seed, Style style, int64_t alignment,
               const Placement& placement)
    : problem_(problem), style_(style), alignment_(alignment), placement_(placement), state_(seed) {
  make_lengths();
  make_qkv();
  make_masks();
  make_scores();
  make_expression_tensors();
  if (problem.dropout_p > 0) {
    args_.dropout_seed = next();
    args_.dropout_offset = next();
  }
  if (problem.op == Op::forward) {
    make_outputs();
  } else {
    make_gradients();
    if (style_ != Style::unsaved && (style_ != Style::timed || !run_forward())) refresh_saved();
  }
  accept();
}

void Inputs::make_lengths() {
  const auto cumulative = [&](std::string name, int64_t total, int64_t longest) {
    const TensorView view = input(std::move(name), DType::int32, {problem_.batch + 1});
    std::vector<int64_t> lengths(static_cast<size_t>(problem_.batch));
    int64_t missing = total;
    for (int64_t& length : lengths) {
      length = std::min(missing, hostile() ? odd_length(longest, below(6), below(longest + 1))
                                           : std::min(longest, total / problem_.batch));
      missing -= length;
    }
    for (size_t n = lengths.size(); missing > 0 && n-- > 0;) {
      const int64_t more = std::min(missing, longest - lengths[n]);
      lengths[n] += more;
      missing -= more;
    }
    int64_t sum = 0;
    put(view, 0, 0);
    for (int64_t b = 0; b < problem_.batch; ++b) {
      sum += lengths[static_cast<size_t>(b)];
      put(view, b + 1, static_cast<int32_t>(sum));
    }
    return view;
  };
  const auto used = [&](std::string name, const Extents& extents) {
    const TensorView view = input(std::move(name), DType::int32, {problem_.batch});
    for (int64_t b = 0; b < problem_.batch; ++b) {
      const int64_t stored = extents.sequence(b).stored;
      const int64_t length = hostile() ? odd_length(stored, below(6), below(stored + 1)) : stored;
      put(view, b, static_cast<int32_t>(length));
    }
    return view;
  };
  if (problem_.layout_q == Layout::ragged) {
    args_.cu_seqlens_q = cumulative("cu_seqlens_q", problem_.total_q, problem_.seqlen_q);
  }
  if (problem_.layout_kv == Layout::ragged) {
    args_.cu_seqlens_k = cumulative("cu_seqlens_k", problem_.total_k, problem_.seqlen_k);
  }
  Problem whole = problem_;
  whole.has_seqused_q = whole.has_seqused_k = false;
  if (problem_.has_seqused_q) args_.seqused_q = used("seqused_q", query_extents(whole, args_));
  if (problem_.has_seqused_k) args_.seqused_k = used("seqused_k", key_extents(whole, args_));
}

// Scattered pages, some belonging to nobody; the table names no page where no key is used.
void Inputs::make_pages() {
  const int64_t max_pages = (problem_.seqlen_k + problem_.page_size - 1) / problem_.page_size;
  args_.page_table = input("page_table", DType::int32, {problem_.batch, max_pages});
  std::vector<int32_t> pages(static_cast<size_t>(problem_.batch * max_pages + 3));
  std::iota(pages.begin(), pages.end(), 0);
  for (size_t n = pages.size(); hostile() && n > 1; --n) {
    std::swap(pages[n - 1], pages[static_cast<size_t>(below(static_cast<int64_t>(n)))]);
  }
  const Extents extents = key_extents(problem_, args_);
  for_each_element(args_.page_table, [&](int64_t offset, int64_t index) {
    const int64_t first_key = index % max_pages * problem_.page_size;
    const bool is_used = first_key < extents.sequence(index / max_pages).length;
    if (is_used) put(args_.page_table, offset, pages[static_cast<size_t>(index)]);
  });
  const int64_t count = static_cast<int64_t>(pages.size());
  args_.k = input("k", problem_.dtype_kv,
                  {count, problem_.page_size, problem_.num_heads_kv, problem_.head_dim});
  args_.v = input("v", problem_.dtype_kv,
                  {count, problem_.page_size, problem_.num_heads_kv, problem_.value_dim()});
}

void Inputs::fill_rows(const TensorView& view, Layout layout, bool is_query) {
  if (is_empty(view)) return;
  const Extents extents = is_query ? query_extents(problem_, args_) : key_extents(problem_, args_);
  const RowMap map = row_map(view, layout, problem_.page_size, args_.page_table);
  const size_t last = static_cast<size_t>(view.rank - 1);
  for (int64_t b = 0; b < problem_.batch; ++b) {
    const Sequence sequence = extents.sequence(b);
    for (int64_t row = 0; row < sequence.length; ++row) {
      for (int64_t head = 0; head < view.shape[last - 1]; ++head) {
        for (int64_t c = 0; c < view.shape[last]; ++c) {
          const double outlier = hostile() && c % 16 == 3 ? 5 : 1;
          store_element(view, map.offset(b, sequence, row, head) + c, outlier * normal());
        }
      }
    }
  }
}

void Inputs::make_qkv() {
  const Problem& p = problem_;
  args_.q = input("q", p.dtype_q, rows_shape(p, p.layout_q, true, p.num_heads_q, p.head_dim));
  if (p.layout_kv == Layout::paged) {
    make_pages();
  } else {
    args_.k = input("k", p.dtype_kv, rows_shape(p, p.layout_kv, false, p.num_heads_kv, p.head_dim));
    args_.v =
        input("v", p.dtype_kv, rows_shape(p, p.layout_kv, false, p.num_heads_kv, p.value_dim()));
  }
  fill_rows(args_.q, p.layout_q, true);
  fill_rows(args_.k, p.layout_kv, false);
  fill_rows(args_.v, p.layout_kv, false);
}

void Inputs::make_masks() {
  const auto documents = [&](std::string name, int64_t seqlen) {
    const int64_t rows = hostile() && below(2) == 0 ? 1 : problem_.batch;
    const TensorView view = input(std::move(name), DType::int32, {rows, seqlen});
    // About five documents on either side, however different the two lengths are: each query then
    // sees keys in the middle of the sequence too, and some blocks lie within one document.
    const auto mean_length = std::max<int64_t>(3, seqlen / 5);
    int32_t id = 0;
    for_each_element(view, [&](int64_t offset, int64_t index) {
      id = index % seqlen == 0 ? static_cast<int32_t>(below(2)) : id + (below(mean_length) == 0);
      put(view, offset, id);
    });
    return view;
  };
  if (problem_.has_document) {
    args_.document_q = documents("document_q", problem_.seqlen_q);
    args_.document_k = documents("document_k", problem_.seqlen_k);
  }
  if (!problem_.has_mask_tensor) return;
  args_.mask = input("mask", DType::boolean, axes_shape(problem_, problem_.mask_axes), Order::any);
  bool row_is_empty = false;
  for_each_element(args_.mask, [&](int64_t offset, int64_t index) {
    if (index % args_.mask.shape[3] == 0) {
      row_is_empty = hostile() && args_.mask.shape[2] > 1 && below(8) == 0;
    }
    put(args_.mask, offset, !row_is_empty && below(8) != 0, next());
  });
}

void Inputs::make_scores() {
  const double lowest = -std::numeric_limits<double>::infinity();
  if (problem_.has_bias) {
    args_.bias =
        input("bias", problem_.dtype_bias, axes_shape(problem_, problem_.bias_axes), Order::any);
    for_each_element(args_.bias, [&](int64_t offset, int64_t) {
      const bool masks = hostile() && below(32) == 0;
      store_element(args_.bias, offset, masks ? lowest : normal());
    });
  }
  if (problem_.has_alibi) {
    const int64_t heads = problem_.num_heads_q;
    const int64_t shape = hostile() ? below(3) : 0;
    args_.alibi = shape == 0   ? input("alibi", DType::fp32, {heads})
                  : shape == 1 ? input("alibi", DType::fp32, {1, heads})
                               : input("alibi", DType::fp32, {problem_.batch, heads});
    for_each_element(args_.alibi, [&](int64_t offset, int64_t index) {
      const double part = static_cast<double>(index % heads + 1) / static_cast<double>(heads);
      store_element(args_.alibi, offset, std::exp2(-8 * part) * (1 + 0.1 * uniform()));
    });
  }
  if (problem_.has_sink) {
    args_.sink = input("sink", DType::fp32, {problem_.num_heads_q});
    for_each_element(args_.sink, [&](int64_t offset, int64_t) {
      store_element(args_.sink, offset, hostile() && below(16) == 0 ? lowest : normal());
    });
  }
}

void Inputs::make_expression_tensors() {
  for (const ExpressionTensor& wanted : problem_.tensors) {
    const TensorView view =
        input(wanted.name, wanted.dtype, expression_tensor_shape(problem_, wanted.rank));
    for_each_element(view, [&](int64_t offset, int64_t) {
      switch (wanted.dtype) {
        case DType::boolean:
          return put(view, offset, below(4) != 0, next());
        case DType::int32:
          return put(view, offset, static_cast<int32_t>(below(6)));
        default:
          return store_element(view, offset, 0.25 * normal());
      }
    });
    args_.tensors.push_back({wanted.name, view});
  }
  for (const std::string& name : problem_.scalars) {
    args_.scalars.emplace_back(name, static_cast<float>(0.5 + 1.5 * uniform()));
  }
}

void Inputs::make_outputs() {
  const Problem& p = problem_;
  args_.out = output("out", p.output_dtype(),
                     rows_shape(p, p.layout_q, true, p.num_heads_q, p.value_dim()));
  if (p.needs_lse) args_.lse = output("lse", DType::fp32, statistics_shape(p));
  if (p.needs_max_logit) args_.max_logit = output("max_logit", DType::fp32, statistics_shape(p));
}

void Inputs::make_gradients() {
  const Problem& p = problem_;
  const std::vector<int64_t> out_shape =
      rows_shape(p, p.layout_q, true, p.num_heads_q, p.value_dim());
  args_.out = input("out", p.output_dtype(), out_shape);
  args_.lse = input("lse", DType::fp32, statistics_shape(p));
  args_.dout = input("dout", p.output_dtype(), out_shape);
  fill_rows(args_.dout, p.layout_q, true);
  if (p.has_dlse) {
    args_.dlse = input("dlse", DType::fp32, statistics_shape(p));
    for_each_element(args_.dlse,
                     [&](int64_t offset, int64_t) { store_element(args_.dlse, offset, normal()); });
  }
  args_.dq = output("dq", p.dtype_q, rows_shape(p, p.layout_q, true, p.num_heads_q, p.head_dim));
  args_.dk =
      output("dk", p.dtype_kv, rows_shape(p, p.layout_kv, false, p.num_heads_kv, p.head_dim));
  args_.dv =
      output("dv", p.dtype_kv, rows_shape(p, p.layout_kv, false, p.num_heads_kv, p.value_dim()));
  if (p.needs_dbias) args_.dbias = output("dbias", DType::fp32, axes_shape(p, p.bias_axes));
  if (p.needs_dsink) args_.dsink = output("dsink", DType::fp32, {p.num_heads_q});
  for (const ExpressionTensor& wanted : p.tensors) {
    if (!wanted.needs_grad) continue;
    args_.dtensors.push_back({wanted.name, output("d" + wanted.name, DType::fp32,
                                                  expression_tensor_shape(p, wanted.rank))});
  }
}

Problem forward_of(const Problem& backward) {
  Problem forward = backward;
  forward.op = Op::forward;
  forward.needs_lse = true;
  forward.has_dlse = forward.needs_dbias = forward.needs_dsink = false;
  for (ExpressionTensor& tensor : forward.tensors) tensor.needs_grad = false;
  return forward;
}

Args forward_of(const Args& backward) {
  Args args = backward;
  args.dout = args.dlse = args.dq = args.dk = args.dv = args.dbias = args.dsink = {};
  args.dtensors.clear();
  return args;
}

// Writes out and lse; false if nothing fast can.
bool Inputs::run_forward() {
  const Result<Plan> plan = Plan::create(forward_of(problem_));
  if (!plan.ok()) return false;
  Args args = forward_of(args_);
  Bytes workspace(plan.value().workspace_bytes());
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.size();
  return plan.value().run(args).ok();
}

void Inputs::refresh_saved() {
  const reference::Forward saved = reference::forward(problem_, args_);
  for_each_element(args_.out, [&](int64_t offset, int64_t index) {
    store_element(args_.out, offset, saved.out[static_cast<size_t>(index)]);
  });
  for_each_element(args_.lse, [&](int64_t offset, int64_t index) {
    store_element(args_.lse, offset, saved.lse[static_cast<size_t>(index)]);
  });
}

}  // namespace sirdar::check
