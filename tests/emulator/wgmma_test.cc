// wgmma: shapes, layouts of operands as TMA brings them, and what may happen while it is in flight.
#include <gtest/gtest.h>

#include <vector>

#include "emulator/support/emulated_driver.h"
#include "emulator/support/unit.h"
#include "shared/float_bits.h"

namespace sirdar::emulator_tests {
namespace {

using ptx::MmaType;

constexpr int kK = 64;

// Small integers, so that sums are exact in any order.
float element(int row, int k, int salt) {
  return static_cast<float>((row * 7 + k * 5 + salt) % 9 - 4);
}

// [rows][kK], or [kK][rows] for an operand that lies with its reduction index as the row.
std::vector<uint16_t> operand(int rows, bool transposed, bool fp16, int salt) {
  std::vector<uint16_t> data(static_cast<size_t>(rows) * kK);
  for (int row = 0; row < rows; ++row)
    for (int k = 0; k < kK; ++k) {
      const float value = element(row, k, salt);
      data[static_cast<size_t>(transposed ? k * rows + row : row * kK + k)] =
          fp16 ? float_to_fp16(value) : float_to_bf16(value);
    }
  return data;
}

// One operand in shared memory: chunks of a span's width, as boxes of TMA lie.
struct Tile {
  uint32_t at, span;
  int rows;
  bool transposed;

  int width() const { return transposed ? rows : kK; }  // of the stored matrix
  int height() const { return transposed ? kK : rows; }
  uint32_t chunk_bytes() const { return static_cast<uint32_t>(height()) * span; }
  int chunks() const { return width() * 2 / static_cast<int>(span); }

  // Descriptor of the step'th 16 columns of the reduction.
  uint64_t descriptor(int step) const {
    uint32_t start = at, leading = 16;
    if (transposed) {
      start += static_cast<uint32_t>(step) * 16 * span;
      leading = chunk_bytes();
    } else {
      const uint32_t byte = static_cast<uint32_t>(step) * 32;
      start += byte / span * chunk_bytes() + byte % span;
    }
    const uint64_t layout = span == 128 ? 1 : span == 64 ? 2 : 3;
    return (start & 0x3ffff) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(8 * span >> 4) << 32 | layout << 62;
  }
};

TensorMap map_of(std::vector<uint16_t>& data, const Tile& tile) {
  const int span = static_cast<int>(tile.span);
  return make_map({.base = data.data(),
                   .dtype = DType::bf16,
                   .rank = 4,
                   .dims = {tile.width(), tile.height(), 1, 1},
                   .stride_bytes = {2 * tile.width(), 1 << 20, 1 << 20},
                   .box = {span / 2, tile.height(), 1, 1},
                   .swizzle = static_cast<cuda::Swizzle>(span)});
}

void load(const Tile& tile, const TensorMap& map) {
  for (int c = 0; c < tile.chunks(); ++c)
    ptx::cp_async_bulk_tensor_4d_load(tile.at + static_cast<uint32_t>(c) * tile.chunk_bytes(), map,
                                      bar_at(0), c * static_cast<int>(tile.span) / 2, 0, 0, 0, 0);
}

// Row and column of accumulator register i.
int row_of(int i) {
  const int thread = ptx::thread_idx_x();
  return 16 * (thread / 32) + thread % 32 / 4 + 8 * (i / 2 % 2);
}
int column_of(int i) { return 8 * (i / 4) + 2 * (ptx::thread_idx_x() % 4) + i % 2; }

struct Form {
  int n = 64;
  uint32_t span_a = 128, span_b = 128;
  int transpose_a = 0, transpose_b = 0;
  MmaType type = MmaType::bf16;
  bool a_in_registers = false;
};

// D = A B over kK columns, then every element looked at.
template <Form form>
void check_product() {
  constexpr bool kFp16 = form.type == MmaType::f16;
  std::vector<uint16_t> a_data = operand(64, form.transpose_a, kFp16, 1);
  std::vector<uint16_t> b_data = operand(form.n, form.transpose_b, kFp16, 2);
  const auto a_tile = [] { return Tile{data_at(0), form.span_a, 64, form.transpose_a != 0}; };
  const auto b_tile = [] {
    return Tile{data_at(16 << 10), form.span_b, form.n, form.transpose_b != 0};
  };
  const TensorMap a_map = map_of(a_data, Tile{0, form.span_a, 64, form.transpose_a != 0});
  const TensorMap b_map = map_of(b_data, Tile{0, form.span_b, form.n, form.transpose_b != 0});
  const auto kernel = [&] {
    if (ptx::thread_idx_x() == 0) {
      ptx::mbarrier_init(bar_at(0), 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(bar_at(0), 2 * kK * (64 + form.n));
      load(a_tile(), a_map);
      load(b_tile(), b_map);
    }
    ptx::syncthreads();
    ptx::mbarrier_wait(bar_at(0), 0);
    float d[form.n / 2];
    uint32_t a[kK / 4];
    for (int i = 0; i < kK / 4; ++i) {  // as an accumulator of 64 columns lies
      const float low = element(row_of(2 * i), column_of(2 * i), 1);
      const float high = element(row_of(2 * i), column_of(2 * i + 1), 1);
      a[i] = kFp16 ? ptx::pack_f16x2(low, high) : ptx::pack_bf16x2(low, high);
    }
    ptx::wgmma_fence();
    for (int step = 0; step < kK / 16; ++step) {
      const uint64_t b = b_tile().descriptor(step);
      if constexpr (form.a_in_registers) {
        ptx::Wgmma<form.n>::template rs<form.type, form.transpose_b>(d, a + 4 * step, b, step > 0);
      } else {
        ptx::Wgmma<form.n>::template ss<form.type, form.transpose_a, form.transpose_b>(
            d, a_tile().descriptor(step), b, step > 0);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::registers_ready(d);
    for (int i = 0; i < form.n / 2; ++i) {
      float expected = 0;
      for (int k = 0; k < kK; ++k)
        expected += element(row_of(i), k, 1) * element(column_of(i), k, 2);
      ASSERT_EQ(d[i], expected) << "row " << row_of(i) << " column " << column_of(i);
    }
  };
  expect_clean(calm(128), kernel);
  const emulator::Report report = emulator::launch(calm(128), kernel);
  EXPECT_EQ(report.counters.wgmma_flops, 2ull * 64 * kK * form.n);
  EXPECT_EQ(report.counters.bytes_loaded, 2ull * kK * (64 + form.n));
}

TEST(EmulatedWgmma, KMajorOperandsUnderEverySwizzle) {
  check_product<Form{.n = 64}>();
  check_product<Form{.n = 64, .span_a = 64, .span_b = 32}>();
  check_product<Form{.n = 128, .span_a = 32, .span_b = 64}>();
  check_product<Form{.n = 256}>();
}

TEST(EmulatedWgmma, TransposedOperandsUnderEverySwizzle) {
  check_product<Form{.n = 64, .transpose_b = 1}>();
  check_product<Form{.n = 128, .span_b = 64, .transpose_b = 1}>();
  check_product<Form{.n = 256, .transpose_a = 1, .transpose_b = 1}>();
  check_product<Form{.n = 64, .span_a = 32, .span_b = 32, .transpose_a = 1, .transpose_b = 1}>();
}

TEST(EmulatedWgmma, AFromRegistersAndHalfPrecision) {
  check_product<Form{.n = 192, .transpose_b = 1, .a_in_registers = true}>();
  check_product<Form{.n = 64, .type = MmaType::f16, .a_in_registers = true}>();
  check_product<Form{.n = 80, .type = MmaType::f16}>();
}

// --- misuse: a kernel of four steps whose pieces can be left out --------------------------------

struct Parts {
  bool wait_for_tile = true, fence = true, commit = true, wait = true;
  bool touch_d = false, touch_a = false, read_d = false, second_burst_without_fence = false;
  bool overlap = false, diverge = false, overwrite = false;
  uint64_t descriptor_bits = 0;
};

void expect_refused(const Parts& parts, std::initializer_list<const char*> words) {
  std::vector<uint16_t> b_data = operand(64, false, false, 2);
  const TensorMap map = map_of(b_data, Tile{0, 128, 64, false});
  expect_fault(
      calm(128),
      [&] {
        if (ptx::thread_idx_x() == 0) {
          ptx::mbarrier_init(bar_at(0), 1);
          ptx::fence_mbarrier_init();
          ptx::mbarrier_arrive_expect_tx(bar_at(0), 2 * kK * 64);
          load(Tile{data_at(0), 128, 64, false}, map);
        }
        ptx::syncthreads();
        if (parts.wait_for_tile) ptx::mbarrier_wait(bar_at(0), 0);
        float d[64] = {};
        uint32_t a[4] = {0, 0, 0, 0};
        auto& first = *reinterpret_cast<float(*)[32]>(d);
        auto& shifted = *reinterpret_cast<float(*)[32]>(d + (parts.overlap ? 8 : 32));
        const uint64_t b = Tile{data_at(0), 128, 64, false}.descriptor(0) | parts.descriptor_bits;
        if (parts.fence) ptx::wgmma_fence();
        const uint64_t other = parts.diverge && ptx::thread_idx_x() == 5 ? b + 2 : b;
        ptx::Wgmma<64>::rs<MmaType::bf16>(first, a, other, 1);
        ptx::Wgmma<64>::rs<MmaType::bf16>(shifted, a, b, 1);
        if (parts.commit) ptx::wgmma_commit_group();
        if (parts.touch_d) d[3] *= 2;
        if (parts.touch_a) a[1] = 7;
        if (parts.read_d) ptx::registers_ready(first);
        if (parts.overwrite) ptx::barrier_sync(1, 128);
        if (parts.overwrite && ptx::thread_idx_x() == 0)
          load(Tile{data_at(0), 128, 64, false}, map);
        if (parts.wait) ptx::wgmma_wait_group<0>();
        if (parts.second_burst_without_fence) ptx::Wgmma<64>::rs<MmaType::bf16>(first, a, b, 1);
      },
      words);
}

TEST(EmulatedWgmma, MisuseIsRefused) {
  expect_refused({.wait_for_tile = false}, {"order: wgmma read of shared", "tma.load", "wgmma"});
  expect_refused({.fence = false}, {"no wgmma.fence since the thread started or last waited"});
  expect_refused({.commit = false}, {"a thread ends with accumulators in flight"});
  expect_refused({.wait = false}, {"a thread ends with accumulators in flight"});
  expect_refused(
      {.touch_d = true},
      {"accumulator register 3 was written while a wgmma was in flight", "wgmma.wait_group"});
  expect_refused({.touch_a = true},
                 {"registers of A of thread", "changed while the wgmma was in flight"});
  expect_refused({.read_d = true}, {"registers of a wgmma in flight are about to be used"});
  expect_refused({.second_burst_without_fence = true}, {"no wgmma.fence since"});
  expect_refused({.overlap = true}, {"accumulator registers overlap those of a wgmma in flight"});
  expect_refused({.diverge = true}, {"divergence", "issue different wgmmas"});
  expect_refused({.overwrite = true},
                 {"order: write of shared", "not ordered after the read at", "wgmma", "tma.load"});
  expect_refused({.descriptor_bits = uint64_t{1} << 49}, {"a base offset or reserved bits set"});
  expect_refused({.descriptor_bits = uint64_t{1} << 14}, {"a base offset or reserved bits set"});
}

TEST(EmulatedWgmma, WaitSpeaksForTheWarpThatWaits) {
  // Warp 0 alone hands the tile back, without a barrier among the four.
  std::vector<uint16_t> b_data = operand(64, false, false, 2);
  const TensorMap map = map_of(b_data, Tile{0, 128, 64, false});
  const auto kernel = [&](bool together) {
    if (ptx::thread_idx_x() == 0) {
      ptx::mbarrier_init(bar_at(0), 1);
      ptx::mbarrier_init(bar_at(1), 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(bar_at(0), 8192);
      load(Tile{data_at(0), 128, 64, false}, map);
    }
    ptx::syncthreads();
    if (ptx::thread_idx_x() < 128) {
      ptx::mbarrier_wait(bar_at(0), 0);
      float d[32];
      uint32_t a[4] = {0, 0, 0, 0};
      ptx::wgmma_fence();
      ptx::Wgmma<64>::rs<MmaType::bf16>(d, a, Tile{data_at(0), 128, 64, false}.descriptor(0), 0);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      if (together) ptx::barrier_sync(1, 128);
      if (ptx::thread_idx_x() == 0) ptx::mbarrier_arrive(bar_at(1));
    } else if (ptx::thread_idx_x() == 128) {
      ptx::mbarrier_wait(bar_at(1), 0);
      ptx::mbarrier_arrive_expect_tx(bar_at(0), 8192);
      load(Tile{data_at(0), 128, 64, false}, map);
      ptx::mbarrier_wait(bar_at(0), 1);
    }
  };
  expect_clean(calm(256), [&] { kernel(true); });
  expect_fault(calm(256), [&] { kernel(false); }, {"order: write", "wgmma", "tma.load"});
}

TEST(EmulatedMatrix, LdmatrixStmatrixAndMma) {
  // B^T and A in shared memory by stmatrix, back by ldmatrix, and a product.
  expect_clean(calm(32), [] {
    const int lane = ptx::thread_idx_x(), g = lane / 4, q = lane % 4;
    const auto pair = [](int row, int k, int salt) {
      return ptx::pack_bf16x2(element(row, k, salt), element(row, k + 1, salt));
    };
    const uint32_t a_row =
        data_at(static_cast<uint32_t>(lane % 16) * 32 + static_cast<uint32_t>(lane / 16) * 16);
    ptx::stmatrix_x4(a_row, pair(g, 2 * q, 1), pair(g + 8, 2 * q, 1), pair(g, 8 + 2 * q, 1),
                     pair(g + 8, 8 + 2 * q, 1));
    const uint32_t b_row = data_at(1024 + static_cast<uint32_t>(lane) * 16);
    const uint32_t none = 0;
    ptx::stmatrix_x4(b_row, pair(g, 2 * q, 2), pair(g, 8 + 2 * q, 2), none, none);
    ptx::syncwarp();
    uint32_t a[4], b[2];
    ptx::ldmatrix_x4(a, a_row);
    ptx::ldmatrix_x2(b, b_row);
    EXPECT_EQ(a[3], pair(g + 8, 8 + 2 * q, 1));
    EXPECT_EQ(b[1], pair(g, 8 + 2 * q, 2));
    float d[4] = {1, 1, 1, 1};
    ptx::mma_m16n8k16_bf16(d, a, b);
    for (int i = 0; i < 4; ++i) {
      float expected = 1;
      for (int k = 0; k < 16; ++k)
        expected += element(g + 8 * (i / 2), k, 1) * element(2 * q + i % 2, k, 2);
      EXPECT_EQ(d[i], expected);
    }
  });
}

TEST(EmulatedMatrix, CountsConflictsOfStmatrix) {
  const auto conflicts = [](bool swizzled) {
    return emulator::launch(calm(32),
                            [swizzled] {
                              const uint32_t lane = static_cast<uint32_t>(ptx::thread_idx_x());
                              const uint32_t piece =
                                  swizzled ? (lane / 16) ^ (lane % 8) : lane / 16;
                              ptx::stmatrix_x4(data_at(lane % 16 * 128 + piece * 16), 0, 0, 0, 0);
                            })
        .counters;
  };
  EXPECT_EQ(conflicts(true).stmatrix, 4u);
  EXPECT_EQ(conflicts(true).stmatrix_conflicts, 0u);
  EXPECT_EQ(conflicts(false).stmatrix_conflicts, 4u * 7);
}

}  // namespace
}  // namespace sirdar::emulator_tests
