// Which implementations there are, best first. Adding one is a line here.
#include "cpu/cpu.h"
#include "plan/implementation.h"

namespace sirdar {

extern const Implementation kReference;

std::span<const Implementation* const> implementations() {
  static const Implementation* const kAll[] = {
      &cpu::kCpuForward,
      &cpu::kCpuBackward,
      &kReference,
  };
  return kAll;
}

}  // namespace sirdar
