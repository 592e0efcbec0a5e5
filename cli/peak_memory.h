// How much memory there is, and how much a piece of work took at its highest, beyond what the
// process had before.
#pragma once

#include <sirdar/problem.hpp>
#include <sirdar/status.hpp>

#include <cstdint>
#include <optional>

namespace sirdar::cli {

// Bytes that may be had, as far as the system tells.
std::optional<int64_t> free_memory();

// Ok, or that the tensors of a problem, made so many times, do not fit the memory that is free:
// filling more takes long and may end other processes.
Status check_memory(const Problem& problem, int copies = 1);

class PeakMemory {
 public:
  PeakMemory();  // the work begins
  // Bytes; nothing where the system does not tell.
  std::optional<int64_t> extra_bytes() const;

 private:
  std::optional<int64_t> before_;
};

}  // namespace sirdar::cli
