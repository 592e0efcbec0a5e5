// Scores and masks that are not the kernel's own, pair by pair.
#pragma once

#include "cuda/expression/modification.cuh"
#include "cuda/sm90/forward/softmax.cuh"
#include "cuda/sm90/forward/work.cuh"
#include "cuda/sm90/lanes.cuh"

namespace sirdar::sm90 {

// A launch with a modification: the kernel's parameters, then the modification's.
template <class Modification>
struct ModifiedParams {
  ForwardParams forward;
  Modification modification;
};

// A thread's two rows of a score tile; `key` is the lane's first column. Where the second is the
// first and a constant, its position is written so too, so that what depends on their distance to a
// key alone is computed once for both. kAreOfOneHead: both are.
template <bool kAreOfOneHead, class Modification, int kCount>
SIRDAR_DEVICE void modify_scores(const Modification& modification, const WorkItem& item,
                                 QueryRow first, QueryRow second, int key,
                                 float (&scores)[kCount]) {
  const int q_pos = first.row + item.seqlen_k - item.seqlen_q;
  const auto upper = modification.begin_row(item.batch, first.head, first.row, q_pos);
  const auto lower =
      modification.begin_row(item.batch, second.head, second.row, q_pos + (second.row - first.row));
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; i += 4) {
    SIRDAR_UNROLL
    for (int column = i; column < i + 2; ++column) {
      const auto of_key = modification.begin_key(item.batch, first.head, key + column_of(column));
      scores[column] = modification.score(upper, of_key, scores[column]);
      if constexpr (kAreOfOneHead) {
        scores[column + 2] = modification.score(lower, of_key, scores[column + 2]);
      } else {
        const auto other = modification.begin_key(item.batch, second.head, key + column_of(column));
        scores[column + 2] = modification.score(lower, other, scores[column + 2]);
      }
    }
  }
}

// Of a row's bits, one a key, word `index` of those whose scores a lane has; quarter: which of the
// four that share a row. Two bits of each eight are brought together in the last byte of a product
// whose other terms end below it.
template <int kWords>
SIRDAR_DEVICE uint32_t own_bits(const uint32_t (&row)[kWords], int quarter, int index) {
  const int first = 2 * quarter;
  const uint32_t own = 0x03030303u << first, gather = 0x01041040u >> first;
  uint32_t together = 0;
  SIRDAR_UNROLL
  for (int word = 4 * index; word < 4 * index + 4 && word < kWords; ++word) {
    together |= ((row[word] & own) * gather) >> 24 << (8 * (word % 4));
  }
  return together;
}

// What a thread's two rows see of a score tile, a bit per key. A warp looks at one row and 32
// neighbouring keys at a time, so that ids and masks are read line by line: in the layout of the
// scores each would be a load of its own. kKeys may be 0.
template <int kKeys>
struct SeenKeys {
  static constexpr int kWords = kKeys / 32, kSize = kWords > 0 ? kWords : 1;
  uint32_t upper[kSize] = {}, lower[kSize] = {};

  // own_row: of the warp's sixteen the lane's, in both halves of the warp; first_key: of the tile.
  // Rows of several heads see the same.
  template <class Modification>
  SIRDAR_DEVICE void find(const Modification& modification, const WorkItem& item, QueryRow own_row,
                          int first_key, int lane) {
    const auto own = modification.begin_row(item.batch, own_row.head, own_row.row,
                                            own_row.row + item.seqlen_k - item.seqlen_q);
    typename Modification::Key keys[kWords];
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      keys[word] = modification.begin_key(item.batch, own_row.head, first_key + 32 * word + lane);
    }
    SIRDAR_NO_UNROLL
    for (int row = 0; row < 8; ++row) {
      const auto of_upper = from_lane(own, row), of_lower = from_lane(own, row + 8);
      SIRDAR_UNROLL
      for (int word = 0; word < kWords; ++word) {
        const uint32_t above = ptx::ballot_sync(modification.visible(of_upper, keys[word]));
        const uint32_t below = ptx::ballot_sync(modification.visible(of_lower, keys[word]));
        if (row == lane / 4) {
          upper[word] = above;
          lower[word] = below;
        }
      }
    }
  }

  // Leaves of `seen` what is seen here too.
  template <int kCount>
  SIRDAR_DEVICE void keep_in(SeenScores<kCount>& seen, int lane) const {
    SIRDAR_UNROLL
    for (int word = 0; word < SeenScores<kCount>::kWords; ++word) {
      seen.upper[word] &= own_bits(upper, lane % 4, word);
      seen.lower[word] &= own_bits(lower, lane % 4, word);
    }
  }
};

}  // namespace sirdar::sm90
