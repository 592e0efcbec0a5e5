// From the flags of `sirdar attend` to a problem and its input tensors.
#pragma once

#include "attend_flags.h"
#include "input_tensors.h"

#include <sirdar/plan.hpp>

namespace sirdar::cli {

struct AttendInputs {
  Problem forward;  // dout, dlse and their outputs are in `backward` only
  std::optional<Problem> backward;
  Args args;             // inputs only; views into `tensors`
  bool is_bhsd = false;  // files have heads before positions
  int bias_rank = 4;     // of the file: 2 or 4
  InputTensors tensors;
};

// Sizes are taken from the tensors; whether they agree is for the library's own rules to say.
Result<AttendInputs> read_attend_inputs(const AttendFlags& flags);

}  // namespace sirdar::cli
