// Launches of which the second begins before the first has ended: what it may read of global memory
// then, and what it must wait for.
#include <gtest/gtest.h>

#include <string>

#include "emulator/support/unit.h"

namespace sirdar::emulator_tests {
namespace {

alignas(16) float memory[4];
int flag;

// Stores sixteen bytes in bulk; `waits` of the group: 0 not at all, 1 until it is read, 2 until it
// is there.
void store(bool adds, int waits) {
  const uint32_t from = data_at(0);
  ptx::store_shared(from, ptx::Int4{1, 2, 3, 4});
  ptx::fence_proxy_async_shared();
  if (adds) {
    ptx::cp_async_bulk_reduce_add(memory, from, 16);
  } else {
    ptx::cp_async_bulk_store(memory, from, 16);
  }
  ptx::cp_async_bulk_commit_group();
  if (waits == 2) ptx::cp_async_bulk_wait_group<0>();
  ptx::cp_async_bulk_wait_group_read<0>();
}

enum class Second { reads_behind_flag, reads_at_once, reads_behind_grid, never_waits };

void second(Second what) {
  if (what == Second::reads_behind_flag) ptx::wait_until_equal(&flag, 1);
  if (what == Second::reads_behind_grid) ptx::griddepcontrol_wait();
  if (what != Second::never_waits) {
    EXPECT_EQ(ptx::load_once_int4(memory).y, 2);
  }
  if (what == Second::reads_behind_flag) ptx::griddepcontrol_wait();
}

std::string fault_of(int waits, Second what, uint64_t seed) {
  flag = 0;
  emulator::Launch launch = calm(1);
  launch.calm = seed == 0;
  launch.seed = seed;
  const auto first = [&] {
    ptx::griddepcontrol_launch_dependents();
    store(false, waits);
    ptx::store_release(&flag, 1);
  };
  return emulator::launch({launch, first}, {launch, [&] { second(what); }}).fault;
}

TEST(EmulatedOverlap, ReadsWhatAFlagOrTheEndOfTheFirstHasShown) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_EQ(fault_of(2, Second::reads_behind_flag, seed), "") << seed;
    EXPECT_EQ(fault_of(1, Second::reads_behind_grid, seed), "") << seed;
  }
}

TEST(EmulatedOverlap, AFlagBeforeTheBytesAreThereShowsNothing) {
  const std::string fault = fault_of(1, Second::reads_behind_flag, 0);
  EXPECT_NE(fault.find("not ordered after the bulk write"), std::string::npos) << fault;
}

TEST(EmulatedOverlap, SomebodyWaitsForTheFirst) {
  const std::string fault = fault_of(2, Second::never_waits, 0);
  EXPECT_NE(fault.find("none of its threads has waited"), std::string::npos) << fault;
}

// The second begins when all blocks have let it, or ended.
TEST(EmulatedOverlap, BeginsWhenEveryBlockLetsIt) {
  int begun = 0, early = 0;
  emulator::Launch launch = calm(1);
  launch.grid.x = 4;
  launch.resident = 4;
  const auto first = [&] {
    if (ptx::block_idx_x() == 3) return;
    ++begun;
    ptx::griddepcontrol_launch_dependents();
  };
  const auto behind = [&] {
    early += begun < 3 ? 1 : 0;
    ptx::griddepcontrol_wait();
  };
  for (uint64_t seed = 1; seed < 8; ++seed) {
    begun = 0;
    launch.calm = false;
    launch.seed = seed;
    EXPECT_EQ(emulator::launch({launch, first}, {launch, behind}).fault, "");
  }
  EXPECT_EQ(early, 0);
}

// Blocks that add to what another has stored follow it.
TEST(EmulatedOverlap, AdditionsFollowAStore) {
  for (const bool is_ordered : {true, false}) {
    flag = 0;
    emulator::Launch launch = calm(1);
    launch.grid.x = 2;
    const auto kernel = [&] {
      const bool adds = ptx::block_idx_x() == 1;
      if (adds && is_ordered) ptx::wait_until_equal(&flag, 1);
      store(adds, 2);
      if (!adds) ptx::store_release(&flag, 1);
    };
    const std::string fault = emulator::launch(launch, kernel).fault;
    EXPECT_EQ(fault.find("is not ordered after that at") != std::string::npos, !is_ordered)
        << fault;
  }
}

}  // namespace
}  // namespace sirdar::emulator_tests
