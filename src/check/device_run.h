// A plan on a GPU with data of its own, timed: the engine of `sirdar bench` there.
#pragma once

#include <sirdar/plan.hpp>

#include <memory>

#include "check/inputs.h"
#include "cuda/mirror.h"
#include "plan/cost.h"

namespace sirdar::check {

// Made, used and destroyed by one thread.
class DeviceRun {
 public:
  // Random inputs on the device of `plan`, and its kernels compiled or found. Throws
  // std::bad_alloc.
  static Result<std::unique_ptr<DeviceRun>> of(const Plan& plan, const Placement& placement);
  ~DeviceRun();
  DeviceRun(const DeviceRun&) = delete;
  DeviceRun& operator=(const DeviceRun&) = delete;

  // How long it took to compile the kernels, or to find them on disk, and to load them.
  double jit_ms() const { return jit_ms_; }
  const Cost& cost() const { return cost_; }
  // Milliseconds of the device for one run that finds nothing of its tensors in L2.
  Result<double> device_ms();
  // Microseconds of the host for one call of many that do not wait for the device.
  Result<double> host_us();

 private:
  DeviceRun(const Plan& plan, const cuda::Driver& driver) : plan_(plan), driver_(driver) {}
  Status make(const Placement& placement);
  Status make_saved(const Args& args);
  Status wait() const;

  const Plan plan_;
  const cuda::Driver& driver_;
  std::unique_ptr<cuda::Mirror> mirror_;
  cuda::CuEvent begin_ = nullptr, end_ = nullptr;
  void* flushed_ = nullptr;  // memory that is written to have others leave L2
  double jit_ms_ = 0;
  Cost cost_;
};

}  // namespace sirdar::check
