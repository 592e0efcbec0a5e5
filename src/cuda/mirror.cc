#include "cuda/mirror.h"

#include <fmt/format.h>

#include <algorithm>

namespace sirdar::cuda {
namespace {

// Offsets in elements of the first and the last element in memory; strides may be negative.
struct Span {
  int64_t first = 0, last = 0;
  bool is_empty = false;
};

Span span_of(const TensorView& view) {
  Span span;
  for (size_t axis = 0; axis < static_cast<size_t>(view.rank); ++axis) {
    if (view.shape[axis] == 0) span.is_empty = true;
    if (view.shape[axis] < 2) continue;
    const int64_t reach = (view.shape[axis] - 1) * view.stride[axis];
    (reach < 0 ? span.first : span.last) += reach;
  }
  return span;
}

}  // namespace

Status Mirror::allocate(size_t bytes, void** address) {
  const CuResult error = driver_.memory_allocate(address, std::max<size_t>(bytes, 1));
  return check(driver_, error, fmt::format("allocating {} bytes on device {}", bytes, device_));
}

Status Mirror::add(TensorView& view, bool is_output) {
  if (!view.present()) return {};
  const Span span = span_of(view);
  const int64_t element = size_bytes(view.dtype);
  Copy copy;
  copy.host = static_cast<std::byte*>(view.data) + span.first * element;
  copy.bytes = span.is_empty ? 0 : static_cast<size_t>((span.last - span.first + 1) * element);
  copy.is_output = is_output;
  if (Status status = allocate(copy.bytes, &copy.device); !status.ok()) return status;
  copies_.push_back(copy);
  view.data = static_cast<std::byte*>(copy.device) - span.first * element;
  if (copy.bytes == 0) return {};
  return check(driver_, driver_.copy_to_device(copy.device, copy.host, copy.bytes),
               "copying to the device");
}

Status Mirror::add_all(const Problem& problem) {
  const bool is_forward = problem.op == Op::forward;
  TensorView* const inputs[] = {&args_.q,
                                &args_.k,
                                &args_.v,
                                &args_.cu_seqlens_q,
                                &args_.cu_seqlens_k,
                                &args_.seqused_q,
                                &args_.seqused_k,
                                &args_.page_table,
                                &args_.document_q,
                                &args_.document_k,
                                &args_.mask,
                                &args_.bias,
                                &args_.alibi,
                                &args_.sink,
                                &args_.dout,
                                &args_.dlse};
  TensorView* const outputs[] = {&args_.dq, &args_.dk, &args_.dv, &args_.dbias, &args_.dsink};
  TensorView* const results[] = {&args_.out, &args_.lse, &args_.max_logit};
  Status status;
  const auto take = [&](TensorView& view, bool is_output) {
    if (status.ok()) status = add(view, is_output);
  };
  for (TensorView* view : inputs) take(*view, false);
  for (TensorView* view : outputs) take(*view, true);
  for (TensorView* view : results) take(*view, is_forward);
  for (NamedTensor& tensor : args_.tensors) take(tensor.view, false);
  for (NamedTensor& tensor : args_.dtensors) take(tensor.view, true);
  return status;
}

Result<std::unique_ptr<Mirror>> Mirror::of(const Problem& problem, const Args& args,
                                           size_t workspace_bytes, int device) {
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  Result<ContextScope> scope = ContextScope::of_device(*found.value(), device);
  if (!scope.ok()) return scope.status();
  std::unique_ptr<Mirror> mirror(new Mirror(*found.value(), device, std::move(scope).value()));
  mirror->args_ = args;
  if (Status status = mirror->add_all(problem); !status.ok()) return status;
  mirror->args_.workspace = nullptr;
  mirror->args_.workspace_bytes = workspace_bytes;
  if (workspace_bytes > 0) {
    Copy workspace;
    if (Status status = mirror->allocate(workspace_bytes, &workspace.device); !status.ok()) {
      return status;
    }
    mirror->copies_.push_back(workspace);
    mirror->args_.workspace = workspace.device;
    const CuResult error =
        mirror->driver_.memset32(workspace.device, 0xffffffffu, workspace_bytes / 4, nullptr);
    if (Status status = check(mirror->driver_, error, "filling the workspace"); !status.ok()) {
      return status;
    }
  }
  return mirror;
}

Mirror::~Mirror() {
  for (const Copy& copy : copies_) driver_.memory_free(copy.device);
}

Status Mirror::copy_back() const {
  Status status = check(driver_, driver_.context_synchronize(), "waiting for the device");
  for (const Copy& copy : copies_) {
    if (!status.ok()) return status;
    if (!copy.is_output || copy.bytes == 0) continue;
    status = check(driver_, driver_.copy_to_host(copy.host, copy.device, copy.bytes),
                   "copying from the device");
  }
  return status;
}

}  // namespace sirdar::cuda
