// Where in a kernel an operation stands. Every function of the host face takes one by default,
// which is how reports name places and how faults are planted without touching the kernel.
#pragma once

namespace sirdar::emulator {

struct Here {
  const char* file;
  unsigned line;

  // std::source_location in its place: clang 14 has none.
  static constexpr Here current(const char* file = __builtin_FILE(),
                                unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace sirdar::emulator
