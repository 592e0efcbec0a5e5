// The input tensors of a command line: read, checked for rank and element type, kept.
#pragma once

#include "tensor_files.h"

#include <optional>

namespace sirdar::cli {

// What a tensor is for decides which element types it may have in the file.
enum class Role { data, bias, number, index, boolean, expression };

class InputTensors {
 public:
  // Data tensors are rounded to this type; it also allows fp64 in the files.
  void round_to(DType dtype) { dtype_ = dtype; }
  bool rounds() const { return dtype_.has_value(); }

  // The view lives as long as this object. Messages begin with the flag.
  Status read(std::string_view flag, const std::string& file, Role role,
              std::initializer_list<int> ranks, TensorView& view);

  const std::vector<std::string>& paths() const { return reader_.paths(); }

 private:
  Result<io::Array> converted(std::string_view flag, io::Array array, Role role) const;

  TensorReader reader_;
  std::optional<DType> dtype_;
  std::deque<io::Array> arrays_;
};

}  // namespace sirdar::cli
