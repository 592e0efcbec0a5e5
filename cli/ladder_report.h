// What sirdar ladder prints: a table and its checks for a person, or one JSON object a line.
#pragma once

#include <sirdar/problem.hpp>

#include <cstdint>

#include "reference/ladder/climb.h"

namespace sirdar::cli {

void print_ladder_text(const Problem& problem, int64_t fast_memory_bytes,
                       const ladder::Climb& climb);
void print_ladder_json(const Problem& problem, int64_t fast_memory_bytes,
                       const ladder::Climb& climb);

}  // namespace sirdar::cli
