// What the tests read out of sm_90 machine code without a disassembler.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace sirdar::test {

// A run of exponentials that ends in a vote, with no maximum in between: the guarded loop of the
// Hopper forward (src/cuda/sm90/forward/README.md).
struct GuardedLoop {
  int num_exponentials = 0;
  int num_multiply_adds = 0;
  int num_reusing = 0;  // multiply-adds that take an operand from the reuse cache
  // wgmma waits (WARPGROUP.DEPBAR) between the first exponential and the vote: the tensor core's
  // work is waited for too early.
  int num_early_waits = 0;
};

// Of the kernel's .text section, in order. Empty if `cubin` is no machine code of this kind.
std::vector<GuardedLoop> guarded_loops(std::string_view cubin, std::string_view kernel);

// wgmma products of it.
int num_products(std::string_view cubin, std::string_view kernel);

}  // namespace sirdar::test
