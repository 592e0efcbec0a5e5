// Bytes to read an array from: a file, or memory in the tests and fuzzers. Reading past the end is
// an error with a sentence, also when the file shrinks meanwhile.
#pragma once

#include <sirdar/status.hpp>

#include <cstddef>
#include <span>
#include <string>

namespace sirdar::io {

class Source {
 public:
  // Regular files only: a size that is not known cannot be checked.
  static Result<Source> open(const std::string& path);
  static Source over_memory(std::string name, std::span<const std::byte> bytes);

  Source(Source&& other) noexcept;
  Source& operator=(Source&&) = delete;
  ~Source();

  const std::string& name() const { return name_; }
  uint64_t size() const { return size_; }
  Status read(uint64_t offset, std::span<std::byte> into) const;

  // A status about this file: "NAME: sentence".
  Status error(const std::string& sentence) const;

 private:
  Source() = default;
  std::string name_;
  uint64_t size_ = 0;
  int descriptor_ = -1;  // -1: memory_
  std::span<const std::byte> memory_;
};

}  // namespace sirdar::io
