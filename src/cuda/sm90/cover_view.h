// What is known of tiles before a kernel walks over them, where masks are expressions, ids or
// tensors. forward/cover.cuh finds it.
#pragma once

namespace sirdar::sm90 {

// What a query block sees of 32 key blocks through masks that are expressions, ids or tensors.
struct alignas(16) CoverWord {
  unsigned some, all;  // of which blocks something may be visible, and of which all is
  int tiles_before;    // key blocks to the left of these that are seen in part
  int unused;
};

// Written by cover_keys(): a word per query block and 32 key blocks, and of the
// first `num_tiles` blocks of a query block that are seen in part what each row sees, a bit a pair
// (config.h; backward/walk.cuh has its own). Strides in query blocks.
struct CoverView {
  CoverWord* words;
  unsigned* tiles;
  int is_by_key;                                     // every key block has a tile at its own place
  long long stride_batch, stride_head;               // 0 where the mask does not differ
  int num_batches, num_heads, num_words, num_tiles;  // of different ones; of one query block
};

// Warps of one thread block of that kernel. With 32 each has one key block of a word, and few reads
// are waited for one after the other; where there are many thread blocks, one a word or a quarter
// of one, those wait for each other's.
constexpr int cover_warps(bool looks_at_pairs, bool is_by_key) {
  return looks_at_pairs || is_by_key ? 8 : 32;
}
// Words that are found together, and what is found of their blocks: one round and the one before.
inline constexpr int kCoverRound = 4, kCoverSharedBytes = 2 * kCoverRound * 32 * 4;

}  // namespace sirdar::sm90
