// Any bytes as a .safetensors file: tensors whose memory is all there, or a sentence.
#include "io/safetensors.h"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sirdar::io;
  const auto file =
      Safetensors::open(Source::over_memory("x.safetensors", std::as_bytes(std::span(data, size))));
  if (!file.ok()) {
    if (file.status().message().empty()) std::abort();
    return 0;
  }
  uint64_t total = 0;
  for (const SafetensorsEntry& entry : file.value().entries()) {
    total += entry.end - entry.begin;
    const auto array = file.value().read(entry.name);
    if (!array.ok()) continue;
    const auto bytes = checked_bytes(array.value().shape, facts(array.value().type).bytes);
    if (!bytes || static_cast<uint64_t>(*bytes) != array.value().buffer.size()) std::abort();
  }
  if (total > size) std::abort();  // tensors overlap
  return 0;
}
