#include "peak_memory.h"

#include "plan/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace sirdar::cli {
namespace {

std::optional<int64_t> bytes_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == key && file >> kib) return kib << 10;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> free_memory() {
  std::optional<int64_t> bytes = bytes_in("/proc/meminfo", "MemAvailable:");
  std::ifstream limit("/sys/fs/cgroup/memory.max");  // "max" where there is none
  if (int64_t most = 0; limit >> most) bytes = std::min(bytes.value_or(most), most);
  return bytes;
}

Status check_memory(const Problem& problem, int copies) {
  Problem whole = problem;  // hidden rows are made too
  whole.mask = Mask();
  const double needed = copies * cost_of(whole).bytes();
  const std::optional<int64_t> free = free_memory();
  if (!free || needed <= static_cast<double>(*free)) return {};
  constexpr double kGiB = 1 << 30;
  return Status(
      StatusCode::out_of_memory,
      fmt::format("memory: the tensors of '{}'{} take {:.1f} GiB and {:.1f} are free; use a "
                  "smaller problem.",
                  problem.str(), copies > 1 ? fmt::format(", made {} times,", copies) : "",
                  needed / kGiB, static_cast<double>(*free) / kGiB),
      "memory");
}

PeakMemory::PeakMemory() {
  // "5" sets the kernel's high-water mark back to what is in use now.
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;
  if (reset) before_ = bytes_in("/proc/self/status", "VmRSS:");
}

std::optional<int64_t> PeakMemory::extra_bytes() const {
  const std::optional<int64_t> peak = bytes_in("/proc/self/status", "VmHWM:");
  if (!before_ || !peak) return std::nullopt;
  return std::max<int64_t>(0, *peak - *before_);
}

}  // namespace sirdar::cli
