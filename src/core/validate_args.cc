// Rules about the tensors of one call: what is there, and what its description says of it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/expected.h"
#include "core/memory.h"
#include "core/rules.h"
#include "core/validate_contents.h"

namespace sirdar {
namespace {

std::string shape_text(const TensorView& view) {
  return fmt::format("[{}]", fmt::join(view.shape.begin(), view.shape.begin() + view.rank, ", "));
}

std::string axes_text(const Expected& expected) {
  std::string names, sizes;
  for (const Axis& axis : expected.axes) {
    const std::string_view comma = names.empty() ? "" : ", ";
    names += fmt::format("{}{}{}", comma, axis.name, axis.may_be_one ? "|1" : "");
    sizes += axis.any ? fmt::format("{}any", comma) : fmt::format("{}{}", comma, axis.size);
    if (axis.may_be_one && axis.size != 1) sizes += "|1";
  }
  return fmt::format("[{}] = [{}]", names, sizes);
}

// A view whose numbers may be looked at: rank, sizes and dtype are in their ranges.
Status check_sane(std::string_view name, const TensorView& view) {
  if (view.rank < 0 || view.rank > kMaxRank)
    return broken("V064", name,
                  fmt::format("rank {} is not from 0 to {}; fix the view.", view.rank, kMaxRank));
  for (int axis = 0; axis < view.rank; ++axis)
    if (view.shape[axis] < 0)
      return broken("V064", name,
                    fmt::format("shape {} has a negative size; use 0 or more.", shape_text(view)));
  if (size_bytes(view.dtype) == 0)
    return broken("V064", name,
                  fmt::format("dtype {} is not one of the enumeration; use its names.",
                              static_cast<int>(view.dtype)));
  return {};
}

bool shape_matches(const TensorView& view, const AxisList& axes) {
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    const int64_t size = view.shape[axis];
    const bool fits =
        axes[axis].any || size == axes[axis].size || (axes[axis].may_be_one && size == 1);
    if (!fits) return false;
  }
  return true;
}

Status check_strides(const Expected& e) {
  const TensorView& view = *e.view;
  const int last = view.rank - 1;
  if (e.strides == Strides::rows && view.shape[last] > 1 && view.stride[last] != 1)
    return broken("V045", e.name,
                  fmt::format("the last axis has stride {}; it must be 1, so copy or transpose the "
                              "tensor.",
                              view.stride[last]));
  if (e.role == Role::input) return {};
  for (int axis = 0; axis < view.rank; ++axis)
    if (view.shape[axis] > 1 && view.stride[axis] <= 0)
      return broken("V048", e.name,
                    fmt::format("axis {} has stride {}; strides of an output must be positive.",
                                axis, view.stride[axis]));
  return {};
}

// What can be said of one tensor without looking at others.
Status check_memory(const Expected& e) {
  const TensorView& view = *e.view;
  if (is_empty(view)) return {};
  if (Status status = check_strides(e); !status.ok()) return status;
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  if (address % static_cast<uintptr_t>(size_bytes(view.dtype)) != 0)
    return broken(
        "V046", e.name,
        fmt::format("its address {:#x} is not a multiple of {}, the size of {}; align it.", address,
                    size_bytes(view.dtype), name_of(view.dtype)));
  if (!fits_address_space(view))
    return broken(
        "V047", e.name,
        fmt::format("shape {} with strides [{}] reaches outside the address space; fix the "
                    "strides.",
                    shape_text(view),
                    fmt::join(view.stride.begin(), view.stride.begin() + view.rank, ", ")));
  if (e.role == Role::output && overlaps_itself(view))
    return broken(
        "V049", e.name,
        fmt::format("shape {} with strides [{}] puts two elements in one place; outputs "
                    "need memory of their own.",
                    shape_text(view),
                    fmt::join(view.stride.begin(), view.stride.begin() + view.rank, ", ")));
  return {};
}

Status check_one(const Expected& e) {
  const TensorView& view = *e.view;
  if (!e.is_wanted) {
    if (!view.present()) return {};
    return broken("V041", e.name,
                  "it is given although the problem does not ask for it; leave it out, or set the "
                  "problem's field.");
  }
  if (!view.present()) {
    // Nothing is read or written in an empty tensor, so any pointer will do; its shape must be
    // there, for implementations go by it.
    const bool is_described_empty = view.rank > 0 && view.rank <= kMaxRank && is_empty(view);
    if (!is_described_empty)
      return broken("V040", e.name, fmt::format("it is missing; pass {}.", axes_text(e)));
  }
  if (Status status = check_sane(e.name, view); !status.ok()) return status;
  if (static_cast<size_t>(view.rank) != e.axes.size())
    return broken("V042", e.name,
                  fmt::format("shape {} has rank {}; it must be {}.", shape_text(view), view.rank,
                              axes_text(e)));
  if (!shape_matches(view, e.axes))
    return broken(
        "V043", e.name,
        fmt::format("shape {} does not fit; it must be {}.", shape_text(view), axes_text(e)));
  if (view.dtype != e.dtype)
    return broken("V044", e.name,
                  fmt::format("dtype {} does not fit the problem; it must be {}.",
                              name_of(view.dtype), name_of(e.dtype)));
  return check_memory(e);
}

// One table leads to both.
Status check_num_pages(const Problem& p, const Args& args) {
  const int64_t k = args.k.shape[0], v = args.v.shape[0];
  if (p.layout_kv != Layout::paged || k == v) return {};
  return broken("V065", "v",
                fmt::format("it has {} pages and k has {}; one page_table leads to both, so give "
                            "them as many.",
                            v, k));
}

Status check_overlaps(const std::vector<Expected>& all) {
  for (const Expected& output : all) {
    if (output.role != Role::output || !output.view->present()) continue;
    for (const Expected& other : all) {
      if (&other == &output || !other.view->present()) continue;
      if (overlap(*output.view, *other.view))
        return broken("V050", output.name,
                      fmt::format("it shares memory with {}; an output needs memory of its own.",
                                  other.name));
    }
  }
  return {};
}

// Given names against wanted ones: each wanted name once, no other.
Status check_names(std::string_view id, std::string_view argument,
                   const std::vector<std::string_view>& given,
                   const std::vector<std::string_view>& wanted) {
  for (size_t i = 0; i < given.size(); ++i) {
    if (std::find(wanted.begin(), wanted.end(), given[i]) == wanted.end())
      return broken(id, argument,
                    fmt::format("'{}' is given although the problem does not list it; use one of "
                                "[{}].",
                                given[i], fmt::join(wanted, ", ")));
    if (std::find(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(i), given[i]) !=
        given.begin() + static_cast<std::ptrdiff_t>(i))
      return broken(id, argument, fmt::format("'{}' is given twice; keep one.", given[i]));
  }
  for (const std::string_view name : wanted)
    if (std::find(given.begin(), given.end(), name) == given.end())
      return broken(id, argument, fmt::format("'{}' is missing; pass it.", name));
  return {};
}

std::vector<std::string_view> names_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string_view> names;
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

Status check_named(const Problem& p, const Args& args) {
  std::vector<std::string_view> tensors, gradients, given_scalars;
  for (const ExpressionTensor& tensor : p.tensors) {
    tensors.push_back(tensor.name);
    if (tensor.needs_grad) gradients.push_back(tensor.name);
  }
  for (const auto& [name, value] : args.scalars) given_scalars.push_back(name);
  const std::vector<std::string_view> scalars(p.scalars.begin(), p.scalars.end());
  if (Status status = check_names("V060", "tensors", names_of(args.tensors), tensors); !status.ok())
    return status;
  if (Status status = check_names("V061", "scalars", given_scalars, scalars); !status.ok())
    return status;
  return check_names("V062", "dtensors", names_of(args.dtensors), gradients);
}

Status check_dropout(const Problem& p, const Args& args) {
  if (p.dropout_p != 0 || (args.dropout_seed == 0 && args.dropout_offset == 0)) return {};
  return broken("V063", args.dropout_seed != 0 ? "dropout_seed" : "dropout_offset",
                "it is given although the problem has no dropout; leave it 0, or set dropout_p.");
}

}  // namespace

Status validate(const Problem& problem, const Args& args, DeviceKind kind) {
  if (Status status = check_named(problem, args); !status.ok()) return status;
  if (Status status = check_dropout(problem, args); !status.ok()) return status;
  const std::vector<Expected> all = expected_tensors(problem, args);
  for (const Expected& expected : all)
    if (Status status = check_one(expected); !status.ok()) return status;
  if (Status status = check_num_pages(problem, args); !status.ok()) return status;
  if (Status status = check_overlaps(all); !status.ok()) return status;
  // Memory of another device cannot be looked at from here.
  return kind == DeviceKind::cpu ? validate_contents(problem, args) : Status();
}

Status validate_workspace(const Problem& problem, const Args& args, size_t needed_bytes) {
  constexpr uintptr_t kAlignment = 64;
  if (needed_bytes == 0) return {};
  const bool is_null = args.workspace == nullptr;
  if (is_null || args.workspace_bytes < needed_bytes)
    return broken(
        "V051", "workspace",
        fmt::format("{} bytes are given{} and the plan needs {}; pass "
                    "Plan::workspace_bytes() of them.",
                    args.workspace_bytes, is_null ? " at a null address" : "", needed_bytes));
  if (reinterpret_cast<uintptr_t>(args.workspace) % kAlignment != 0)
    return broken("V051", "workspace",
                  fmt::format("its address {} is not a multiple of {}; align it.",
                              fmt::ptr(args.workspace), kAlignment));
  const auto bytes = static_cast<int64_t>(needed_bytes);
  const TensorView workspace = TensorView::contiguous(args.workspace, DType::boolean, {bytes});
  for (const Expected& expected : expected_tensors(problem, args))
    if (expected.view->present() && overlap(workspace, *expected.view))
      return broken(
          "V052", "workspace",
          fmt::format("it shares memory with {}; pass memory of its own.", expected.name));
  return {};
}

}  // namespace sirdar
