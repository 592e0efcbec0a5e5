// The kernels for few queries give the bits of the general ones, in every format and on every
// instruction set of this machine: which of them runs is a matter of speed alone.
#include <gtest/gtest.h>

#include <sirdar/tensor.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpu/dispatch.h"
#include "shared/float_bits.h"

namespace sirdar::cpu {
namespace {

constexpr size_t kPad = 64;

// Rows of pseudo-random numbers in a format, each behind a gap of its own: no fixed stride.
struct Rows {
  std::vector<uint8_t> memory;
  std::vector<const void*> at;

  Rows(DType dtype, int count, int columns, uint32_t seed) {
    const size_t bytes = static_cast<size_t>(size_bytes(dtype));
    const size_t row = static_cast<size_t>(columns) * bytes;
    memory.resize(static_cast<size_t>(count) * (row + 4 * bytes));
    size_t to = 0;
    for (int j = 0; j < count; ++j) {
      at.push_back(memory.data() + to);
      for (int c = 0; c < columns; ++c, to += bytes) {
        seed = seed * 1664525u + 1013904223u;
        put(dtype, memory.data() + to, static_cast<float>(seed >> 8) * 0x1p-23f - 1);
      }
      to += static_cast<size_t>(j % 4) * bytes;
    }
  }
  static void put(DType dtype, uint8_t* to, float x) {
    const uint16_t half = dtype == DType::bf16 ? float_to_bf16(x) : float_to_fp16(x);
    if (dtype == DType::fp32) std::memcpy(to, &x, sizeof(x));
    if (dtype == DType::bf16 || dtype == DType::fp16) std::memcpy(to, &half, sizeof(half));
    if (dtype == DType::fp8_e4m3) *to = float_to_e4m3(x);
  }
};

struct Sizes {
  int num_keys, columns, num_lanes;
};

struct Fixture {
  const MicroKernels& table;
  const ProductKernels& kernels;
  DType dtype;
  Sizes sizes;
  int vectors = sizes.num_lanes <= table.lanes ? 1 : 2;
  int width = vectors * table.lanes;
  Rows rows{dtype, sizes.num_keys, sizes.columns, 7};
  std::vector<float> scratch = std::vector<float>(size_t{64} * 1024 + kPad);

  std::vector<float> lanes(int count, uint32_t seed) const {
    std::vector<float> x(static_cast<size_t>(count * width));
    for (size_t n = 0; n < x.size(); ++n) {
      seed = seed * 1664525u + 1013904223u;
      const bool is_used = static_cast<int>(n) % width < sizes.num_lanes;
      x[n] = is_used ? static_cast<float>(seed >> 8) * 0x1p-23f - 1 : 0;
    }
    return x;
  }
  // Operands: as above, or pairs of bf16.
  std::vector<float> words(int elements, uint32_t seed) const {
    const int count = (elements + kernels.per_word - 1) / kernels.per_word;
    std::vector<float> x = lanes(count, seed);
    if (kernels.per_word == 1) return x;
    for (float& word : x) {
      const uint16_t halves[2] = {float_to_bf16(word), float_to_bf16(-0.7f * word)};
      std::memcpy(&word, halves, sizeof(word));
    }
    return x;
  }
};

void expect_same_scores(Fixture& f) {
  const int rows = f.table.rows, keys = f.sizes.num_keys, head_dim = f.sizes.columns;
  const int words = (head_dim + f.kernels.per_word - 1) / f.kernels.per_word;
  const std::vector<float> q = f.words(head_dim, 3);
  const std::vector<float> max_in(static_cast<size_t>(f.width),
                                  -std::numeric_limits<float>::infinity());
  std::vector<float> packed(static_cast<size_t>((keys + rows) * head_dim));
  std::vector<float> wide(static_cast<size_t>(keys * f.width)), narrow(wide.size());
  std::vector<float> wide_max(max_in.size()), narrow_max(max_in.size());
  f.kernels.pack_k({f.rows.at.data(), packed.data(), keys, head_dim});
  f.kernels.qk[f.vectors - 1]({.k = packed.data(),
                               .block_stride = rows * words,
                               .row_stride = 1,
                               .column_stride = rows,
                               .q = q.data(),
                               .scores = wide.data(),
                               .max_in = max_in.data(),
                               .max_out = wide_max.data(),
                               .scale = 0.3f,
                               .num_keys = keys,
                               .head_dim = head_dim});
  f.kernels.narrow_qk({.k_rows = f.rows.at.data(),
                       .q = q.data(),
                       .scores = narrow.data(),
                       .max_in = max_in.data(),
                       .max_out = narrow_max.data(),
                       .scale = 0.3f,
                       .num_keys = keys,
                       .head_dim = head_dim,
                       .num_lanes = f.sizes.num_lanes,
                       .width = f.width});
  EXPECT_EQ(wide, narrow);
  for (int lane = 0; lane < f.sizes.num_lanes; ++lane) {
    EXPECT_EQ(wide_max[static_cast<size_t>(lane)], narrow_max[static_cast<size_t>(lane)]) << lane;
  }
}

// Scores along the keys and along the lanes, and what their softmax makes of them.
void expect_same_weights(Fixture& f) {
  const int lanes = f.table.lanes, keys = f.sizes.num_keys;
  const int stride = (keys + lanes - 1) / lanes * lanes;
  const std::vector<float> q = f.lanes(f.sizes.columns, 3), max_in = f.lanes(1, 17);
  std::vector<float> along_lanes(static_cast<size_t>(keys * f.width));
  std::vector<float> along_keys(static_cast<size_t>(f.width * stride), 7.0f);
  std::vector<float> max_out(max_in.size()), sum_a = f.lanes(1, 19), sum_b = sum_a;
  std::vector<float> alpha_a(max_in.size()), alpha_b(max_in.size());
  NarrowQkArgs args{.k_rows = f.rows.at.data(),
                    .q = q.data(),
                    .max_in = max_in.data(),
                    .max_out = max_out.data(),
                    .scale = 3,
                    .num_keys = keys,
                    .head_dim = f.sizes.columns,
                    .num_lanes = f.sizes.num_lanes,
                    .width = f.width};
  args.scores = along_lanes.data();
  f.kernels.narrow_qk(args);
  args.scores = along_keys.data();
  args.stride = stride;
  f.kernels.narrow_qk(args);
  f.table.softmax[f.vectors - 1]({.scores = along_lanes.data(),
                                  .max_in = max_in.data(),
                                  .max_out = max_out.data(),
                                  .row_sum = sum_a.data(),
                                  .alpha = alpha_a.data(),
                                  .num_keys = keys});
  f.table.narrow_softmax({.scores = along_keys.data(),
                          .stride = stride,
                          .max_in = max_in.data(),
                          .max_out = max_out.data(),
                          .row_sum = sum_b.data(),
                          .alpha = alpha_b.data(),
                          .num_keys = keys,
                          .num_lanes = f.sizes.num_lanes,
                          .width = f.width});
  for (int lane = 0; lane < f.sizes.num_lanes; ++lane) {
    const size_t at = static_cast<size_t>(lane);
    ASSERT_EQ(sum_a[at], sum_b[at]) << "lane " << lane;
    ASSERT_EQ(alpha_a[at], alpha_b[at]) << "lane " << lane;
    for (int key = 0; key < stride; ++key) {
      const float weight = along_keys[static_cast<size_t>(lane * stride + key)];
      const float expected =
          key < keys ? along_lanes[static_cast<size_t>(key * f.width + lane)] : 0;
      ASSERT_EQ(expected, weight) << "key " << key << " lane " << lane;
    }
  }
}

// p[key][lane] as p[lane][key].
std::vector<float> turned(const std::vector<float>& p, int width) {
  std::vector<float> result;
  for (int lane = 0; lane < width; ++lane)
    for (size_t n = static_cast<size_t>(lane); n < p.size(); n += static_cast<size_t>(width))
      result.push_back(p[n]);
  return result;
}

void expect_same_values(Fixture& f, bool is_first) {
  const int rows = f.table.rows, keys = f.sizes.num_keys, columns = f.sizes.columns;
  const int blocks = (columns + rows - 1) / rows;
  const std::vector<float> p = f.words(keys, 11), alpha = f.lanes(1, 5);
  const std::vector<float> along_keys = turned(p, f.width);
  std::vector<float> packed(static_cast<size_t>(keys * rows * blocks));
  std::vector<float> wide = f.lanes(columns, 13), narrow = wide;
  f.kernels.pack_v({f.rows.at.data(), packed.data(), keys * rows, keys, columns});
  f.kernels.pv[f.vectors - 1]({.v = packed.data(),
                               .row_stride = rows,
                               .block_stride = keys * rows,
                               .p = p.data(),
                               .alpha = alpha.data(),
                               .out = wide.data(),
                               .is_first = is_first,
                               .num_keys = keys,
                               .head_dim_v = columns});
  const bool along_lanes = is_first || f.kernels.per_word != 1;
  f.kernels.narrow_pv({.v_rows = f.rows.at.data(),
                       .p = along_lanes ? p.data() : along_keys.data(),
                       .key_stride = along_lanes ? f.width : 1,
                       .lane_stride = along_lanes ? 1 : keys,
                       .alpha = alpha.data(),
                       .out = narrow.data(),
                       .acc = f.scratch.data(),
                       .is_first = is_first,
                       .num_keys = keys,
                       .head_dim_v = columns,
                       .num_lanes = f.sizes.num_lanes,
                       .width = f.width});
  for (int c = 0; c < columns; ++c) {
    for (int lane = 0; lane < f.sizes.num_lanes; ++lane) {
      const size_t at = static_cast<size_t>(c * f.width + lane);
      ASSERT_EQ(wide[at], narrow[at]) << "column " << c << " lane " << lane;
    }
  }
}

TEST(CpuNarrow, GivesTheBitsOfTheGeneralKernels) {
  const Sizes sizes[] = {{1, 1, 1},     {17, 16, 1},   {40, 33, 2},  {64, 64, 3},
                         {31, 80, 4},   {50, 7, 7},    {33, 128, 8}, {96, 72, 11},
                         {24, 512, 16}, {150, 192, 1}, {129, 96, 6}};
  const Device host = Device::host();
  for (const char* isa : {"scalar", "neon", "avx2", "avx512", "avx512_bf16"}) {
    const Result<Isa> usable = choose_isa(host, isa);
    if (!usable.ok()) continue;
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16, DType::fp8_e4m3}) {
      const ProductKernels products = product_kernels_for(usable.value(), dtype);
      if (usable.value() == Isa::avx512_bf16 && products.per_word == 1)
        continue;  // those of avx512
      for (const Sizes& one : sizes) {
        const MicroKernels& kernels = kernels_for(usable.value());
        if (one.num_lanes > 2 * kernels.lanes) continue;
        SCOPED_TRACE(std::string(isa) + " " + std::string(name_of(dtype)) + " keys " +
                     std::to_string(one.num_keys) + " columns " + std::to_string(one.columns) +
                     " lanes " + std::to_string(one.num_lanes));
        Fixture fixture{kernels, products, dtype, one};
        expect_same_scores(fixture);
        if (products.per_word == 1) expect_same_weights(fixture);
        expect_same_values(fixture, true);
        expect_same_values(fixture, false);
      }
    }
  }
}

}  // namespace
}  // namespace sirdar::cpu
