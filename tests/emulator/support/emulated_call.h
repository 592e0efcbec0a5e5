// A call of the library's Hopper forward on the emulated machine: the library chooses the config,
// writes the kernels and fills their parameters; what it computes is compared with float64.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "check/compare.h"
#include "cuda/sm90/forward/params.h"
#include "emulator/launch.h"
#include "emulator/support/problem_list.h"
#include "support/call.h"

namespace sirdar::emulator_tests {

class EmulatedCall {
 public:
  // May name knobs (support/knobs.h). Throws what is wrong with the problem. `edit` changes the
  // random inputs.
  explicit EmulatedCall(const std::string& problem,
                        const std::function<void(test::Call&)>& edit = {});

  // Every launch of the call on as many as `blocks` thread blocks; the report is the forward's, or
  // that of another launch if that has a fault. Wrong results are a fault too.
  emulator::Report run(uint64_t seed, int blocks = 2);
  // The same with a planted fault, or coverage, of the forward (and the kernel that adds its parts,
  // which overlaps it).
  emulator::Report run(const emulator::Launch& as, int blocks);
  const ForwardKernels& kernels() const { return kernels_; }
  const sm90::ForwardParams& params() const { return params_; }
  test::Call& call() { return call_; }

 private:
  emulator::Overlapping launch_of(const KernelSource& source, int64_t grid,
                                  const emulator::Launch& as, const void* params) const;
  std::string wrong() const;

  ForwardKernels kernels_;
  test::Call call_;
  std::vector<check::Expected> expected_;
  std::vector<std::byte> workspace_;
  long num_zeros_ = 0;  // bytes of it that are zeros before and after
  sm90::ForwardParams params_;
};

}  // namespace sirdar::emulator_tests
