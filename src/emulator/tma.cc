// Tensor copies by the TMA engine. Loads overwrite their destination with NaN when they are issued
// and land in pieces, at any time until the mbarrier has all bytes; stores read late and write
// later.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "operations.h"
#include "shared/float_bits.h"

namespace sirdar::emulator {
namespace {

MapFields fields_of(const void* map, int rank) {
  Machine& machine = Machine::current();
  MapFields fields;
  std::memcpy(&fields, map, sizeof fields);
  if (fields.magic != MapFields::kMagic)
    machine.fault("tma", "the tensor map was not made by the emulator's maker");
  if (fields.rank != rank)
    machine.fault("tma",
                  fmt::format("a tensor map of rank {} for {} coordinates", fields.rank, rank));
  return fields;
}

void check_alignment(const MapFields& map, uint32_t address) {
  const uint32_t offset = address & ((1u << kRankShift) - 1);
  const uint32_t atom = map.swizzle == Swizzle::kNone ? 128 : 8 * span_of(map.swizzle);
  if (offset % atom)
    Machine::current().fault("tma",
                             fmt::format("shared {:#x} must be a multiple of {}, the atom of "
                                         "the swizzle",
                                         offset, atom));
}

// As an H200 takes them: others end in an illegal instruction there (docs/emulator.md).
void check_coordinates(const MapFields& map, const int (&coordinates)[5], bool stores) {
  const int64_t byte = int64_t{coordinates[0]} * map.element_bytes;
  if (byte % 16)
    Machine::current().fault(
        "tma", fmt::format("column {} is byte {} of its row, which must be a multiple of 16",
                           coordinates[0], byte));
  for (int axis = 0; stores && axis < map.rank; ++axis)
    if (coordinates[axis] < 0)
      Machine::current().fault("tma",
                               fmt::format("a store at {} of axis {}, which must not be negative",
                                           coordinates[axis], axis));
}

// Calls f(shared offset of 16 bytes at most, global pointer or null, bytes) for the rows of a box;
// bytes never cross an edge of the tensor.
template <class F>
void for_pieces(const Event& event, F&& f) {
  const MapFields& map = event.map;
  for (int row = event.first_row; row < event.last_row; ++row) {
    int64_t position = 0;
    bool inside = true;
    for (int axis = 1, rest = row; axis < map.rank; ++axis) {
      const int box = static_cast<int>(map.box[axis]);
      const int64_t index = int64_t{event.coordinates[axis]} + rest % box;
      rest /= box;
      inside = inside && index >= 0 && index < static_cast<int64_t>(map.dims[axis]);
      position += index * static_cast<int64_t>(map.strides[axis - 1]);
    }
    for (uint32_t column = 0; column < map.row_bytes(); column += map.element_bytes) {
      const int64_t index = int64_t{event.coordinates[0]} + column / map.element_bytes;
      const bool in = inside && index >= 0 && index < static_cast<int64_t>(map.dims[0]);
      const uint32_t linear = event.offset + static_cast<uint32_t>(row) * map.row_bytes() + column;
      f(swizzled(linear & ~15u, map.swizzle) | (linear & 15u),
        in ? map.base + position + index * map.element_bytes : nullptr, map.element_bytes);
    }
  }
}

void add(uint8_t* to, const uint8_t* from, MapType type) {
  if (type == MapType::kFp32) {
    float sum, term;
    std::memcpy(&sum, to, 4), std::memcpy(&term, from, 4);
    sum += term;
    std::memcpy(to, &sum, 4);
  } else if (type == MapType::kInt32) {
    uint32_t sum, term;
    std::memcpy(&sum, to, 4), std::memcpy(&term, from, 4);
    sum += term;
    std::memcpy(to, &sum, 4);
  } else {
    uint16_t sum, term;
    std::memcpy(&sum, to, 2), std::memcpy(&term, from, 2);
    sum = type == MapType::kBf16 ? float_to_bf16(from_bf16(sum) + from_bf16(term))
                                 : float_to_fp16(from_fp16(sum) + from_fp16(term));
    std::memcpy(to, &sum, 2);
  }
}

void issue_load(Machine& machine, const LoadRequest& request, const MapFields& map, int rank) {
  const uint32_t low = (1u << kRankShift) - 1, high = static_cast<uint32_t>(rank) << kRankShift;
  const Machine::Place place = machine.resolve((request.destination & low) | high, map.bytes(), 16);
  machine.check_no_mbarrier(place, map.bytes());
  Mbarrier& barrier = machine.mbarrier((request.barrier & low) | high, false);
  machine.check_visible_to_async(barrier);
  const Stamp stamp{barrier.component, barrier.base + static_cast<uint32_t>(barrier.phase) + 1,
                    machine.site_index(), false};
  SharedMemory& shared = place.cta->shared;
  const Clock& clock = machine.fiber().clock;
  shared.for_records(place.offset, map.bytes(), [&](Record& record) {
    machine.check_readers(place, record, clock);
    machine.check_proxy(place, record, clock);
    machine.check_read_proxy(place, record, clock);
    shared.set_writer(record, stamp, false);
  });
  shared.join_records(place.offset, map.bytes());
  std::memset(shared.data(place.offset), 0xff, map.bytes());
  if (place.cta != machine.fiber().cta) place.cta->incoming.push_back(stamp);
  const int pieces = std::min(map.rows(), 1 + static_cast<int>(machine.random(3)));
  for (int piece = 0; piece < pieces; ++piece) {
    Event event{EventKind::kLoad};
    event.site = machine.site_index();
    event.map = map;
    std::copy_n(request.coordinates, 5, event.coordinates);
    event.cta = place.cta;
    event.offset = place.offset;
    event.first_row = map.rows() * piece / pieces;
    event.last_row = map.rows() * (piece + 1) / pieces;
    event.barrier = &barrier;
    event.phase = barrier.phase;
    machine.post(std::move(event));
  }
  machine.counters().bytes_loaded += map.bytes();
}

}  // namespace

void tma_load(LoadRequest request, Change change) {
  Machine& machine = Machine::current();
  if (change == Change::kLeftOut) return;
  if (change == Change::kMore) request.coordinates[1] += 1;
  if (change == Change::kOther) request.destination += 1024;
  const MapFields map = fields_of(request.map, request.rank);
  check_alignment(map, request.destination);
  check_coordinates(map, request.coordinates, false);
  machine.mbarrier(request.barrier, true);
  const Cluster& cluster = *machine.fiber().cta->cluster;
  if (request.multicast == 0) {
    issue_load(machine, request, map, machine.fiber().cta->rank);
    return;
  }
  for (int rank = 0; rank < 16; ++rank) {
    if (!(request.multicast >> rank & 1)) continue;
    if (rank >= static_cast<int>(cluster.ctas.size()))
      machine.fault("tma", fmt::format("multicast {:#x} names block {} of a cluster of {}",
                                       request.multicast, rank, cluster.ctas.size()));
    issue_load(machine, request, map, rank);
  }
}

void Machine::land(Event& event) {
  Mbarrier& barrier = *event.barrier;
  if (barrier.phase != event.phase)
    fault("tma",
          fmt::format("bytes land at mbarrier {:#x} (init at {}) in phase {}, but were issued "
                      "in phase {}: more bytes were loaded than expect_tx announced",
                      barrier.offset, site_text(barrier.init.site), barrier.phase, event.phase));
  SharedMemory& shared = event.cta->shared;
  for_pieces(event, [&](uint32_t offset, const uint8_t* from, uint32_t bytes) {
    if (from) {
      std::memcpy(shared.data(offset), from, bytes);
    } else {
      std::memset(shared.data(offset), 0, bytes);
    }
  });
  barrier.transaction -=
      int64_t{event.last_row - event.first_row} * static_cast<int64_t>(event.map.row_bytes());
  complete_if_done(barrier);
}

namespace {

// `bytes` at `address` as a tensor of one axis.
MapFields line_of(const void* address, int bytes) {
  Machine& machine = Machine::current();
  if (bytes <= 0 || bytes % 16 || reinterpret_cast<uintptr_t>(address) % 16)
    machine.fault("tma", fmt::format("a bulk copy of {} bytes at {}; both are multiples of 16",
                                     bytes, address));
  MapFields line;
  line.rank = 1;
  line.element_bytes = 4;
  line.type = MapType::kFp32;
  line.base = static_cast<uint8_t*>(const_cast<void*>(address));
  line.dims[0] = line.box[0] = static_cast<uint32_t>(bytes / 4);
  return line;
}

void issue_store(const StoreRequest& request, const MapFields& map) {
  Machine& machine = Machine::current();
  Fiber& self = machine.fiber();
  const Machine::Place place = machine.resolve(request.source, map.bytes(), 16);
  if (place.cta != self.cta) machine.fault("tma", "a store reads shared memory of another block");
  if (!self.bulk_component) {
    if (self.cta->num_bulk == kMaxBulkThreads)
      machine.fault("tma",
                    fmt::format("more than {} threads of a block store in bulk", kMaxBulkThreads));
    self.bulk_component = machine.component(*self.cta, machine.first_bulk() + self.cta->num_bulk++);
  }
  const uint64_t group = self.committed;
  const Stamp stamp{self.bulk_component, machine.base(*self.cta) + static_cast<uint32_t>(group) + 1,
                    machine.site_index(), false};
  Event event{EventKind::kStoreRead};
  event.site = machine.site_index();
  event.map = map;
  std::copy_n(request.coordinates, 5, event.coordinates);
  event.cta = place.cta;
  event.offset = place.offset;
  event.last_row = map.rows();
  event.issuer = &self;
  event.group = group;
  event.reduce = request.reduce;
  // What lies outside the tensor may be anything: it goes nowhere.
  SharedMemory& shared = place.cta->shared;
  for_pieces(event, [&](uint32_t offset, const uint8_t* to, uint32_t bytes) {
    if (to == nullptr) return;
    shared.for_records(offset, bytes, [&](Record& record) {
      machine.check_known(place, record, "read", self.clock);
      machine.check_proxy(place, record, self.clock);
    });
  });
  shared.for_records(place.offset, map.bytes(),
                     [&](Record& record) { shared.add_reader(record, stamp); });
  if (request.map == nullptr) {
    const Stamp written{stamp.component + kMaxBulkThreads, stamp.count, stamp.site, false};
    machine.store_global(map.base, map.bytes(), request.reduce, written);
  }
  self.groups[group].reads += 1;
  self.groups[group].writes += 1;
  self.stored = group + 1;
  machine.counters().bytes_stored += map.bytes();
  machine.post(std::move(event));
}

}  // namespace

void tma_store(StoreRequest request, Change change) {
  Machine& machine = Machine::current();
  if (change == Change::kLeftOut) return;
  if (change == Change::kMore) request.coordinates[1] += 1;
  const MapFields map = fields_of(request.map, request.rank);
  check_alignment(map, request.source);
  check_coordinates(map, request.coordinates, true);
  if (request.reduce && map.type == MapType::kByte)
    machine.fault("tma", "a reduction of bytes; fp32, fp16, bf16 and int32 can be added");
  issue_store(request, map);
}

void bulk_load(uint32_t destination, const void* source, int bytes, uint32_t barrier,
               Change change) {
  Machine& machine = Machine::current();
  if (change == Change::kLeftOut) return;
  if (change == Change::kOther) destination += 1024;
  machine.mbarrier(barrier, true);
  const LoadRequest request{nullptr, destination, barrier, {change == Change::kMore}, 1, 0};
  issue_load(machine, request, line_of(source, bytes), machine.fiber().cta->rank);
}

void bulk_copy(uint32_t destination, uint32_t source, int bytes, uint32_t barrier, int cta,
               Change change) {
  Machine& machine = Machine::current();
  if (change == Change::kLeftOut) return;
  if (change == Change::kOther) destination += 1024;
  const Machine::Place place = machine.resolve(source, static_cast<uint32_t>(bytes), 16);
  if (place.cta != machine.fiber().cta)
    machine.fault("tma", "a copy to another block reads shared memory of another block");
  const uint32_t low = (1u << kRankShift) - 1, high = static_cast<uint32_t>(cta) << kRankShift;
  const Mbarrier& at = machine.mbarrier((barrier & low) | high, false);
  // Who knows of its bytes' arrival knows that the source has been read.
  const Stamp stamp{at.component, at.base + static_cast<uint32_t>(at.phase) + 1,
                    machine.site_index(), false};
  const Clock& clock = machine.fiber().clock;
  SharedMemory& shared = place.cta->shared;
  shared.for_records(place.offset, static_cast<uint32_t>(bytes), [&](Record& record) {
    machine.check_known(place, record, "read", clock);
    machine.check_proxy(place, record, clock);
    shared.add_reader(record, stamp);
  });
  const LoadRequest request{nullptr, destination, barrier, {change == Change::kMore}, 1, 0};
  issue_load(machine, request, line_of(shared.data(place.offset), bytes), cta);
}

void bulk_store(float* destination, uint32_t source, int bytes, bool reduce, Change change) {
  if (change == Change::kLeftOut) return;
  issue_store({nullptr, source, {change == Change::kMore}, 1, reduce}, line_of(destination, bytes));
}

void Machine::store(Event& event) {
  BulkGroup& group = event.issuer->groups[event.group];
  SharedMemory& shared = event.cta->shared;
  if (event.kind == EventKind::kStoreRead) {
    event.bytes.resize(event.map.bytes());
    size_t at = 0;
    for_pieces(event, [&](uint32_t offset, const uint8_t*, uint32_t bytes) {
      std::memcpy(event.bytes.data() + at, shared.data(offset), bytes);
      at += bytes;
    });
    group.reads -= 1;
    Fiber* issuer = event.issuer;
    event.kind = EventKind::kStoreWrite;
    events_.push_back(std::move(event));
    if (issuer->waiting == Wait::kBulk) wake(issuer);
    return;
  }
  size_t at = 0;
  for_pieces(event, [&](uint32_t, uint8_t* to, uint32_t bytes) {
    if (to && event.reduce) add(to, event.bytes.data() + at, event.map.type);
    if (to && !event.reduce) std::memcpy(to, event.bytes.data() + at, bytes);
    at += bytes;
  });
  group.writes -= 1;
  if (group.reads == 0 && group.writes == 0) event.issuer->groups.erase(event.group);
  if (event.issuer->waiting == Wait::kBulk) wake(event.issuer);
}

void bulk_commit() { Machine::current().fiber().committed += 1; }

// Waits for all groups but the last `pending` ones that were committed.
void bulk_wait(int pending, bool read_only) {
  Machine& machine = Machine::current();
  Fiber& self = machine.fiber();
  if (self.committed <= static_cast<uint64_t>(pending)) return;
  const uint64_t target = self.committed - static_cast<uint64_t>(pending);  // groups below it
  const auto is_done = [&] {
    for (const auto& [number, group] : self.groups)
      if (number < target && (group.reads || (!read_only && group.writes))) return false;
    return true;
  };
  while (!is_done()) machine.block(Wait::kBulk, nullptr);
  self.read_waited = std::max(self.read_waited, target);
  if (!self.bulk_component) return;
  const uint32_t count = machine.base(*self.cta) + static_cast<uint32_t>(target);
  const auto know = [&](uint32_t component) {
    self.clock.set(component, std::max(self.clock[component], count));
  };
  know(self.bulk_component);
  if (!read_only) know(self.bulk_component + kMaxBulkThreads);
}

}  // namespace sirdar::emulator
