// The device that the driver's calls of this thread act on, for a scope; the caller's choice is
// found again as it was.
#pragma once

#include "cuda/driver.h"

#include <sirdar/plan.hpp>

namespace sirdar::cuda {

class ContextScope {
 public:
  // The caller's current context where it belongs to `device`, the device's primary context
  // otherwise.
  static Result<ContextScope> of_device(const Driver& driver, int device);
  // The context of `stream`, which must be one of `device`; of_device() for the null stream and the
  // other two that belong to whatever is current.
  static Result<ContextScope> of_stream(const Driver& driver, int device, Stream stream);

  const Driver& driver() const { return *driver_; }

  ContextScope(ContextScope&& other) noexcept;
  ContextScope& operator=(ContextScope&&) = delete;
  ~ContextScope();

 private:
  explicit ContextScope(const Driver& driver) : driver_(&driver) {}
  Status push(CuContext context);

  const Driver* driver_;
  bool is_pushed_ = false;
  int retained_ = -1;  // device whose primary context is held
};

}  // namespace sirdar::cuda
