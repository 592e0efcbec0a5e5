// The part of a launch that is the caller's: expressions, bias, document ids, boolean masks. They
// become code of the kernel and the end of its parameters.
#pragma once

#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/params.h"
#include "expression/emit_cuda.h"
#include "plan/kernel_source.h"

#include <cstddef>

namespace sirdar::sm90 {

// Makes the source of a plain forward that of one with the modification.
void add_modification(const expression::DeviceModification& modification, KernelSource& source);
// The kernel that runs before a forward with has_mask_mod, which `forward` is the source of.
KernelSource cover_source(const KernelSource& forward, const Problem& problem,
                          bool is_by_key = false);

// How what that kernel writes lies in memory, from `memory` on, which may be null.
CoverView cover_view(const Problem& problem, const ForwardConfig& config,
                     const expression::DeviceModification& modification, void* memory);
size_t cover_bytes(const CoverView& cover, const ForwardConfig& config, int num_blocks_m);
// Thread blocks of that kernel.
int64_t num_cover_blocks(const CoverView& cover, int num_blocks_m);
// The most of anything that is counted in 32 bits: those, and tiles whose pairs have bits. 0 where
// that kernel does not run.
int64_t largest_cover_count(const Problem& problem, const ForwardConfig& config,
                            const expression::DeviceModification& modification);

}  // namespace sirdar::sm90
