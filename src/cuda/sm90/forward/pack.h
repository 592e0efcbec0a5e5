// Query heads of one K/V head as rows of the same tile: when, how many, and what follows for a
// launch.
#pragma once

#include "cuda/sm90/forward/config.h"

#include <sirdar/problem.hpp>

#include <string>

namespace sirdar::sm90 {

// Of H100 and H200 with SXM connectors. Others have fewer; a plan is the same for all of them.
inline constexpr int64_t kMultiprocessors = 132;

// Ok, or why tiles of a problem cannot have rows of so many heads.
Status check_packing(const Problem& problem, int num_packed_heads);

// Heads that a tile really has; a group that is no power of two leaves rows idle.
int heads_per_pack(const Problem& problem, const ForwardConfig& config);
// Packs of a sequence; without packing, its query heads.
int num_packs(const Problem& problem, const ForwardConfig& config);
// Blocks of query rows of the longest sequence; a cluster's apart.
int num_blocks_m(const Problem& problem, const ForwardConfig& config);

// What packing is decided by: rows that the busiest multiprocessor of a GPU with 132 of them
// multiplies by each key, with sequences of average length.
int64_t busiest_rows(const Problem& problem, const ForwardConfig& config);

// Whether so much less is worth another kernel.
constexpr bool pays(int64_t packed_rows, int64_t unpacked_rows) {
  return packed_rows < unpacked_rows && 8 * packed_rows <= 7 * unpacked_rows;
}

}  // namespace sirdar::sm90
