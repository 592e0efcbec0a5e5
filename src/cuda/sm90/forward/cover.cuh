// Key blocks that a mask of the caller's hides are neither loaded nor multiplied, and where it
// shows all of one nothing is masked: a small kernel before the forward writes what it shows of
// each (params.h, CoverView), and producer and consumers walk by that.
#pragma once

#include "cuda/sm90/forward/modify.cuh"
#include "cuda/sm90/forward/work.cuh"
#include "ptx/memory.cuh"
#include "ptx/warp.cuh"

namespace sirdar::sm90 {

SIRDAR_DEVICE const unsigned long long* cover_words(const ForwardParams& params, int batch,
                                                    int head, int block) {
  const CoverView& cover = params.cover;
  return cover.words + batch * cover.stride_batch + head * cover.stride_head +
         static_cast<long long>(block) * cover.num_words;
}

// Walks over the key blocks that something of is seen, from right to left.
struct CoverCursor {
  const unsigned long long* words;
  int first;       // no block before this one
  int index = -1;  // of the word at hand
  uint32_t some = 0, all = 0;

  SIRDAR_DEVICE CoverCursor(const ForwardParams& params, const WorkItem& item)
      : words(cover_words(params, item.batch, item.head, item.block)), first(item.first_block) {}

  // The rightmost such block up to `block`; none: one before `first`.
  SIRDAR_DEVICE int next(int block) {
    while (block >= first) {
      if (block / 32 != index) {
        index = block / 32;
        const unsigned long long word = ptx::load_constant(words + index);
        some = static_cast<uint32_t>(word);
        all = static_cast<uint32_t>(word >> 32);
      }
      const uint32_t left = some & (~0u >> (31 - block % 32));
      if (left != 0) return 32 * index + ptx::highest_bit(left);
      block = 32 * index - 1;
    }
    return block;
  }
  // Of the block that next() returned last.
  SIRDAR_DEVICE bool is_all(int block) const { return (all >> (block % 32) & 1) != 0; }
};

// Leaves of an item's key blocks those from the first to the last of which something is seen; one
// hidden block if there is none. By a whole warp.
SIRDAR_DEVICE void tighten(const ForwardParams& params, int lane, WorkItem& item) {
  const unsigned long long* words = cover_words(params, item.batch, item.head, item.block);
  const int first = item.first_block, last = first + item.num_blocks - 1;
  uint32_t hidden_left = ~0u, shown_right = 0;  // the least, and the largest plus 1
  for (int i = first / 32 + lane; i <= last / 32; i += 32) {
    uint32_t some = static_cast<uint32_t>(ptx::load_constant(words + i));
    if (i == first / 32) some &= ~0u << (first % 32);
    if (i == last / 32) some &= ~0u >> (31 - last % 32);
    if (some == 0) continue;
    const uint32_t lowest = static_cast<uint32_t>(32 * i + ptx::lowest_bit(some));
    hidden_left = lowest < hidden_left ? lowest : hidden_left;
    shown_right = static_cast<uint32_t>(32 * i + ptx::highest_bit(some) + 1);
  }
  ptx::syncwarp();
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t left = ptx::shfl_xor(hidden_left, distance);
    const uint32_t right = ptx::shfl_xor(shown_right, distance);
    hidden_left = left < hidden_left ? left : hidden_left;
    shown_right = right > shown_right ? right : shown_right;
  }
  const bool is_seen = shown_right > 0;
  item.first_block = is_seen ? static_cast<int>(hidden_left) : first;
  item.num_blocks = is_seen ? static_cast<int>(shown_right - hidden_left) : 1;
}

// The forward whose blocks are meant; the kernel that looks at them needs no shared memory.
struct CoverConfig {
  ForwardConfig forward;
};
constexpr int shared_bytes(const CoverConfig&) { return 0; }

// One warp: what one query block sees of 32 key blocks.
template <CoverConfig config, class Modification>
struct CoverWord {
  static constexpr ForwardConfig kForward = config.forward;
  const ForwardParams& params;
  const Modification& modification;
  int batch, head, block, index;  // index: of the word

  SIRDAR_DEVICE unsigned long long find(int lane) const {
    const Rows q = rows_of<kForward>(params.cu_seqlens_q, params.seqused_q, params.seqlen_q, batch);
    const Rows k = rows_of<kForward>(params.cu_seqlens_k, params.seqused_k, params.seqlen_k, batch);
    const int row = block * block_m(kForward);
    if (row >= q.length) return 0;
    const int last_row = ptx::min_of(row + block_m(kForward), q.length) - 1;
    const KeyBounds<kForward> bounds(params, q.length, k.length);
    const int begin = bounds.lo(row), end = bounds.hi(last_row), shift = k.length - q.length;
    language::Box box{batch, head, {row, last_row}, {row + shift, last_row + shift}, {}, lane, 32};
    const auto rows = modification.begin_row_bounds(box);
    uint32_t some = 0, all = 0;
    SIRDAR_NO_UNROLL
    for (int bit = 0; bit < 32; ++bit) {
      const int key = (32 * index + bit) * kForward.block_n;
      if (key >= end) break;
      if (key + kForward.block_n <= begin) continue;
      box.k = {key, ptx::min_of(key + kForward.block_n, k.length) - 1};
      const language::Truth truth = modification.visible_bounds(rows, box);
      some |= static_cast<uint32_t>(truth.may_be_true) << bit;
      all |= static_cast<uint32_t>(truth.may_be_true && !truth.may_be_false) << bit;
    }
    return static_cast<unsigned long long>(all) << 32 | some;
  }
};

template <CoverConfig config, class Modification>
SIRDAR_DEVICE void cover_keys(const ModifiedParams<Modification>& params) {
  const CoverView& cover = params.forward.cover;
  const int lane = ptx::thread_idx_x() % 32;
  const long long warp =
      static_cast<long long>(ptx::block_idx_x()) * kCoverWarps + ptx::thread_idx_x() / 32;
  const long long block = warp / cover.num_words, list = block / params.forward.num_blocks_m;
  if (list >= static_cast<long long>(cover.num_batches) * cover.num_heads) return;
  const CoverWord<config, Modification> word{params.forward,
                                             params.modification,
                                             static_cast<int>(list / cover.num_heads),
                                             static_cast<int>(list % cover.num_heads),
                                             static_cast<int>(block % params.forward.num_blocks_m),
                                             static_cast<int>(warp % cover.num_words)};
  const unsigned long long found = word.find(lane);
  if (lane == 0) {
    cover.words[word.batch * cover.stride_batch + word.head * cover.stride_head +
                static_cast<long long>(word.block) * cover.num_words + word.index] = found;
  }
}

}  // namespace sirdar::sm90
