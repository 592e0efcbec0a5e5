#include "io/source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sirdar::io {

Result<Source> Source::open(const std::string& path) {
  Source source;
  source.name_ = path;
  // O_NONBLOCK: a named pipe is refused below instead of waited for.
  source.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (source.descriptor_ < 0) {
    return source.error(
        fmt::format("cannot be opened ({}); name a file that can be read.", std::strerror(errno)));
  }
  struct stat facts {};
  if (::fstat(source.descriptor_, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return source.error("is not a regular file; copy the data into one.");
  }
  source.size_ = static_cast<uint64_t>(facts.st_size);
  return source;
}

Source Source::over_memory(std::string name, std::span<const std::byte> bytes) {
  Source source;
  source.name_ = std::move(name);
  source.size_ = bytes.size();
  source.memory_ = bytes;
  return source;
}

Source::Source(Source&& other) noexcept
    : name_(std::move(other.name_)),
      size_(other.size_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      memory_(other.memory_) {}

Source::~Source() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status Source::read(uint64_t offset, std::span<std::byte> into) const {
  if (offset > size_ || into.size() > size_ - offset) {
    return error(fmt::format("has {} bytes, too few for {} more at byte {}; it was cut short.",
                             size_, into.size(), offset));
  }
  if (descriptor_ < 0) {
    std::copy_n(memory_.begin() + static_cast<ptrdiff_t>(offset), into.size(), into.begin());
    return {};
  }
  while (!into.empty()) {
    constexpr size_t kLargestRead = size_t{1} << 30;
    const ssize_t got = ::pread(descriptor_, into.data(), std::min(into.size(), kLargestRead),
                                static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error(fmt::format("cannot be read ({}).", std::strerror(errno)));
    if (got == 0) return error("became shorter while it was read; do not write to it meanwhile.");
    into = into.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

Status Source::error(const std::string& sentence) const {
  return Status(StatusCode::invalid_argument, name_ + ": " + sentence, name_);
}

}  // namespace sirdar::io
