#include "core/environment.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/device.h"

namespace sirdar {
namespace {

// Empty where the switch is not set.
std::string_view value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

Status refused(std::string_view name, std::string_view value, std::string_view allowed) {
  return Status(StatusCode::invalid_argument,
                fmt::format("{}: '{}' is not {}.", name, value, allowed), std::string(name));
}

}  // namespace

bool is_log_on_stderr() { return value_of("SIRDAR_LOG") == "1"; }

Status check_environment() {
  const std::string_view log = value_of("SIRDAR_LOG");
  if (!log.empty() && log != "0" && log != "1") {
    return refused("SIRDAR_LOG", log, "0 or 1; set 1 for notices on stderr, or unset it");
  }
  const std::string_view no_jit = value_of("SIRDAR_NO_JIT");
  if (!no_jit.empty() && no_jit != "0" && no_jit != "1") {
    return refused("SIRDAR_NO_JIT", no_jit,
                   "0 or 1; set 1 to forbid compiling kernels, or unset it");
  }
  const std::string_view threads = value_of("SIRDAR_NUM_THREADS");
  if (!threads.empty() && !parse_num_threads(threads)) {
    return refused("SIRDAR_NUM_THREADS", threads,
                   "a whole number from 1 to 4096; set one, or unset it for all that may run");
  }
  return {};
}

}  // namespace sirdar
