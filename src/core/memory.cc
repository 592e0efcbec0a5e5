#include "core/memory.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sirdar {
namespace {

// One unknown of "some element of a lies on some element of b": bytes * c with c in [least, most].
struct Term {
  Wide bytes;  // > 0
  Wide least, most;
};

void add_terms(const TensorView& view, int sign, std::vector<Term>& terms) {
  for (int axis = 0; axis < view.rank; ++axis) {
    const Wide step = Wide{sign} * view.stride[axis] * size_bytes(view.dtype);
    const Wide reach = Wide{view.shape[axis]} - 1;
    if (reach <= 0 || step == 0) continue;
    const Term term{step < 0 ? -step : step, step < 0 ? -reach : 0, step < 0 ? 0 : reach};
    const auto same = std::find_if(terms.begin(), terms.end(),
                                   [&](const Term& other) { return other.bytes == term.bytes; });
    if (same == terms.end()) {
      terms.push_back(term);
    } else {
      same->least += term.least;
      same->most += term.most;
    }
  }
}

Wide floor_quotient(Wide a, Wide b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
Wide ceil_quotient(Wide a, Wide b) { return -floor_quotient(-a, b); }

// Is there a choice of every c whose sum lies in [low, high]? Largest steps first: the smaller ones
// can only make up for little, so few values of c remain to be tried at each level.
class Search {
 public:
  explicit Search(std::vector<Term> terms) : terms_(std::move(terms)) {
    std::sort(terms_.begin(), terms_.end(),
              [](const Term& a, const Term& b) { return a.bytes > b.bytes; });
    rest_.resize(terms_.size() + 1);
    for (size_t i = terms_.size(); i-- > 0;) {
      rest_[i].begin = rest_[i + 1].begin + terms_[i].least * terms_[i].bytes;
      rest_[i].end = rest_[i + 1].end + terms_[i].most * terms_[i].bytes;
    }
  }

  bool possible(Wide low, Wide high, size_t level = 0) {
    if (level == terms_.size()) return low <= 0 && 0 <= high;
    if (--budget_ < 0) return true;
    const Term& term = terms_[level];
    const ByteRange& rest = rest_[level + 1];
    const Wide first = std::max(term.least, ceil_quotient(low - rest.end, term.bytes));
    const Wide last = std::min(term.most, floor_quotient(high - rest.begin, term.bytes));
    for (Wide c = first; c <= last; ++c)
      if (possible(low - c * term.bytes, high - c * term.bytes, level + 1)) return true;
    return false;
  }

 private:
  std::vector<Term> terms_;
  std::vector<ByteRange> rest_;  // reach of the terms from a level on, both ends included
  int budget_ = 20000;
};

Wide address(const TensorView& view) {
  return static_cast<Wide>(reinterpret_cast<uintptr_t>(view.data));
}

}  // namespace

bool is_empty(const TensorView& view) {
  for (int axis = 0; axis < view.rank; ++axis)
    if (view.shape[axis] <= 0) return true;
  return false;
}

ByteRange byte_range(const TensorView& view) {
  if (is_empty(view)) return {};
  const Wide element = size_bytes(view.dtype);
  ByteRange range{0, element};
  for (int axis = 0; axis < view.rank; ++axis) {
    const Wide reach = (Wide{view.shape[axis]} - 1) * view.stride[axis];
    // Two factors below 2^63 and a size of at most 8 stay below 2^127 only one axis at a time.
    constexpr Wide kFar = Wide{1} << 100;
    const Wide bytes = std::clamp(reach, -kFar, kFar) * element;
    (bytes < 0 ? range.begin : range.end) += bytes;
  }
  return range;
}

bool fits_address_space(const TensorView& view) {
  const ByteRange range = byte_range(view);
  const Wide base = address(view);
  const bool is_one_object = range.end - range.begin <= PTRDIFF_MAX;
  return is_one_object && base + range.begin >= 0 &&
         base + range.end <= static_cast<Wide>(UINTPTR_MAX);
}

// Two places coincide where some differences of their indices, not all 0, sum to 0 over the
// strides. The first that is not 0 may be taken as positive.
bool overlaps_itself(const TensorView& view) {
  if (is_empty(view)) return false;
  std::vector<Term> terms;
  for (int axis = 0; axis < view.rank; ++axis) {
    const Wide stride = view.stride[axis], most = Wide{view.shape[axis]} - 1;
    if (most == 0) continue;
    if (stride == 0) return true;
    terms.push_back({stride < 0 ? -stride : stride, -most, most});
  }
  std::sort(terms.begin(), terms.end(),
            [](const Term& a, const Term& b) { return a.bytes < b.bytes; });
  Wide reach = 0;
  bool is_nested = true;
  for (const Term& term : terms) {
    is_nested = is_nested && term.bytes > reach;
    reach += term.most * term.bytes;
  }
  while (!is_nested && !terms.empty()) {
    std::vector<Term> from_here = terms;
    from_here.back().least = 1;
    if (Search(std::move(from_here)).possible(0, 0)) return true;
    terms.pop_back();
  }
  return false;
}

bool overlap(const TensorView& a, const TensorView& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const ByteRange range_a = byte_range(a), range_b = byte_range(b);
  const Wide apart = address(a) - address(b);
  if (apart + range_a.begin >= range_b.end || range_b.begin >= apart + range_a.end) return false;
  std::vector<Term> terms;
  add_terms(a, 1, terms);
  add_terms(b, -1, terms);
  return Search(std::move(terms))
      .possible(1 - size_bytes(a.dtype) - apart, size_bytes(b.dtype) - 1 - apart);
}

}  // namespace sirdar
