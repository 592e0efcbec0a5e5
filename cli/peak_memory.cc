#include "peak_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace sirdar::cli {
namespace {

std::optional<int64_t> status_bytes(const char* key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == key && file >> kib) return kib << 10;
  }
  return std::nullopt;
}

}  // namespace

PeakMemory::PeakMemory() {
  // "5" sets the kernel's high-water mark back to what is in use now.
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;
  if (reset) before_ = status_bytes("VmRSS:");
}

std::optional<int64_t> PeakMemory::extra_bytes() const {
  const std::optional<int64_t> peak = status_bytes("VmHWM:");
  if (!before_ || !peak) return std::nullopt;
  return std::max<int64_t>(0, *peak - *before_);
}

}  // namespace sirdar::cli
