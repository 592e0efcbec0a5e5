// The part of a launch that is the caller's: expressions, bias, document ids, boolean masks. They
// become code of the kernel and the end of its parameters.
#pragma once

#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/params.h"
#include "expression/emit_cuda.h"
#include "plan/kernel_source.h"

#include <cstddef>
#include <vector>

namespace sirdar::sm90 {

// A kernel's parameters may be so many bytes.
inline constexpr size_t kMaxParamBytes = 4096;

// The problem is valid.
expression::DeviceModification modification_of(const Problem& problem);

// Of a launch with it, as ModifiedParams lies in memory.
size_t param_bytes(const expression::DeviceModification& modification);

// Makes the source of a plain forward that of one with the modification.
void add_modification(const expression::DeviceModification& modification, KernelSource& source);
// The kernel that runs before a forward with has_mask_mod, which `forward` is the source of.
KernelSource cover_source(const KernelSource& forward);

// How what that kernel writes lies in memory; `words` may be null.
CoverView cover_view(const Problem& problem, const ForwardConfig& config,
                     const expression::DeviceModification& modification, unsigned long long* words);
size_t cover_bytes(const CoverView& cover, int num_blocks_m);
// Thread blocks of that kernel.
int64_t num_cover_blocks(const CoverView& cover, int num_blocks_m);

Result<std::vector<std::byte>> modified_params(const ForwardParams& params,
                                               const expression::DeviceModification& modification,
                                               const Problem& problem, const Args& args);

}  // namespace sirdar::sm90
