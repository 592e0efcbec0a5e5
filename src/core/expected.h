// What a problem expects of each tensor of a call: one description per member of Args.
#pragma once

#include <sirdar/plan.hpp>

#include <vector>

namespace sirdar {

// One axis of a description: its glossary name and size. `may_be_one` also takes a broadcast axis,
// `any` every size.
struct Axis {
  std::string_view name;
  int64_t size = 0;
  bool may_be_one = false, any = false;
};

enum class Role : uint8_t { input, output };

// Which strides are taken besides those of axes with fewer than two entries.
enum class Strides : uint8_t { any, rows };  // rows: the last axis has stride 1

struct Expected {
  std::string name;
  const TensorView* view;  // never null
  bool is_wanted;
  Role role;
  Strides strides;
  DType dtype;
  std::vector<Axis> axes;
};

// Every tensor of the call, named expression tensors after the members of Args. Those must have
// been matched by name already (validate_names).
std::vector<Expected> expected_tensors(const Problem& problem, const Args& args);

}  // namespace sirdar
