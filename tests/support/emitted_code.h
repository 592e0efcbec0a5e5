// Device code of expressions, compiled for the host by the compiler that built the tests.
#pragma once

#include "expression/emit_cuda.h"

#include <string>
#include <vector>

namespace sirdar::testing {

// Where to evaluate, and what with.
struct EmittedPoint {
  int b = 0, h = 0, q = 0, k = 0, q_pos = 0;
  float score = 0;
};

// Several structs in one shared object.
class EmittedCode {
 public:
  // Compiles; throws what the compiler said if it fails.
  explicit EmittedCode(const std::vector<expression::DeviceModification>& modifications);
  ~EmittedCode();
  EmittedCode(const EmittedCode&) = delete;
  EmittedCode& operator=(const EmittedCode&) = delete;

  // Of the struct at this place; `bytes` as pack_operands() wrote them.
  float score(size_t place, const std::byte* bytes, const EmittedPoint& point) const;
  // Of an expression of a backward problem.
  float slope(size_t place, const std::byte* bytes, const EmittedPoint& point) const;
  bool visible(size_t place, const std::byte* bytes, const EmittedPoint& point) const;
  // What of the box, of one head, is visible by its mask.
  Cover cover(size_t place, const std::byte* bytes, const expression::Box& box) const;

 private:
  template <class F>
  F* function(const char* name, size_t place) const;

  void* library_ = nullptr;
};

}  // namespace sirdar::testing
