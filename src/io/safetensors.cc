#include "io/safetensors.h"

#include "io/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sirdar::io {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // the format's own bound

const ElementTypeFacts* find_type(std::string_view dtype) {
  for (const ElementTypeFacts& row : element_types()) {
    if (row.safetensors == dtype) return &row;
  }
  return nullptr;
}

}  // namespace

Result<Safetensors> Safetensors::open(Source source) {
  Safetensors file(std::move(source));
  if (Status status = file.read_header(); !status.ok()) return status;
  if (Status status = file.check_layout(); !status.ok()) return status;
  return file;
}

Status Safetensors::read_header() {
  unsigned char bytes[kLengthBytes];
  if (source_.size() < kLengthBytes) {
    return source_.error(
        fmt::format("has {} bytes, too few for a .safetensors file; it was cut "
                    "short.",
                    source_.size()));
  }
  if (Status status = source_.read(0, std::as_writable_bytes(std::span(bytes))); !status.ok()) {
    return status;
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{bytes[i]} << (8 * i);
  if (length > kLongestHeader) {
    return source_.error(fmt::format("the header says it is {} bytes long; the format allows {}.",
                                     length, kLongestHeader));
  }
  if (length > source_.size() - kLengthBytes) {
    return source_.error(
        fmt::format("the header says it is {} bytes long, but the file has only {} "
                    "bytes; it was cut short.",
                    length, source_.size()));
  }
  std::string text(static_cast<size_t>(length), '\0');
  if (Status status = source_.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
      !status.ok()) {
    return status;
  }
  std::string problem = parse_safetensors_header(text, entries_);
  if (!problem.empty()) return source_.error(problem);
  data_offset_ = kLengthBytes + length;
  std::ranges::stable_sort(entries_, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  return {};
}

Status Safetensors::check_layout() const {
  const uint64_t size = source_.size() - data_offset_;
  uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries_) {
    if (entry.begin > entry.end || entry.end > size) {
      return source_.error(fmt::format(
          "data_offsets of {} are [{}, {}], but the file has {} bytes of data; {}.",
          in_quotes(entry.name), entry.begin, entry.end, size,
          entry.begin > entry.end ? "the first may not be larger" : "it was cut short"));
    }
    if (entry.begin != covered) {
      return source_.error(fmt::format(
          "data_offsets of {} begin at {} where {} is expected; tensors must lie one after the "
          "other without overlap or gap.",
          in_quotes(entry.name), entry.begin, covered));
    }
    covered = entry.end;
    const ElementTypeFacts* type = find_type(entry.dtype);
    if (!type) continue;  // a type newer than this reader hurts only whoever asks for it
    const std::optional<int64_t> bytes = checked_bytes(entry.shape, type->bytes);
    if (!bytes || static_cast<uint64_t>(*bytes) != entry.end - entry.begin) {
      return source_.error(
          fmt::format("{} has shape {} of {}, which needs {} bytes, but its data_offsets hold {}.",
                      in_quotes(entry.name), print_shape(entry.shape), type->name,
                      bytes ? fmt::to_string(*bytes) : "more than 2^63", entry.end - entry.begin));
    }
  }
  if (covered != size) {
    return source_.error(
        fmt::format("has {} bytes after its last tensor; remove them.", size - covered));
  }
  return {};
}

Result<Array> Safetensors::read(std::string_view name) const {
  const auto entry = std::ranges::find(entries_, name, &SafetensorsEntry::name);
  if (entry == entries_.end()) {
    constexpr size_t kListed = 12;
    std::string names;
    for (size_t i = 0; i < std::min(entries_.size(), kListed); ++i) {
      names += (i ? ", " : "") + in_quotes(entries_[i].name);
    }
    if (entries_.size() > kListed) names += ", ...";
    return source_.error(fmt::format("has no tensor {}; it holds {}.", in_quotes(name),
                                     names.empty() ? "none" : names));
  }
  const ElementTypeFacts* type = find_type(entry->dtype);
  if (!type) {
    return source_.error(fmt::format(
        "dtype {} of {} cannot be read; F32, BF16, F16, F8_E4M3, F8_E5M2, F64, BOOL and the "
        "integers can.",
        in_quotes(entry->dtype), in_quotes(name)));
  }
  if (entry->shape.size() > static_cast<size_t>(kMaxRank)) {
    return source_.error(fmt::format("{} has {} axes; at most {} are allowed.", in_quotes(name),
                                     entry->shape.size(), kMaxRank));
  }
  Result<Buffer> buffer = Buffer::allocate(entry->end - entry->begin);
  if (!buffer.ok()) return buffer.status();
  if (Status status = source_.read(data_offset_ + entry->begin, buffer.value().bytes());
      !status.ok()) {
    return status;
  }
  return Array{type->type, entry->shape, std::move(buffer).value()};
}

bool is_safetensors_name(std::string_view name) {
  using Json = nlohmann::json;
  const std::string quoted_name = Json(name).dump(-1, ' ', false, Json::error_handler_t::ignore);
  // What is not UTF-8 was left out, so the text no longer says the same.
  const Json again = Json::parse(quoted_name, nullptr, false);
  return again.is_string() && again.get_ref<const std::string&>() == name &&
         name != "__metadata__";
}

std::string safetensors_header(std::span<const SafetensorsItem> items) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  uint64_t offset = 0;
  for (const SafetensorsItem& item : items) {
    const ElementTypeFacts& type = facts(item.type);
    const uint64_t bytes = static_cast<uint64_t>(checked_bytes(item.shape, type.bytes).value_or(0));
    json[item.name] = {{"dtype", type.safetensors},
                       {"shape", item.shape},
                       {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  // Spaces bring the data to a multiple of 8 bytes.
  std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  std::string header;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    header += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return header + text;
}

}  // namespace sirdar::io
