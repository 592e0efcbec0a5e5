// Vector clocks. One counter for each thing that events are counted by: threads (releases and
// fences), mbarriers (completed phases), warps (wgmma operations waited for), threads that store in
// bulk (committed groups). The counters of one resident block are a segment; most clocks know
// nothing of most blocks, and such segments cost nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sirdar::emulator {

class Clock {
 public:
  void resize(int segments, int segment_size) {
    segment_size_ = segment_size;
    known_ = 0;
    counts_.assign(static_cast<size_t>(segments) * static_cast<size_t>(segment_size), 0);
  }

  uint32_t operator[](uint32_t component) const { return counts_[component]; }

  void set(uint32_t component, uint32_t count) {
    counts_[component] = count;
    known_ |= uint64_t{1} << (component / static_cast<uint32_t>(segment_size_));
  }

  void join(const Clock& other) {
    for_segments(other.known_, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
    });
    known_ |= other.known_;
  }

  void clear() {
    for_segments(known_, [&](size_t begin, size_t end) {
      std::fill(counts_.begin() + static_cast<std::ptrdiff_t>(begin),
                counts_.begin() + static_cast<std::ptrdiff_t>(end), 0u);
    });
    known_ = 0;
  }

  void swap(Clock& other) {
    counts_.swap(other.counts_);
    std::swap(known_, other.known_);
    std::swap(segment_size_, other.segment_size_);
  }

 private:
  template <class F>
  void for_segments(uint64_t mask, F&& body) const {
    for (; mask; mask &= mask - 1) {
      const size_t begin =
          static_cast<size_t>(__builtin_ctzll(mask)) * static_cast<size_t>(segment_size_);
      body(begin, begin + static_cast<size_t>(segment_size_));
    }
  }

  std::vector<uint32_t> counts_;
  uint64_t known_ = 0;  // segments that may hold something else than zeros
  int segment_size_ = 1;
};

}  // namespace sirdar::emulator
