// Any text as a problem: a sentence, or a problem whose printed form is the same problem again.
#include <sirdar/problem.hpp>

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto problem = sirdar::Problem::parse(text);
  if (!problem.ok()) {
    if (problem.status().message().empty()) std::abort();
    return 0;
  }
  if (!problem.value().validate().ok()) return 0;
  const auto again = sirdar::Problem::parse(problem.value().str());
  if (!again.ok() || !(again.value() == problem.value())) std::abort();
  return 0;
}
