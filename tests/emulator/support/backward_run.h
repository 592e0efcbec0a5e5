// The Hopper backward on the emulated machine, its kernels as the library launches them, on hostile
// arguments, held against float64.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "check/inputs.h"
#include "check/run_check.h"
#include "cuda/sm90/backward/arguments.h"
#include "cuda/steps.h"
#include "emulator/launch.h"
#include "emulator/support/problem_list.h"

namespace sirdar::emulator_tests {

// A step as it is launched.
emulator::Overlapping overlapping(const ListedKernels& kernels, const cuda::Step& step,
                                  uint64_t seed);

// What is wrong, or "". The blocks of the main kernel wait for each other: all run at one time.
// Where convert begins early it overlaps, and kernels of masks do. `behind_convert` is called once
// it has run.
std::string launch_all(const ListedKernels& kernels, const std::vector<cuda::Step>& steps,
                       uint64_t seed, const std::function<void()>& behind_convert = {});

// What the products have left that is not finite, and convert made again: "" if nothing is. Of a
// workspace that was filled with numbers before the launches and that convert was the last to use.
std::string lost_gradients(const sm90::BackwardWorkspace& layout, const void* workspace);

// Rows far from 0 whose pairs are added one by one.
int64_t num_far_rows(const sm90::BackwardWorkspace& layout, const void* workspace);

// Changes inputs before they are taken for what they are.
using Edit = std::function<void(check::Inputs&)>;

struct BackwardResult {
  check::Verdict verdict;
  std::string lost;                      // as lost_gradients() says
  int64_t far_rows = 0;                  // whose pairs are added one by one
  std::map<std::string, double> errors;  // root mean squares by output, relative
};

// Of a run on `num_sms` multiprocessors, of which each takes several items where it is small.
BackwardResult run_backward(const std::string& text, uint64_t seed, int num_sms,
                            const Edit& edit = {});

// That all is right, and what was made again: nothing, something, or that does not matter.
enum class Lost { nothing, something, anything };
BackwardResult expect_right(const std::string& text, uint64_t seed, int num_sms,
                            const Edit& edit = {}, Lost lost = Lost::nothing);

}  // namespace sirdar::emulator_tests
