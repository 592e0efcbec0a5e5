// What a problem expects of each tensor of a call: one description per member of Args.
#pragma once

#include <sirdar/plan.hpp>

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace sirdar {

// One axis of a description: its glossary name and size. `may_be_one` also takes a broadcast axis,
// `any` every size.
struct Axis {
  std::string_view name;
  int64_t size = 0;
  bool may_be_one = false, any = false;
};

// Up to kMaxRank of them: every run describes its tensors, so they take nothing from the heap.
class AxisList {
 public:
  AxisList() = default;
  AxisList(std::initializer_list<Axis> axes) : size_(axes.size()) {
    std::copy(axes.begin(), axes.end(), axes_.begin());
  }
  void push_back(const Axis& axis) { axes_[size_++] = axis; }
  size_t size() const { return size_; }
  const Axis* begin() const { return axes_.data(); }
  const Axis* end() const { return axes_.data() + size_; }
  const Axis& operator[](size_t i) const { return axes_[i]; }
  Axis& operator[](size_t i) { return axes_[i]; }

 private:
  std::array<Axis, kMaxRank> axes_{};
  size_t size_ = 0;
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
  AxisList axes;
};

// Every tensor of the call, named expression tensors after the members of Args. Those must have
// been matched by name already (validate_names).
std::vector<Expected> expected_tensors(const Problem& problem, const Args& args);

}  // namespace sirdar
