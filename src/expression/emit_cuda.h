// A problem's expressions, documents and boolean mask as one struct of device code, which
// NVRTC compiles into a kernel. The text depends on the problem alone, holds no name of the
// caller's, and is the same every time: kernels are cached by it.
#pragma once

#include "expression/expression.h"

#include <sirdar/plan.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace sirdar::expression {

struct DeviceTensor {
  enum class Source : uint8_t { expression, mask, document_q, document_k };
  Source source = Source::expression;
  int32_t place = 0;  // in Problem::tensors, of an expression's
  DType dtype = DType::fp32;
  int rank = 1;
};

// What the kernels call is described in cuda/expression/modification.cuh.
struct DeviceModification {
  // Of struct Modification, to stand in a namespace of sirdar; needs
  // cuda/expression/modification.cuh.
  std::string definition;
  bool has_score_mod = false;
  bool has_mask_mod = false;  // mask_mod, documents, boolean mask
  // Whether visibility can differ between sequences of the same lengths, and between heads.
  bool mask_reads_batch = false, mask_reads_head = false;
  std::vector<DeviceTensor> tensors;  // in the order of the struct
  size_t num_scalars = 0;             // Problem::scalars, all of them

  bool is_empty() const { return !has_score_mod && !has_mask_mod; }
  // sizeof(Modification).
  size_t num_bytes() const;
};

// `modifications` are the problem's.
DeviceModification emit_cuda(const Problem& problem, const Modifications& modifications);
// The same of a valid problem's own text.
DeviceModification modification_of(const Problem& problem);

// Writes the struct of one call to `bytes` [num_bytes()]; the arguments are valid for the problem.
Status pack_operands(const DeviceModification& modification, const Problem& problem,
                     const Args& args, std::byte* bytes);

}  // namespace sirdar::expression
