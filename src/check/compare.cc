#include "check/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/elements.h"

namespace sirdar::check {
namespace {

std::string place(const Expected& expected, int64_t index) {
  std::string text;
  for (int axis = expected.view.rank - 1; axis >= 0; --axis) {
    const int64_t size = expected.view.shape[static_cast<size_t>(axis)];
    text = fmt::format("{}{}{}", index % size, text.empty() ? "" : ", ", text);
    index /= size;
  }
  return fmt::format("{}[{}]", expected.name, text);
}

// What float64 gives, as the output's dtype can say it: too large for it is infinity.
double representable(const TensorView& view, double value) {
  float element = 0;  // wide enough for any dtype
  TensorView one = view;
  one.data = &element;
  store_element(one, 0, value);
  return load_element(one, 0);
}

}  // namespace

Deviation compare(const Expected& expected, const TensorView& view) {
  Deviation result;
  for_each_element(view, [&](int64_t offset, int64_t index) {
    const size_t n = static_cast<size_t>(index);
    const double actual = load_element(view, offset);
    const double rounded = representable(view, expected.value[n]);
    double ratio = 0, units = 0;
    if (std::isnan(rounded) || std::isinf(rounded) || !std::isfinite(actual)) {
      // Near the largest number of a narrow format either side of overflow is a fair rounding.
      const double value = expected.value[n], allowed = expected.allowed[n];
      const bool same = std::isnan(rounded)
                            ? std::isnan(actual)
                            : actual == rounded || actual == representable(view, value + allowed) ||
                                  actual == representable(view, value - allowed);
      ratio = same ? 0 : std::numeric_limits<double>::infinity();
      units = ratio;
    } else {
      const double error = std::abs(actual - expected.value[n]);
      result.error = std::max(result.error, error);
      ratio = error == 0 ? 0 : error / expected.allowed[n];
      units = error == 0 ? 0 : error / (expected.scale[n] * expected.epsilon);
      if (std::isnan(ratio)) ratio = std::numeric_limits<double>::infinity();
    }
    if (std::isfinite(units) && units > result.worst) result.worst = units;
    if (ratio > result.ratio || result.where.empty()) {
      result.ratio = ratio;
      result.where = place(expected, index);
      result.expected = expected.value[n];
      result.actual = actual;
    }
  });
  result.ok = !(result.ratio > 1);
  return result;
}

Deviation compare(const Expected& expected) { return compare(expected, expected.view); }

}  // namespace sirdar::check
