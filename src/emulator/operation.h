// The operations that kernels call, the places where they stand, and changes planted there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "here.h"

namespace sirdar::emulator {

#define SIRDAR_EMULATOR_OPERATIONS(X)                  \
  X(kMbarrierInit, "mbarrier.init")                    \
  X(kMbarrierInval, "mbarrier.inval")                  \
  X(kMbarrierArrive, "mbarrier.arrive")                \
  X(kMbarrierArriveCluster, "mbarrier.arrive.cluster") \
  X(kMbarrierExpect, "mbarrier.arrive.expect_tx")      \
  X(kMbarrierWait, "mbarrier.try_wait")                \
  X(kFenceMbarrierInit, "fence.mbarrier_init")         \
  X(kFenceProxyAsync, "fence.proxy.async")             \
  X(kFenceGpu, "fence.acq_rel.gpu")                    \
  X(kBarrierSync, "barrier.sync")                      \
  X(kBarrierArrive, "barrier.arrive")                  \
  X(kSyncThreads, "syncthreads")                       \
  X(kClusterArrive, "barrier.cluster.arrive")          \
  X(kClusterWait, "barrier.cluster.wait")              \
  X(kSyncWarp, "syncwarp")                             \
  X(kUniform, "uniform")                               \
  X(kShfl, "shfl.sync")                                \
  X(kVote, "vote.sync")                                \
  X(kElect, "elect.sync")                              \
  X(kLdmatrix, "ldmatrix")                             \
  X(kStmatrix, "stmatrix")                             \
  X(kMma, "mma.sync")                                  \
  X(kTmaLoad, "tma.load")                              \
  X(kTmaStore, "tma.store")                            \
  X(kTmaReduce, "tma.reduce")                          \
  X(kBulkCommit, "bulk.commit_group")                  \
  X(kBulkWaitRead, "bulk.wait_group.read")             \
  X(kBulkWait, "bulk.wait_group")                      \
  X(kWgmmaFence, "wgmma.fence")                        \
  X(kWgmma, "wgmma")                                   \
  X(kWgmmaCommit, "wgmma.commit_group")                \
  X(kWgmmaWait, "wgmma.wait_group")                    \
  X(kRegistersReady, "registers_ready")                \
  X(kSetmaxnregInc, "setmaxnreg.inc")                  \
  X(kSetmaxnregDec, "setmaxnreg.dec")                  \
  X(kLoadShared, "ld.shared")                          \
  X(kStoreShared, "st.shared")                         \
  X(kStoreGlobal, "st.global")                         \
  X(kAtomic, "atom.global")                            \
  X(kWaitGlobal, "ld.acquire.gpu loop")                \
  X(kReleaseGlobal, "st.release.gpu")                  \
  X(kLaunchDependents, "griddepcontrol.launch")        \
  X(kGridWait, "griddepcontrol.wait")                  \
  X(kOther, "kernel")

enum class Op : uint8_t {
#define X(name, text) name,
  SIRDAR_EMULATOR_OPERATIONS(X)
#undef X
};
const char* name_of(Op op);

struct Site {
  Op op;
  const char* file;
  unsigned line;
};
std::string text_of(const Site& site);  // "forward.cuh:89 wgmma"
std::string base_name(const char* file);

// What a planted fault does to the operation; which of them make sense depends on the operation.
enum class Change : uint8_t {
  kNone,
  kLeftOut,
  kTwice,
  kFlipped,  // another phase; scale-d; the answer of a vote
  kMore,     // a count, a group, bytes, a row more
  kLess,
  kHalf,   // half the bytes or threads; no swizzle
  kOther,  // another barrier, destination, row, stride
};
const char* name_of(Change change);

// A fault planted at a place in the kernel, without touching its text.
struct Mutation {
  Op op = Op::kOther;
  std::string file;  // without folders
  unsigned line = 0;
  int64_t key = -1;    // offset of the mbarrier or number of the barrier; -1: all
  int warpgroup = -1;  // -1: all
  Change change = Change::kNone;
};
std::string text_of(const Mutation& mutation);

// Which operations a clean run passed through, on which barriers, by which warpgroups.
struct Coverage {
  using Place = std::tuple<std::string, unsigned, Op, int64_t>;  // file, line, operation, key
  std::map<Place, std::map<int, uint64_t>> counts;               // warpgroup -> calls
};

// Every fault that can be planted in what was covered: for all warpgroups at once, and for each one
// where several pass.
std::vector<Mutation> plantable(const Coverage& coverage);
std::vector<Change> changes_of(Op op);

}  // namespace sirdar::emulator
