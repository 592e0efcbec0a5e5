// Host half of masks that are expressions, ids or tensors: two kernels before the others find out
// which query tiles each key block walks.
#pragma once

#include "cuda/sm90/backward/config.h"
#include "cuda/sm90/backward/params.h"
#include "cuda/sm90/forward/params.h"
#include "expression/emit_cuda.h"
#include "plan/kernel_source.h"

#include <sirdar/plan.hpp>

#include <cstddef>
#include <cstdint>

namespace sirdar::sm90 {

// How what they write lies in memory, from `memory` on, which may be null; and its bytes, 0 without
// such masks.
WalkView walk_view(const Problem& problem, const BackwardConfig& config,
                   const expression::DeviceModification& modification, void* memory);
size_t walk_bytes(const Problem& problem, const BackwardConfig& config,
                  const expression::DeviceModification& modification);

// The most of anything that is counted in 32 bits: thread blocks of the two kernels, and tiles
// whose pairs have bits. 0 without such masks.
int64_t largest_walk_count(const Problem& problem, const BackwardConfig& config,
                           const expression::DeviceModification& modification);

// Thread blocks of the two kernels.
int64_t num_tile_cover_blocks(const WalkView& walk, int num_tiles);
int64_t num_walk_blocks(const WalkView& walk, int num_blocks_n);

// The kernel that looks at masks, the forward's (forward/cover.cuh): query tiles are its query
// blocks. Its parameters, without the modification's.
KernelSource tile_cover_source(const Problem& problem, const BackwardConfig& config,
                               const expression::DeviceModification& modification);
ForwardParams tile_cover_params(const Problem& problem, const BackwardConfig& config,
                                const Args& args, const WalkView& walk);

}  // namespace sirdar::sm90
