#include <fmt/format.h>

#include <algorithm>

#include "core/memory.h"
#include "core/rules.h"

namespace sirdar {
namespace {

struct Named {
  std::string_view name;
  const TensorView* view;
  bool is_lse, is_output;
};

bool same_shape(const TensorView& a, const TensorView& b) {
  return a.rank == b.rank && std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin());
}

bool same_memory(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype || !same_shape(a, b)) return false;
  for (int axis = 0; axis < a.rank; ++axis)
    if (a.shape[axis] > 1 && a.stride[axis] != b.stride[axis]) return false;
  return true;
}

// The lse that goes with an out: [batch, heads, seqlen] of [batch, seqlen, heads, dim], or
// [heads, total] of [total, heads, dim].
bool lse_fits(const TensorView& out, const TensorView& lse) {
  if (out.rank == 4)
    return lse.rank == 3 && lse.shape[0] == out.shape[0] && lse.shape[1] == out.shape[2] &&
           lse.shape[2] == out.shape[1];
  return lse.rank == 2 && lse.shape[0] == out.shape[1] && lse.shape[1] == out.shape[0];
}

Status check_sane(const Named& one, bool is_empty_merge) {
  const TensorView& view = *one.view;
  if (view.rank < 0 || view.rank > kMaxRank)
    return broken("V064", one.name,
                  fmt::format("rank {} is not from 0 to {}; fix the view.", view.rank, kMaxRank));
  for (int axis = 0; axis < view.rank; ++axis)
    if (view.shape[axis] < 0)
      return broken("V064", one.name, "its shape has a negative size; use 0 or more.");
  if (!view.present() && !is_empty_merge)
    return broken("V070", one.name,
                  "it is missing; merge reads two partial results and writes one.");
  return {};
}

Status check_description(const Named& one, const TensorView& first) {
  const TensorView& view = *one.view;
  const bool is_float = view.dtype == DType::fp32 ||
                        (!one.is_lse && (view.dtype == DType::bf16 || view.dtype == DType::fp16));
  if (one.is_lse ? !lse_fits(first, view) : !same_shape(first, view))
    return broken(one.is_lse ? "V072" : "V071", one.name,
                  one.is_lse ? "its shape does not fit out_a; it must be [batch, num_heads_q, "
                               "seqlen_q] or [num_heads_q, total_q]."
                             : "its shape differs from out_a; all outs must be alike.");
  if (!is_float)
    return broken("V073", one.name,
                  fmt::format("dtype {} is not allowed; use {}.", name_of(view.dtype),
                              one.is_lse ? "fp32" : "fp32, bf16 or fp16"));
  if (is_empty(view)) return {};
  if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(size_bytes(view.dtype)) != 0)
    return broken("V046", one.name,
                  fmt::format("its address is not a multiple of {}, the size of {}; align it.",
                              size_bytes(view.dtype), name_of(view.dtype)));
  if (!fits_address_space(view))
    return broken("V047", one.name, "it reaches outside the address space; fix the strides.");
  if (!one.is_lse && view.shape[view.rank - 1] > 1 && view.stride[view.rank - 1] != 1)
    return broken("V045", one.name,
                  fmt::format("the last axis has stride {}; it must be 1, so copy or transpose the "
                              "tensor.",
                              view.stride[view.rank - 1]));
  if (!one.is_output) return {};
  for (int axis = 0; axis < view.rank; ++axis)
    if (view.shape[axis] > 1 && view.stride[axis] <= 0)
      return broken("V048", one.name,
                    fmt::format("axis {} has stride {}; strides of an output must be positive.",
                                axis, view.stride[axis]));
  if (overlaps_itself(view))
    return broken("V049", one.name, "its strides put two elements in one place; fix them.");
  return {};
}

}  // namespace

Status validate(const MergeArgs& args) {
  const Named all[] = {{"out_a", &args.out_a, false, false}, {"lse_a", &args.lse_a, true, false},
                       {"out_b", &args.out_b, false, false}, {"lse_b", &args.lse_b, true, false},
                       {"out", &args.out, false, true},      {"lse", &args.lse, true, true}};
  if (Status status = check_sane(all[0], true); !status.ok()) return status;
  const TensorView& first = args.out_a;
  const bool is_empty_merge = first.rank > 0 && is_empty(first);
  for (const Named& one : all)
    if (Status status = check_sane(one, is_empty_merge); !status.ok()) return status;
  if (first.rank != 3 && first.rank != 4)
    return broken("V071", "out_a",
                  fmt::format("rank {} is neither [batch, seqlen_q, num_heads_q, head_dim_v] nor "
                              "[total_q, num_heads_q, head_dim_v].",
                              first.rank));
  for (const Named& one : all)
    if (Status status = check_description(one, first); !status.ok()) return status;
  for (const Named& output : all) {
    if (!output.is_output) continue;
    for (const Named& other : all) {
      if (output.view == other.view || !overlap(*output.view, *other.view)) continue;
      const bool is_in_place = other.view == (output.is_lse ? &args.lse_a : &args.out_a) &&
                               same_memory(*output.view, *other.view);
      if (!is_in_place)
        return broken(
            "V074", output.name,
            fmt::format("it shares memory with {}; an output may only be the whole of {}.",
                        other.name, output.is_lse ? "lse_a" : "out_a"));
    }
  }
  return {};
}

}  // namespace sirdar
