// What changes the instructions or shared memory of the row-by-row forward, and nothing else. Read
// by g++, clang and NVRTC. Lengths, strides, masks, head counts and scales are ForwardParams.
#pragma once

namespace sirdar::rows {

enum class Element : int { none, fp32, bf16, fp16 };

struct ForwardConfig {
  Element element = Element::bf16, element_out = Element::bf16;
  Element bias = Element::none;
  // head_dim and head_dim_v rounded up to 32, 64, 128, 256 or 512.
  int columns = 128, columns_v = 128;
  int splits = 1;         // warps that share a row's keys: 1, or all of a block
  bool is_paged = false;  // K and V
  bool has_dropout = false;

  bool operator==(const ForwardConfig&) const = default;
};

// The one list of the fields: printing, parsing, hashing and emitting use it.
template <class C, class Visit>
constexpr void fields(C& c, Visit visit) {
  visit("element", c.element);
  visit("element_out", c.element_out);
  visit("bias", c.bias);
  visit("columns", c.columns);
  visit("columns_v", c.columns_v);
  visit("splits", c.splits);
  visit("is_paged", c.is_paged);
  visit("has_dropout", c.has_dropout);
}

inline constexpr int kWarps = 8;  // of a block
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kMaxColumns = 512;

constexpr int rounded_columns(int head_dim) {
  int columns = 32;
  while (columns < head_dim) columns *= 2;
  return columns;
}

constexpr int element_bytes(Element element) { return element == Element::fp32 ? 4 : 2; }

// Columns of V that are neighbours in one lane, up to 16 bytes, and all of a lane's.
constexpr int lane_columns(const ForwardConfig& c) { return c.columns_v / 32; }
constexpr int group_columns(const ForwardConfig& c) {
  const int widest = 16 / element_bytes(c.element);
  return lane_columns(c) < widest ? lane_columns(c) : widest;
}

// Of a warp: its query in fp32 and, where warps share a row, what it found: 16 bytes, and the
// columns of each lane in pieces of 16 bytes.
constexpr int query_bytes(const ForwardConfig& c) { return 4 * c.columns; }
constexpr int num_pieces(const ForwardConfig& c) { return (lane_columns(c) + 3) / 4; }
constexpr int share_bytes(const ForwardConfig& c) {
  return c.splits > 1 ? 16 + 32 * 16 * num_pieces(c) : 0;
}
constexpr int warp_bytes(const ForwardConfig& c) { return query_bytes(c) + share_bytes(c); }
constexpr int shared_bytes(const ForwardConfig& c) { return kWarps * warp_bytes(c); }

// Blocks of a multiprocessor that the registers are meant for.
constexpr int min_blocks(const ForwardConfig& c) { return c.columns_v <= 128 ? 3 : 2; }

constexpr bool is_valid(const ForwardConfig& c) {
  return c.element != Element::none && c.element_out != Element::none &&
         c.columns == rounded_columns(c.columns) && c.columns <= kMaxColumns &&
         c.columns_v == rounded_columns(c.columns_v) && c.columns_v <= kMaxColumns &&
         (c.splits == 1 || c.splits == kWarps);
}

}  // namespace sirdar::rows
