#include "operation.h"

#include <fmt/format.h>

#include <cstring>

namespace sirdar::emulator {

const char* name_of(Op op) {
  static constexpr const char* names[] = {
#define X(name, text) text,
      SIRDAR_EMULATOR_OPERATIONS(X)
#undef X
  };
  return names[static_cast<int>(op)];
}

const char* name_of(Change change) {
  static constexpr const char* names[] = {"nothing", "left out", "twice", "flipped",
                                          "more",    "less",     "half",  "other"};
  return names[static_cast<int>(change)];
}

std::string base_name(const char* file) {
  const char* slash = std::strrchr(file, '/');
  return slash ? slash + 1 : file;
}

std::string text_of(const Site& site) {
  return fmt::format("{}:{} {}", base_name(site.file), site.line, name_of(site.op));
}

std::string text_of(const Mutation& m) {
  return fmt::format("{}:{} {}{}{}: {}", m.file, m.line, name_of(m.op),
                     m.key < 0 ? "" : fmt::format(" of {:#x}", m.key),
                     m.warpgroup < 0 ? "" : fmt::format(" by warpgroup {}", m.warpgroup),
                     name_of(m.change));
}

std::vector<Change> changes_of(Op op) {
  using enum Change;
  switch (op) {
    case Op::kMbarrierInit:
      return {kLeftOut, kMore, kLess};
    case Op::kMbarrierArrive:
    case Op::kMbarrierArriveCluster:
      return {kLeftOut, kTwice};
    case Op::kMbarrierExpect:
      return {kLeftOut, kMore, kLess, kHalf};
    case Op::kMbarrierWait:
      return {kLeftOut, kFlipped};
    case Op::kBarrierSync:
      return {kLeftOut, kMore, kLess, kHalf, kOther};
    case Op::kBarrierArrive:
      return {kLeftOut, kTwice, kMore, kLess, kOther};
    case Op::kSyncThreads:
      return {kLeftOut, kLess};
    case Op::kShfl:
      return {kLeftOut, kOther};
    case Op::kVote:
      return {kFlipped};
    case Op::kLdmatrix:
      return {kOther};
    case Op::kStmatrix:
      return {kLeftOut, kOther};
    case Op::kTmaLoad:
      return {kLeftOut, kMore, kOther};
    case Op::kTmaStore:
    case Op::kTmaReduce:
      return {kLeftOut, kMore};
    case Op::kBulkWaitRead:
    case Op::kBulkWait:
    case Op::kWgmmaWait:
      return {kLeftOut, kMore};
    case Op::kWgmma:
      return {kLeftOut, kFlipped, kMore, kHalf, kOther};
    case Op::kWaitGlobal:
    case Op::kReleaseGlobal:
    case Op::kLaunchDependents:
    case Op::kGridWait:
    case Op::kFenceMbarrierInit:
    case Op::kFenceProxyAsync:
    case Op::kClusterArrive:
    case Op::kClusterWait:
    case Op::kSyncWarp:
    case Op::kMma:
    case Op::kBulkCommit:
    case Op::kWgmmaFence:
    case Op::kWgmmaCommit:
    case Op::kSetmaxnregInc:
    case Op::kSetmaxnregDec:
    case Op::kStoreShared:
    case Op::kStoreGlobal:
    case Op::kFenceGpu:
      return {kLeftOut};
    default:
      return {};
  }
}

std::vector<Mutation> plantable(const Coverage& coverage) {
  std::vector<Mutation> result;
  for (const auto& [place, warpgroups] : coverage.counts) {
    const auto& [file, line, op, key] = place;
    for (const Change change : changes_of(op)) {
      result.push_back({op, file, line, key, -1, change});
      if (warpgroups.size() < 2) continue;
      for (const auto& [warpgroup, calls] : warpgroups)
        result.push_back({op, file, line, key, warpgroup, change});
    }
  }
  return result;
}

}  // namespace sirdar::emulator
