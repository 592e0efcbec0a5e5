// Where tensors come from and go to: x.npy, or x.safetensors:name.
#pragma once

#include "io/array.h"
#include "io/output_files.h"
#include "io/safetensors.h"

#include <deque>

namespace sirdar::cli {

struct TensorFile {
  std::string path;
  std::string name;  // in a .safetensors file; empty: the file is a .npy
};
Result<TensorFile> parse_tensor_file(std::string_view flag, std::string_view text);

// Reads tensors; a .safetensors file's header is read once, however many tensors come from it.
class TensorReader {
 public:
  // Messages begin with the flag.
  Result<io::Array> read(std::string_view flag, std::string_view text);
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  Result<io::Array> read_file(const TensorFile& file);
  std::vector<std::string> paths_;
  std::deque<std::pair<std::string, io::Safetensors>> opened_;
};

struct OutputTensor {
  std::string flag;
  TensorFile file;
  const io::Array* array = nullptr;  // as it will be written
};

// Before the work: does every output have a place of its own that may be written, apart from the
// inputs?
Status check_outputs(const std::vector<OutputTensor>& outputs,
                     const std::vector<std::string>& input_paths);

// All or none; tensors of one .safetensors file go into it together.
Status write_outputs(const std::vector<OutputTensor>& outputs);

}  // namespace sirdar::cli
