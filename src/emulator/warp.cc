// What the lanes of a warp do together.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "operations.h"

namespace sirdar::emulator {

void Machine::meet(uint32_t mask, uint32_t argument, bool order, const Act& act) {
  Fiber& self = *current_;
  Cta& cta = *self.cta;
  Warp& warp = cta.warps[static_cast<size_t>(self.warp)];
  if (!(mask >> self.lane & 1))
    fault("divergence", fmt::format("lane {} is not in its own mask {:#010x}", self.lane, mask));
  if (warp.arrived == 0) {
    warp.expected = mask, warp.site = site_, warp.argument = argument;
  } else if (warp.site != site_ || warp.expected != mask || warp.argument != argument) {
    fault(
        "divergence",
        fmt::format("lanes of one warp meet at different instructions or with different operands; "
                    "others are at {}",
                    site_text(warp.site)));
  }
  warp.arrived |= 1u << self.lane;
  if (order) release(warp.clock);
  if (warp.arrived != warp.expected) {
    warp.waiters.push_back(&self);
    for (const uint64_t phase = warp.phase; phase == warp.phase;) block(Wait::kWarp, &warp);
    return;
  }
  Fiber* lanes[32] = {};
  for (int lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) lanes[lane] = cta.fibers[self.warp * 32 + lane].get();
  act(lanes);
  ++warp.phase;
  warp.arrived = 0;
  if (order) {
    for (Fiber* fiber : warp.waiters) fiber->clock.join(warp.clock);
    self.clock.join(warp.clock);
    warp.clock.clear();
  }
  wake_all(warp.waiters);
}

uint32_t shfl(uint32_t mask, uint32_t value, int source_lane) {
  Machine& machine = Machine::current();
  Fiber& self = machine.fiber();
  self.given[0] = value;
  self.given[1] = static_cast<uint32_t>(source_lane);
  machine.meet(mask, 0, false, [](Fiber* const* lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      if (!lanes[lane]) continue;
      const Fiber* source = lanes[lanes[lane]->given[1] & 31];
      if (!source)
        Machine::current().fault("divergence", "a shuffle reads a lane that takes no part");
      lanes[lane]->got[0] = source->given[0];
    }
  });
  return self.got[0];
}

uint32_t ballot(uint32_t mask, bool predicate) {
  Machine& machine = Machine::current();
  Fiber& self = machine.fiber();
  self.given[0] = predicate;
  machine.meet(mask, 0, false, [](Fiber* const* lanes) {
    uint32_t votes = 0;
    for (int lane = 0; lane < 32; ++lane)
      if (lanes[lane] && lanes[lane]->given[0]) votes |= 1u << lane;
    for (int lane = 0; lane < 32; ++lane)
      if (lanes[lane]) lanes[lane]->got[0] = votes;
  });
  return self.got[0];
}

// One lane, the same each time; which one is for the implementation to choose.
bool elected() {
  Machine& machine = Machine::current();
  const Launch& launch = machine.launch();
  const int lane = launch.calm ? 0 : static_cast<int>((launch.seed * 0x9e3779b97f4a7c15u) >> 59);
  return machine.fiber().lane == lane;
}

void ldmatrix(uint32_t address, int matrices, bool transposed, uint32_t* out) {
  Machine& machine = Machine::current();
  Fiber& self = machine.fiber();
  if (self.lane < 8 * matrices) machine.read_shared(address, self.given, 16);
  machine.meet(0xffffffffu, static_cast<uint32_t>(matrices), false, [=](Fiber* const* lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int m = 0; m < matrices; ++m) {
        uint16_t pair[2];
        for (int e = 0; e < 2; ++e) {
          const int row = transposed ? lane % 4 * 2 + e : lane / 4;
          const int column = transposed ? lane / 4 : lane % 4 * 2 + e;
          std::memcpy(&pair[e],
                      reinterpret_cast<const char*>(lanes[8 * m + row]->given) + 2 * column, 2);
        }
        std::memcpy(&lanes[lane]->got[m], pair, 4);
      }
    }
  });
  for (int m = 0; m < matrices; ++m) out[m] = self.got[m];
}

namespace {

struct StoredMatrix {
  uint32_t rows[8][4];
};

// Matrix m of the warp from the registers that its lanes gave.
void gather(Fiber* const* lanes, int m, bool transposed, StoredMatrix& matrix) {
  for (int lane = 0; lane < 32; ++lane) {
    uint16_t pair[2];
    std::memcpy(pair, &lanes[lane]->given[m], 4);
    for (int e = 0; e < 2; ++e) {
      const int row = transposed ? lane % 4 * 2 + e : lane / 4;
      const int column = transposed ? lane / 4 : lane % 4 * 2 + e;
      std::memcpy(reinterpret_cast<char*>(matrix.rows[row]) + 2 * column, &pair[e], 2);
    }
  }
}

void count_conflicts(Fiber* const* lanes, int m, Counters& counters) {
  int rows_of_bank[8] = {};
  for (int row = 0; row < 8; ++row) ++rows_of_bank[lanes[8 * m + row]->given[4] / 16 % 8];
  ++counters.stmatrix;
  counters.stmatrix_conflicts +=
      static_cast<uint64_t>(*std::max_element(rows_of_bank, rows_of_bank + 8) - 1);
}

}  // namespace

void stmatrix(uint32_t address, int matrices, bool transposed, const uint32_t* in, Change change) {
  Machine& machine = Machine::current();
  Fiber& self = machine.fiber();
  for (int m = 0; m < matrices; ++m) self.given[m] = in[m];
  self.given[4] = change == Change::kOther ? address ^ 16 : address;
  machine.meet(0xffffffffu, static_cast<uint32_t>(matrices), false, [=](Fiber* const* lanes) {
    StoredMatrix stored[4];
    for (int m = 0; m < matrices; ++m) {
      gather(lanes, m, transposed, stored[m]);
      count_conflicts(lanes, m, Machine::current().counters());
    }
    for (int lane = 0; lane < 8 * matrices; ++lane)  // kept for the lane that names the address
      std::memcpy(lanes[lane]->got, stored[lane / 8].rows[lane % 8], 16);
  });
  if (self.lane < 8 * matrices && change != Change::kLeftOut)
    machine.write_shared(self.given[4], self.got, 16);
}

void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, bool fp16) {
  Machine& machine = Machine::current();
  Fiber& self = machine.fiber();
  for (int i = 0; i < 4; ++i) self.given[i] = a[i];
  for (int i = 0; i < 2; ++i) self.given[4 + i] = b[i];
  for (int i = 0; i < 4; ++i) std::memcpy(&self.given[6 + i], &d[i], 4);
  machine.meet(0xffffffffu, fp16, false, [fp16](Fiber* const* lanes) {
    const auto element = [fp16](uint32_t pair, int e) {
      const uint16_t bits = static_cast<uint16_t>(pair >> (16 * e));
      return fp16 ? from_fp16(bits) : from_bf16(bits);
    };
    float left[16][16], right[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, q = lane % 4;
      for (int i = 0; i < 4; ++i)
        for (int e = 0; e < 2; ++e)
          left[g + 8 * (i & 1)][8 * (i >> 1) + 2 * q + e] = element(lanes[lane]->given[i], e);
      for (int i = 0; i < 2; ++i)
        for (int e = 0; e < 2; ++e)
          right[8 * i + 2 * q + e][g] = element(lanes[lane]->given[4 + i], e);
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i >> 1), column = 2 * (lane % 4) + (i & 1);
        float sum;
        std::memcpy(&sum, &lanes[lane]->given[6 + i], 4);
        for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
        std::memcpy(&lanes[lane]->got[i], &sum, 4);
      }
    }
    Machine::current().counters().mma_flops += 2 * 16 * 8 * 16;
  });
  for (int i = 0; i < 4; ++i) std::memcpy(&d[i], &self.got[i], 4);
}

void setmaxnreg(int registers, bool more) {
  Machine& machine = Machine::current();
  Fiber& self = machine.fiber();
  Cta& cta = *self.cta;
  Warp& warp = cta.warps[static_cast<size_t>(self.warp)];
  if (registers < 24 || registers > 256 || registers % 8)
    machine.fault(
        "setmaxnreg",
        fmt::format("{} registers; a multiple of 8 from 24 to 256 is allowed", registers));
  machine.meet(0xffffffffu, static_cast<uint32_t>(registers), false, [](Fiber* const*) {});
  if (self.lane != 0) {  // lane 0 speaks for the warp; the others follow it
    machine.meet(0xffffffffu, static_cast<uint32_t>(registers), false, [](Fiber* const*) {});
    return;
  }
  if (more ? registers < warp.registers : registers > warp.registers)
    machine.fault("setmaxnreg", fmt::format("{} to {} registers from {}", more ? "inc" : "dec",
                                            registers, warp.registers));
  const int change = 32 * (registers - warp.registers);
  while (change > cta.free_registers) {
    cta.register_waiters.push_back(&self);
    machine.block(Wait::kRegisters, &cta, change);
  }
  cta.free_registers -= change;
  warp.registers = registers;
  machine.wake_all(cta.register_waiters);
  machine.meet(0xffffffffu, static_cast<uint32_t>(registers), false, [](Fiber* const*) {});
}

}  // namespace sirdar::emulator
