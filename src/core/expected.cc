#include "core/expected.h"

#include <fmt/format.h>

#include <algorithm>

namespace sirdar {
namespace {

class Describer {
 public:
  Describer(const Problem& problem, const Args& args)
      : p_(problem), args_(args), is_backward_(problem.op == Op::backward) {}

  std::vector<Expected> all() && {
    constexpr size_t kMembersOfArgs = 24;
    list_.reserve(kMembersOfArgs + 2 * p_.tensors.size());
    rows_of_tokens();
    row_statistics();
    lengths();
    masks_and_logits();
    gradients();
    expression_tensors();
    return std::move(list_);
  }

 private:
  void add(std::string_view name, const TensorView& view, bool is_wanted, Role role,
           Strides strides, DType dtype, AxisList axes) {
    list_.push_back({std::string(name), &view, is_wanted, role, strides, dtype, axes});
  }

  AxisList query_axes(std::string_view dim_name, int64_t dim) const {
    const Axis heads{"num_heads_q", p_.num_heads_q}, columns{dim_name, dim};
    if (p_.layout_q == Layout::ragged) return {{"total_q", p_.total_q}, heads, columns};
    return {{"batch", p_.batch}, {"seqlen_q", p_.seqlen_q}, heads, columns};
  }

  AxisList key_axes(std::string_view dim_name, int64_t dim) const {
    const Axis heads{"num_heads_kv", p_.num_heads_kv}, columns{dim_name, dim};
    if (p_.layout_kv == Layout::ragged) return {{"total_k", p_.total_k}, heads, columns};
    if (p_.layout_kv == Layout::paged)
      return {{"num_pages", 0, false, true}, {"page_size", p_.page_size}, heads, columns};
    return {{"batch", p_.batch}, {"seqlen_k", p_.seqlen_k}, heads, columns};
  }

  AxisList statistics_axes() const {
    const Axis heads{"num_heads_q", p_.num_heads_q};
    if (p_.layout_q == Layout::ragged) return {heads, {"total_q", p_.total_q}};
    return {{"batch", p_.batch}, heads, {"seqlen_q", p_.seqlen_q}};
  }

  AxisList score_axes(const Axes& axes) const {
    return {{"batch", axes.batch ? p_.batch : 1},
            {"num_heads_q", axes.head ? p_.num_heads_q : 1},
            {"seqlen_q", axes.query ? p_.seqlen_q : 1},
            {"seqlen_k", axes.key ? p_.seqlen_k : 1}};
  }

  // What q, k, v, out and their gradients are like.
  void rows_of_tokens() {
    const AxisList q = query_axes("head_dim", p_.head_dim);
    const AxisList k = key_axes("head_dim", p_.head_dim);
    const AxisList v = key_axes("head_dim_v", p_.value_dim());
    const AxisList out = query_axes("head_dim_v", p_.value_dim());
    const Role out_role = is_backward_ ? Role::input : Role::output;
    add("q", args_.q, true, Role::input, Strides::rows, p_.dtype_q, q);
    add("k", args_.k, true, Role::input, Strides::rows, p_.dtype_kv, k);
    add("v", args_.v, true, Role::input, Strides::rows, p_.dtype_kv, v);
    add("out", args_.out, true, out_role, Strides::rows, p_.output_dtype(), out);
    add("dout", args_.dout, is_backward_, Role::input, Strides::rows, p_.output_dtype(), out);
    add("dq", args_.dq, is_backward_, Role::output, Strides::rows, p_.dtype_q, q);
    add("dk", args_.dk, is_backward_, Role::output, Strides::rows, p_.dtype_kv, k);
    add("dv", args_.dv, is_backward_, Role::output, Strides::rows, p_.dtype_kv, v);
  }

  void row_statistics() {
    const Role lse_role = is_backward_ ? Role::input : Role::output;
    add("lse", args_.lse, is_backward_ || p_.needs_lse, lse_role, Strides::any, DType::fp32,
        statistics_axes());
    add("max_logit", args_.max_logit, p_.needs_max_logit, Role::output, Strides::any, DType::fp32,
        statistics_axes());
    add("dlse", args_.dlse, p_.has_dlse, Role::input, Strides::any, DType::fp32, statistics_axes());
  }

  void lengths() {
    const auto integers = [&](std::string_view name, const TensorView& view, bool is_wanted,
                              AxisList axes) {
      add(name, view, is_wanted, Role::input, Strides::any, DType::int32, axes);
    };
    const Axis ends{"batch + 1", p_.batch + 1}, batch{"batch", p_.batch};
    integers("cu_seqlens_q", args_.cu_seqlens_q, p_.layout_q == Layout::ragged, {ends});
    integers("cu_seqlens_k", args_.cu_seqlens_k, p_.layout_kv == Layout::ragged, {ends});
    integers("seqused_q", args_.seqused_q, p_.has_seqused_q, {batch});
    integers("seqused_k", args_.seqused_k, p_.has_seqused_k, {batch});
    integers("page_table", args_.page_table, p_.layout_kv == Layout::paged,
             {batch, {"max_pages", 0, false, true}});
    const Axis shared_batch{"batch", p_.batch, true};
    integers("document_q", args_.document_q, p_.has_document,
             {shared_batch, {"seqlen_q", p_.seqlen_q}});
    integers("document_k", args_.document_k, p_.has_document,
             {shared_batch, {"seqlen_k", p_.seqlen_k}});
  }

  void masks_and_logits() {
    add("mask", args_.mask, p_.has_mask_tensor, Role::input, Strides::any, DType::boolean,
        score_axes(p_.mask_axes));
    add("bias", args_.bias, p_.has_bias, Role::input, Strides::any, p_.dtype_bias,
        score_axes(p_.bias_axes));
    const Axis heads{"num_heads_q", p_.num_heads_q};
    const Axis batch{"batch", p_.batch, true};
    const AxisList alibi = args_.alibi.rank == 1 ? AxisList{heads} : AxisList{batch, heads};
    add("alibi", args_.alibi, p_.has_alibi, Role::input, Strides::any, DType::fp32, alibi);
    add("sink", args_.sink, p_.has_sink, Role::input, Strides::any, DType::fp32, {heads});
  }

  void gradients() {
    add("dbias", args_.dbias, p_.needs_dbias, Role::output, Strides::any, DType::fp32,
        score_axes(p_.bias_axes));
    add("dsink", args_.dsink, p_.needs_dsink, Role::output, Strides::any, DType::fp32,
        {{"num_heads_q", p_.num_heads_q}});
  }

  void expression_tensors() {
    constexpr std::string_view kAxisNames[] = {"axis 0", "axis 1", "axis 2", "axis 3"};
    for (const ExpressionTensor& tensor : p_.tensors) {
      const auto named = [&](const std::vector<NamedTensor>& views) {
        return std::find_if(views.begin(), views.end(), [&](const NamedTensor& candidate) {
          return candidate.name == tensor.name;
        });
      };
      const auto given = named(args_.tensors);
      if (given == args_.tensors.end()) continue;
      AxisList axes;
      for (int axis = 0; axis < tensor.rank; ++axis)
        axes.push_back({kAxisNames[axis], 0, false, true});
      add(tensor.name, given->view, true, Role::input, Strides::any, tensor.dtype, axes);
      const auto gradient = named(args_.dtensors);
      if (gradient == args_.dtensors.end()) continue;
      for (int axis = 0; axis < tensor.rank; ++axis)
        axes[static_cast<size_t>(axis)] = {kAxisNames[axis],
                                           axis < given->view.rank ? given->view.shape[axis] : 0};
      add("dtensors." + tensor.name, gradient->view, tensor.needs_grad, Role::output, Strides::any,
          DType::fp32, axes);
    }
  }

  const Problem& p_;
  const Args& args_;
  const bool is_backward_;
  std::vector<Expected> list_;
};

}  // namespace

std::vector<Expected> expected_tensors(const Problem& problem, const Args& args) {
  return Describer(problem, args).all();
}

}  // namespace sirdar
