// The output tensors of `sirdar attend`: allocated for a problem, and written where flags say.
#pragma once

#include "attend_inputs.h"

namespace sirdar::cli {

class AttendOutputs {
 public:
  // Checks the names of all outputs, so that nothing is computed in vain.
  static Result<AttendOutputs> allocate(const AttendFlags& flags, const AttendInputs& inputs);

  // The arguments of the two passes: the inputs and what was allocated.
  const Args& forward_args() const { return forward_; }
  const Args& backward_args() const { return backward_; }

  Status write() const;

 private:
  struct Output {
    std::string flag;
    std::optional<std::string> file;  // absent: computed but not written
    io::Array array;
  };

  Status add(std::string flag, const std::optional<std::string>& file, DType dtype,
             std::vector<int64_t> shape, TensorView& view);
  Status add_like(std::string flag, const std::optional<std::string>& file, DType dtype,
                  const TensorView& like, int64_t last_axis, TensorView& view);
  Status add_statistics(std::string flag, const std::optional<std::string>& file,
                        const TensorView& q, TensorView& view);
  Status add_forward(const AttendFlags& flags, const AttendInputs& inputs);
  Status add_backward(const AttendFlags& flags, const AttendInputs& inputs);
  Status add_expression_gradients(const AttendFlags& flags, const AttendInputs& inputs);
  Status check_files(const std::vector<std::string>& input_paths) const;

  std::deque<Output> outputs_;
  bool is_bhsd_ = false;
  Args forward_, backward_;
};

}  // namespace sirdar::cli
