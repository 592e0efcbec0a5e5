#pragma once

#include "ptx/base.cuh"

namespace sirdar::sm90 {

// A position in a ring of stages: which one, and the parity of its current phase.
template <int kStages>
struct RingPosition {
  int stage = 0, parity = 0;

  SIRDAR_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace sirdar::sm90
