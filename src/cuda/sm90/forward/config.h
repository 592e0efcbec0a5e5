// What changes the instructions, registers or shared memory of the Hopper forward, and nothing
// else. Read by g++, clang and NVRTC. Lengths, strides, head counts and scales are ForwardParams.
#pragma once

#include "cuda/sm90/tile.h"

namespace sirdar::sm90 {

// How a row keeps its reference, the number that scores are taken relative to before exp2.
//   classic      the running maximum [Dao23 3.1], found and applied in every block
//   conditional  the maximum is found in every block, and applied when it grew by more than 2^8
//   guarded      the maximum of the first block; later blocks look at their sums alone, and where
//                one grew several times over the reference follows the largest weight (README.md)
enum class Softmax : int { classic, conditional, guarded };

// In which order masked items come; without a mask, or with one item of work each, it is by head.
//   by_head        head by head, query blocks from first to last
//   longest_first  the query blocks that see most of all heads, then the next
//   in_sections    the same within sections of heads whose K and V stay in L2
enum class Order : int { by_head, longest_first, in_sections };

struct ForwardConfig {
  Element element = Element::bf16;
  int head_dim = 128, head_dim_v = 128;  // multiples of 8 up to 256
  int num_consumers = 2;                 // warpgroups, 64 rows of a tile each
  // Query heads of one K/V head that are rows of the same tile: row q of the tile's h-th head is
  // tile row q * num_packed_heads + h. A power of two; 1: a tile's rows are one head's.
  int num_packed_heads = 1;
  int block_n = 128;  // keys per tile, a multiple of 16
  int num_stages_k = 3, num_stages_v = 2;
  int num_q_buffers = 2;  // > 1: the next items' Q load during this one, whose O leaves through
                          // Q's buffer; 1: a warpgroup's rows are loaded when it has no scores left
                          // to take, and O leaves through stages of V
  MaskForm mask = MaskForm::full;
  // Of what a warpgroup's own rows cannot see: 0 skip nothing, 1 skip blocks, 2 score only the left
  // half of its first block where that is enough.
  int trim = 0;
  Softmax softmax = Softmax::guarded;
  bool takes_turns = true;  // warpgroups issue their products in turn ("ping-pong")
  bool overlaps = true;     // a block's exponentials run while the block before is multiplied by V
  bool moves_registers = true;     // the producer's registers go to the consumers (setmaxnreg)
  bool is_persistent = true;       // one thread block an SM walks over items; off: one an item
  bool draws_items = true;         // where items differ in length whoever is free draws the next
  bool shares_last_round = false;  // items of the last round are shared out evenly (last_round.cuh)
  Order order = Order::in_sections;
  int num_polynomial = 0;  // of 16 exponentials of a row: on the FMA pipe [Zadouri26 3.1.2]
  // 2: blocks of adjacent query tiles form a cluster, and each loads half of every K and V for
  // both.
  int cluster_size = 1;
  // Parts that the keys of a query block are split into, each an item of its own; a second kernel
  // adds them (combine.cuh). A kernel knows 1, or 2 for any number above: ForwardParams has it.
  int num_splits = 1;
  bool has_lengths = false;  // lengths differ by sequence: cu_seqlens, seqused, or no keys at all
  bool has_logits = false;   // logits are more than a positive multiple of the scores:
  bool has_softcap = false;  //   soft-capped
  bool has_alibi = false;    //   plus a slope times the distance
  bool is_alibi_one_sided = false;  //   of pairs whose key is never behind the query
  Bias bias = Bias::none;           //   plus a tensor's
  int num_stages_bias = 0;          //     tiles of it that TMA brings; 0: the consumers read it
  bool has_score_mod = false;       //   what the caller's expression makes of them
  bool has_mask_mod = false;        // pairs are hidden by an expression, ids or a tensor
  bool has_sink = false;            // one more logit per head, which has no value
  bool writes_lse = false;
  bool writes_max_logit = false;

  bool operator==(const ForwardConfig&) const = default;
};

// The one list of the fields: printing, parsing, hashing and emitting use it.
template <class C, class Visit>
constexpr void fields(C& c, Visit visit) {
  visit("element", c.element);
  visit("head_dim", c.head_dim);
  visit("head_dim_v", c.head_dim_v);
  visit("num_consumers", c.num_consumers);
  visit("num_packed_heads", c.num_packed_heads);
  visit("block_n", c.block_n);
  visit("num_stages_k", c.num_stages_k);
  visit("num_stages_v", c.num_stages_v);
  visit("num_q_buffers", c.num_q_buffers);
  visit("mask", c.mask);
  visit("trim", c.trim);
  visit("softmax", c.softmax);
  visit("takes_turns", c.takes_turns);
  visit("overlaps", c.overlaps);
  visit("moves_registers", c.moves_registers);
  visit("is_persistent", c.is_persistent);
  visit("draws_items", c.draws_items);
  visit("shares_last_round", c.shares_last_round);
  visit("order", c.order);
  visit("num_polynomial", c.num_polynomial);
  visit("cluster_size", c.cluster_size);
  visit("num_splits", c.num_splits);
  visit("has_lengths", c.has_lengths);
  visit("has_logits", c.has_logits);
  visit("has_softcap", c.has_softcap);
  visit("has_alibi", c.has_alibi);
  visit("is_alibi_one_sided", c.is_alibi_one_sided);
  visit("bias", c.bias);
  visit("num_stages_bias", c.num_stages_bias);
  visit("has_score_mod", c.has_score_mod);
  visit("has_mask_mod", c.has_mask_mod);
  visit("has_sink", c.has_sink);
  visit("writes_lse", c.writes_lse);
  visit("writes_max_logit", c.writes_max_logit);
}

// Whether the shortest query blocks of all heads may come behind all sections.
constexpr bool ends_with_short_blocks(const ForwardConfig& c) {
  return c.mask == MaskForm::upper && !c.has_mask_mod && c.order == Order::in_sections;
}

constexpr int block_m(const ForwardConfig& c) { return 64 * c.num_consumers; }
// Query rows of an item: each of its heads has so many in the tile.
constexpr int block_rows(const ForwardConfig& c) { return block_m(c) / c.num_packed_heads; }
constexpr int num_threads(const ForwardConfig& c) { return 128 * (c.num_consumers + 1); }

// What the products really run over.
constexpr int depth_qk(const ForwardConfig& c) { return round_up(c.head_dim, 16); }
constexpr int width_pv(const ForwardConfig& c) { return round_up(c.head_dim_v, 16); }

constexpr bool is_split(const ForwardConfig& c) { return c.num_splits > 1; }
inline constexpr int kMostSplits = 128;

// 32-bit words of which pairs of a tile are seen: of each row, and each of the four lanes that
// share it, the keys whose scores the lane has; up to 64 keys of a tile they are half a word.
constexpr int seen_row_words(int block_n) {
  return block_n <= 64 ? 2 : 4 * ((block_n + 127) / 128);
}
constexpr int seen_words(const ForwardConfig& c) { return block_m(c) * seen_row_words(c.block_n); }

constexpr int q_bytes(const ForwardConfig& c) {
  const int staged_out = c.num_q_buffers > 1 ? columns(c.head_dim_v) : 0;
  return 2 * block_m(c) * (staged_out > columns(c.head_dim) ? staged_out : columns(c.head_dim));
}
constexpr int k_bytes(const ForwardConfig& c) { return 2 * c.block_n * columns(c.head_dim); }
constexpr int v_bytes(const ForwardConfig& c) { return 2 * c.block_n * columns(c.head_dim_v); }

// A warpgroup's rows.
constexpr int bias_bytes(const ForwardConfig& c) { return 2 * 64 * c.block_n; }

// Whether a key that shares a tile with visible ones can be hidden from a row. Then rows that a NaN
// or an infinity in its V has reached are made again (exact.cuh), ...
constexpr bool restores_rows(const ForwardConfig& c) {
  return c.mask != MaskForm::full || c.has_mask_mod || c.bias != Bias::none;
}
// ... by a warp of the producer warpgroup (restorer.cuh), where results are so wide that consumers
// have no registers for it: there they spill in every item and lose a fifth.
constexpr bool hands_rows_over(const ForwardConfig& c) {
  return restores_rows(c) && c.head_dim_v > 128;
}

// With one Q buffer O leaves through the stages of V that an item has used last, one a warpgroup,
// and a warp for each takes it away (storer.cuh). Else it leaves from registers: where it does not
// fit those stages, and parts of keys.
constexpr bool sends_out(const ForwardConfig& c) {
  return c.num_q_buffers == 1 && !is_split(c) && c.num_consumers <= 2 &&
         c.num_stages_v >= c.num_consumers && c.block_n >= 64 && c.num_stages_bias == 0 &&
         c.cluster_size == 1;
}

// Offsets from a base that is aligned to 1024 bytes.
struct SharedMap {
  int q, k, v, bias, info, block_info, lost, out_places, barriers, end;
};
// Whether an item may be a part of a query block's keys.
constexpr bool has_parts(const ForwardConfig& c) { return is_split(c) || c.shares_last_round; }
// One work item as its consumers read it.
constexpr int info_bytes(const ForwardConfig& c) { return has_parts(c) ? 48 : 32; }
// Rows of Q that are loaded, and given back, together; and the pairs of barriers for that.
constexpr int q_rows(const ForwardConfig& c) { return c.num_q_buffers > 1 ? block_m(c) : 64; }
constexpr int num_q_barriers(const ForwardConfig& c) {
  return c.num_q_buffers > 1 ? c.num_q_buffers : c.num_consumers;
}
inline constexpr int kBlockInfoBytes = 16;  // a key block, where not all are walked
constexpr int num_barriers(const ForwardConfig& c) {
  return 2 * (num_q_barriers(c) + c.num_stages_k + c.num_stages_v +
              c.num_stages_bias * c.num_consumers + (hands_rows_over(c) ? 1 : 0) +
              (sends_out(c) ? c.num_consumers : 0)) +
         (c.has_lengths ? 1 : 0);
}
// Items whose description is in shared memory: one a Q buffer; with one buffer also the one that is
// being finished; where rows are handed over also the one before, and a power of two.
constexpr int num_items_ahead(const ForwardConfig& c) {
  if (hands_rows_over(c)) return 4;
  return c.num_q_buffers > 1 ? c.num_q_buffers : 2;
}
constexpr SharedMap shared_map(const ForwardConfig& c) {
  SharedMap map{};
  map.k = map.q + c.num_q_buffers * q_bytes(c);
  map.v = map.k + c.num_stages_k * k_bytes(c);
  map.bias = map.v + c.num_stages_v * v_bytes(c);
  map.info = map.bias + c.num_stages_bias * c.num_consumers * bias_bytes(c);
  map.block_info = map.info + num_items_ahead(c) * info_bytes(c);
  map.lost = map.block_info + (c.has_mask_mod ? c.num_stages_k * kBlockInfoBytes : 0);
  map.out_places = map.lost + (hands_rows_over(c) ? 4 * 4 * c.num_consumers : 0);
  map.barriers = map.out_places + (sends_out(c) ? 8 : 0);
  map.end = map.barriers + 8 * num_barriers(c);
  return map;
}
// With what it takes to align the base.
constexpr int shared_bytes(const ForwardConfig& c) {
  return round_up(shared_map(c).end, 128) + 1024;
}

// The kernel that adds the parts of split keys: a warp a row of a query tile.
struct CombineConfig {
  ForwardConfig forward;
};
inline constexpr int kCombineRows = 4;  // of a thread block
constexpr int shared_bytes(const CombineConfig&) { return 0; }

// Where the last round is shared out: thread blocks at most, of which each has a slot.
inline constexpr int kMostSlots = 132;
inline constexpr int kSlotFlags = 16;  // a warp's each
constexpr int slot_floats(const ForwardConfig& c) {
  return 4 * c.num_consumers * (width_pv(c) / 8 + 1) * 128;
}

// setmaxnreg: what is launched with, evenly, is moved from the producer to the consumers.
constexpr int consumer_registers(const ForwardConfig& c) {
  return c.num_consumers == 1 ? 240 : c.num_consumers == 2 ? 232 : c.num_consumers == 3 ? 160 : 112;
}
constexpr int producer_registers(const ForwardConfig& c) { return c.num_consumers <= 2 ? 40 : 32; }

// Of the polynomial that stands for 2^f: weights are rounded to 8 bits (bf16) or 11, and a row sum
// whose logarithm is asked for is wanted to 24. Relative errors: 7.5e-5, 2.6e-6, 2.1e-7.
constexpr int polynomial_degree(const ForwardConfig& c) {
  return c.writes_lse ? 5 : c.element == Element::bf16 ? 3 : 4;
}

// Within these nothing that is computed from them divides by 0 or overflows: (name, value, least,
// most).
template <class Visit>
constexpr void counts(const ForwardConfig& c, Visit visit) {
  visit("head_dim", c.head_dim, 8, 256);
  visit("head_dim_v", c.head_dim_v, 8, 256);
  visit("num_consumers", c.num_consumers, 1, 4);
  visit("num_packed_heads", c.num_packed_heads, 1, 128);
  visit("block_n", c.block_n, 16, 256);
  visit("num_stages_k", c.num_stages_k, 1, 16);
  visit("num_stages_v", c.num_stages_v, 1, 16);
  visit("num_q_buffers", c.num_q_buffers, 1, 8);
  visit("trim", c.trim, 0, 2);
  visit("num_polynomial", c.num_polynomial, 0, 16);
  visit("num_stages_bias", c.num_stages_bias, 0, 8);
  visit("cluster_size", c.cluster_size, 1, 2);
  visit("num_splits", c.num_splits, 1, kMostSplits);
}
constexpr bool has_counts(const ForwardConfig& c) {
  bool is_within = true;
  counts(c, [&](const char*, int count, int least, int most) {
    is_within = is_within && count >= least && count <= most;
  });
  return is_within;
}

// Trimming makes a warpgroup skip key blocks before its first; the V ring must hold those and one.
constexpr bool is_valid(const ForwardConfig& c) {
  if (!has_counts(c)) return false;
  const bool ring_is_deep_enough =
      c.trim == 0 || c.num_stages_v > (block_m(c) - 64 + c.block_n - 1) / c.block_n;
  const bool may_stage_bias =
      (c.bias == Bias::bf16 || c.bias == Bias::fp16) && c.block_n % 64 == 0 && c.cluster_size == 1;
  // Boxes of TMA and divisions of tile rows; the bias's boxes are of one head.
  const int packed = c.num_packed_heads;
  const bool may_pack = (packed & (packed - 1)) == 0 && block_m(c) % packed == 0 &&
                        (packed == 1 || c.num_stages_bias == 0);
  // Both blocks of a cluster walk the same key blocks, so that their rings move together.
  const bool may_share = c.cluster_size == 2 && !c.has_lengths && !c.has_mask_mod && c.trim == 0;
  // Rows that are handed over have left by ordinary stores.
  const bool may_restore = !hands_rows_over(c) || c.num_q_buffers == 1;
  // Parts leave from registers, by ordinary stores.
  const bool may_split = !is_split(c) || (c.num_q_buffers == 1 && c.num_stages_bias == 0 &&
                                          c.cluster_size == 1 && !c.has_mask_mod);
  // What is dealt out in turn.
  const bool may_share_last =
      !c.shares_last_round ||
      (c.is_persistent && c.mask == MaskForm::full && !c.has_lengths && !c.has_mask_mod &&
       c.bias == Bias::none && !is_split(c) && c.cluster_size == 1);
  // Turns are taken by two or more; the largest logit is the running maximum.
  const bool may_take_turns = c.num_consumers > 1 || !c.takes_turns;
  const bool may_tell = !c.writes_max_logit || c.softmax == Softmax::classic;
  return may_pack && may_restore && may_split && may_share_last && may_take_turns && may_tell &&
         (c.cluster_size == 1 || may_share) && c.block_n % 16 == 0 && c.head_dim % 8 == 0 &&
         c.head_dim_v % 8 == 0 && ring_is_deep_enough &&
         (c.num_stages_bias == 0 || may_stage_bias) &&
         (c.has_logits || (!c.has_score_mod && c.bias == Bias::none)) &&
         (!c.has_mask_mod || (c.block_n % 32 == 0 && c.trim == 0)) &&
         (c.trim == 0 || c.mask == MaskForm::upper) && shared_bytes(c) <= kMostSharedBytes;
}

}  // namespace sirdar::sm90
