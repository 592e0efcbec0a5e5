// A TMA descriptor as kernels receive it, a field of their parameters: opaque to all but the
// driver, which fills it, and the hardware.
#pragma once

namespace sirdar {

struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

}  // namespace sirdar
