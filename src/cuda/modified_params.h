// The parameters of a kernel that a modification is compiled into: its own, then the
// modification's, as ModifiedParams<Modification> lies in memory.
#pragma once

#include "expression/emit_cuda.h"

#include <cstddef>
#include <cstring>
#include <vector>

namespace sirdar::cuda {

// A kernel's parameters may be so many bytes.
inline constexpr size_t kMaxParamBytes = 4096;

template <class Params>
size_t param_bytes(const expression::DeviceModification& modification) {
  const size_t bytes = sizeof(Params) + modification.num_bytes();
  return (bytes + alignof(Params) - 1) / alignof(Params) * alignof(Params);
}

// The arguments are valid for the problem.
template <class Params>
Result<std::vector<std::byte>> modified_params(const Params& params,
                                               const expression::DeviceModification& modification,
                                               const Problem& problem, const Args& args) {
  std::vector<std::byte> bytes(param_bytes<Params>(modification));
  std::memcpy(bytes.data(), &params, sizeof params);
  if (modification.is_empty()) return bytes;
  Status status = pack_operands(modification, problem, args, bytes.data() + sizeof params);
  if (!status.ok()) return status;
  return bytes;
}

}  // namespace sirdar::cuda
