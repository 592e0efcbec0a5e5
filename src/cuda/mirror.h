// Host tensors with copies on a GPU, for whoever has data on the host and a plan for a device: the
// command line and the checks. The library itself never allocates device memory.
#pragma once

#include <sirdar/plan.hpp>

#include "cuda/context.h"

#include <memory>
#include <vector>

namespace sirdar::cuda {

// Made, used and destroyed by one thread, whose current context is the device's meanwhile.
class Mirror {
 public:
  // `args` must be valid for `problem`, in host memory.
  static Result<std::unique_ptr<Mirror>> of(const Problem& problem, const Args& args,
                                            size_t workspace_bytes, int device);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // The same views, of device memory: every element, and what lies between them, at addresses that
  // are multiples of 256. The workspace holds 0xff in every byte.
  const Args& args() const { return args_; }

  // Waits for the device, then copies every output back, with what lies between its elements.
  Status copy_back() const;

 private:
  struct Copy {
    void* device = nullptr;
    void* host = nullptr;  // where the span begins
    size_t bytes = 0;
    bool is_output = false;
  };

  Mirror(const Driver& driver, int device, ContextScope scope)
      : driver_(driver), device_(device), scope_(std::move(scope)) {}
  Status allocate(size_t bytes, void** address);
  Status add(TensorView& view, bool is_output);
  Status add_all(const Problem& problem);

  const Driver& driver_;
  int device_;
  // Held until the end: a primary context that nobody holds takes its memory with it.
  ContextScope scope_;
  Args args_;
  std::vector<Copy> copies_;
};

}  // namespace sirdar::cuda
