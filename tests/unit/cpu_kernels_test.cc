// The micro-kernels of every instruction set of this machine against float64 loops, at sizes around
// the register blocks, with memory after the last row that must not be read.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cpu/dispatch.h"
#include "support/kernel_tables.h"

namespace sirdar::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(engine);
  return x;
}

std::vector<const void*> rows_of(const std::vector<float>& data, int count, int stride) {
  std::vector<const void*> rows;
  for (int j = 0; j < count; ++j) rows.push_back(data.data() + j * stride);
  return rows;
}

struct Shape {
  int keys, columns;
};
const std::vector<Shape> kShapes = {{1, 1},  {3, 2},  {4, 5},   {5, 7},  {6, 16},
                                    {7, 17}, {8, 40}, {13, 64}, {23, 3}, {32, 65}};

class CpuKernels : public testing::Test {
 protected:
  // Runs body(table, vectors, width) for each instruction set and panel width.
  template <class Body>
  void for_each_panel(const Body& body) {
    for (const MicroKernels* table : tables()) {
      for (int vectors = 1; vectors <= kMaxVectors; ++vectors) {
        SCOPED_TRACE(testing::Message() << name_of(table->isa) << " vectors " << vectors);
        body(*table, vectors, vectors * table->lanes);
      }
    }
  }
};

TEST_F(CpuKernels, ScoresAreScaledDotProducts) {
  for_each_panel([&](const MicroKernels& table, int vectors, int width) {
    for (const auto& [keys, columns] : kShapes) {
      const int stride = columns + 3;
      std::vector<float> k = random(static_cast<size_t>(keys * stride), 1);
      for (int j = 0; j < keys; ++j)
        for (int c = columns; c < stride; ++c) k[static_cast<size_t>(j * stride + c)] = kNan;
      const std::vector<float> q = random(static_cast<size_t>(columns * width), 2);
      std::vector<float> packed(static_cast<size_t>((keys + table.rows) * columns), kNan);
      table.pack_k[0]({rows_of(k, keys, stride).data(), packed.data(), keys, columns});
      const std::vector<float> low(static_cast<size_t>(width), -1e30f);
      for (const bool is_packed : {false, true}) {
        std::vector<float> scores(static_cast<size_t>(keys * width), kNan), top(low);
        QkArgs args{.q = q.data(),
                    .scores = scores.data(),
                    .max_in = low.data(),
                    .max_out = top.data(),
                    .scale = 0.3f,
                    .num_keys = keys,
                    .head_dim = columns};
        args.k = is_packed ? packed.data() : k.data();
        args.block_stride = is_packed ? table.rows * columns : table.rows * stride;
        args.row_stride = is_packed ? 1 : stride;
        args.column_stride = is_packed ? table.rows : 1;
        table.qk[vectors - 1](args);
        for (int lane = 0; lane < width; ++lane) {
          double largest = -1e30;
          for (int j = 0; j < keys; ++j) {
            double dot = 0, size = 0;
            for (int c = 0; c < columns; ++c) {
              const double term = static_cast<double>(k[static_cast<size_t>(j * stride + c)]) *
                                  q[static_cast<size_t>(c * width + lane)];
              dot += term;
              size += std::fabs(term);
            }
            const double score = scores[static_cast<size_t>(j * width + lane)];
            ASSERT_NEAR(score, 0.3f * dot, 0.3 * size * 0x1p-20) << keys << 'x' << columns;
            largest = std::max(largest, score);
          }
          ASSERT_EQ(top[static_cast<size_t>(lane)], static_cast<float>(largest));
        }
      }
    }
  });
}

TEST_F(CpuKernels, ValuesAreAddedToTheRescaledOutput) {
  for_each_panel([&](const MicroKernels& table, int vectors, int width) {
    for (const auto& [keys, columns] : kShapes) {
      const int stride = columns + 3;
      const std::vector<float> v = random(static_cast<size_t>(keys * stride), 3);
      const std::vector<float> p = random(static_cast<size_t>(keys * width), 4);
      const std::vector<float> alpha = random(static_cast<size_t>(width), 5);
      const std::vector<float> before = random(static_cast<size_t>(columns * width), 6);
      const int64_t block_stride = int64_t{keys} * table.rows + 16;
      std::vector<float> packed(
          static_cast<size_t>(block_stride * ((columns + table.rows - 1) / table.rows)), kNan);
      table.pack_v[0](
          {rows_of(v, keys, stride).data(), packed.data(), block_stride, keys, columns});
      for (const bool is_first : {false, true}) {
        std::vector<float> direct(before), copied(before);
        if (is_first) direct.assign(before.size(), kNan), copied = direct;
        PvArgs args{.v = v.data(),
                    .row_stride = stride,
                    .block_stride = table.rows,
                    .p = p.data(),
                    .alpha = alpha.data(),
                    .out = direct.data(),
                    .is_first = is_first,
                    .num_keys = keys,
                    .head_dim_v = columns};
        table.pv[vectors - 1](args);
        args.v = packed.data();
        args.row_stride = table.rows;
        args.block_stride = block_stride;
        args.out = copied.data();
        table.pv[vectors - 1](args);
        ASSERT_EQ(direct, copied) << "bits depend on the layout of V";
        for (int lane = 0; lane < width; ++lane) {
          for (int c = 0; c < columns; ++c) {
            const size_t at = static_cast<size_t>(c * width + lane);
            const double start =
                is_first ? 0.0 : static_cast<double>(alpha[static_cast<size_t>(lane)]) * before[at];
            double sum = start, size = std::fabs(start);
            for (int j = 0; j < keys; ++j) {
              const double term = static_cast<double>(p[static_cast<size_t>(j * width + lane)]) *
                                  v[static_cast<size_t>(j * stride + c)];
              sum += term;
              size += std::fabs(term);
            }
            ASSERT_NEAR(direct[at], sum, size * 0x1p-20) << keys << 'x' << columns;
          }
        }
      }
    }
  });
}

TEST_F(CpuKernels, PanelsAreTransposedThereAndBack) {
  for_each_panel([&](const MicroKernels& table, int vectors, int width) {
    for (const int length : {1, 3, 4, 7, 64, 65}) {
      const std::vector<float> rows = random(static_cast<size_t>(width * length), 7);
      std::vector<float> back(rows.size(), kNan), panel(rows.size(), kNan);
      std::vector<float> factor(static_cast<size_t>(width), 2.0f);
      std::vector<const void*> from;
      std::vector<void*> to;
      for (int lane = 0; lane < width; ++lane) {
        const bool is_absent = lane == 1;
        from.push_back(is_absent ? nullptr : rows.data() + lane * length);
        to.push_back(is_absent ? nullptr : back.data() + lane * length);
      }
      table.pack[0][vectors - 1](
          {.from_rows = from.data(), .panel = panel.data(), .length = length});
      for (int c = 0; c < length; ++c) {
        ASSERT_EQ(panel[static_cast<size_t>(c * width)], rows[static_cast<size_t>(c)]);
        ASSERT_EQ(panel[static_cast<size_t>(c * width + 1)], 0.0f);
        panel[static_cast<size_t>(c * width + 2)] = kNan;  // an empty row is 0 anyway
      }
      factor[2] = -1;
      table.unpack[0][vectors - 1](
          {.to_rows = to.data(), .panel = panel.data(), .factor = factor.data(), .length = length});
      for (int lane = 0; lane < width; ++lane) {
        for (int c = 0; c < length; ++c) {
          const size_t at = static_cast<size_t>(lane * length + c);
          if (lane == 1) {
            ASSERT_TRUE(std::isnan(back[at])) << "not ours to write";
          } else {
            ASSERT_EQ(back[at], lane == 2 ? 0.0f : 2 * rows[at]);
          }
        }
      }
    }
  });
}

TEST_F(CpuKernels, MaskedPairsHaveNoWeightWhateverTheirScore) {
  for_each_panel([&](const MicroKernels& table, int vectors, int width) {
    constexpr int kKeys = 11;
    std::vector<float> scores = random(static_cast<size_t>(kKeys * width), 8);
    std::vector<int32_t> lo(static_cast<size_t>(width), 2), hi(static_cast<size_t>(width), 9);
    hi[1] = 2;  // a row that sees nothing
    for (int lane = 0; lane < width; ++lane) {
      scores[static_cast<size_t>(lane)] = kNan;
      scores[static_cast<size_t>(9 * width + lane)] = std::numeric_limits<float>::infinity();
    }
    const std::vector<float> none(static_cast<size_t>(width),
                                  -std::numeric_limits<float>::infinity());
    const std::vector<float> raw(scores);
    std::vector<float> top(none), sum(static_cast<size_t>(width), 0.0f), alpha(sum);
    table.logits[vectors - 1]({.scores = scores.data(),
                               .max_in = none.data(),
                               .max_out = top.data(),
                               .num_keys = kKeys,
                               .lo = lo.data(),
                               .hi = hi.data()});
    table.softmax[vectors - 1]({.scores = scores.data(),
                                .max_in = none.data(),
                                .max_out = top.data(),
                                .row_sum = sum.data(),
                                .alpha = alpha.data(),
                                .num_keys = kKeys});
    for (int lane = 0; lane < width; ++lane) {
      double largest = -1e30, total = 0;
      for (int j = 2; j < hi[static_cast<size_t>(lane)]; ++j)
        largest = std::max<double>(largest, raw[static_cast<size_t>(j * width + lane)]);
      for (int j = 0; j < kKeys; ++j) {
        const size_t at = static_cast<size_t>(j * width + lane);
        const bool is_visible = j >= 2 && j < hi[static_cast<size_t>(lane)];
        const double p = is_visible ? std::exp(raw[at] - largest) : 0;
        total += p;
        ASSERT_NEAR(scores[at], p, 1e-6 * p) << "key " << j << " lane " << lane;
      }
      ASSERT_NEAR(sum[static_cast<size_t>(lane)], total, 1e-6 * total);
    }
  });
}

TEST_F(CpuKernels, NonFiniteValuesAreFoundWhereverTheyAre) {
  for (const MicroKernels* table : tables()) {
    for (const int columns : {1, 7, 16, 33}) {
      std::vector<float> data = random(static_cast<size_t>(5 * columns), 9);
      data[0] = std::numeric_limits<float>::max();
      const std::vector<const void*> rows = rows_of(data, 5, columns);
      EXPECT_FALSE(table->has_nonfinite[0](rows.data(), 5, columns));
      for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
        for (size_t at = 0; at < data.size(); ++at) {
          const float kept = data[at];
          data[at] = bad;
          ASSERT_TRUE(table->has_nonfinite[0](rows.data(), 5, columns)) << at;
          data[at] = kept;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sirdar::cpu
