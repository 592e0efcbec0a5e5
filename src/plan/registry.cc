// Which implementations there are, best first. Adding one is a line here.
#include "cpu/cpu.h"
#include "cuda/rows/backward/backward.h"
#include "cuda/rows/forward/forward.h"
#include "cuda/sm90/backward/backward.h"
#include "cuda/sm90/forward/forward.h"
#include "plan/implementation.h"

namespace sirdar {

extern const Implementation kReference;

std::span<const Implementation* const> implementations() {
  static const Implementation* const kAll[] = {
      &sm90::kForward,   &sm90::kBackward,   &rows::kForward, &rows::kBackward,
      &cpu::kCpuForward, &cpu::kCpuBackward, &kReference,
  };
  return kAll;
}

}  // namespace sirdar
