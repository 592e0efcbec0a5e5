// How much memory a piece of work took at its highest, beyond what the process had before.
#pragma once

#include <cstdint>
#include <optional>

namespace sirdar::cli {

class PeakMemory {
 public:
  PeakMemory();  // the work begins
  // Bytes; nothing where the system does not tell.
  std::optional<int64_t> extra_bytes() const;

 private:
  std::optional<int64_t> before_;
};

}  // namespace sirdar::cli
