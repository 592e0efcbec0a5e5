// A problem with the tensors of one call, in memory of its own: row-major, small, valid.
#pragma once

#include <sirdar/plan.hpp>

#include <memory>
#include <vector>

namespace sirdar::testing {

struct SmallCall {
  Problem problem;
  Args args;
  // Blocks of 64-byte aligned memory, one per tensor.
  std::vector<std::unique_ptr<std::byte[]>> memory;

  // Row-major memory for a tensor; integer contents are zero.
  TensorView make(DType dtype, std::initializer_list<int64_t> shape);
};

// Every tensor that the problem asks for. cu_seqlens give each sequence total / batch rows (the
// last one the rest), seqused its whole length, page tables pages 0, 1, ...; expression tensors
// have size 4 along each axis.
SmallCall small_call(const Problem& problem);

}  // namespace sirdar::testing
