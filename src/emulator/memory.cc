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
  const auto is_unknown = [&](const Stamp& reader) { return !reader.known_to(clock); };
  if (const Stamp* reader = place.cta->shared.find_reader(record, is_unknown))
    fault("order",
          fmt::format("write of shared {:#x} of block {} is not ordered after the read at {}",
                      place.offset, place.cta->rank, site_text(reader->site)));
}

// Whether `clock` knows a fence.proxy.async that the thread of the access executed after it.
bool Machine::is_fenced(const Stamp& access, const Clock& clock) const {
  const uint32_t local = access.component % static_cast<uint32_t>(segment_size_);
  const uint32_t slot = access.component / static_cast<uint32_t>(segment_size_);
  const std::vector<uint32_t>& fences = ctas_[slot]->fibers[local]->proxy_fences;
  const auto fence = std::lower_bound(fences.begin(), fences.end(), access.count);
  return fence != fences.end() && clock[access.component] > *fence;
}

void Machine::check_proxy(Place place, const Record& record, const Clock& clock) {
  if (!launch_.check_order || !record.generic || !record.written) return;
  if (!is_fenced(record.write, clock))
    fault("proxy",
          fmt::format("asynchronous access to shared {:#x} of block {}, written at {} with "
                      "no fence.proxy.async after that and before this",
                      place.offset, place.cta->rank, site_text(record.write.site)));
}

// An arrival does not wait for ordinary loads that are on their way: a write of the asynchronous
// proxy passes them unless their thread has executed a fence before it arrived, or an instruction
// that takes what was loaded.
void Machine::check_read_proxy(Place place, const Record& record, const Clock& clock) {
  if (!launch_.check_order) return;
  const auto is_passed = [&](const Stamp& reader) {
    const uint32_t local = reader.component % static_cast<uint32_t>(segment_size_);
    if (local >= static_cast<uint32_t>(first_mbarrier()) || is_fenced(reader, clock)) return false;
    const uint32_t taken = place.cta->fibers[local]->loads.taken_at(reader.load);
    return taken == 0 || clock[reader.component] < taken;
  };
  if (const Stamp* reader = place.cta->shared.find_reader(record, is_passed))
    fault("proxy", fmt::format("asynchronous write of shared {:#x} of block {}, read at {} with no "
                               "fence.proxy.async after that and before this",
                               place.offset, place.cta->rank, site_text(reader->site)));
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

void Loads::return_words(const void* words, uint32_t bytes) {
  Pending load{static_cast<uint32_t>(taken_at_.size()), {}, static_cast<int>(bytes / 4)};
  std::memcpy(load.words, words, bytes);
  pending_.push_back(load);
}

void Loads::take(const uint32_t* registers, int num, uint32_t count) {
  int at = 0;  // words are mostly taken in the order of their loads
  const auto has = [&](uint32_t word) {
    for (int i = 0; i < num; ++i, at = at + 1 == num ? 0 : at + 1) {
      uint32_t bits;
      std::memcpy(&bits, registers + at, 4);
      if (bits == word) return true;
    }
    return false;
  };
  std::erase_if(pending_, [&](const Pending& load) {
    if (!std::all_of(load.words, load.words + load.num, has)) return false;
    taken_at_[load.load - 1] = count;
    return true;
  });
}

void Machine::read_shared(uint32_t address, void* to, uint32_t bytes) {
  Place place = resolve(address, bytes, bytes);
  check_no_mbarrier(place, bytes);
  SharedMemory& shared = place.cta->shared;
  Stamp reader = stamp();
  shared.for_records(place.offset, bytes, [&](Record& record) {
    check_known(place, record, "read", current_->clock);
    if (!record.generic && reader.load == 0) reader.load = current_->loads.begin();
    shared.add_reader(record, reader);
  });
  std::memcpy(to, shared.data(place.offset), bytes);
  if (reader.load != 0) current_->loads.return_words(to, bytes);
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

void Machine::write_global(const void* address, uint32_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (uintptr_t at = begin; at < begin + bytes; at += 4) stores_[at] = stamp();
}

void Machine::read_global(const void* address, uint32_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (uintptr_t word = at; word < at + bytes && !stores_.empty(); word += 4) {
    const auto store = stores_.find(word);
    if (launch_.check_order && store != stores_.end() && !store->second.known_to(current_->clock))
      fault("order", fmt::format("read of global memory is not ordered after the store at {}",
                                 site_text(store->second.site)));
  }
  auto found = lines_.upper_bound(at);
  if (found == lines_.begin() || (--found)->second.end <= at) return;
  for (const Stamp& write : found->second.writes)
    if (launch_.check_order && !write.known_to(current_->clock))
      fault("order", fmt::format("read of global memory is not ordered after the bulk write at {}",
                                 site_text(write.site)));
}

}  // namespace sirdar::emulator
