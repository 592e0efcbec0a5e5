// NumPy's .npy files, versions 1 to 3: one array each.
#pragma once

#include "io/array.h"
#include "io/source.h"

namespace sirdar::io {

// Any file gives an array or a sentence. Big-endian and Fortran-ordered arrays are converted; more
// than kMaxRank axes, records, objects, text and complex numbers are refused, and so is a file that
// is longer or shorter than its header says.
Result<Array> read_npy(const Source& source);

// The bytes before the data of a .npy file (version 1.0). The type must have a name in .npy.
std::string npy_header(ElementType type, std::span<const int64_t> shape);

}  // namespace sirdar::io
