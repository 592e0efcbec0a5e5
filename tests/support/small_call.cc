#include "support/small_call.h"

#include <algorithm>
#include <cstring>

namespace sirdar::testing {
namespace {

int32_t* integers(const TensorView& view) { return static_cast<int32_t*>(view.data); }

class Builder {
 public:
  explicit Builder(const Problem& problem) : p_(problem) { call_.problem = problem; }

  SmallCall build() && {
    rows();
    lengths();
    extras();
    if (is_backward_) gradients();
    return std::move(call_);
  }

 private:
  TensorView query_rows(DType dtype, int64_t dim) {
    if (p_.layout_q == Layout::ragged) return call_.make(dtype, {p_.total_q, p_.num_heads_q, dim});
    return call_.make(dtype, {p_.batch, p_.seqlen_q, p_.num_heads_q, dim});
  }
  TensorView key_rows(int64_t dim) {
    if (p_.layout_kv == Layout::ragged)
      return call_.make(p_.dtype_kv, {p_.total_k, p_.num_heads_kv, dim});
    if (p_.layout_kv == Layout::paged)
      return call_.make(p_.dtype_kv, {p_.batch * pages(), p_.page_size, p_.num_heads_kv, dim});
    return call_.make(p_.dtype_kv, {p_.batch, p_.seqlen_k, p_.num_heads_kv, dim});
  }
  TensorView statistics() {
    if (p_.layout_q == Layout::ragged) return call_.make(DType::fp32, {p_.num_heads_q, p_.total_q});
    return call_.make(DType::fp32, {p_.batch, p_.num_heads_q, p_.seqlen_q});
  }
  TensorView scores(DType dtype, const Axes& axes) {
    return call_.make(dtype, {axes.batch ? p_.batch : 1, axes.head ? p_.num_heads_q : 1,
                              axes.query ? p_.seqlen_q : 1, axes.key ? p_.seqlen_k : 1});
  }
  int64_t pages() const { return (p_.seqlen_k + p_.page_size - 1) / p_.page_size; }

  void rows() {
    Args& a = call_.args;
    a.q = query_rows(p_.dtype_q, p_.head_dim);
    a.k = key_rows(p_.head_dim);
    a.v = key_rows(p_.value_dim());
    a.out = query_rows(p_.output_dtype(), p_.value_dim());
    if (p_.needs_lse || is_backward_) a.lse = statistics();
    if (p_.needs_max_logit) a.max_logit = statistics();
  }

  TensorView prefix_sums(int64_t total, int64_t seqlen) {
    const TensorView view = call_.make(DType::int32, {p_.batch + 1});
    for (int64_t b = 0; b < p_.batch; ++b)  // as full as the earlier sequences may be
      integers(view)[b + 1] = static_cast<int32_t>(std::min(total, (b + 1) * seqlen));
    return view;
  }

  TensorView used(const TensorView& ends, int64_t seqlen) {
    const TensorView view = call_.make(DType::int32, {p_.batch});
    for (int64_t b = 0; b < p_.batch; ++b)
      integers(view)[b] =
          ends.present() ? integers(ends)[b + 1] - integers(ends)[b] : static_cast<int32_t>(seqlen);
    return view;
  }

  void lengths() {
    Args& a = call_.args;
    if (p_.layout_q == Layout::ragged) a.cu_seqlens_q = prefix_sums(p_.total_q, p_.seqlen_q);
    if (p_.layout_kv == Layout::ragged) a.cu_seqlens_k = prefix_sums(p_.total_k, p_.seqlen_k);
    if (p_.has_seqused_q) a.seqused_q = used(a.cu_seqlens_q, p_.seqlen_q);
    if (p_.has_seqused_k) a.seqused_k = used(a.cu_seqlens_k, p_.seqlen_k);
    if (p_.layout_kv != Layout::paged) return;
    a.page_table = call_.make(DType::int32, {p_.batch, pages()});
    for (int64_t i = 0; i < p_.batch * pages(); ++i)
      integers(a.page_table)[i] = static_cast<int32_t>(i);
  }

  void extras() {
    Args& a = call_.args;
    if (p_.has_document) {
      a.document_q = call_.make(DType::int32, {p_.batch, p_.seqlen_q});
      a.document_k = call_.make(DType::int32, {p_.batch, p_.seqlen_k});
    }
    if (p_.has_mask_tensor) {
      a.mask = scores(DType::boolean, p_.mask_axes);
    }
    if (p_.has_bias) a.bias = scores(p_.dtype_bias, p_.bias_axes);
    if (p_.has_alibi) a.alibi = call_.make(DType::fp32, {p_.num_heads_q});
    if (p_.has_sink) a.sink = call_.make(DType::fp32, {p_.num_heads_q});
    for (const ExpressionTensor& tensor : p_.tensors) {
      a.tensors.push_back({tensor.name, expression_tensor(tensor.dtype, tensor.rank)});
      if (tensor.needs_grad)
        a.dtensors.push_back({tensor.name, expression_tensor(DType::fp32, tensor.rank)});
    }
    for (const std::string& name : p_.scalars) a.scalars.emplace_back(name, 0.5);
  }

  TensorView expression_tensor(DType dtype, int rank) {
    switch (rank) {
      case 1:
        return call_.make(dtype, {4});
      case 2:
        return call_.make(dtype, {4, 4});
      case 3:
        return call_.make(dtype, {4, 4, 4});
      default:
        return call_.make(dtype, {4, 4, 4, 4});
    }
  }

  void gradients() {
    Args& a = call_.args;
    a.dout = query_rows(p_.output_dtype(), p_.value_dim());
    if (p_.has_dlse) a.dlse = statistics();
    a.dq = query_rows(p_.dtype_q, p_.head_dim);
    a.dk = key_rows(p_.head_dim);
    a.dv = key_rows(p_.value_dim());
    if (p_.needs_dbias) a.dbias = scores(DType::fp32, p_.bias_axes);
    if (p_.needs_dsink) a.dsink = call_.make(DType::fp32, {p_.num_heads_q});
  }

  const Problem& p_;
  const bool is_backward_ = p_.op == Op::backward;
  SmallCall call_;
};

}  // namespace

TensorView SmallCall::make(DType dtype, std::initializer_list<int64_t> shape) {
  TensorView view = TensorView::contiguous(nullptr, dtype, shape);
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  const size_t bytes = static_cast<size_t>(elements * size_bytes(dtype));
  memory.push_back(std::make_unique<std::byte[]>(bytes + 64));  // zeros
  const auto address = reinterpret_cast<uintptr_t>(memory.back().get());
  view.data = memory.back().get() + (64 - address % 64) % 64;
  return view;
}

SmallCall small_call(const Problem& problem) { return Builder(problem).build(); }

}  // namespace sirdar::testing
