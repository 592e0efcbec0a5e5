// Tiles of rows that begin where documents do, and blocks of the other side that begin where a
// tile's document does: on a grid from row 0 on a tile has rows of two documents, and all of its
// blocks are seen in part.
//
// A document here is a run of rows with the same id. One that has a tile's rows or more begins a
// tile; others follow each other within tiles, each of which begins a tile's rows behind the one
// before. Every kSegment rows a tile begins anyway, so that nobody searches further. So of the
// windows [kRows t, kRows (t + 1)) each has one tile's first row or two, and a thread block finds a
// window's by itself. Ids may be anything: tiles are then cut for nothing.
#pragma once

#include "ptx/all.cuh"

namespace sirdar::sm90 {

struct DocumentTile {
  int begin, end;   // rows; none: begin >= end
  int document;     // a row that the first row's document may begin at
  bool has_second;  // of a window's first tile: whether another one begins in it
};

// id_of(row) of its functions: of a row that there is not, anybody's.
template <int kRows, int kWarps>
struct DocumentSearch {
  static_assert(kRows % 32 == 0);
  // Rows a thread looks at in one round, and what a round finds: a bit a row, whether its id is
  // another than that of the row before.
  static constexpr int kReads = 4, kWords = kWarps * kReads, kSpan = 32 * kWords,
                       kTileWords = kRows / 32, kSharedBytes = 4 * kWords;
  static_assert(kSpan > 3 * kRows);
  static constexpr int kSegment = 4096;
  static_assert(kSegment % kRows == 0);

  uint32_t shared;
  int warp, lane;

  // By all threads.
  template <class IdOf>
  SIRDAR_DEVICE void find_borders(IdOf id_of, int base, int length) const {
    const int first = base + 32 * warp + lane;
    int ids[kReads], before[kReads];
    SIRDAR_UNROLL
    for (int i = 0; i < kReads; ++i) {
      ids[i] = id_of(first + 32 * kWarps * i);
      before[i] = id_of(first + 32 * kWarps * i - 1);
    }
    SIRDAR_UNROLL
    for (int i = 0; i < kReads; ++i) {
      const int row = first + 32 * kWarps * i;
      const uint32_t word = ptx::ballot_sync(row > 0 && row < length && ids[i] != before[i]);
      if (lane == 0) ptx::store_shared(shared + 4 * (warp + kWarps * i), word);
    }
  }
  // The row of word `index` at which a document of kRows rows or more begins; none: -1.
  SIRDAR_DEVICE int long_document(int base, int index) const {
    const uint32_t word = ptx::load_shared(shared + 4 * index);
    if (word == 0 || index + kTileWords >= kWords) return -1;
    const int bit = ptx::highest_bit(word);
    uint32_t others = ptx::load_shared(shared + 4 * (index + kTileWords)) & ~(~0u << bit);
    SIRDAR_UNROLL
    for (int next = 1; next < kTileWords; ++next) {
      others |= ptx::load_shared(shared + 4 * (index + next));
    }
    return others == 0 ? base + 32 * index + bit : -1;
  }

  SIRDAR_DEVICE static int from_lane(int value, int distance) {
    return static_cast<int>(ptx::shfl_xor(static_cast<uint32_t>(value), distance));
  }

  // Tile 0 or 1 of a window, by all threads of a block; id_of(row).
  template <class IdOf>
  SIRDAR_DEVICE DocumentTile find(IdOf id_of, int length, int window, int place) const {
    const int first = window * kRows, segment = first / kSegment * kSegment;
    const int limit = ptx::min_of(length, segment + kSegment);
    int next = limit;    // where the first long document behind the window's first row begins
    int last = segment;  // and the last one up to it
    for (int base = first + 3 * kRows - kSpan;; base += kRows - kSpan) {
      find_borders(id_of, base, length);
      ptx::syncthreads();
      SIRDAR_NO_UNROLL
      for (int index = lane; index < kWords; index += 32) {
        const int row = long_document(base, index);
        if (row < 0) continue;
        if (row <= first) {
          last = ptx::max_of(last, row);
        } else {
          next = ptx::min_of(next, row);
        }
      }
      ptx::syncwarp();
      SIRDAR_NO_UNROLL
      for (int distance = 1; distance < 32; distance *= 2) {
        last = ptx::max_of(last, from_lane(last, distance));
        next = ptx::min_of(next, from_lane(next, distance));
      }
      ptx::syncthreads();
      if (last > segment || base <= segment) break;
    }
    // On the last one's grid, if the next does not come before; past the end: none.
    const int on_grid = last + (first - last + kRows - 1) / kRows * kRows;
    const bool begins_next = next <= on_grid;
    DocumentTile tile;
    tile.begin = begins_next ? next : on_grid;
    tile.end = ptx::min_of(tile.begin + kRows, begins_next ? limit : next);
    tile.document = begins_next ? next : last;
    tile.has_second = tile.end < ptx::min_of(first + kRows, length);
    if (place == 0) return tile;
    if (!tile.has_second) return {0, 0, 0, false};
    return {next, ptx::min_of(next + kRows, limit), next, false};
  }

  // The other side's first row with an id, by all threads; 0 where there is none. `likely` costs
  // less if it is one.
  template <class IdOf>
  SIRDAR_DEVICE int first_with(IdOf id_of, int id, int length, int likely) const {
    const int there = id_of(likely), before = id_of(likely - 1);
    if (likely >= 0 && likely < length && there == id && (likely == 0 || before != id))
      return likely;
    int least = length;
    SIRDAR_NO_UNROLL
    for (int base = 32 * warp + lane; base < least; base += 32 * kWarps * kReads) {
      SIRDAR_UNROLL
      for (int i = 0; i < kReads; ++i) {
        const int row = base + i * 32 * kWarps;
        if (row < length && id_of(row) == id) least = ptx::min_of(least, row);
      }
    }
    const auto over_lanes = [](int value) {
      SIRDAR_NO_UNROLL
      for (int distance = 1; distance < 32; distance *= 2) {
        value = ptx::min_of(value, from_lane(value, distance));
      }
      return value;
    };
    ptx::syncwarp();
    least = over_lanes(least);
    if (lane == 0) ptx::store_shared(shared + 4 * warp, static_cast<uint32_t>(least));
    ptx::syncthreads();
    if (lane < kWarps) least = static_cast<int>(ptx::load_shared(shared + 4 * lane));
    least = over_lanes(least);
    return least < length ? least : 0;
  }
};

}  // namespace sirdar::sm90
