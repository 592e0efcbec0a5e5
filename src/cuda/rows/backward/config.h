// What changes the instructions or shared memory of the row-by-row backward, and nothing else. Read
// by g++, clang and NVRTC. Lengths, strides, masks, head counts and scales are BackwardParams.
#pragma once

#include "cuda/rows/forward/config.h"

namespace sirdar::rows {

struct BackwardConfig {
  Element element = Element::bf16, element_out = Element::bf16;  // of q, k, v; of out, dout
  Element bias = Element::none;
  // head_dim and head_dim_v rounded up to 32, 64, 128, 256 or 512.
  int columns = 128, columns_v = 128;
  bool has_dropout = false;

  bool operator==(const BackwardConfig&) const = default;
};

// The one list of the fields: printing, parsing, hashing and emitting use it.
template <class Visit>
constexpr void fields(BackwardConfig& c, Visit visit) {
  visit("element", c.element);
  visit("element_out", c.element_out);
  visit("bias", c.bias);
  visit("columns", c.columns);
  visit("columns_v", c.columns_v);
  visit("has_dropout", c.has_dropout);
}
template <class Visit>
constexpr void fields(const BackwardConfig& c, Visit visit) {
  BackwardConfig copy = c;
  fields(copy, [&](const auto& name, const auto& value) { visit(name, value); });
}

// Neighbouring columns of a lane, up to 16 bytes.
constexpr int neighbours(Element element, int columns) {
  const int widest = 16 / element_bytes(element);
  return columns / 32 < widest ? columns / 32 : widest;
}

// A warp's own row and its other half (a query and its dout, a key and its value) in fp32.
constexpr int staged_bytes(const BackwardConfig& c) { return 4 * (c.columns + c.columns_v); }
constexpr int shared_bytes(const BackwardConfig& c) { return kWarps * staged_bytes(c); }

constexpr bool is_valid(const BackwardConfig& c) {
  return c.element != Element::none && c.element_out != Element::none &&
         c.columns == rounded_columns(c.columns) && c.columns <= kMaxColumns &&
         c.columns_v == rounded_columns(c.columns_v) && c.columns_v <= kMaxColumns;
}

}  // namespace sirdar::rows
