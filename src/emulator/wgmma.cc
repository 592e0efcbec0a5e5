// wgmma: issued by 128 threads, executed as one, at any time before the wait that needs it. While
// it is in flight its accumulators live here and the registers hold a marked NaN.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "operations.h"
#include "shared/float_bits.h"

namespace sirdar::emulator {
namespace {

// Signalling: any arithmetic on it changes its bits.
constexpr uint32_t kInFlight = 0x7fadead0;

// Registers of a kernel, which may be out of scope by now; only their bits matter.
__attribute__((no_sanitize("address"))) void copy_registers(uint32_t* to, const uint32_t* from,
                                                            int count) {
  for (int i = 0; i < count; ++i) to[i] = from[i];
}
__attribute__((no_sanitize("address"))) bool same_registers(const uint32_t* at,
                                                            const uint32_t* contents, int count) {
  for (int i = 0; i < count; ++i)
    if (at[i] != contents[i]) return false;
  return true;
}

// --- descriptors ------------------------------------------------------------------------------

struct Operand {
  std::vector<uint32_t> chunks;  // offsets of 16 bytes in shared memory
};

// Rows are M or N; K-major: chunk 2 r + h holds k 8 h.. of row r; otherwise chunk k rows / 8 + c
// holds rows 8 c.. of k.
void decode(uint64_t descriptor, bool transposed, int rows, Operand& operand) {
  Machine& machine = Machine::current();
  const uint32_t start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const uint32_t leading = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor & ~0xc0003fff3fff3fffu)
    machine.fault("wgmma", fmt::format("descriptor {:#018x} has a base offset or reserved bits set",
                                       descriptor));
  static constexpr Swizzle layouts[] = {Swizzle::kNone, Swizzle::k128, Swizzle::k64, Swizzle::k32};
  const Swizzle swizzle = layouts[descriptor >> 62];
  const uint32_t span = span_of(swizzle), per_atom = span / 16;
  if (transposed && swizzle == Swizzle::kNone)
    machine.fault("wgmma", "a transposed operand without swizzle is not modelled");
  operand.chunks.clear();
  const auto add = [&](uint32_t offset) {
    operand.chunks.push_back(swizzled(start + offset, swizzle));
  };
  if (transposed) {
    for (uint32_t k = 0; k < 16; ++k)
      for (uint32_t c = 0; c < static_cast<uint32_t>(rows) / 8; ++c)
        add(c / per_atom * leading + k / 8 * stride + k % 8 * span + c % per_atom * 16);
  } else {
    for (uint32_t r = 0; r < static_cast<uint32_t>(rows); ++r)
      for (uint32_t h = 0; h < 2; ++h)
        add(r / 8 * stride + r % 8 * span + (swizzle == Swizzle::kNone ? h * leading : h * 16));
  }
}

// Everyone of the warpgroup must know who wrote the operand; then it is marked as read.
void check_operand(const Warpgroup& group, const Operand& operand, const Stamp& reader) {
  Machine& machine = Machine::current();
  Cta& cta = *group.cta;
  struct Writer {
    Stamp stamp;
    Machine::Place place;
    Record record;
  };
  std::vector<Writer> writers;
  const uint32_t rank = static_cast<uint32_t>(cta.rank) << kRankShift;
  for (const uint32_t chunk : operand.chunks) {
    const Machine::Place place = machine.resolve(chunk | rank, 16, 16);
    machine.check_no_mbarrier(place, 16);
    cta.shared.for_records(chunk, 16, [&](Record& record) {
      const auto same = [&](const Writer& writer) {
        return writer.stamp.component == record.write.component &&
               writer.stamp.count == record.write.count &&
               writer.record.written == record.written && writer.record.generic == record.generic;
      };
      if (std::none_of(writers.begin(), writers.end(), same))
        writers.push_back({record.write, place, record});
      cta.shared.add_reader(record, reader);
    });
  }
  for (const Writer& writer : writers) {
    for (int t = 0; t < 128; ++t) {
      const Clock& clock = cta.fibers[group.index * 128 + t]->clock;
      machine.check_known(writer.place, writer.record, "wgmma read", clock);
      machine.check_proxy(writer.place, writer.record, clock);
    }
  }
}

// --- arithmetic -------------------------------------------------------------------------------

const float* fp16_table() {
  static const std::vector<float> table = [] {
    std::vector<float> values(65536);
    for (uint32_t bits = 0; bits < 65536; ++bits)
      values[bits] = fp16_to_float(static_cast<unsigned short>(bits));
    return values;
  }();
  return table.data();
}

// rows x 16 (K-major) or 16 x rows elements, to out[row * row_step + k * k_step].
void gather(SharedMemory& shared, const Operand& operand, bool transposed, int rows, bool fp16,
            float* out, int row_step, int k_step) {
  const float* table = fp16 ? fp16_table() : nullptr;
  for (size_t i = 0; i < operand.chunks.size(); ++i) {
    uint16_t elements[8];
    std::memcpy(elements, shared.data(operand.chunks[i]), 16);
    const int index = static_cast<int>(i), groups = rows / 8;
    const int row = transposed ? index % groups * 8 : index / 2;
    const int k = transposed ? index / groups : index % 2 * 8;
    for (int e = 0; e < 8; ++e) {
      const int at =
          transposed ? (row + e) * row_step + k * k_step : row * row_step + (k + e) * k_step;
      out[at] = table ? table[elements[e]] : from_bf16(elements[e]);
    }
  }
}

// d[64][n] (+)= a[64][16] b[16][n]
__attribute__((always_inline)) inline void multiply_body(float* __restrict d,
                                                         const float* __restrict a,
                                                         const float* __restrict b, int n,
                                                         bool accumulate) {
  for (int m = 0; m < 64; ++m) {
    float* row = d + m * n;
    for (int j = 0; j < n; j += 8) {
      float sums[8];
      for (int i = 0; i < 8; ++i) sums[i] = accumulate ? row[j + i] : 0.0f;
      for (int k = 0; k < 16; ++k)
        for (int i = 0; i < 8; ++i) sums[i] += a[m * 16 + k] * b[k * n + j + i];
      for (int i = 0; i < 8; ++i) row[j + i] = sums[i];
    }
  }
}
#ifdef __x86_64__
__attribute__((target("avx2"))) void multiply_avx2(float* d, const float* a, const float* b, int n,
                                                   bool accumulate) {
  multiply_body(d, a, b, n, accumulate);
}
#endif
void multiply(float* d, const float* a, const float* b, int n, bool accumulate) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return multiply_avx2(d, a, b, n, accumulate);
#endif
  multiply_body(d, a, b, n, accumulate);
}

int row_of(int thread, int i) { return 16 * (thread / 32) + thread % 32 / 4 + 8 * (i / 2 % 2); }
int column_of(int thread, int i) { return 8 * (i / 4) + 2 * (thread % 4) + i % 2; }

// --- registers --------------------------------------------------------------------------------

bool overlap(const void* a, int a_count, const void* b, int b_count) {
  const auto at = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return at(a) < at(b) + 4 * static_cast<uintptr_t>(b_count) &&
         at(b) < at(a) + 4 * static_cast<uintptr_t>(a_count);
}

LiveAccumulator* live_at(Fiber& fiber, const void* at, int count) {
  for (LiveAccumulator& live : fiber.live)
    if (overlap(live.at, live.count, at, count)) return &live;
  return nullptr;
}

// Registers that a wgmma uses may not have changed since the last wgmma.fence, as far as earlier
// wgmmas made them known.
void check_since_fence(Fiber& fiber, const uint32_t* at, int count, const char* what) {
  const size_t size = fiber.known.size();
  for (size_t i = 0; i < size; ++i) {  // calls come in the same order each time
    const size_t index = (fiber.known_cursor + i) % size;
    KnownRegisters& known = fiber.known[index];
    if (known.at != at || known.count != count) continue;
    fiber.known_cursor = (index + 1) % size;
    if (!same_registers(at, known.contents.data(), count))
      Machine::current().fault("wgmma", fmt::format("{} changed since the last wgmma.fence", what));
    return;
  }
  std::erase_if(fiber.known, [&](const KnownRegisters& known) {
    return overlap(known.at, known.count, at, count);
  });
  fiber.known.push_back({at, count, std::vector<uint32_t>(static_cast<size_t>(count))});
  copy_registers(fiber.known.back().contents.data(), at, count);
}

void refresh(Fiber& fiber, const void* at) {
  for (KnownRegisters& known : fiber.known)
    if (!at || known.at == at) copy_registers(known.contents.data(), known.at, known.count);
}

Accumulator* new_accumulator(Warpgroup& group, int n) {
  std::unique_ptr<Accumulator> accumulator;
  if (group.spare.empty()) {
    accumulator = std::make_unique<Accumulator>();
  } else {
    accumulator = std::move(group.spare.back());
    group.spare.pop_back();
  }
  accumulator->n = n;
  accumulator->values.resize(64 * n);
  std::fill(std::begin(accumulator->registers), std::end(accumulator->registers), nullptr);
  group.accumulators.push_back(std::move(accumulator));
  return group.accumulators.back().get();
}

// The thread's registers become part of the accumulator of `op`.
void attach(Fiber& self, MmaOp& op, float* d, uint64_t number) {
  Machine& machine = Machine::current();
  const int thread = self.thread % 128, count = op.n / 2;
  Accumulator& accumulator = *op.accumulator;
  if (LiveAccumulator* live = live_at(self, d, count)) {
    if (live->at != d || live->count != count)
      machine.fault("wgmma", "accumulator registers overlap those of a wgmma in flight");
    if (live->accumulator != &accumulator)
      machine.fault("divergence",
                    "threads of a warpgroup give different accumulators to one wgmma");
    live->last = number;
    return;
  }
  if (accumulator.registers[thread])
    machine.fault("divergence", "threads of a warpgroup give different accumulators to one wgmma");
  check_since_fence(self, reinterpret_cast<const uint32_t*>(d), count, "an accumulator");
  accumulator.registers[thread] = d;
  ++accumulator.holders;
  if (op.scale_d) self.loads.take(reinterpret_cast<const uint32_t*>(d), count, self.now());
  for (int i = 0; i < count; ++i) {
    if (op.scale_d) accumulator.values[row_of(thread, i) * op.n + column_of(thread, i)] = d[i];
    std::memcpy(&d[i], &kInFlight, 4);
  }
  self.live.push_back({d, count, &accumulator, number});
}

void detach(Fiber& self, const LiveAccumulator& live) {
  Machine& machine = Machine::current();
  const int thread = self.thread % 128;
  Accumulator& accumulator = *live.accumulator;
  for (int i = 0; i < live.count; ++i) {
    uint32_t bits;
    copy_registers(&bits, reinterpret_cast<const uint32_t*>(live.at) + i, 1);
    if (bits != kInFlight)
      machine.fault("registers",
                    fmt::format("accumulator register {} was written while a wgmma was "
                                "in flight",
                                i));
    live.at[i] = accumulator.values[row_of(thread, i) * accumulator.n + column_of(thread, i)];
  }
  refresh(self, live.at);
  if (--accumulator.holders > 0) return;
  Warpgroup& group = self.cta->warpgroups[static_cast<size_t>(self.warpgroup)];
  const auto found = std::find_if(group.accumulators.begin(), group.accumulators.end(),
                                  [&](const auto& other) { return other.get() == &accumulator; });
  group.spare.push_back(std::move(*found));
  group.accumulators.erase(found);
}

bool matches(const MmaOp& op, const MmaRequest& r, uint32_t site) {
  return op.site == site && op.n == r.n && op.a_in_registers == (r.a != nullptr) &&
         (r.a || op.a_descriptor == r.a_descriptor) && op.b_descriptor == r.b_descriptor &&
         op.transpose_a == r.transpose_a && op.transpose_b == r.transpose_b &&
         op.scale_d == r.scale_d && op.fp16 == r.fp16;
}

// All threads have come: operands are decoded and checked, and the operation may run.
void complete(Warpgroup& group, MmaOp& op, uint64_t number) {
  Machine& machine = Machine::current();
  Stamp reader{machine.component(*group.cta, machine.first_warp() + 4 * group.index),
               machine.base(*group.cta) + static_cast<uint32_t>(number), op.site, true};
  Operand operand;
  if (!op.a_in_registers) {
    decode(op.a_descriptor, op.transpose_a, 64, operand);
    check_operand(group, operand, reader);
  }
  decode(op.b_descriptor, op.transpose_b, op.n, operand);
  check_operand(group, operand, reader);
  Event event{EventKind::kWgmma};
  event.site = op.site;
  event.warpgroup = &group;
  event.cta = group.cta;
  machine.post(std::move(event));
}

}  // namespace

float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
float from_fp16(uint16_t bits) { return fp16_table()[bits]; }

void wgmma(const MmaRequest& given, Change change) {
  Machine& machine = Machine::current();
  Fiber& self = machine.fiber();
  MmaRequest request = given;
  if (change == Change::kLeftOut) return;
  if (change == Change::kFlipped) request.scale_d = !request.scale_d;
  if (change == Change::kMore) request.b_descriptor += 2;
  if (change == Change::kHalf) request.b_descriptor &= ~(uint64_t{3} << 62);
  if (change == Change::kOther) request.b_descriptor += request.b_descriptor & (0x3fffull << 32);
  if (self.warpgroup * 128 + 128 > machine.launch().threads)
    machine.fault("wgmma", "the warpgroup is not complete");
  if (!self.fenced)
    machine.fault("wgmma", "no wgmma.fence since the thread started or last waited");
  Warpgroup& group = self.cta->warpgroups[static_cast<size_t>(self.warpgroup)];
  const uint64_t number = ++self.issued;
  const size_t index = number - 1 - group.executed;
  if (index == group.ops.size()) {
    auto op = std::make_unique<MmaOp>();
    op->a_descriptor = request.a_descriptor, op->b_descriptor = request.b_descriptor;
    op->a_in_registers = request.a != nullptr;
    op->transpose_a = request.transpose_a, op->transpose_b = request.transpose_b;
    op->scale_d = request.scale_d, op->fp16 = request.fp16, op->n = request.n;
    op->site = machine.site_index();
    const LiveAccumulator* live = live_at(self, request.d, request.n / 2);
    op->accumulator = live ? live->accumulator : new_accumulator(group, request.n);
    group.ops.push_back(std::move(op));
  }
  MmaOp& op = *group.ops[index];
  if (!matches(op, request, machine.site_index()))
    machine.fault("divergence", fmt::format("threads of a warpgroup issue different wgmmas; others "
                                            "are at {}",
                                            machine.site_text(op.site)));
  const int thread = self.thread % 128;
  if (request.a) {
    if (live_at(self, request.a, 4))
      machine.fault("registers", "A is read from accumulators in flight");
    check_since_fence(self, request.a, 4, "a register of A");
    op.a[thread] = request.a;
    copy_registers(op.a_copy[thread], request.a, 4);
  }
  attach(self, op, request.d, number);
  if (++op.arrived == 128) complete(group, op, number);
}

void Machine::execute(Warpgroup& group) {
  const std::unique_ptr<MmaOp> op = std::move(group.ops.front());
  group.ops.pop_front();
  ++group.executed;
  float a[64 * 16];
  static thread_local std::vector<float> b(16 * 256);
  Operand operand;
  SharedMemory& shared = group.cta->shared;
  if (op->a_in_registers) {
    for (int t = 0; t < 128; ++t) {
      if (!same_registers(op->a[t], op->a_copy[t], 4))
        fault("registers", fmt::format("registers of A of thread {} of warpgroup {} changed while "
                                       "the wgmma was in flight",
                                       t, group.index));
      for (int i = 0; i < 8; ++i) {
        const uint16_t bits = static_cast<uint16_t>(op->a_copy[t][i / 2] >> (16 * (i % 2)));
        a[row_of(t, i) * 16 + column_of(t, i)] = op->fp16 ? from_fp16(bits) : from_bf16(bits);
      }
    }
  } else {
    decode(op->a_descriptor, op->transpose_a, 64, operand);
    gather(shared, operand, op->transpose_a, 64, op->fp16, a, 16, 1);
  }
  decode(op->b_descriptor, op->transpose_b, op->n, operand);
  gather(shared, operand, op->transpose_b, op->n, op->fp16, b.data(), 1, op->n);
  multiply(op->accumulator->values.data(), a, b.data(), op->n, op->scale_d);
  report_.counters.wgmma_flops += 2ull * 64 * 16 * static_cast<uint64_t>(op->n);
  wake_all(group.waiters);
}

void wgmma_fence() {
  Fiber& self = Machine::current().fiber();
  self.fenced = true;
  refresh(self, nullptr);
}

void loop_waited() { Machine::current().fiber().fenced = false; }

void wgmma_commit() {
  Fiber& self = Machine::current().fiber();
  self.commits.push_back(self.issued);
}

void wgmma_wait(int pending) {
  Machine& machine = Machine::current();
  Fiber& self = machine.fiber();
  self.fenced = false;
  if (self.commits.size() <= static_cast<size_t>(pending)) return;
  const ptrdiff_t groups = static_cast<ptrdiff_t>(self.commits.size()) - pending;
  const uint64_t target = self.commits[static_cast<size_t>(groups - 1)];
  Warpgroup& group = self.cta->warpgroups[static_cast<size_t>(self.warpgroup)];
  while (group.executed < target) {
    group.waiters.push_back(&self);
    machine.block(Wait::kWgmma, &group);
  }
  self.commits.erase(self.commits.begin(), self.commits.begin() + groups);
  for (size_t i = 0; i < self.live.size();) {
    if (self.live[i].last > target) {
      ++i;
      continue;
    }
    const LiveAccumulator live = self.live[i];
    self.live.erase(self.live.begin() + static_cast<ptrdiff_t>(i));
    detach(self, live);
  }
  // Speaks for this warp alone.
  const uint32_t component = machine.component(*self.cta, machine.first_warp() + self.warp);
  self.clock.set(component, std::max(self.clock[component],
                                     machine.base(*self.cta) + static_cast<uint32_t>(target)));
}

void registers_ready(const void* registers, int count) {
  Machine& machine = Machine::current();
  if (live_at(machine.fiber(), registers, count))
    machine.fault("registers", "registers of a wgmma in flight are about to be used");
}

}  // namespace sirdar::emulator
