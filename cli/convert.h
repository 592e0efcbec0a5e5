// Arrays from files as the element types that Sirdar computes with.
#pragma once

#include "io/array.h"

namespace sirdar::cli {

bool is_float(io::ElementType type);

// A floating-point array rounded once, to nearest even, whatever it was before.
Result<io::Array> rounded(io::Array array, DType to);

// The same values as fp32; the array may be bf16, fp16 or fp8.
Result<io::Array> widened_copy(const io::Array& array);

// int64 indices as int32; `flag` names them where one does not fit.
Result<io::Array> as_int32(io::Array array, std::string_view flag);

}  // namespace sirdar::cli
