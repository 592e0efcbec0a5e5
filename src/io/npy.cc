#include "io/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace sirdar::io {
namespace {

static_assert(std::endian::native == std::endian::little, "byte orders below assume it");

constexpr std::string_view kMagic = "\x93NUMPY";
// Far more than any array needs; a length field alone must not make us allocate gigabytes.
constexpr uint32_t kLongestHeader = 1 << 20;

struct Header {
  ElementType type = ElementType::fp32;
  bool is_big_endian = false, is_fortran = false;
  std::vector<int64_t> shape;
  uint64_t data_offset = 0;
};

// The header is a Python dictionary with three known keys. Only what NumPy itself writes is read:
// strings without escapes, True and False, a tuple of non-negative integers.
class HeaderParser {
 public:
  HeaderParser(const Source& source, std::string_view text) : source_(source), text_(text) {}

  Result<Header> parse() {
    if (!take('{')) return expected("'{'");
    while (!take('}')) {
      if (Status status = parse_entry(); !status.ok()) return status;
      if (take(',')) continue;
      if (!take('}')) return expected("',' or '}'");
      break;
    }
    skip_space();
    if (at_ != text_.size()) return expected("nothing more");
    const char* missing = !has_descr_     ? "descr"
                          : !has_fortran_ ? "fortran_order"
                          : !has_shape_   ? "shape"
                                          : nullptr;
    if (missing) {
      return source_.error(
          fmt::format("the .npy header has no '{}' entry; it needs descr, "
                      "fortran_order and shape.",
                      missing));
    }
    return header_;
  }

 private:
  Status parse_entry() {
    std::string_view key;
    if (Status status = parse_string(key); !status.ok()) return status;
    if (!take(':')) return expected("':'");
    bool* seen = key == "descr"           ? &has_descr_
                 : key == "fortran_order" ? &has_fortran_
                 : key == "shape"         ? &has_shape_
                                          : nullptr;
    if (!seen) {
      return source_.error(
          fmt::format("the .npy header has the unknown entry {}; only descr, "
                      "fortran_order and shape are allowed.",
                      in_quotes(key)));
    }
    if (*seen) {
      return source_.error(
          fmt::format("the .npy header has two '{}' entries; one is allowed.", key));
    }
    *seen = true;
    if (seen == &has_descr_) return parse_descr();
    if (seen == &has_fortran_) return parse_fortran();
    return parse_shape();
  }

  Status parse_descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[') {
      return source_.error(
          "descr is a list of fields; only plain arrays can be read, so save one "
          "field.");
    }
    std::string_view descr;
    if (Status status = parse_string(descr); !status.ok()) return status;
    const char order = descr.empty() ? '\0' : descr[0];
    const std::string_view name = descr.substr(descr.empty() ? 0 : 1);
    for (const ElementTypeFacts& row : element_types()) {
      if (row.npy.empty() || row.npy != name) continue;
      if (order != '<' && order != '>' && !((order == '|' || order == '=') && row.bytes == 1))
        break;
      header_.type = row.type;
      header_.is_big_endian = order == '>';
      return {};
    }
    const bool is_raw = name == "V2" || name == "V1";
    return source_.error(fmt::format(
        "descr {} is not an element type that can be read; use float32, float16, float64, a plain "
        "integer type or bool{}.",
        in_quotes(descr), is_raw ? ", and keep bf16 and fp8 in a .safetensors file" : ""));
  }

  Status parse_fortran() {
    skip_space();
    const std::string_view rest = text_.substr(at_);
    const bool is_true = rest.starts_with("True");
    if (!is_true && !rest.starts_with("False")) return expected("True or False");
    at_ += is_true ? 4 : 5;
    header_.is_fortran = is_true;
    return {};
  }

  Status parse_shape() {
    if (!take('(')) return expected("'('");
    bool needs_comma = false;
    while (!take(')')) {
      if (needs_comma) return expected("',' or ')'");
      int64_t size = 0;
      if (Status status = parse_size(size); !status.ok()) return status;
      if (header_.shape.size() == kMaxRank) {
        return source_.error(fmt::format("shape has more than {} axes; at most {} are allowed.",
                                         kMaxRank, kMaxRank));
      }
      header_.shape.push_back(size);
      needs_comma = !take(',');
      // "(3)" is a number in Python, not a tuple.
      if (needs_comma && header_.shape.size() == 1) return expected("','");
    }
    return {};
  }

  Status parse_size(int64_t& size) {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '-') {
      return source_.error("shape has a negative size; sizes are 0 or more.");
    }
    if (at_ == text_.size() || text_[at_] < '0' || text_[at_] > '9') return expected("a size");
    size = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      if (__builtin_mul_overflow(size, 10, &size) ||
          __builtin_add_overflow(size, text_[at_] - '0', &size)) {
        return source_.error("shape has a size beyond 64 bits; no file can hold that many.");
      }
      ++at_;
    }
    return {};
  }

  Status parse_string(std::string_view& string) {
    skip_space();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) {
      return expected("a quoted string");
    }
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return expected("a closing quote");
    string = text_.substr(at_ + 1, end - at_ - 1);
    if (string.find('\\') != std::string_view::npos) return expected("a string without escapes");
    at_ = end + 1;
    return {};
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Status expected(std::string_view what) const {
    return source_.error(
        fmt::format("the .npy header has {} where {} is expected (byte {}); write it with "
                    "numpy.save.",
                    at_ < text_.size() ? in_quotes(text_.substr(at_, 12)) : "its end", what, at_));
  }

  const Source& source_;
  std::string_view text_;
  size_t at_ = 0;
  Header header_;
  bool has_descr_ = false, has_fortran_ = false, has_shape_ = false;
};

Result<Header> read_header(const Source& source) {
  unsigned char start[12] = {};
  const size_t num_start = static_cast<size_t>(std::min<uint64_t>(source.size(), sizeof(start)));
  if (Status status = source.read(0, std::as_writable_bytes(std::span(start, num_start)));
      !status.ok()) {
    return status;
  }
  if (num_start < 10 || std::memcmp(start, kMagic.data(), kMagic.size()) != 0) {
    return source.error("does not start as a .npy file does; write it with numpy.save.");
  }
  const int major = start[6], minor = start[7];
  if (major < 1 || major > 3 || minor != 0) {
    return source.error(fmt::format(
        ".npy version {}.{} is not known; versions 1.0, 2.0 and 3.0 can be read.", major, minor));
  }
  const uint32_t prefix = major == 1 ? 10 : 12;
  uint32_t length = start[8] | uint32_t{start[9]} << 8;
  if (major > 1) length |= uint32_t{start[10]} << 16 | uint32_t{start[11]} << 24;
  if (length > kLongestHeader) {
    return source.error(
        fmt::format("the .npy header says it is {} bytes long; at most {} are "
                    "allowed.",
                    length, kLongestHeader));
  }
  if (source.size() < prefix || length > source.size() - prefix) {
    return source.error(
        fmt::format("the .npy header says it is {} bytes long, but the file has "
                    "only {} bytes; it was cut short.",
                    length, source.size()));
  }
  std::string text(length, ' ');
  if (Status status = source.read(prefix, std::as_writable_bytes(std::span(text))); !status.ok()) {
    return status;
  }
  Result<Header> header = HeaderParser(source, text).parse();
  if (header.ok()) header.value().data_offset = uint64_t{prefix} + length;
  return header;
}

void swap_bytes(std::span<std::byte> bytes, int64_t element_bytes) {
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(element_bytes)) {
    std::ranges::reverse(bytes.subspan(at, static_cast<size_t>(element_bytes)));
  }
}

// Fortran order: the first axis runs fastest.
void to_row_major(const std::byte* fortran, std::byte* row_major, const std::vector<int64_t>& shape,
                  int64_t element_bytes) {
  std::array<int64_t, kMaxRank> size, stride;  // slowest axis first, padded with leading 1s
  size.fill(1), stride.fill(0);
  int64_t step = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const size_t to = kMaxRank - shape.size() + axis;
    size[to] = shape[axis], stride[to] = step;
    step *= shape[axis];
  }
  for (int64_t a = 0; a < size[0]; ++a) {
    for (int64_t b = 0; b < size[1]; ++b) {
      for (int64_t c = 0; c < size[2]; ++c) {
        const std::byte* from =
            fortran + (a * stride[0] + b * stride[1] + c * stride[2]) * element_bytes;
        for (int64_t d = 0; d < size[3]; ++d) {
          std::memcpy(row_major, from + d * stride[3] * element_bytes,
                      static_cast<size_t>(element_bytes));
          row_major += element_bytes;
        }
      }
    }
  }
}

}  // namespace

Result<Array> read_npy(const Source& source) {
  Result<Header> parsed = read_header(source);
  if (!parsed.ok()) return parsed.status();
  const Header& header = parsed.value();
  const int64_t element_bytes = facts(header.type).bytes;
  const std::optional<int64_t> needed = checked_bytes(header.shape, element_bytes);
  const uint64_t present = source.size() - header.data_offset;
  if (!needed) {
    return source.error(
        fmt::format("shape {} holds more bytes than 64 bits can count; no file can.",
                    print_shape(header.shape)));
  }
  if (present != static_cast<uint64_t>(*needed)) {
    return source.error(fmt::format(
        "shape {} of {} needs {} bytes of data, but the file has {}; {}.",
        print_shape(header.shape), facts(header.type).name, *needed, present,
        present < static_cast<uint64_t>(*needed) ? "it was cut short" : "remove what follows it"));
  }
  Result<Buffer> buffer = Buffer::allocate(present);
  if (!buffer.ok()) return buffer.status();
  if (Status status = source.read(header.data_offset, buffer.value().bytes()); !status.ok()) {
    return status;
  }
  if (header.is_big_endian) swap_bytes(buffer.value().bytes(), element_bytes);
  Array array{header.type, header.shape, std::move(buffer).value()};
  if (header.is_fortran && header.shape.size() > 1 && present > 0) {
    Result<Buffer> row_major = Buffer::allocate(present);
    if (!row_major.ok()) return row_major.status();
    to_row_major(array.buffer.data(), row_major.value().data(), header.shape, element_bytes);
    array.buffer = std::move(row_major).value();
  }
  return array;
}

std::string npy_header(ElementType type, std::span<const int64_t> shape) {
  constexpr size_t kAlignment = 64;  // of the data, so that it can be mapped
  const ElementTypeFacts& row = facts(type);
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                 row.bytes == 1 ? '|' : '<', row.npy, fmt::join(shape, ", "),
                                 shape.size() == 1 ? "," : "");
  const size_t prefix = kMagic.size() + 4;
  const size_t unpadded = prefix + text.size() + 1;
  text.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string header(kMagic);
  header +=
      {'\x01', '\x00', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace sirdar::io
