#include "reference/ladder/formulas.h"

#include <algorithm>

#include "reference/ladder/blocks.h"

namespace sirdar::ladder {
namespace {

// Sums over the tiles that are computed.
struct TileSums {
  int64_t elements = 0;    // A: rows x keys
  int64_t row_visits = 0;  // R: query rows, once a tile
  int64_t key_loads = 0;   // K: key rows, once a load
};

TileSums sums_of_causal(const Head& head, const Blocks& blocks) {
  TileSums sums;
  for (int64_t tile = 0; tile < ceil_div(head.seqlen, blocks.block_m); ++tile) {
    const RowRange rows = rows_of_tile(tile, blocks.block_m, head.seqlen);
    const int64_t tiles = ceil_div(rows.end, blocks.block_n);
    const int64_t keys = std::min(tiles * blocks.block_n, head.seqlen);
    sums.elements += rows.size() * keys;
    sums.row_visits += rows.size() * tiles;
    sums.key_loads += keys;
  }
  return sums;
}

TileSums sums_of_pattern(const Head& head, const Blocks& blocks, const TilePattern& pattern) {
  TileSums sums;
  for (int64_t tile_n = 0; tile_n < pattern.tiles_n; ++tile_n) {
    const int64_t keys = rows_of_tile(tile_n, blocks.block_n, head.seqlen).size();
    int64_t rows = 0;
    for (int64_t tile_m = 0; tile_m < pattern.tiles_m; ++tile_m) {
      if (!pattern.at(tile_m, tile_n)) continue;
      rows += rows_of_tile(tile_m, blocks.block_m, head.seqlen).size();
    }
    sums.elements += rows * keys;
    sums.row_visits += rows;
    sums.key_loads += rows > 0 ? keys : 0;
  }
  return sums;
}

}  // namespace

Prediction predict_softmax(Softmax kind, int64_t rows, int64_t size) {
  const int64_t e = rows * size;
  switch (kind) {
    case Softmax::naive:
      return {{"0", 0}, {"2N^2", 2 * e}, {"2N^2", 2 * e}, {"2N^2", 2 * e}, {"N^2", e}, {"0", 0}};
    case Softmax::safe:
      return {{"0", 0}, {"5N^2", 5 * e}, {"2N^2", 2 * e}, {"3N^2", 3 * e}, {"N^2", e}, {"0", 0}};
    case Softmax::online:
      return {{"0", 0}, {"7N^2", 7 * e}, {"3N^2", 3 * e}, {"2N^2", 2 * e}, {"N^2", e}, {"0", 0}};
  }
  return {};
}

Prediction predict_standard_forward(const Head& head, int64_t fast_elements) {
  const int64_t n = head.seqlen, d = head.head_dim;
  const int64_t t = ceil_div(n, rows_held(n, d, fast_elements));
  const int64_t nd = n * d, nn = n * n;
  Prediction p;
  p.matmul_flops = {"4N^2 d", 4 * nn * d};
  p.written = {"Nd + 2N^2", nd + 2 * nn};
  p.extra = {"2N^2", 2 * nn};
  if (n <= fast_elements) {
    p.other_flops = {"5N^2", 5 * nn};
    p.exps = {"N^2", nn};
    p.read = {"(1 + 2Tm)Nd + 2N^2", (1 + 2 * t) * nd + 2 * nn};
  } else {
    p.other_flops = {"6N^2", 6 * nn};
    p.exps = {"2N^2", 2 * nn};
    p.read = {"(1 + 2Tm)Nd + 4N^2", (1 + 2 * t) * nd + 4 * nn};
  }
  return p;
}

Prediction predict_standard_backward(const Head& head, int64_t fast_elements) {
  const int64_t n = head.seqlen, d = head.head_dim;
  const int64_t t = ceil_div(n, rows_held(n, d, fast_elements));
  const int64_t nd = n * d, nn = n * n;
  Prediction p;
  p.matmul_flops = {"8N^2 d", 8 * nn * d};
  p.other_flops = {"5N^2", 5 * nn};
  p.exps = {"0", 0};
  if (2 * n <= fast_elements) {
    p.read = {"(1 + 4Tm)Nd + 5N^2", (1 + 4 * t) * nd + 5 * nn};
  } else {
    p.read = {"(1 + 4Tm)Nd + 7N^2", (1 + 4 * t) * nd + 7 * nn};
  }
  p.written = {"3Nd + 2N^2", 3 * nd + 2 * nn};
  p.extra = {"2N^2", 2 * nn};
  return p;
}

Prediction predict_flash1(const Head& head, const Blocks& blocks) {
  const int64_t n = head.seqlen, d = head.head_dim;
  const int64_t t = ceil_div(n, blocks.block_n), nn = n * n;
  return {{"4N^2 d", 4 * nn * d},
          {"4N^2 + TnN(4d + 6)", 4 * nn + t * n * (4 * d + 6)},
          {"N^2 + 2TnN", nn + 2 * t * n},
          {"2Nd + TnN(2d + 2)", 2 * n * d + t * n * (2 * d + 2)},
          {"(Tn + 1)N(d + 2)", (t + 1) * n * (d + 2)},
          {"2N", 2 * n}};
}

Prediction predict_block_sparse(const Head& head, const Blocks& blocks,
                                const TilePattern& pattern) {
  const int64_t n = head.seqlen, d = head.head_dim;
  const auto [a, r, k] = sums_of_pattern(head, blocks, pattern);
  return {{"4Ad", 4 * a * d},
          {"4A + R(4d + 6)", 4 * a + r * (4 * d + 6)},
          {"A + 2R", a + 2 * r},
          {"2Kd + R(2d + 2)", 2 * k * d + r * (2 * d + 2)},
          {"(R + N)(d + 2)", (r + n) * (d + 2)},
          {"2N", 2 * n}};
}

Prediction predict_recompute_forward(const Head& head, const Blocks& blocks) {
  const int64_t n = head.seqlen, d = head.head_dim, nn = n * n;
  const int64_t tm = ceil_div(n, blocks.block_m), tn = ceil_div(n, blocks.block_n);
  return {{"6N^2 d", 6 * nn * d},
          {"7N^2 + 6(Tn - 1)N", 7 * nn + 6 * (tn - 1) * n},
          {"2N^2 + 2(Tn - 1)N", 2 * nn + 2 * (tn - 1) * n},
          {"2Nd + 3TmNd + 2N", 2 * n * d + 3 * tm * n * d + 2 * n},
          {"Nd + 2N", n * d + 2 * n},
          {"2N", 2 * n}};
}

Prediction predict_recompute_backward(const Head& head, const Blocks& blocks) {
  const int64_t n = head.seqlen, d = head.head_dim, nn = n * n;
  const int64_t t = ceil_div(n, blocks.block_n);
  return {{"10N^2 d", 10 * nn * d},
          {"6N^2 + 2TnNd", 6 * nn + 2 * t * n * d},
          {"N^2", nn},
          {"2Nd + TnN(4d + 2)", 2 * n * d + t * n * (4 * d + 2)},
          {"(Tn + 3)Nd", (t + 3) * n * d},
          {"2N", 2 * n}};
}

Prediction predict_flash2(const Head& head, const Blocks& blocks) {
  const int64_t n = head.seqlen, d = head.head_dim, nn = n * n;
  const int64_t tm = ceil_div(n, blocks.block_m), tn = ceil_div(n, blocks.block_n);
  return {{"4N^2 d", 4 * nn * d},
          {"4N^2 + TnN(d + 3) + N(d + 1)", 4 * nn + tn * n * (d + 3) + n * (d + 1)},
          {"N^2 + TnN + N", nn + tn * n + n},
          {"Nd + 2TmNd", n * d + 2 * tm * n * d},
          {"Nd + N", n * d + n},
          {"N", n}};
}

Prediction predict_flash2_causal(const Head& head, const Blocks& blocks) {
  const int64_t n = head.seqlen, d = head.head_dim;
  const auto [a, r, k] = sums_of_causal(head, blocks);
  return {{"4Ad", 4 * a * d},       {"4A + R(d + 3) + N(d + 1)", 4 * a + r * (d + 3) + n * (d + 1)},
          {"A + R + N", a + r + n}, {"Nd + 2Kd", n * d + 2 * k * d},
          {"Nd + N", n * d + n},    {"N", n}};
}

Prediction predict_flash2_backward(const Head& head, const Blocks& blocks) {
  const int64_t n = head.seqlen, d = head.head_dim, nn = n * n;
  const int64_t t = ceil_div(n, blocks.block_n);
  return {{"10N^2 d", 10 * nn * d},
          {"5N^2 + 2Nd", 5 * nn + 2 * n * d},
          {"N^2", nn},
          {"4Nd + TnN(3d + 2)", 4 * n * d + t * n * (3 * d + 2)},
          {"(Tn + 3)Nd + N", (t + 3) * n * d + n},
          {"2N", 2 * n}};
}

int64_t causal_elements(const Head& head, const Blocks& blocks) {
  return sums_of_causal(head, blocks).elements;
}

int64_t causal_masked_tiles(const Head& head, const Blocks& blocks) {
  int64_t count = 0;
  for (int64_t tile = 0; tile < ceil_div(head.seqlen, blocks.block_m); ++tile) {
    const RowRange rows = rows_of_tile(tile, blocks.block_m, head.seqlen);
    // Key tiles that begin at or before the last row, less those that end at or before the first.
    count += ceil_div(rows.end, blocks.block_n);
    // The last key tile of all may be short, and then ends where the rows end.
    int64_t whole = (rows.begin + 1) / blocks.block_n;
    if (rows.begin + 1 == head.seqlen) whole = ceil_div(head.seqlen, blocks.block_n);
    count -= whole;
  }
  return count;
}

int64_t pattern_elements(const Head& head, const Blocks& blocks, const TilePattern& pattern) {
  return sums_of_pattern(head, blocks, pattern).elements;
}

}  // namespace sirdar::ladder
