// Bias and boolean masks: the kernels that turn them into lanes, and that a mask which hides or
// shows whole tiles changes nothing but the time.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check/inputs.h"
#include "check/run_check.h"
#include "core/elements.h"
#include "cpu/dispatch.h"
#include "shared/float_bits.h"
#include "support/kernel_tables.h"

namespace sirdar::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Rows in memory of their exact size, so that a sanitizer sees one byte too many.
template <class T>
struct Rows {
  std::vector<std::vector<T>> data;
  std::vector<const void*> at;

  template <class Make>
  Rows(int width, int num_keys, int absent, const Make& make) {
    for (int lane = 0; lane < width; ++lane) {
      data.emplace_back();
      for (int j = 0; j < num_keys; ++j) data.back().push_back(make(lane, j));
    }
    for (int lane = 0; lane < width; ++lane)
      at.push_back(lane == absent ? nullptr : data[static_cast<size_t>(lane)].data());
  }
};

template <class Body>
void for_each_panel(const Body& body) {
  for (const MicroKernels* table : tables()) {
    for (int vectors = 1; vectors <= kMaxVectors; ++vectors) {
      for (const int num_keys : {1, 3, 8, 15, 16, 17, 40}) {
        SCOPED_TRACE(testing::Message()
                     << name_of(table->isa) << " vectors " << vectors << " keys " << num_keys);
        body(*table, vectors, vectors * table->lanes, num_keys);
      }
    }
  }
}

TEST(CpuPairTensors, ABiasIsTurnedIntoLanesExactly) {
  for_each_panel([](const MicroKernels& table, int vectors, int width, int num_keys) {
    const size_t size = static_cast<size_t>(width * num_keys);
    // Small whole numbers and halves, which every format holds.
    const auto value = [&](int lane, int j) { return static_cast<float>(lane * 64 + j) / 2; };
    const Rows<float> wide(width, num_keys, 1, value);
    const Rows<uint16_t> half(width, num_keys, 1, [&](int lane, int j) {
      return static_cast<uint16_t>(float_to_fp16(value(lane, j)));
    });
    const Rows<uint16_t> brain(width, num_keys, 1, [&](int lane, int j) {
      return static_cast<uint16_t>(float_to_bf16(static_cast<float>(lane + j)));
    });
    std::vector<float> panel(size, kInf);
    const auto expect = [&](const auto& wanted) {
      for (int lane = 0; lane < width; ++lane)
        for (int j = 0; j < num_keys; ++j)
          ASSERT_EQ(panel[static_cast<size_t>(j * width + lane)], lane == 1 ? 0 : wanted(lane, j));
    };
    table.bias[static_cast<size_t>(DType::fp32)][vectors - 1](
        {wide.at.data(), panel.data(), num_keys});
    expect(value);
    table.bias[static_cast<size_t>(DType::fp16)][vectors - 1](
        {half.at.data(), panel.data(), num_keys});
    expect(value);
    table.bias[static_cast<size_t>(DType::bf16)][vectors - 1](
        {brain.at.data(), panel.data(), num_keys});
    expect([](int lane, int j) { return static_cast<float>(lane + j); });
  });
}

TEST(CpuPairTensors, HiddenPairsBecomeMinusInfinityAndOthersStay) {
  for_each_panel([](const MicroKernels& table, int vectors, int width, int num_keys) {
    std::mt19937 engine(5);
    // Any byte but 0 shows a pair.
    const Rows<uint8_t> mask(width, num_keys, 1, [&](int, int) {
      constexpr uint8_t kBytes[] = {0, 1, 0x80, 0xff};
      return kBytes[engine() % 4];
    });
    std::vector<float> panel;
    for (int n = 0; n < width * num_keys; ++n) panel.push_back(static_cast<float>(n));
    panel[0] = kInf;
    table.hide[vectors - 1]({mask.at.data(), panel.data(), num_keys});
    for (int lane = 0; lane < width; ++lane) {
      for (int j = 0; j < num_keys; ++j) {
        const int n = j * width + lane;
        const bool shown =
            lane == 1 || mask.data[static_cast<size_t>(lane)][static_cast<size_t>(j)];
        const float before = n == 0 ? kInf : static_cast<float>(n);
        ASSERT_EQ(panel[static_cast<size_t>(n)], shown ? before : -kInf) << lane << ' ' << j;
      }
    }
  });
}

TEST(CpuPairTensors, TheContentOfAMaskIsFoundWhereverItIs) {
  for (const MicroKernels* table : tables()) {
    for (const int num_keys : {1, 7, 64, 65, 200}) {
      for (const uint8_t most : {uint8_t{0}, uint8_t{2}}) {
        Rows<uint8_t> mask(3, num_keys, -1, [&](int, int) { return most; });
        const unsigned alike = most != 0 ? kShowsSome : kHidesSome;
        EXPECT_EQ(table->mask_content(mask.at.data(), 3, num_keys), alike);
        for (int n = 0; n < 3 * num_keys; ++n) {
          uint8_t& one =
              mask.data[static_cast<size_t>(n / num_keys)][static_cast<size_t>(n % num_keys)];
          one = most == 0 ? 0x80 : 0;
          EXPECT_EQ(table->mask_content(mask.at.data(), 3, num_keys), kShowsSome | kHidesSome) << n;
          one = most;
        }
      }
    }
  }
}

// Runs the problem with the mask that `shows` says, and compares with float64.
template <class Shows>
void expect_right(const char* text, const Shows& shows) {
  const Problem problem = Problem::parse(text).value();
  for (const char* isa : {"scalar", "neon", "avx2", "avx512"}) {
    PlanOptions options;
    options.isa = isa;
    options.knobs = {{"block_m", "32"}, {"block_n", "24"}};
    if (!Plan::create(problem, options).ok()) continue;
    check::Inputs inputs(problem, 3);
    const auto& shape = inputs.args().mask.shape;
    std::vector<uint8_t> mask(static_cast<size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
    for (size_t n = 0; n < mask.size(); ++n) {
      const auto at = static_cast<int64_t>(n);
      mask[n] = shows(at / shape[3] % shape[2], at % shape[3]) ? 1 : 0;
    }
    inputs.args().mask = TensorView::contiguous(mask.data(), DType::boolean,
                                                {shape[0], shape[1], shape[2], shape[3]});
    // What is hidden may be anything.
    const TensorView& v = inputs.args().v;
    const auto set = [&](int64_t row, float value) { store_element(v, row * v.stride[1], value); };
    set(0, std::numeric_limits<float>::quiet_NaN());
    inputs.accept();
    const check::Report report = check::check(inputs, options, 3);
    EXPECT_TRUE(report.ok) << isa << ' ' << report.text;
  }
}

TEST(CpuPairTensors, TilesThatAMaskHidesOrShowsWholly) {
  // Documents of 50 rows: tiles of every kind. The first key is seen by the first row alone.
  const auto documents = [](int64_t i, int64_t j) { return i / 50 == j / 50 && (j > 0 || i == 0); };
  for (const char* text : {"fwd s120 h2 d24 mask:qk lse", "fwd s120 h2 d24 mask causal",
                           "fwd b2 s120 hq4 hkv2 d8 mask:hqk bias softcap:5",
                           "fwd s120 d8 bf16 mask:qk alibi", "fwd s120 h2 mask:qk dropout:0.5"}) {
    expect_right(text, documents);
    expect_right(text, [](int64_t, int64_t) { return false; });
    expect_right(text, [](int64_t i, int64_t j) { return j > 0 || i == 0; });
  }
}

}  // namespace
}  // namespace sirdar::cpu
