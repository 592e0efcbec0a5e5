// From what each query tile sees of 64 keys, which forward/cover.cuh finds, to the tiles that each
// key block walks; and of those that are seen in part, what each key is seen by.
#pragma once

#include "cuda/sm90/backward/modify.cuh"
#include "ptx/warp.cuh"

namespace sirdar::sm90 {

// A thread block makes the walk of a key block of a list.
template <WalkConfig config, class Modification>
struct WalkMaker {
  static constexpr BackwardConfig kBackward = config.backward;
  static constexpr int kM = kBackward.block_m, kHalves = block_keys(kBackward) / 64,
                       kWarps = kWalkThreads / 32;
  const BackwardParams& params;
  const Modification& modification;
  int list, index;  // index: of the key block
  int warp, lane;
  Sequence sequence;
  BackwardBounds<kBackward> bounds;

  SIRDAR_DEVICE WalkMaker(const BackwardParams& p, const Modification& m, int block, int thread)
      : params(p),
        modification(m),
        list(block / p.num_blocks_n),
        index(block % p.num_blocks_n),
        warp(ptx::uniform(thread / 32)),
        lane(thread % 32),
        sequence(sequence_of<kBackward>(p, list / p.walk.cover.num_heads)),
        bounds(bounds_of<kBackward>(p, sequence)) {}

  SIRDAR_DEVICE WalkWord* words() const { return span_of(params, list, index) + 1; }
  SIRDAR_DEVICE int first_key(int half) const { return (index * kHalves + half) * 64; }

  // Whether structured masks and the ends of the sequence leave all of 64 keys to all rows.
  SIRDAR_DEVICE bool is_whole(int half, int first_row) const {
    const int last_row = first_row + kM - 1, first = first_key(half);
    return bounds.hi(first_row) >= first + 64 && bounds.lo(last_row) <= first &&
           first + 64 <= sequence.k.length && last_row < sequence.q.length;
  }
  // A tile a lane.
  SIRDAR_DEVICE void make_word(int word) const {
    const CoverView& cover = params.walk.cover;
    const int tile = 32 * word + lane;
    ptx::Int4 seen{0, 0, 0, 0};
    if (tile < params.num_tiles) {
      const long long row = static_cast<long long>(list) * params.num_tiles + tile;
      seen = ptx::load_written_int4(cover.words + row * cover.num_words + index * kHalves / 32);
    }
    WalkWord made{};
    SIRDAR_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      const int bit = (index * kHalves + half) % 32;
      const bool is_seen = (seen.x >> bit & 1) != 0;
      const bool is_all = is_seen && (seen.y >> bit & 1) != 0 && is_whole(half, tile * kM);
      made.some[half] = ptx::ballot_sync(is_seen);
      made.all[half] = ptx::ballot_sync(is_all);
    }
    if (lane == 0) words()[word] = made;
  }

  // By a warp, when all words are there.
  SIRDAR_DEVICE void make_span() const {
    WalkSpan own{params.num_tiles, 0, 0, 0};
    SIRDAR_NO_UNROLL
    for (int i = lane; i < params.walk.num_words; i += 32) {
      const uint32_t some = words()[i].some[0] | words()[i].some[1];
      if (some == 0) continue;
      own.begin = ptx::min_of(own.begin, 32 * i + ptx::lowest_bit(some));
      own.end = 32 * i + ptx::highest_bit(some) + 1;
      own.count += ptx::count_bits(some);
    }
    ptx::syncwarp();
    SIRDAR_NO_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const auto of_other = [&](int value) {
        return static_cast<int>(ptx::shfl_xor(static_cast<uint32_t>(value), distance));
      };
      own.begin = ptx::min_of(own.begin, of_other(own.begin));
      own.end = ptx::max_of(own.end, of_other(own.end));
      own.count += of_other(own.count);
    }
    if (lane == 0) *reinterpret_cast<WalkSpan*>(span_of(params, list, index)) = own;
  }

  // By a warp: which of a tile's rows see 64 keys, a key a lane at a time.
  SIRDAR_DEVICE void look(int half, int tile, int rank) const {
    constexpr int kWords = kM / 32;
    const WalkView& walk = params.walk;
    const int batch = list / walk.cover.num_heads, head = list % walk.cover.num_heads;
    const int first_row = tile * kM, shift = sequence.k.length - sequence.q.length;
    typename Modification::Row rows[kWords];
    SIRDAR_UNROLL
    for (int word = 0; word < kWords; ++word) {
      const int row = first_row + 32 * word + lane;
      rows[word] = modification.begin_row(batch, head, row, row + shift);
    }
    const long long place = static_cast<long long>(list) * walk.num_halves + index * kHalves + half;
    unsigned* const bits = walk.tiles + (place * walk.num_tiles + rank) * (64 * kWords);
    SIRDAR_NO_UNROLL
    for (int group = 0; group < 64; group += 32) {
      const int key = first_key(half) + group + lane;
      const auto own = modification.begin_key(batch, head, key);
      uint32_t seen[kWords] = {};
      SIRDAR_NO_UNROLL
      for (int first = 0; first < 32; first += 4) {
        SIRDAR_UNROLL
        for (int i = first; i < first + 4; ++i) {
          const auto of_key = from_lane(own, i);
          SIRDAR_UNROLL
          for (int word = 0; word < kWords; ++word) {
            const uint32_t found = ptx::ballot_sync(modification.visible(rows[word], of_key));
            if (i == lane) seen[word] = found;
          }
        }
      }
      const int begin = bounds.row_begin(key) - first_row;
      const int end = ptx::min_of(bounds.row_end(key), sequence.q.length) - first_row;
      SIRDAR_UNROLL
      for (int word = 0; word < kWords; ++word) {
        const uint32_t reached =
            key < sequence.k.length ? bits_from_to(begin - 32 * word, end - 32 * word) : 0;
        bits[(group + lane) * kWords + word] = seen[word] & reached;
      }
    }
  }

  SIRDAR_DEVICE void run() const {
    const WalkView& walk = params.walk;
    for (int word = warp; word < walk.num_words; word += kWarps) make_word(word);
    ptx::syncthreads();
    if (warp == 0) make_span();
    if (walk.cover.is_by_key != 0) return;
    int turn = 0;  // the warps take tiles in turn
    for (int half = 0; half < kHalves; ++half) {
      int rank = 0;
      for (int word = 0; word < walk.num_words && rank < walk.num_tiles; ++word) {
        const WalkWord& made = words()[word];
        uint32_t part = made.some[half] & ~made.all[half];
        for (; part != 0 && rank < walk.num_tiles; part &= part - 1, ++rank) {
          if (turn == warp) look(half, 32 * word + ptx::lowest_bit(part), rank);
          turn = turn + 1 == kWarps ? 0 : turn + 1;
        }
      }
    }
  }
};

template <WalkConfig config, class Modification>
SIRDAR_DEVICE void cover_walks(const ModifiedBackwardParams<Modification>& params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  WalkMaker<config, Modification>(params.backward, params.modification, ptx::block_idx_x(),
                                  ptx::thread_idx_x())
      .run();
}

}  // namespace sirdar::sm90
