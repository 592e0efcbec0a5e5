// mbarriers, named barriers, cluster barriers and the order that they give.
#include <gtest/gtest.h>

#include <set>

#include "emulator/support/unit.h"

namespace sirdar::emulator_tests {
namespace {

using ptx::Int4;

void init(int count) {
  if (ptx::thread_idx_x() == 0) {
    ptx::mbarrier_init(bar_at(0), count);
    ptx::fence_mbarrier_init();
  }
  ptx::syncthreads();
}

TEST(EmulatedMbarrier, HandsDataOver) {
  expect_clean(calm(64), [] {
    init(32);
    if (ptx::thread_idx_x() >= 32) {
      const int lane = ptx::thread_idx_x() - 32;
      ptx::store_shared(data_at(16 * static_cast<uint32_t>(lane)), {lane, 2, 3, 4});
      ptx::mbarrier_arrive(bar_at(0));
    } else {
      ptx::mbarrier_wait(bar_at(0), 0);
      const Int4 value =
          ptx::load_shared_int4(data_at(16 * static_cast<uint32_t>(ptx::thread_idx_x())));
      EXPECT_EQ(value.x, ptx::thread_idx_x());
      EXPECT_EQ(value.w, 4);
    }
  });
}

TEST(EmulatedMbarrier, TryWaitMayBeTriedAgain) {
  expect_clean(calm(64), [] {
    init(1);
    if (ptx::thread_idx_x() == 32) ptx::mbarrier_arrive(bar_at(0));
    if (ptx::thread_idx_x() < 32)
      while (!ptx::mbarrier_try_wait(bar_at(0), 0)) {
      }
  });
}

TEST(EmulatedMbarrier, ReadWithoutWaitNamesBothPlaces) {
  unsigned written = 0, read = 0;
  const auto kernel = [&] {
    init(1);
    if (ptx::thread_idx_x() == 32) {
      written = __LINE__ + 1;
      ptx::store_shared(data_at(0), {1, 2, 3, 4});
      ptx::mbarrier_arrive(bar_at(0));
    }
    ptx::barrier_arrive(1, 64);  // brings the threads together in time, not in order
    if (ptx::thread_idx_x() == 0) {
      for (int i = 0; i < 100; ++i) emulator::Machine::current().yield();
      read = __LINE__ + 1;
      ptx::load_shared_int4(data_at(0));
    }
  };
  const emulator::Report report = emulator::launch(calm(64), kernel);
  EXPECT_NE(report.fault.find("order: read of shared"), std::string::npos) << report.fault;
  EXPECT_NE(report.fault.find(place("st.shared", written)), std::string::npos) << report.fault;
  EXPECT_NE(report.fault.find(place("ld.shared", read)), std::string::npos) << report.fault;
}

TEST(EmulatedMbarrier, OverwritingWhatIsStillReadIsRefused) {
  expect_fault(
      calm(64),
      [] {
        init(1);
        if (ptx::thread_idx_x() == 0) ptx::store_shared(data_at(0), {1, 2, 3, 4});
        ptx::syncthreads();
        if (ptx::thread_idx_x() == 32) ptx::load_shared_int4(data_at(0));
        if (ptx::thread_idx_x() == 0) {
          for (int i = 0; i < 100; ++i) emulator::Machine::current().yield();
          ptx::store_shared(data_at(0), {1, 2, 3, 4});
        }
        ptx::syncthreads();
        if (ptx::thread_idx_x() == 0) {
          ptx::mbarrier_arrive(bar_at(0));
          ptx::mbarrier_wait(bar_at(0), 0);
        }
      },
      {"order: write of shared", "is not ordered after the read at", "ld.shared", "st.shared"});
}

TEST(EmulatedMbarrier, MisuseIsRefused) {
  expect_fault(calm(32), [] { ptx::mbarrier_arrive(bar_at(0)); },
               {"is not an initialised mbarrier"});
  expect_fault(calm(32), [] { ptx::mbarrier_init(bar_at(0) + 4, 1); }, {"must be a multiple of 8"});
  expect_fault(calm(1), [] { ptx::mbarrier_init(bar_at(0), 0); }, {"a count of 0"});
  expect_fault(calm(1),
               [] {
                 ptx::mbarrier_init(bar_at(0), 1);
                 ptx::mbarrier_init(bar_at(0), 1);
               },
               {"holds an mbarrier", "mbarrier.init"});
  expect_fault(calm(1),
               [] {
                 ptx::store_shared(bar_at(0), {1, 2, 3, 4});
                 ptx::mbarrier_init(bar_at(0), 1);
               },
               {"which holds data written at", "st.shared"});
  expect_fault(calm(1),
               [] {
                 ptx::mbarrier_init(bar_at(0), 1);
                 ptx::store_shared(bar_at(0), {1, 2, 3, 4});
               },
               {"memory", "holds an mbarrier", "mbarrier.init"});
  expect_fault(calm(64),
               [] {  // no barrier after the init
                 if (ptx::thread_idx_x() == 0) ptx::mbarrier_init(bar_at(0), 2);
                 for (int i = 0; i < 100; ++i) emulator::Machine::current().yield();
                 if (ptx::thread_idx_x() == 32) ptx::mbarrier_arrive(bar_at(0));
               },
               {"order: use of mbarrier", "is not ordered after its init"});
  expect_fault(calm(1),
               [] {
                 ptx::mbarrier_init(bar_at(0), 2);
                 ptx::mbarrier_arrive(bar_at(0));
               },
               {"exit", "in the middle of phase 0: 1 of 2 arrivals missing"});
  expect_fault(calm(1),
               [] {
                 ptx::mbarrier_init(bar_at(0), 1);
                 ptx::mbarrier_arrive_expect_tx(bar_at(0), 64);
                 ptx::mbarrier_arrive(bar_at(0));
               },
               {"more than its count of 1 in phase 0"});
}

TEST(EmulatedMbarrier, DeadlockSaysWhoWaitsForWhat) {
  unsigned init_line = 0, wait_line = 0;
  const auto kernel = [&] {
    if (ptx::thread_idx_x() == 0) {
      init_line = __LINE__ + 1;
      ptx::mbarrier_init(bar_at(0), 2);
      ptx::mbarrier_arrive(bar_at(0));
    }
    ptx::syncthreads();
    wait_line = __LINE__ + 1;
    ptx::mbarrier_wait(bar_at(0), 0);
  };
  const std::string fault = emulator::launch(calm(64), kernel).fault;
  for (const std::string& word :
       {std::string("deadlock: no thread can run"), std::string("warp 1: mbarrier"),
        place("mbarrier.init", init_line), std::string("it is in phase 0, 1 of 2 arrivals missing"),
        place("mbarrier.try_wait", wait_line), std::string("x32")})
    EXPECT_NE(fault.find(word), std::string::npos) << "lacks " << word << ": " << fault;
}

TEST(EmulatedNamedBarrier, OrdersAndLetsArriversGoOn) {
  expect_clean(calm(128), [] {
    const int warp = ptx::thread_idx_x() / 32;
    if (warp == 0) {
      ptx::store_shared(data_at(16 * static_cast<uint32_t>(ptx::thread_idx_x())), {1, 1, 1, 1});
      ptx::barrier_arrive(3, 64);
    } else if (warp == 1) {
      ptx::barrier_sync(3, 64);
      ptx::load_shared_int4(data_at(16 * static_cast<uint32_t>(ptx::thread_idx_x() ^ 32)));
    }
    ptx::syncthreads();
  });
}

TEST(EmulatedNamedBarrier, MisuseIsRefused) {
  expect_fault(calm(64), [] { ptx::barrier_sync(1, 40); }, {"barrier 1 of 40 threads"});
  expect_fault(calm(64), [] { ptx::barrier_sync(16, 64); }, {"barrier 16; there are 0 to 15"});
  expect_fault(calm(64), [] { ptx::barrier_sync(1, ptx::thread_idx_x() < 32 ? 64 : 32); },
               {"earlier ones of this phase said"});
  expect_fault(calm(64),
               [] {
                 if (ptx::thread_idx_x() >= 32) return;
                 ptx::barrier_arrive(1, 64);
                 ptx::barrier_arrive(1, 64);
               },
               {"a warp arrives twice in one phase of barrier 1"});
  expect_fault(calm(64),
               [] {
                 if (ptx::thread_idx_x() % 32 < 16) ptx::barrier_arrive(1, 32);
               },
               {"is full with lanes 0x0000ffff of warp"});
  expect_fault(calm(64),
               [] {
                 if (ptx::thread_idx_x() < 32) ptx::barrier_arrive(1, 64);
               },
               {"exit", "32 threads of 64 arrived at named barrier 1", "barrier.arrive"});
  expect_fault(calm(64),
               [] {
                 if (ptx::thread_idx_x() < 32) ptx::barrier_sync(1, 64);
               },
               {"deadlock", "named barrier 1: 32 of 64 threads arrived", "barrier.sync x32"});
}

TEST(EmulatedWarp, SyncwarpOrdersAndShufflesDoNot) {
  const auto kernel = [](bool sync) {
    const int lane = ptx::thread_idx_x();
    ptx::store_shared(data_at(16 * static_cast<uint32_t>(lane)), {lane, 0, 0, 0});
    if (sync) {
      ptx::syncwarp();
    } else {
      EXPECT_EQ(ptx::shfl_xor(static_cast<float>(lane), 1), static_cast<float>(lane ^ 1));
    }
    EXPECT_EQ(ptx::load_shared_int4(data_at(16 * static_cast<uint32_t>(lane ^ 1))).x, lane ^ 1);
  };
  expect_clean(calm(32), [&] { kernel(true); });
  expect_fault(calm(32), [&] { kernel(false); }, {"order: read", "st.shared", "ld.shared"});
}

TEST(EmulatedWarp, VotesAndUniformValues) {
  expect_clean(calm(64), [] {
    const int thread = ptx::thread_idx_x();
    EXPECT_EQ(ptx::any_sync(thread == 40), thread >= 32);
    EXPECT_EQ(ptx::uniform(thread), thread / 32 * 32);
  });
}

TEST(EmulatedWarp, LanesThatPartAreReported) {
  expect_fault(calm(32),
               [] {
                 if (ptx::thread_idx_x() < 16) {
                   ptx::syncwarp();
                 } else {
                   ptx::any_sync(true);
                 }
               },
               {"divergence", "others are at", "barriers_test.cc"});
  expect_fault(calm(32),
               [] {
                 if (ptx::thread_idx_x() < 16) ptx::syncwarp();
               },
               {"deadlock", "lanes 0x0000ffff of 0xffffffff arrived"});
}

TEST(EmulatedCluster, ArrivesAtOtherBlocks) {
  const auto kernel = [](bool cluster_scope, bool last_sync) {
    init(1);
    ptx::cluster_sync();
    const int rank = ptx::cluster_ctarank();
    if (ptx::thread_idx_x() == 0) ptx::mbarrier_arrive_cluster(bar_at(0), rank ^ 1);
    if (last_sync) {
      if (cluster_scope) {
        ptx::mbarrier_wait_cluster(bar_at(0), 0);
      } else {
        ptx::mbarrier_wait(bar_at(0), 0);
      }
    }
  };
  expect_clean(calm(32, 2), [&] { kernel(true, true); });
  expect_fault(calm(32, 2), [&] { kernel(false, true); }, {"scope", "mbarrier.init", "try_wait"});
  expect_fault(calm(32, 2), [&] { kernel(true, false); },
               {"exit", "mbarrier.arrive.cluster", "may still come in"});
}

TEST(EmulatedCluster, OtherBlocksNeedTheInitFence) {
  expect_fault(calm(32, 2),
               [] {
                 if (ptx::thread_idx_x() == 0) ptx::mbarrier_init(bar_at(0), 1);
                 ptx::cluster_sync();
                 if (ptx::thread_idx_x() == 0)
                   ptx::mbarrier_arrive_cluster(bar_at(0), ptx::cluster_ctarank() ^ 1);
                 ptx::mbarrier_wait_cluster(bar_at(0), 0);
               },
               {"proxy", "with no fence.mbarrier_init after its init"});
}

TEST(EmulatedRegisters, MoveThroughThePool) {
  const auto kernel = [](bool gives) {
    if (ptx::thread_idx_x() < 128) {
      if (gives) ptx::setmaxnreg_dec<40>();
    } else {
      ptx::setmaxnreg_inc<232>();
    }
  };
  expect_clean(calm(384), [&] { kernel(true); });
  expect_fault(calm(384), [&] { kernel(false); },
               {"deadlock", "2048 registers; 0 are free in the block", "setmaxnreg.inc"});
  expect_fault(calm(128), [] { ptx::setmaxnreg_dec<36>(); }, {"a multiple of 8 from 24 to 256"});
  expect_fault(calm(384), [] { ptx::setmaxnreg_inc<40>(); }, {"inc to 40 registers from 168"});
}

TEST(EmulatedMemory, BoundsAlignmentAndLimits) {
  expect_fault(calm(1), [] { ptx::load_shared_int4(ptx::dynamic_shared() + kSharedBytes); },
               {"is outside of the block's"});
  expect_fault(calm(1), [] { ptx::load_shared_int4(ptx::dynamic_shared() + 8); },
               {"must be a multiple of 16"});
  expect_fault(calm(1), [] { ptx::load_shared_int4(1 << 24); },
               {"names block 1 of a cluster of 1"});
  expect_fault(calm(1), [] { ptx::load_shared_int4(data_at(0)); }, {"which nobody has written"});
  emulator::Launch launch = calm(32);
  launch.shared_bytes = 232449;
  expect_fault(launch, [] {}, {"232449 bytes of shared memory; a block may have 232448"});
  launch = calm(384);
  launch.registers = 176;
  expect_fault(launch, [] {}, {"384 threads with 176 registers each"});
}

TEST(EmulatedSchedule, ReplaysBySeed) {
  const auto order_of = [](uint64_t seed) {
    std::vector<int> order;
    emulator::Launch launch = calm(64);
    launch.calm = false;
    launch.seed = seed;
    launch.grid.x = 3;
    launch.resident = 3;
    int counter = 0;
    const emulator::Report report = emulator::launch(launch, [&] {
      for (int i = 0; i < 4; ++i) {
        ptx::atomic_add(&counter, 1);
        order.push_back(ptx::block_idx_x() * 64 + ptx::thread_idx_x());
      }
      ptx::syncthreads();
    });
    EXPECT_EQ(report.fault, "");
    EXPECT_EQ(counter, 3 * 64 * 4);
    return order;
  };
  std::set<std::vector<int>> different;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const std::vector<int> order = order_of(seed);
    EXPECT_EQ(order, order_of(seed)) << seed;
    different.insert(order);
  }
  EXPECT_EQ(different.size(), 8u);
}

TEST(EmulatedSchedule, BlocksThatWaitForEachOtherRunTogether) {
  int flags[2] = {0, 0};
  emulator::Launch launch = calm(32);
  launch.grid.x = 2;
  launch.resident = 2;
  expect_clean(launch, [&] {
    if (ptx::thread_idx_x() != 0) return;
    const int self = ptx::block_idx_x();
    ptx::atomic_add(&flags[self], 1);
    while (ptx::atomic_add(&flags[self ^ 1], 0) == 0) emulator::Machine::current().yield();
  });
  EXPECT_EQ(flags[0], 6);
}

TEST(EmulatedSchedule, MoreBlocksThanFitRunInTurn) {
  int count = 0;
  emulator::Launch launch = calm(64);
  launch.grid = {5, 2, 1};
  launch.resident = 3;
  expect_clean(launch, [&] {
    init(64);
    ptx::mbarrier_arrive(bar_at(0));
    ptx::mbarrier_wait(bar_at(0), 0);
    if (ptx::thread_idx_x() == 0) ptx::atomic_add(&count, 1);
  });
  EXPECT_EQ(count, 6 * 10);
}

}  // namespace
}  // namespace sirdar::emulator_tests
