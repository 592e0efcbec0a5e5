// Accesses to shared memory by threads, and the checks that all accesses share.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "machine.h"

namespace sirdar::emulator {

Machine::Place Machine::resolve(uint32_t address, uint32_t bytes, uint32_t alignment) {
  const uint32_t rank = address >> kRankShift, offset = address & ((1u << kRankShift) - 1);
  Cluster& cluster = *current_->cta->cluster;
  if (rank >= cluster.ctas.size())
    fault("memory", fmt::format("shared address {:#x} names block {} of a cluster of {}", address,
                                rank, cluster.ctas.size()));
  Cta& cta = *cluster.ctas[rank];
  const uint32_t first = kReservedShared + launch().misalignment;
  const uint32_t end = first + static_cast<uint32_t>(launch().shared_bytes);
  if (offset < first || offset > end || bytes > end - offset)
    fault("memory", fmt::format("shared memory {:#x}..{:#x} is outside of the block's {:#x}..{:#x}",
                                offset, offset + bytes, first, end));
  if (offset % alignment)
    fault("memory",
          fmt::format("shared address {:#x} must be a multiple of {}", offset, alignment));
  if (cta.running == 0) fault("memory", fmt::format("block {} of the cluster has ended", rank));
  return {&cta, offset};
}

void Machine::check_known(Place place, const Record& record, const char* what, const Clock& clock) {
  if (!record.written) {
    fault("order", fmt::format("{} of shared {:#x} of block {}, which nobody has written", what,
                               place.offset, place.cta->rank));
  }
  if (launch_.check_order && !record.write.known_to(clock))
    fault("order",
          fmt::format("{} of shared {:#x} of block {} is not ordered after the write at {}", what,
                      place.offset, place.cta->rank, site_text(record.write.site)));
}

void Machine::check_readers(Place place, const Record& record, const Clock& clock) {
  if (!launch_.check_order) return;
  if (record.written && !record.write.known_to(clock)) check_known(place, record, "write", clock);
  if (const Stamp* reader = place.cta->shared.unknown_reader(record, clock))
    fault("order",
          fmt::format("write of shared {:#x} of block {} is not ordered after the read at {}",
                      place.offset, place.cta->rank, site_text(reader->site)));
}

void Machine::check_proxy(Place place, const Record& record, const Clock& clock) {
  if (!launch_.check_order || !record.generic || !record.written) return;
  const uint32_t local = record.write.component % static_cast<uint32_t>(segment_size_);
  const uint32_t slot = record.write.component / static_cast<uint32_t>(segment_size_);
  const std::vector<uint32_t>& fences = ctas_[slot]->fibers[local]->proxy_fences;
  const auto fence = std::lower_bound(fences.begin(), fences.end(), record.write.count);
  if (fence == fences.end() || clock[record.write.component] <= *fence)
    fault("proxy",
          fmt::format("asynchronous access to shared {:#x} of block {}, written at {} with "
                      "no fence.proxy.async after that and before this",
                      place.offset, place.cta->rank, site_text(record.write.site)));
}

void Machine::check_no_mbarrier(Place place, uint32_t bytes) {
  if (place.cta->mbarriers.empty()) return;
  for (uint32_t at = place.offset & ~7u; at < place.offset + bytes; at += 8) {
    const auto found = place.cta->mbarriers.find(at);
    if (found != place.cta->mbarriers.end())
      fault("memory", fmt::format("shared {:#x} holds an mbarrier (init at {})", at,
                                  site_text(found->second->init.site)));
  }
}

void Machine::read_shared(uint32_t address, void* to, uint32_t bytes) {
  Place place = resolve(address, bytes, bytes);
  check_no_mbarrier(place, bytes);
  SharedMemory& shared = place.cta->shared;
  shared.for_records(place.offset, bytes, [&](Record& record) {
    check_known(place, record, "read", current_->clock);
    shared.add_reader(record, stamp());
  });
  std::memcpy(to, shared.data(place.offset), bytes);
}

void Machine::write_shared(uint32_t address, const void* from, uint32_t bytes) {
  Place place = resolve(address, bytes, bytes);
  check_no_mbarrier(place, bytes);
  SharedMemory& shared = place.cta->shared;
  shared.for_records(place.offset, bytes, [&](Record& record) {
    check_readers(place, record, current_->clock);
    shared.set_writer(record, stamp(), true);
  });
  shared.join_records(place.offset, bytes);
  std::memcpy(shared.data(place.offset), from, bytes);
}

// Who waits sleeps until anybody stores a flag: looking again and again would keep asynchronous
// work from ever running, since that may be as late as it can. It acquires what was released.
void Machine::wait_global(const int* address, int value) {
  while (*address != value) {
    global_waiters_.push_back(current_);
    block(Wait::kGlobal, address, value);
  }
  const auto found = flags_.find(address);
  if (found != flags_.end()) current_->clock.join(found->second);
}

void Machine::release_global(int* address, int value) {
  *address = value;
  const auto [found, is_new] = flags_.try_emplace(address);
  if (is_new) prepare(found->second);
  found->second.clear();  // not of a store before
  release(found->second);
  wake_all(global_waiters_);
}

// Whoever stores to a line or adds to one that somebody has stored to must know all writes before:
// the sum has an order then.
void Machine::store_global(const void* address, uint32_t bytes, bool adds, const Stamp& stamp) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  Line& line = lines_[begin];
  line.end = std::max(line.end, begin + bytes);
  line.is_ordered = line.is_ordered || !adds;
  for (const Stamp& write : line.writes)
    if (launch_.check_order && line.is_ordered && !write.known_to(current_->clock))
      fault("order", fmt::format("a bulk {} to global memory is not ordered after that at {}",
                                 adds ? "addition" : "store", site_text(write.site)));
  line.writes.push_back(stamp);
}

void Machine::read_global(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto found = lines_.upper_bound(at);
  if (found == lines_.begin() || (--found)->second.end <= at) return;
  for (const Stamp& write : found->second.writes)
    if (launch_.check_order && !write.known_to(current_->clock))
      fault("order", fmt::format("read of global memory is not ordered after the bulk write at {}",
                                 site_text(write.site)));
}

}  // namespace sirdar::emulator
