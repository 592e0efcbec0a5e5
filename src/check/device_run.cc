#include "check/device_run.h"

#include <chrono>

#include "check/data_cost.h"

namespace sirdar::check {
namespace {

// Twice what L2 holds on the GPUs that there are kernels for (50 and 60 MiB).
constexpr size_t kFlushedBytes = size_t{128} << 20;
// Few enough for the driver's queue, which callers would wait for.
constexpr int kCallsInARow = 64;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

Result<std::unique_ptr<DeviceRun>> DeviceRun::of(const Plan& plan, const Placement& placement) {
  const Result<const cuda::Driver*> driver = cuda::driver();
  if (!driver.ok()) return driver.status();
  std::unique_ptr<DeviceRun> run(new DeviceRun(plan, *driver.value()));
  if (Status status = run->make(placement); !status.ok()) return status;
  return run;
}

DeviceRun::~DeviceRun() {
  if (begin_ != nullptr) driver_.event_destroy(begin_);
  if (end_ != nullptr) driver_.event_destroy(end_);
  if (flushed_ != nullptr) driver_.memory_free(flushed_);
}

Status DeviceRun::make(const Placement& placement) {
  const Problem& problem = plan_.problem();
  {
    const Inputs inputs(problem, 1, Style::unsaved, 1, placement);
    auto mirror =
        cuda::Mirror::of(problem, inputs.args(), plan_.workspace_bytes(), plan_.device().index);
    if (!mirror.ok()) return mirror.status();
    mirror_ = std::move(mirror).value();
    cost_ = data_cost(problem, inputs.args());
  }
  const auto start = std::chrono::steady_clock::now();
  if (Status status = plan_.prepare(); !status.ok()) return status;
  jit_ms_ = milliseconds_since(start);
  if (problem.op == Op::backward) {
    if (Status status = make_saved(mirror_->args()); !status.ok()) return status;
  }
  for (cuda::CuEvent* event : {&begin_, &end_}) {
    Status status = cuda::check(driver_, driver_.event_create(event, 0), "making an event");
    if (!status.ok()) return status;
  }
  return cuda::check(driver_, driver_.memory_allocate(&flushed_, kFlushedBytes),
                     "allocating the memory that clears L2");
}

// out and lse of a backward problem, by whatever the planner chooses on its device.
Status DeviceRun::make_saved(const Args& args) {
  const Result<Plan> plan = Plan::create(forward_of(plan_.problem()), {}, plan_.device());
  if (!plan.ok()) return plan.status();
  Args forward = forward_of(args);
  void* workspace = nullptr;
  const size_t bytes = plan.value().workspace_bytes();
  if (bytes > 0) {
    Status status = cuda::check(driver_, driver_.memory_allocate(&workspace, bytes),
                                "allocating the forward's workspace");
    if (!status.ok()) return status;
  }
  forward.workspace = workspace;
  forward.workspace_bytes = bytes;
  Status status = plan.value().run(forward);
  if (status.ok()) status = wait();
  if (workspace != nullptr) driver_.memory_free(workspace);
  return status;
}

Status DeviceRun::wait() const {
  return cuda::check(driver_, driver_.context_synchronize(), "waiting for the device");
}

Result<double> DeviceRun::device_ms() {
  const auto done = [&](cuda::CuResult error, std::string_view what) {
    return cuda::check(driver_, error, what);
  };
  Status status =
      done(driver_.memset32(flushed_, 0, kFlushedBytes / sizeof(uint32_t), nullptr), "clearing L2");
  if (status.ok()) status = done(driver_.event_record(begin_, nullptr), "recording an event");
  if (status.ok()) status = plan_.run(mirror_->args());
  if (status.ok()) status = done(driver_.event_record(end_, nullptr), "recording an event");
  if (status.ok()) status = wait();
  float elapsed = 0;
  if (status.ok()) status = done(driver_.event_elapsed(&elapsed, begin_, end_), "reading events");
  if (!status.ok()) return status;
  return static_cast<double>(elapsed);
}

Result<double> DeviceRun::host_us() {
  if (Status status = wait(); !status.ok()) return status;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCallsInARow; ++i) {
    if (Status status = plan_.run(mirror_->args()); !status.ok()) return status;
  }
  const double us = 1e3 * milliseconds_since(start) / kCallsInARow;
  if (Status status = wait(); !status.ok()) return status;
  return us;
}

}  // namespace sirdar::check
