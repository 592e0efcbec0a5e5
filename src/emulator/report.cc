// What a fault says: both places, who, and for deadlocks what everybody waits for.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "machine.h"

namespace sirdar::emulator {

std::string Machine::place_text(const Fiber& fiber) const {
  return fmt::format("block ({}, {}, {}) thread {} (warpgroup {} warp {} lane {})",
                     fiber.cta->index[0], fiber.cta->index[1], fiber.cta->index[2], fiber.thread,
                     fiber.warpgroup, fiber.warp % 4, fiber.lane);
}

void Machine::fault(const std::string& kind, const std::string& text) {
  if (!failed_) {
    report_.fault = fmt::format("{}: {}\n    | by {} at {}\n    | seed {}", kind, text,
                                current_ ? place_text(*current_) : "asynchronous work",
                                site_text(site_), launch_.seed);
    if (launch_.mutation.change != Change::kNone)
      report_.fault += fmt::format("\n    | planted: {}", text_of(launch_.mutation));
  }
  failed_ = true;
  throw Abandoned();
}

std::string Machine::waiting_text(const Fiber& fiber) const {
  switch (fiber.waiting) {
    case Wait::kMbarrier: {
      const auto& barrier = *static_cast<const Mbarrier*>(fiber.waits_for);
      std::string text = fmt::format(
          "mbarrier {:#x} of block {} (init at {}) waits for the end of a phase of parity {}; it "
          "is "
          "in phase {}, {} of {} arrivals missing, {} bytes outstanding",
          barrier.offset, barrier.cta->rank, site_text(barrier.init.site), fiber.wait_detail,
          barrier.phase, barrier.pending, barrier.count, barrier.transaction);
      for (int i = 0; i < std::min(barrier.num_last_sites, 4); ++i)
        text += fmt::format("{} {}", i ? "," : "; last arrivals:",
                            site_text(barrier.last_sites[(barrier.num_last_sites - 1 - i) % 4]));
      return text;
    }
    case Wait::kNamed: {
      const auto& barrier = *static_cast<const NamedBarrier*>(fiber.waits_for);
      return fmt::format("named barrier {}: {} of {} threads arrived", fiber.wait_detail,
                         barrier.arrived, barrier.threads);
    }
    case Wait::kCluster:
      return fmt::format("cluster barrier: {} threads arrived",
                         static_cast<const Cluster*>(fiber.waits_for)->arrived);
    case Wait::kWarp: {
      const auto& warp = *static_cast<const Warp*>(fiber.waits_for);
      return fmt::format("its warp: lanes {:#010x} of {:#010x} arrived", warp.arrived,
                         warp.expected);
    }
    case Wait::kBulk:
      return "its bulk stores";
    case Wait::kWgmma: {
      const auto& group = *static_cast<const Warpgroup*>(fiber.waits_for);
      if (group.ops.empty()) return "wgmma operations";
      return fmt::format("wgmma operation {}, to which {} of 128 threads have come",
                         group.executed + 1, group.ops.front()->arrived);
    }
    case Wait::kRegisters:
      return fmt::format("{} registers; {} are free in the block", fiber.wait_detail,
                         fiber.cta->free_registers);
    case Wait::kGlobal:
      return fmt::format("a flag in global memory to become {}; it is {}", fiber.wait_detail,
                         *static_cast<const int*>(fiber.waits_for));
    case Wait::kGrid:
      return "the end of the launch ahead";
    case Wait::kNothing:
      break;
  }
  return "nothing";
}

void Machine::deadlock() {
  std::map<std::string, int> lines;  // text -> threads
  for (const auto& cluster : clusters_)
    for (const Cta* cta : cluster->ctas)
      for (const auto& fiber : cta->fibers)
        if (!fiber->done)
          ++lines[fmt::format("block ({}, {}, {}) warp {}: {}; at {}", cta->index[0], cta->index[1],
                              cta->index[2], fiber->warp, waiting_text(*fiber),
                              site_text(fiber->site))];
  std::string text = "no thread can run";
  for (const auto& [line, threads] : lines) text += fmt::format("\n    {} x{}", line, threads);
  site_ = 0;
  fault("deadlock", text);
}

}  // namespace sirdar::emulator
