#include "core/last_args.h"

#include <algorithm>

namespace sirdar {
namespace {

constexpr TensorView Args::*kViews[] = {&Args::q,
                                        &Args::k,
                                        &Args::v,
                                        &Args::out,
                                        &Args::lse,
                                        &Args::max_logit,
                                        &Args::cu_seqlens_q,
                                        &Args::cu_seqlens_k,
                                        &Args::seqused_q,
                                        &Args::seqused_k,
                                        &Args::page_table,
                                        &Args::document_q,
                                        &Args::document_k,
                                        &Args::mask,
                                        &Args::bias,
                                        &Args::alibi,
                                        &Args::sink,
                                        &Args::dout,
                                        &Args::dlse,
                                        &Args::dq,
                                        &Args::dk,
                                        &Args::dv,
                                        &Args::dbias,
                                        &Args::dsink};

bool is_same(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.rank != b.rank || a.dtype != b.dtype) return false;
  if (a.data == nullptr) return true;
  const auto rank = static_cast<size_t>(a.rank);
  return std::equal(a.shape.begin(), a.shape.begin() + rank, b.shape.begin()) &&
         std::equal(a.stride.begin(), a.stride.begin() + rank, b.stride.begin());
}

bool is_same(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.name == y.name && is_same(x.view, y.view);
  });
}

// A seed is legal with dropout alone.
bool has_seed(const Args& args) { return (args.dropout_seed | args.dropout_offset) != 0; }

}  // namespace

size_t place_of(const Args& args) {
  uint64_t hash = 0;
  for (const void* data : {args.q.data, args.k.data, args.dout.data, args.out.data})
    hash = (hash ^ reinterpret_cast<uintptr_t>(data)) * 0x9e3779b97f4a7c15u;
  return static_cast<size_t>(hash >> 58);
}
static_assert(kLastArgs == 64);

bool describe_same_memory(const Args& a, const Args& b) {
  return std::all_of(std::begin(kViews), std::end(kViews),
                     [&](auto view) { return is_same(a.*view, b.*view); }) &&
         has_seed(a) == has_seed(b) && a.workspace == b.workspace &&
         a.workspace_bytes == b.workspace_bytes && is_same(a.tensors, b.tensors) &&
         is_same(a.dtensors, b.dtensors) && a.scalars == b.scalars;
}

}  // namespace sirdar
