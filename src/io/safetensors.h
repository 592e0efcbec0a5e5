// .safetensors files: named arrays behind a JSON header.
#pragma once

#include "io/array.h"
#include "io/source.h"

namespace sirdar::io {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;            // as the file spells it; may be one that is not known here
  std::vector<int64_t> shape;   // of any rank
  uint64_t begin = 0, end = 0;  // bytes, from the end of the header
};

// The header, checked against the format's rules and the file's size: entries in file order,
// gap-free and disjoint.
class Safetensors {
 public:
  static Result<Safetensors> open(Source source);

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // One array. Types of SIRDAR_ELEMENT_TYPES and at most kMaxRank axes.
  Result<Array> read(std::string_view name) const;

 private:
  explicit Safetensors(Source source) : source_(std::move(source)) {}
  Status read_header();
  Status check_layout() const;

  Source source_;
  uint64_t data_offset_ = 0;
  std::vector<SafetensorsEntry> entries_;
};

struct SafetensorsItem {
  std::string name;
  ElementType type = ElementType::fp32;
  std::vector<int64_t> shape;
};
bool is_safetensors_name(std::string_view name);  // UTF-8, and not the format's own
// The bytes before the data; the data are the items' arrays in the order given, without gaps.
std::string safetensors_header(std::span<const SafetensorsItem> items);

}  // namespace sirdar::io
