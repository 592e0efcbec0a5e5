// Any bytes as a .npy file: an array whose memory is all there, or a sentence.
#include "io/npy.h"

#include <algorithm>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sirdar::io;
  const Source source = Source::over_memory("x.npy", std::as_bytes(std::span(data, size)));
  const auto array = read_npy(source);
  if (!array.ok()) {
    if (array.status().message().empty()) std::abort();
    return 0;
  }
  const Array& read = array.value();
  const auto bytes = checked_bytes(read.shape, facts(read.type).bytes);
  if (!bytes || static_cast<uint64_t>(*bytes) != read.buffer.size()) std::abort();
  // What was read can be written, and read again as the same array.
  std::string file = npy_header(read.type, read.shape);
  file.append(reinterpret_cast<const char*>(read.buffer.data()), read.buffer.size());
  const auto again = read_npy(Source::over_memory("y.npy", std::as_bytes(std::span(file))));
  if (!again.ok() || again.value().type != read.type || again.value().shape != read.shape ||
      !std::ranges::equal(again.value().buffer.bytes(), read.buffer.bytes())) {
    std::abort();
  }
  return 0;
}
