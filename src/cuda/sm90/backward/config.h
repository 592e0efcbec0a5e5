// What changes the instructions, registers or shared memory of the Hopper backward, and nothing
// else. Read by g++, clang and NVRTC. Lengths, strides, head counts and scales are BackwardParams.
#pragma once

#include "cuda/sm90/tile.h"

namespace sirdar::sm90 {

struct BackwardConfig {
  Element element = Element::bf16;
  int head_dim = 128, head_dim_v = 128;       // multiples of 8 up to 256
  int block_m = 64;                           // query rows per tile, 64 or 128
  int num_stages_q = 3, num_stages_dout = 3;  // tiles in shared memory
  int num_ds = 2;     // tiles of dS, and of P where another warpgroup reads it
  int num_slots = 2;  // of 16 KiB, for dQ on its way to memory
  // In a fixed order: sums of dQ of a query tile (1, 2 or 4), which key blocks are dealt to in
  // turn; and, without a mask, steps of the walk between additions to a tile, which arguments.cc
  // makes rings by.
  int num_sums = 1, hop_steps = 2;
  bool splits_turns = false;  // a tile has two turns, one for each half of its units
  // 2: the blocks of neighbouring 64 keys form a cluster and tell each other dS, so that each adds
  // half the columns of dQ for the keys of both. Where dQ has 256 columns.
  int cluster_size = 1;
  // As many thread blocks as multiprocessors load the next item's tiles while they finish one. They
  // draw their items, but for those that rings give them.
  bool is_persistent = false;
  // Under any mask: sections of heads are of one size, and in a fixed order the last one is
  // walked the other way round, so that its longest key blocks can begin first and the shortest
  // come last.
  bool mirrors_tail = false;
  // In a fixed order: convert's blocks begin beside the main kernel's, on multiprocessors that have
  // none of those, and take query tiles that nobody adds to any more; so many are left to them.
  bool converts_early = false;
  int num_spare = 0;
  MaskForm mask = MaskForm::full;
  bool is_deterministic = true;   // dQ is added up in one order, whatever runs when
  bool has_lengths = false;       // lengths differ by sequence: cu_seqlens, seqused
  bool has_chunks = false;        // chunks of whole tiles and key blocks are walked as sequences
  bool packs_products = false;    // dS = P (dP - delta) in 16 bits instead of fp32
  bool keeps_remainders = false;  // dS of P as it was before rounding (remainders.cuh); bf16
  bool has_softcap = false;       // what logits are made of besides scores
  bool has_alibi = false;
  Bias bias = Bias::none;
  int num_stages_bias = 0;     // tiles of it that TMA brings; 0: dK and dV's warpgroups read it
  bool has_score_mod = false;  // what the caller's expression makes of them
  bool has_mask_mod = false;   // pairs are hidden by an expression, ids or a tensor

  bool operator==(const BackwardConfig&) const = default;
};

// The one list of the fields: printing, parsing, hashing and emitting use it.
template <class C, class Visit>
requires requires(const C& c) { c.num_stages_dout; }
constexpr void fields(C& c, Visit visit) {
  visit("element", c.element);
  visit("head_dim", c.head_dim);
  visit("head_dim_v", c.head_dim_v);
  visit("block_m", c.block_m);
  visit("num_stages_q", c.num_stages_q);
  visit("num_stages_dout", c.num_stages_dout);
  visit("num_ds", c.num_ds);
  visit("num_slots", c.num_slots);
  visit("num_sums", c.num_sums);
  visit("hop_steps", c.hop_steps);
  visit("splits_turns", c.splits_turns);
  visit("cluster_size", c.cluster_size);
  visit("is_persistent", c.is_persistent);
  visit("mirrors_tail", c.mirrors_tail);
  visit("converts_early", c.converts_early);
  visit("num_spare", c.num_spare);
  visit("mask", c.mask);
  visit("is_deterministic", c.is_deterministic);
  visit("has_lengths", c.has_lengths);
  visit("has_chunks", c.has_chunks);
  visit("packs_products", c.packs_products);
  visit("keeps_remainders", c.keeps_remainders);
  visit("has_softcap", c.has_softcap);
  visit("has_alibi", c.has_alibi);
  visit("bias", c.bias);
  visit("num_stages_bias", c.num_stages_bias);
  visit("has_score_mod", c.has_score_mod);
  visit("has_mask_mod", c.has_mask_mod);
}

// Wider than 128 columns a warpgroup has registers for 64 rows of one gradient, not of two: then
// one has dV, the other dK, of the same 64 keys, and P travels between them.
constexpr bool is_wide(const BackwardConfig& c) { return c.head_dim > 128 || c.head_dim_v > 128; }
constexpr int block_keys(const BackwardConfig& c) { return is_wide(c) ? 64 : 128; }  // of a block
// Of the blocks that add to dQ together. A "key block" is so many keys.
constexpr int cluster_keys(const BackwardConfig& c) { return block_keys(c) * c.cluster_size; }

// Logits are no sum of a multiple of the score and a number: dS wants their slope. Then a score's
// accumulator begins with 0, and its weight is 2^(logit log2(e) + start).
constexpr bool has_slopes(const BackwardConfig& c) { return c.has_softcap || c.has_score_mod; }
constexpr bool is_modified(const BackwardConfig& c) {
  return has_slopes(c) || c.has_alibi || c.bias != Bias::none || c.has_mask_mod;
}

// Something besides scores can move all logits of a row far from 0 (level.cuh).
constexpr bool has_levels(const BackwardConfig& c) {
  return c.has_alibi || c.bias != Bias::none || c.has_score_mod;
}
// From so large an lse on: what rounding it is to weights there, P is rounded by too.
constexpr float far_lse(const BackwardConfig& c) {
  return c.element == Element::fp16 ? 2048.0f : 16384.0f;
}

// Key blocks do not all walk all query tiles.
constexpr bool is_masked(const BackwardConfig& c) {
  return c.mask != MaskForm::full || c.has_mask_mod;
}

// Whether key blocks begin at query tiles apart and go round (README.md).
constexpr bool has_rings(const BackwardConfig& c) { return c.is_deterministic && !is_masked(c); }
// Whether a thread block hears of its next item while it runs.
constexpr bool draws_items(const BackwardConfig& c) { return c.is_persistent && !has_rings(c); }

// P and dS times powers of two, which fp16 needs (peaks.cuh).
constexpr bool is_scaled(const BackwardConfig& c) { return c.element == Element::fp16; }

// Registers have room for what rounding takes from P where nothing else waits for dP, and P stays.
constexpr bool may_keep_remainders(const BackwardConfig& c) {
  return c.element == Element::bf16 && !is_wide(c) && !has_slopes(c);
}

// Whether results that are not finite are looked at again (restore.cuh): where pairs of a tile are
// hidden, a bias of -inf and an expression that does not look at the score among what hides; where
// weights or dS could leave fp16; and where rows can be far from 0, which are hidden from products.
constexpr bool restores(const BackwardConfig& c) {
  const bool hides = c.has_mask_mod || c.mask != MaskForm::full || c.has_lengths;
  return hides || has_levels(c) || is_scaled(c);
}
inline constexpr int kLostWords = 8;  // of a key block
inline constexpr int kFarRows = 32;   // of a word that says which are far from 0

inline constexpr int kBackwardThreads = 512;    // loads and stores, dQ, two of dK and dV
inline constexpr int kUnitBytes = 64 * 64 * 4;  // dQ travels in units of 64 rows and columns
inline constexpr int kUnitFloats = 64 * 64;

// Registers of a thread, by setmaxnreg: 512 in all for the four warpgroups.
constexpr int helper_registers(const BackwardConfig& c) {
  return c.cluster_size == 1 && !c.is_persistent && c.num_stages_bias == 0 ? 24 : 32;
}
inline constexpr int kQueryRegisters = 64, kKeyRegisters = 208;

// Units of one query tile, and those of a thread block.
constexpr int tile_units(const BackwardConfig& c) {
  return c.block_m / 64 * (columns(c.head_dim) / 64);
}
constexpr int num_units(const BackwardConfig& c) { return tile_units(c) / c.cluster_size; }
// Turns of one query tile, each of a part of its units. The blocks of a cluster have one each.
constexpr int tile_parts(const BackwardConfig& c) {
  return c.cluster_size > 1 || (c.splits_turns && tile_units(c) > 1) ? 2 : 1;
}
constexpr int num_parts(const BackwardConfig& c) { return tile_parts(c) / c.cluster_size; }
constexpr int first_unit(const BackwardConfig& c, int part) {
  return part * num_units(c) / num_parts(c);
}
// Warps that bring units to memory. In a fixed order each waits until what it added is there, so
// three take parts of tiles in turn; two where another warp sends dS or loads a bias.
constexpr int num_reducers(const BackwardConfig& c) {
  if (!c.is_deterministic) return 1;
  return c.cluster_size == 1 && c.num_stages_bias == 0 ? 3 : 2;
}
// A barrier of a filled slot is waited for by one warp only, which sees every phase of it: there
// is one for every unit of as many tiles as warps, after which it is the same warp's turn again;
// of twice as many where that were fewer than slots.
constexpr int num_rounds(const BackwardConfig& c) {
  return num_reducers(c) * (c.num_stages_bias > 0 && num_units(c) == 1 ? 2 : 1);
}
constexpr int num_unit_barriers(const BackwardConfig& c) {
  return c.is_deterministic ? num_rounds(c) * num_units(c) : c.num_slots;
}

// A bias that TMA cannot bring is read from memory, and fewer slots may then have barriers.
constexpr BackwardConfig without_staged_bias(BackwardConfig c) {
  c.num_stages_bias = 0;
  if (c.num_slots > num_unit_barriers(c)) c.num_slots = num_unit_barriers(c);
  return c;
}

constexpr int k_bytes(const BackwardConfig& c) { return 2 * block_keys(c) * columns(c.head_dim); }
constexpr int v_bytes(const BackwardConfig& c) { return 2 * block_keys(c) * columns(c.head_dim_v); }
constexpr int q_bytes(const BackwardConfig& c) { return 2 * c.block_m * columns(c.head_dim); }
constexpr int dout_bytes(const BackwardConfig& c) { return 2 * c.block_m * columns(c.head_dim_v); }
constexpr int ds_bytes(const BackwardConfig& c) { return 2 * block_keys(c) * c.block_m; }
// Of the other block's keys and this block's columns of dQ; its dS.
constexpr int peer_k_bytes(const BackwardConfig& c) {
  return c.cluster_size == 1 ? 0 : k_bytes(c) / 2;
}
constexpr int peer_ds_bytes(const BackwardConfig& c) {
  return c.cluster_size == 1 ? 0 : ds_bytes(c);
}
// P as the registers of its 128 threads, 16 bytes of each side by side.
constexpr int weights_bytes(const BackwardConfig& c) { return is_wide(c) ? ds_bytes(c) : 0; }
// A bias comes as [half of the keys][64 or 32 keys][query][128 bytes], fp32 in pieces of 32 keys.
constexpr int bias_entry_bytes(const BackwardConfig& c) { return c.bias == Bias::fp32 ? 4 : 2; }
constexpr int bias_bytes(const BackwardConfig& c) {
  return bias_entry_bytes(c) * block_keys(c) * c.block_m;
}
constexpr int row_bytes(const BackwardConfig& c) { return 4 * c.block_m; }  // a float a row

// Whether K goes back before dK has left, which then leaves through the room of dS.
constexpr bool frees_keys_early(const BackwardConfig& c) {
  return c.is_persistent && !is_wide(c) && c.num_ds * ds_bytes(c) >= k_bytes(c);
}
inline constexpr int kItemSlots = 4, kItemBytes = 16;  // that it can travel to the other block
// Who reads an item: the warps of warpgroups 1 to 3, threads that bring dQ to memory, and who loads
// a bias; in a cluster those of both blocks, who send dS, and the second block's loader.
constexpr int item_readers(const BackwardConfig& c) {
  if (c.cluster_size > 1) return 2 * (13 + num_reducers(c)) + 1;
  return 12 + num_reducers(c) + (c.num_stages_bias > 0 ? 1 : 0);
}

// Offsets from a base that is aligned to 1024 bytes.
struct BackwardMap {
  int k, peer_k, v, q, dout, ds, peer_ds, weights, slots, bias, lse, delta, told, peaks, items,
      barriers, end;
};
constexpr int num_barriers(const BackwardConfig& c) {
  const int num_weights = is_wide(c) ? c.num_ds : 0;
  return 3 + 2 * (c.num_stages_q + c.num_stages_dout + c.num_ds + num_weights) +
         4 * c.num_stages_bias + num_unit_barriers(c) + c.num_slots + (c.has_lengths ? 1 : 0) +
         (is_scaled(c) ? 1 : 0) + (c.cluster_size == 1 ? 0 : c.num_ds) +
         (draws_items(c) ? 2 * kItemSlots : 0) + (frees_keys_early(c) ? 1 : 0);
}
constexpr BackwardMap shared_map(const BackwardConfig& c) {
  BackwardMap map{};
  map.peer_k = map.k + k_bytes(c);
  map.v = map.peer_k + peer_k_bytes(c);
  map.q = map.v + v_bytes(c);
  map.dout = map.q + c.num_stages_q * q_bytes(c);
  map.ds = map.dout + c.num_stages_dout * dout_bytes(c);
  map.peer_ds = map.ds + c.num_ds * ds_bytes(c);
  map.weights = map.peer_ds + c.num_ds * peer_ds_bytes(c);
  map.slots = map.weights + c.num_ds * weights_bytes(c);
  map.bias = map.slots + c.num_slots * kUnitBytes;
  map.lse = map.bias + c.num_stages_bias * bias_bytes(c);
  map.delta = map.lse + c.num_stages_q * row_bytes(c);
  map.told = map.delta + c.num_stages_dout * row_bytes(c);
  map.peaks = map.told + (c.has_mask_mod ? 16 * c.num_stages_q : 0);  // of tiles (walk.cuh)
  map.items = map.peaks + (is_scaled(c) ? 4 * 16 : 0);
  map.barriers = map.items + (draws_items(c) ? kItemBytes * kItemSlots : 0);
  map.end = map.barriers + 8 * num_barriers(c);
  return map;
}
// With what it takes to align the base.
constexpr int shared_bytes(const BackwardConfig& c) {
  return round_up(shared_map(c).end, 128) + 1024;
}

// Within these nothing that is computed from them divides by 0 or overflows: (name, value, least,
// most).
template <class Visit>
constexpr void counts(const BackwardConfig& c, Visit visit) {
  visit("head_dim", c.head_dim, 8, 256);
  visit("head_dim_v", c.head_dim_v, 8, 256);
  visit("block_m", c.block_m, 64, 128);
  visit("num_stages_q", c.num_stages_q, 1, 16);
  visit("num_stages_dout", c.num_stages_dout, 1, 16);
  visit("num_stages_bias", c.num_stages_bias, 0, 16);
  visit("num_ds", c.num_ds, 1, 16);
  visit("num_slots", c.num_slots, 1, 16);
  visit("num_sums", c.num_sums, 1, 4);
  visit("hop_steps", c.hop_steps, 1, 1 << 20);
  visit("cluster_size", c.cluster_size, 1, 2);
  visit("num_spare", c.num_spare, 0, 64);
}
constexpr bool has_counts(const BackwardConfig& c) {
  bool is_within = c.block_m % 64 == 0;
  counts(c, [&](const char*, int count, int least, int most) {
    is_within = is_within && count >= least && count <= most;
  });
  return is_within;
}

// What a field wants of others (check_config.cc says it in words).
constexpr bool may_be_tall(const BackwardConfig& c) {  // 128 query rows
  return c.head_dim <= 64 && c.head_dim_v <= 64;
}
constexpr bool may_cluster(const BackwardConfig& c) {
  // dS of both blocks is added up: it must be multiplied by the same.
  return is_wide(c) && columns(c.head_dim) == 256 && !c.has_mask_mod && !is_scaled(c);
}
constexpr bool may_stage_bias(const BackwardConfig& c) {
  return c.bias != Bias::none && !is_wide(c);
}
constexpr bool may_mirror(const BackwardConfig& c) { return is_masked(c); }

constexpr bool is_valid(const BackwardConfig& c) {
  if (!has_counts(c)) return false;
  const bool has_shape = c.head_dim % 8 == 0 && c.head_dim_v % 8 == 0;
  const bool has_sums =
      c.num_sums == 1 || (c.is_deterministic && (c.num_sums == 2 || c.num_sums == 4));
  const bool has_order = !c.mirrors_tail || may_mirror(c);
  const bool has_spare = c.converts_early ? c.is_deterministic : c.num_spare == 0;
  return has_shape && has_sums && has_order && has_spare && (c.block_m == 64 || may_be_tall(c)) &&
         (c.cluster_size == 1 || may_cluster(c)) && (c.num_stages_bias == 0 || may_stage_bias(c)) &&
         c.num_slots <= num_unit_barriers(c) && shared_bytes(c) <= kMostSharedBytes;
}

// The kernels before and behind it.
struct PrepareConfig {
  BackwardConfig backward;
};
struct ConvertConfig {
  BackwardConfig backward;
};
struct SinkConfig {
  BackwardConfig backward;
};
struct WalkConfig {
  BackwardConfig backward;
};
inline constexpr int kPrepareThreads = 256, kConvertThreads = 128, kSinkThreads = 1024,
                     kWalkThreads = 256;
inline constexpr int kPrepareTokens = 32, kPrepareHeads = 16;  // of one thread block
inline constexpr int kPrepareBytes = 4 * kPrepareHeads * (kPrepareTokens + 1);  // a float a row
constexpr int shared_bytes(const PrepareConfig& c) {
  return (is_scaled(c.backward) ? 2 : 1) * kPrepareBytes;
}
constexpr int shared_bytes(const ConvertConfig&) { return 0; }
constexpr int shared_bytes(const WalkConfig&) { return 0; }
constexpr int shared_bytes(const SinkConfig&) { return 4 * kSinkThreads / 32; }

}  // namespace sirdar::sm90
