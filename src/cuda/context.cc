#include "cuda/context.h"

#include <fmt/format.h>

namespace sirdar::cuda {
namespace {

// Handles that name no stream of their own: null, the legacy and the per-thread default stream.
bool is_default(Stream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

}  // namespace

ContextScope::ContextScope(ContextScope&& other) noexcept
    : driver_(other.driver_), is_pushed_(other.is_pushed_), retained_(other.retained_) {
  other.is_pushed_ = false;
  other.retained_ = -1;
}

ContextScope::~ContextScope() {
  CuContext popped = nullptr;
  if (is_pushed_) driver_->context_pop(&popped);
  if (retained_ >= 0) driver_->primary_release(retained_);
}

Status ContextScope::push(CuContext context) {
  Status status = check(*driver_, driver_->context_push(context), "cuCtxPushCurrent");
  is_pushed_ = status.ok();
  return status;
}

Result<ContextScope> ContextScope::of_device(const Driver& driver, int device) {
  ContextScope scope(driver);
  CuContext current = nullptr;
  CuDevice its_device = -1;
  if (driver.context_get(&current) == 0 && current != nullptr &&
      driver.context_device(&its_device) == 0 && its_device == device)
    return scope;
  CuContext primary = nullptr;
  Status status = check(driver, driver.primary_retain(&primary, device),
                        fmt::format("cuDevicePrimaryCtxRetain for device {}", device));
  if (!status.ok()) return status;
  scope.retained_ = device;
  if (status = scope.push(primary); !status.ok()) return status;
  return scope;
}

Result<ContextScope> ContextScope::of_stream(const Driver& driver, int device, Stream stream) {
  if (is_default(stream)) return of_device(driver, device);
  CuContext context = nullptr, current = nullptr;
  Status status = check(driver, driver.stream_context(static_cast<CuStream>(stream), &context),
                        "stream: cuStreamGetCtx");
  if (!status.ok()) return status;
  ContextScope scope(driver);
  if (driver.context_get(&current) != 0 || current != context)
    if (status = scope.push(context); !status.ok()) return status;
  CuDevice its_device = -1;
  if (status = check(driver, driver.context_device(&its_device), "cuCtxGetDevice"); !status.ok())
    return status;
  if (its_device != device)
    return Status(StatusCode::invalid_argument,
                  fmt::format("stream: it belongs to device {} and the plan is for device {}; give "
                              "a stream of device {}, or make a plan for device {}.",
                              its_device, device, device, its_device),
                  "stream");
  return scope;
}

}  // namespace sirdar::cuda
