// Which configuration of the row-by-row backward serves a problem.
#pragma once

#include "cuda/rows/backward/config.h"

#include <sirdar/problem.hpp>

#include <string>
#include <string_view>

namespace sirdar::rows {

// The problem must be one that cuda.rows.backward supports.
BackwardConfig choose_backward_config(const Problem& problem);

// "sirdar_rows_bf16_d128_dq"
std::string entry_name(const BackwardConfig& config, std::string_view pass);

}  // namespace sirdar::rows
