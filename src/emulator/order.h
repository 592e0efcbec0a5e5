// Whether every access to shared memory is ordered after the accesses that it depends on. Each 16
// bytes (2 bytes, where an access covers less) remember who wrote them and who has read them since,
// as a component of the vector clocks and its count then; an access must know these counts.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "clock.h"

namespace sirdar::emulator {

inline constexpr uint32_t kGranule = 16, kSubgranule = 2;

// `count` of a component, reached at `site`. Four: the warps of a warpgroup, from `component` on,
// all of which must be known.
struct Stamp {
  uint32_t component = 0, count = 0, site = 0;
  bool four = false;
  uint32_t load = 0;  // which of the thread's; 0: none that could be on its way for long

  bool known_to(const Clock& clock) const {
    if (!four) return clock[component] >= count;
    for (uint32_t i = 0; i < 4; ++i)
      if (clock[component + i] < count) return false;
    return true;
  }
};

struct Record {
  Stamp write;
  Stamp readers[3];
  int32_t more_readers = -1;  // a list of SharedMemory, when three are not enough
  uint8_t num_readers = 0;
  bool written = false;
  bool generic = false;  // written by an ordinary store, not by the asynchronous proxy
  bool split = false;    // eight records for two bytes each stand for this one
};

class SharedMemory {
 public:
  void reset(uint32_t bytes);

  uint32_t size() const { return static_cast<uint32_t>(bytes_.size()); }
  uint8_t* data(uint32_t offset) { return bytes_.data() + offset; }

  // Calls f(record) for every record that covers [offset, offset + bytes).
  template <class F>
  void for_records(uint32_t offset, uint32_t bytes, F&& f) {
    for (uint32_t at = offset, end = offset + bytes; at < end;) {
      const uint32_t index = at / kGranule, from = at % kGranule;
      const uint32_t until = std::min(kGranule, from + (end - at));
      Record& whole = records_[index];
      if (!whole.split && from == 0 && until == kGranule) {
        f(whole);
      } else {
        std::vector<Record>& parts = split(index);
        for (uint32_t part = from / kSubgranule; part * kSubgranule < until; ++part) f(parts[part]);
      }
      at += until - from;
    }
  }
  // The same after a write of the range: what is whole again needs one record only.
  void join_records(uint32_t offset, uint32_t bytes);

  void add_reader(Record& record, const Stamp& stamp);
  void set_writer(Record& record, const Stamp& stamp, bool generic);
  // The first reader of whom `is_wanted` says so, or null.
  template <class F>
  const Stamp* find_reader(const Record& record, F&& is_wanted) const {
    for (int i = 0; i < record.num_readers; ++i)
      if (is_wanted(record.readers[i])) return &record.readers[i];
    if (record.more_readers >= 0)
      for (const Stamp& reader : lists_[static_cast<size_t>(record.more_readers)])
        if (is_wanted(reader)) return &reader;
    return nullptr;
  }

 private:
  std::vector<Record>& split(uint32_t index);

  std::vector<uint8_t> bytes_;
  std::vector<Record> records_;
  std::unordered_map<uint32_t, std::vector<Record>> parts_;
  std::vector<std::vector<Stamp>> lists_;
  std::vector<int32_t> free_lists_;
};

}  // namespace sirdar::emulator
