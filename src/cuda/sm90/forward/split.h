// Keys of one query block as parts that are items of their own: when, how many, and what follows
// for a launch.
#pragma once

#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/params.h"
#include "plan/kernel_source.h"

#include <sirdar/problem.hpp>

#include <string>

namespace sirdar::sm90 {

// Ok, or why the keys of a problem cannot be split so.
Status check_splitting(const Problem& problem, const ForwardConfig& config, int num_splits);
// The config with that many splits, 2 or more, which leave from registers: what Q's other buffers
// hold is K's and V's. Without num_stages_bias.
ForwardConfig split_config(const ForwardConfig& whole, int num_splits);
// As many splits as pay for the unsplit config.
int choose_splits(const Problem& problem, const ForwardConfig& config);
// Pairs that the busiest multiprocessor then multiplies, in the time that they take with what an
// item takes besides.
double busiest_pairs(const Problem& problem, const ForwardConfig& config);
// What that is decided by, in a line; "" where keys cannot be split.
std::string splitting_note(const Problem& problem, const ForwardConfig& config);

// How parts lie in memory, from `memory` on, which may be null.
PartsView parts_view(const Problem& problem, const ForwardConfig& config, void* memory);
size_t parts_bytes(const Problem& problem, const ForwardConfig& config);

// The kernel that adds them, after the split forward that `forward` is the source of; and its
// thread blocks.
KernelSource combine_source(const KernelSource& forward);
int64_t num_combine_blocks(const ForwardConfig& config, const ForwardParams& params);

}  // namespace sirdar::sm90
