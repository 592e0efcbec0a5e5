// Tensor copies: boxes, swizzle, edges, when bytes land, who may touch them meanwhile.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "emulator/support/emulated_driver.h"
#include "emulator/support/unit.h"

namespace sirdar::emulator_tests {
namespace {

using cuda::Swizzle;
using ptx::Int4;

// [rows][columns] of 16-bit numbers that say where they are.
struct Matrix16 {
  int rows, columns;
  std::vector<uint16_t> data;

  Matrix16(int num_rows, int num_columns) : rows(num_rows), columns(num_columns) {
    data.resize(static_cast<size_t>(rows) * columns);
    std::iota(data.begin(), data.end(), uint16_t{1});
  }
  TensorMap map(int box_columns, int box_rows, Swizzle swizzle) {
    return make_map({.base = data.data(),
                     .dtype = DType::bf16,
                     .rank = 4,
                     .dims = {columns, rows, 1, 1},
                     .stride_bytes = {2 * columns, 1 << 20, 1 << 20},
                     .box = {box_columns, box_rows, 1, 1},
                     .swizzle = swizzle});
  }
  uint16_t at(int row, int column) const {
    if (row < 0 || row >= rows || column < 0 || column >= columns) return 0;
    return data[static_cast<size_t>(row) * columns + column];
  }
};

void init(int count) {
  if (ptx::thread_idx_x() == 0) {
    ptx::mbarrier_init(bar_at(0), count);
    ptx::fence_mbarrier_init();
  }
  ptx::syncthreads();
}

void load(const TensorMap& map, int bytes, int column, int row) {
  if (ptx::thread_idx_x() != 0) return;
  ptx::mbarrier_arrive_expect_tx(bar_at(0), bytes);
  ptx::cp_async_bulk_tensor_4d_load(data_at(0), map, bar_at(0), column, row, 0, 0, 0);
}

// Where byte `column` of row `row` lies under a swizzle, from the definition: 16-byte pieces change
// places within a span, by the line of 128 bytes that they are in.
uint32_t swizzled_by_hand(uint32_t row, uint32_t byte, uint32_t span) {
  const uint32_t linear = row * span + byte, line = linear / 128;
  const uint32_t pieces = span / 16, piece = byte / 16;
  return row * span + (piece ^ line % pieces) * 16 + byte % 16;
}

void expect_box(Swizzle swizzle, uint32_t span, int column, int row) {
  Matrix16 matrix(40, 72);
  const TensorMap map = matrix.map(span / 2, 32, swizzle);
  std::vector<uint16_t> got(32 * span / 2);
  expect_clean(calm(32), [&] {
    init(1);
    load(map, static_cast<int>(32 * span), column, row);
    ptx::mbarrier_wait(bar_at(0), 0);
    for (uint32_t i = static_cast<uint32_t>(ptx::thread_idx_x()) * 16; i < 32 * span; i += 512) {
      const Int4 piece = ptx::load_shared_int4(data_at(i));
      std::memcpy(&got[i / 2], &piece, 16);
    }
  });
  for (uint32_t r = 0; r < 32; ++r)
    for (uint32_t c = 0; c < span / 2; ++c)
      ASSERT_EQ(got[swizzled_by_hand(r, 2 * c, span) / 2],
                matrix.at(row + static_cast<int>(r), column + static_cast<int>(c)))
          << "row " << r << " column " << c << " span " << span;
}

TEST(EmulatedTma, BoxesUnderEverySwizzle) {
  expect_box(Swizzle::bytes_128, 128, 0, 0);
  expect_box(Swizzle::bytes_64, 64, 0, 0);
  expect_box(Swizzle::bytes_32, 32, 0, 0);
}

TEST(EmulatedTma, WhatIsOutsideIsZero) {
  expect_box(Swizzle::bytes_128, 128, 40, 24);
  expect_box(Swizzle::bytes_128, 128, -8, -3);
  expect_box(Swizzle::bytes_64, 64, 64, 39);
}

TEST(EmulatedTma, LoadedBytesAreNaNUntilTheyLand) {
  Matrix16 matrix(64, 64);
  const TensorMap map = matrix.map(64, 64, Swizzle::bytes_128);
  emulator::Launch launch = calm(32);
  launch.check_order = false;
  launch.calm = false;
  bool was_poison = false;
  for (launch.seed = 1; launch.seed < 16 && !was_poison; ++launch.seed) {
    const emulator::Report report = emulator::launch(launch, [&] {
      init(1);
      load(map, 8192, 0, 0);
      if (ptx::thread_idx_x() == 0 && ptx::load_shared_int4(data_at(8176)).x == -1)
        was_poison = true;
      ptx::mbarrier_wait(bar_at(0), 0);
    });
    EXPECT_EQ(report.fault, "");
  }
  EXPECT_TRUE(was_poison);
}

TEST(EmulatedTma, LoadMisuseIsRefused) {
  Matrix16 matrix(64, 64);
  const TensorMap map = matrix.map(64, 64, Swizzle::bytes_128);
  expect_fault(calm(32),
               [&] {  // not waited for
                 init(1);
                 load(map, 8192, 0, 0);
                 if (ptx::thread_idx_x() == 0) ptx::load_shared_int4(data_at(0));
                 ptx::mbarrier_wait(bar_at(0), 0);
               },
               {"order: read", "is not ordered after the write at", "tma.load", "ld.shared"});
  expect_fault(calm(32),
               [&] {  // too few bytes announced
                 init(1);
                 load(map, 4096, 0, 0);
                 ptx::mbarrier_wait(bar_at(0), 0);
               },
               {"bytes"});
  expect_fault(calm(32),
               [&] {  // too many
                 init(1);
                 load(map, 8208, 0, 0);
                 ptx::mbarrier_wait(bar_at(0), 0);
               },
               {"deadlock", "0 of 1 arrivals missing, 16 bytes outstanding"});
  expect_fault(calm(32),
               [&] {  // no init fence
                 if (ptx::thread_idx_x() == 0) ptx::mbarrier_init(bar_at(0), 1);
                 ptx::syncthreads();
                 load(map, 8192, 0, 0);
                 ptx::mbarrier_wait(bar_at(0), 0);
               },
               {"proxy", "fence.mbarrier_init", "mbarrier.init", "tma.load"});
  expect_fault(calm(32),
               [&] {  // over bytes written by stores, with no proxy fence
                 init(1);
                 if (ptx::thread_idx_x() == 0) ptx::store_shared(data_at(0), {1, 2, 3, 4});
                 load(map, 8192, 0, 0);
                 ptx::mbarrier_wait(bar_at(0), 0);
               },
               {"proxy: asynchronous access", "st.shared", "tma.load"});
  expect_fault(calm(32),
               [&] {
                 init(1);
                 if (ptx::thread_idx_x() == 0)
                   ptx::cp_async_bulk_tensor_4d_load(data_at(512), map, bar_at(0), 0, 0, 0, 0, 0);
               },
               {"must be a multiple of 1024, the atom of the swizzle"});
  expect_fault(calm(32),
               [&] {
                 init(1);
                 if (ptx::thread_idx_x() == 0)
                   ptx::cp_async_bulk_tensor_5d_load(data_at(0), map, bar_at(0), 0, 0, 0, 0, 0, 0);
               },
               {"a tensor map of rank 4 for 5 coordinates"});
  expect_fault(calm(32),
               [&] {
                 init(1);
                 if (ptx::thread_idx_x() == 0)
                   ptx::cp_async_bulk_tensor_4d_load(data_at(0), map, bar_at(0), 4, 0, 0, 0, 0);
               },
               {"column 4 is byte 8 of its row, which must be a multiple of 16"});
  expect_fault(calm(32),
               [&] {
                 const TensorMap nothing{};
                 init(1);
                 load(nothing, 8192, 0, 0);
               },
               {"was not made by the emulator's maker"});
}

// A tile that lanes have read is loaded over. Their loads may be on their way when they arrive.
enum class Fence { nowhere, before_read, before_arrival, after_arrival, of_the_issuer };

void load_over_what_is_read(const TensorMap& map, Fence fence) {
  const auto fence_at = [&](Fence place) {
    if (fence == place) ptx::fence_proxy_async_shared();
  };
  const int thread = ptx::thread_idx_x();
  if (thread == 0) ptx::mbarrier_init(bar_at(1), 32);
  init(1);
  load(map, 8192, 0, 0);
  if (thread >= 32) {
    fence_at(Fence::before_read);
    ptx::mbarrier_wait(bar_at(0), 0);
    ptx::load_shared(data_at(4 * static_cast<uint32_t>(thread)));
    fence_at(Fence::before_arrival);
    ptx::mbarrier_arrive(bar_at(1));
    fence_at(Fence::after_arrival);
  } else {
    if (thread != 0) return;
    ptx::mbarrier_wait(bar_at(0), 0);
    ptx::mbarrier_wait(bar_at(1), 0);
    fence_at(Fence::of_the_issuer);
    load(map, 8192, 0, 0);
    ptx::mbarrier_wait(bar_at(0), 1);
  }
}

TEST(EmulatedTma, LoadsOverWhatIsReadWantAFenceOfTheReader) {
  Matrix16 matrix(64, 64);
  const TensorMap map = matrix.map(64, 64, Swizzle::bytes_128);
  expect_clean(calm(64), [&] { load_over_what_is_read(map, Fence::before_arrival); });
  for (const Fence fence :
       {Fence::nowhere, Fence::before_read, Fence::after_arrival, Fence::of_the_issuer})
    expect_fault(calm(64), [&] { load_over_what_is_read(map, fence); },
                 {"proxy: asynchronous write", "ld.shared", "no fence.proxy.async", "tma.load"});
}

// Or a product that begins with the words that were read, as they are.
enum class Taken { as_they_are, behind_the_arrival, times_two };

void multiply_from_what_is_read(const TensorMap& map, const float* numbers, Taken taken) {
  const int thread = ptx::thread_idx_x();
  const uint32_t columns = data_at(8192);
  if (thread == 0) ptx::mbarrier_init(bar_at(1), 128);
  init(1);
  const auto load_columns = [&] { ptx::cp_async_bulk_load(columns, numbers, 64, bar_at(0)); };
  if (thread == 0) load_columns();
  load(map, 8192 + 64, 0, 0);
  ptx::mbarrier_wait(bar_at(0), 0);
  float sum[8];
  for (int i = 0; i < 2; ++i) {
    const ptx::Float2 pair = ptx::load_shared_float2(columns + 8 * (thread % 4) + 32 * i);
    const float factor = taken == Taken::times_two ? 2 : 1;
    sum[4 * i] = sum[4 * i + 2] = factor * pair.x;
    sum[4 * i + 1] = sum[4 * i + 3] = factor * pair.y;
  }
  if (taken == Taken::behind_the_arrival) ptx::mbarrier_arrive(bar_at(1));
  const uint64_t tile = ptx::wgmma_descriptor(data_at(0), 16, 1024);
  ptx::wgmma_fence();
  ptx::Wgmma<16>::ss<ptx::MmaType::bf16>(sum, tile, tile, 1);
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  if (taken != Taken::behind_the_arrival) ptx::mbarrier_arrive(bar_at(1));
  if (thread != 0) return;
  ptx::mbarrier_wait(bar_at(1), 0);
  ptx::mbarrier_arrive_expect_tx(bar_at(0), 64);
  load_columns();
  ptx::mbarrier_wait(bar_at(0), 1);
}

TEST(EmulatedTma, LoadsOverWhatAProductHasTakenWantNoFence) {
  Matrix16 matrix(64, 64);
  const TensorMap map = matrix.map(64, 64, Swizzle::bytes_128);
  alignas(16) float numbers[16];
  std::iota(std::begin(numbers), std::end(numbers), 100.0f);
  expect_clean(calm(128), [&] { multiply_from_what_is_read(map, numbers, Taken::as_they_are); });
  for (const Taken taken : {Taken::behind_the_arrival, Taken::times_two})
    expect_fault(calm(128), [&] { multiply_from_what_is_read(map, numbers, taken); },
                 {"proxy: asynchronous write", "ld.shared", "tma.load"});
}

TEST(EmulatedTma, MulticastReachesEveryBlock) {
  Matrix16 matrix(64, 64);
  const TensorMap map = matrix.map(64, 32, Swizzle::bytes_128);
  const auto kernel = [&](bool last_sync) {
    init(1);
    ptx::cluster_sync();
    const int rank = ptx::cluster_ctarank();
    if (ptx::thread_idx_x() == 0) {
      ptx::mbarrier_arrive_expect_tx(bar_at(0), 8192);
      ptx::cp_async_bulk_tensor_4d_multicast(data_at(static_cast<uint32_t>(rank) * 4096), map,
                                             bar_at(0), 0, 32 * rank, 0, 0, 3, 0);
    }
    if (last_sync || rank == 0) ptx::mbarrier_wait(bar_at(0), 0);
    if (last_sync && ptx::thread_idx_x() < 8) {  // row 32 is row 0 of the second block's half
      const Int4 piece =
          ptx::load_shared_int4(data_at(4096 + 16 * static_cast<uint32_t>(ptx::thread_idx_x())));
      EXPECT_EQ(piece.x & 0xffff, matrix.at(32, 8 * ptx::thread_idx_x()));
    }
  };
  expect_clean(calm(32, 2), [&] { kernel(true); });
  expect_fault(calm(32, 2), [&] { kernel(false); }, {"exit"});
}

// Each block's 512 bytes to the other's, which may be written over when they have arrived there.
TEST(EmulatedTma, CopiesBetweenBlocksOfACluster) {
  const auto kernel = [&](bool fence, bool waits) {
    const int rank = ptx::cluster_ctarank(), lane = ptx::thread_idx_x();
    init(1);
    if (lane == 0) ptx::mbarrier_arrive_expect_tx(bar_at(0), 512);
    ptx::cluster_sync();
    const uint32_t own = data_at(16 * static_cast<uint32_t>(lane));
    ptx::store_shared(own, Int4{lane, rank, 7, 8});
    if (fence) ptx::fence_proxy_async_shared();
    ptx::syncwarp();
    if (lane == 0)
      ptx::cp_async_bulk_copy_cluster(data_at(512), data_at(0), 512, bar_at(0), 1 - rank);
    ptx::mbarrier_wait(bar_at(0), 0);
    const Int4 piece = ptx::load_shared_int4(own + 512);
    EXPECT_EQ(piece.x, lane);
    EXPECT_EQ(piece.y, 1 - rank);
    if (waits) ptx::cluster_sync();
    ptx::store_shared(own, Int4{0, 0, 0, 0});
    ptx::cluster_sync();
  };
  expect_clean(calm(32, 2), [&] { kernel(true, true); });
  expect_fault(calm(32, 2), [&] { kernel(false, true); }, {"proxy"});
  expect_fault(calm(32, 2), [&] { kernel(true, false); }, {"order"});
}

// Stores a box whose 16-byte pieces were written by stores.
void store_box(const TensorMap& map, int column, int row, bool fence, bool sync, bool wait) {
  const uint32_t lane = static_cast<uint32_t>(ptx::thread_idx_x());
  for (uint32_t i = lane; i < 16 * 8; i += 32) {
    const int value = static_cast<int>(i) * 0x10001;
    ptx::store_shared(data_at((i / 8 * 8 + (i % 8 ^ (i / 8 % 8))) * 16),
                      {value, value, value, value});
  }
  if (fence) ptx::fence_proxy_async_shared();
  if (sync) ptx::syncwarp();
  if (lane != 0) return;
  ptx::cp_async_bulk_tensor_4d_store(map, data_at(0), column, row, 0, 0);
  ptx::cp_async_bulk_commit_group();
  if (wait) ptx::cp_async_bulk_wait_group_read<0>();
}

TEST(EmulatedTma, StoresBoxesAndNothingOutside) {
  Matrix16 matrix(20, 72);
  const Matrix16 before = matrix;
  const TensorMap map = matrix.map(64, 16, Swizzle::bytes_128);
  expect_clean(calm(32), [&] { store_box(map, 40, 10, true, true, true); });
  for (int r = 0; r < 20; ++r)
    for (int c = 0; c < 72; ++c)
      ASSERT_EQ(matrix.at(r, c), r < 10 || c < 40 ? before.at(r, c) : (r - 10) * 8 + (c - 40) / 8);
}

TEST(EmulatedTma, StoreMisuseIsRefused) {
  Matrix16 matrix(20, 72);
  const TensorMap map = matrix.map(64, 16, Swizzle::bytes_128);
  expect_fault(calm(32), [&] { store_box(map, 0, 0, false, true, true); },
               {"proxy", "with no fence.proxy.async", "st.shared", "tma.store"});
  expect_fault(calm(32), [&] { store_box(map, 0, 0, true, false, true); },
               {"order: read", "st.shared"});
  expect_fault(calm(32), [&] { store_box(map, 0, 0, true, true, false); },
               {"exit", "without waiting (wait_group.read 0)"});
  expect_fault(calm(32), [&] { store_box(map, 4, 0, true, true, true); },
               {"column 4 is byte 8 of its row, which must be a multiple of 16"});
  expect_fault(calm(32), [&] { store_box(map, 0, -1, true, true, true); },
               {"a store at -1 of axis 1, which must not be negative"});
  expect_fault(calm(32),
               [&] {
                 store_box(map, 0, 0, true, true, false);
                 if (ptx::thread_idx_x() != 0) return;
                 ptx::store_shared(data_at(0), {1, 2, 3, 4});
                 ptx::cp_async_bulk_wait_group_read<0>();
               },
               {"order: write", "is not ordered after the read at", "tma.store", "st.shared"});
}

TEST(EmulatedTma, ReductionsAdd) {
  std::vector<float> sums(64 * 8, 1.0f);
  const TensorMap map = make_map({.base = sums.data(),
                                  .dtype = DType::fp32,
                                  .rank = 4,
                                  .dims = {8, 64, 1, 1},
                                  .stride_bytes = {32, 4096, 4096},
                                  .box = {8, 16, 1, 1},
                                  .swizzle = Swizzle::none});
  emulator::Launch launch = calm(32);
  launch.grid.x = 4;  // each block adds to rows that the next one adds to as well
  launch.resident = 4;
  expect_clean(launch, [&] {
    const uint32_t lane = static_cast<uint32_t>(ptx::thread_idx_x());
    const int half = static_cast<int>(ptx::bits_of(0.5f));
    ptx::store_shared(data_at(lane * 16), {half, half, half, half});
    ptx::fence_proxy_async_shared();
    ptx::syncwarp();
    if (lane != 0) return;
    ptx::cp_async_bulk_tensor_4d_reduce_add(map, data_at(0), 0, 8 * ptx::block_idx_x(), 0, 0);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group<0>();
  });
  for (int row = 0; row < 64; ++row) {
    const int adds = row < 8 || (row >= 32 && row < 40) ? 1 : row < 32 ? 2 : 0;
    EXPECT_EQ(sums[static_cast<size_t>(row) * 8 + 3], 1.0f + 6 * 0.5f * static_cast<float>(adds))
        << row;
  }
}

// The rules of maps are the library's (unit tests); these are legal, and not modelled.
TEST(EmulatedTma, MapsThatAreNotModelledAreRefused) {
  alignas(64) static uint16_t memory[4096];
  cuda::TensorMapSpec spec{.base = memory,
                           .dtype = DType::bf16,
                           .rank = 2,
                           .dims = {64, 16},
                           .stride_bytes = {128},
                           .box = {64, 8},
                           .swizzle = Swizzle::bytes_128};
  EXPECT_TRUE(map_refusal(spec).ok());
  spec.box = {32, 8};
  EXPECT_NE(map_refusal(spec).message().find("not modelled"), std::string::npos);
  spec.box = {128, 8};
  EXPECT_NE(map_refusal(spec).message().find("at most 128"), std::string::npos);
}

}  // namespace
}  // namespace sirdar::emulator_tests
