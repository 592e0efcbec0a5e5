#include "order.h"

namespace sirdar::emulator {

void SharedMemory::reset(uint32_t bytes) {
  bytes_.assign((bytes + kGranule - 1) / kGranule * kGranule, 0xff);
  records_.assign(bytes_.size() / kGranule, Record());
  parts_.clear();
  lists_.clear();
  free_lists_.clear();
}

std::vector<Record>& SharedMemory::split(uint32_t index) {
  Record& whole = records_[index];
  std::vector<Record>& parts = parts_[index];
  if (whole.split) return parts;
  parts.assign(kGranule / kSubgranule, whole);
  if (whole.more_readers >= 0) {
    for (size_t i = 1; i < parts.size(); ++i) {
      lists_.push_back(lists_[static_cast<size_t>(whole.more_readers)]);
      parts[i].more_readers = static_cast<int32_t>(lists_.size() - 1);
    }
  }
  whole.split = true;
  return parts;
}

void SharedMemory::join_records(uint32_t offset, uint32_t bytes) {
  const uint32_t end = offset + bytes;
  for (uint32_t at = (offset + kGranule - 1) / kGranule * kGranule; at + kGranule <= end;
       at += kGranule) {
    Record& whole = records_[at / kGranule];
    if (!whole.split) continue;
    const std::vector<Record>& parts = parts_[at / kGranule];
    whole = parts[0];
    for (size_t i = 1; i < parts.size(); ++i)
      if (parts[i].more_readers >= 0) free_lists_.push_back(parts[i].more_readers);
    whole.split = false;
    parts_.erase(at / kGranule);
  }
}

void SharedMemory::add_reader(Record& record, const Stamp& stamp) {
  for (int i = 0; i < record.num_readers; ++i) {
    Stamp& reader = record.readers[i];
    if (reader.component != stamp.component || reader.four != stamp.four) continue;
    if (reader.count <= stamp.count) reader = stamp;
    return;
  }
  if (record.num_readers < 3) {
    record.readers[record.num_readers++] = stamp;
    return;
  }
  if (record.more_readers < 0) {
    if (free_lists_.empty()) {
      lists_.emplace_back();
      free_lists_.push_back(static_cast<int32_t>(lists_.size() - 1));
    }
    record.more_readers = free_lists_.back();
    free_lists_.pop_back();
    lists_[static_cast<size_t>(record.more_readers)].clear();
  }
  std::vector<Stamp>& list = lists_[static_cast<size_t>(record.more_readers)];
  for (Stamp& reader : list) {
    if (reader.component != stamp.component || reader.four != stamp.four) continue;
    if (reader.count <= stamp.count) reader = stamp;
    return;
  }
  list.push_back(stamp);
}

void SharedMemory::set_writer(Record& record, const Stamp& stamp, bool generic) {
  record.write = stamp;
  record.written = true;
  record.generic = generic;
  record.num_readers = 0;
  if (record.more_readers >= 0) free_lists_.push_back(record.more_readers);
  record.more_readers = -1;
}

}  // namespace sirdar::emulator
