// Which configuration of the Hopper forward serves a problem.
#pragma once

#include "cuda/sm90/forward/config.h"

#include <sirdar/problem.hpp>

#include <optional>
#include <string>

namespace sirdar::sm90 {

// Everything but num_threads-like run-time facts: the same for any machine of this architecture.
// The problem must be one that cuda.sm90.forward supports. may_stage_bias: TMA reaches the bias,
// which its strides decide. What is not given follows from what pays.
struct Given {
  std::optional<int> num_packed_heads = {};  // as check_packing() allows
  std::optional<int> num_splits = {};        // as check_splitting() does
};
ForwardConfig choose_config(const Problem& problem, bool may_stage_bias = true,
                            const Given& given = {});

// Why so many query heads are packed, in a line; "" where no two share a K/V head.
std::string packing_note(const Problem& problem, const ForwardConfig& config);

// Bytes that a thread of such a kernel is known to spill at most (README.md).
int spill_bytes_known(const ForwardConfig& config);

// "sirdar_fwd_bf16_d128_causal_lse"
std::string entry_name(const ForwardConfig& config);

}  // namespace sirdar::sm90
