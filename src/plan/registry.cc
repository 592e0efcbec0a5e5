// Which implementations there are, best first. Adding one is a line here.
#include "plan/implementation.h"

namespace sirdar {

extern const Implementation kReference;

std::span<const Implementation* const> implementations() {
  static const Implementation* const kAll[] = {&kReference};
  return kAll;
}

}  // namespace sirdar
