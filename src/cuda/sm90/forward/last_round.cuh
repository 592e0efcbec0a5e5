// Items of the last round, of which there are fewer than thread blocks, are shared out: each thread
// block takes as many key blocks, the end of one item and the beginning of the next. Who has an
// item's first (rightmost) key blocks takes what others have made of the rest from memory and ends
// it; the others have lower numbers and their shares of the item first, so that nobody waits for
// one that has not begun.
#pragma once

#include "cuda/sm90/forward/consumer.cuh"

namespace sirdar::sm90 {

// A slot of memory for each thread block, in which a warp's lanes have what they hold: sums of
// weights times values, references, sums.
template <ForwardConfig config, class Modification>
struct Share {
  using Owner = Consumer<config, Modification>;
  static constexpr int kPieces = Owner::kWidth / 8;  // of four numbers, a lane's
  static constexpr int kWarps = 4 * config.num_consumers;
  Owner& c;

  SIRDAR_DEVICE int own_slot() const { return last_slot(c.params.last); }
  SIRDAR_DEVICE int warp() const { return 4 * c.warpgroup + c.warp; }
  // Found again each time: no register holds it through the walk.
  SIRDAR_DEVICE int* flag(int slot) const {
    const int own = c.params.counters;
    int* const flags = c.counters != nullptr && own >= 0
                           ? &c.counters[own * kCountersPerWorkspace].next
                           : c.params.counter;
    return flags + kSlotFlags * slot + warp();
  }
  SIRDAR_DEVICE ptx::Int4* piece(int slot, int index) const {
    const long long place =
        (static_cast<long long>(slot) * kWarps + warp()) * (kPieces + 1) + index;
    return reinterpret_cast<ptx::Int4*>(c.params.last.sums + (place * 32 + c.lane) * 4);
  }

  SIRDAR_DEVICE static ptx::Int4 words(float a, float b, float c, float d) {
    const auto word = [](float x) { return static_cast<int>(ptx::bits_of(x)); };
    return {word(a), word(b), word(c), word(d)};
  }
  SIRDAR_DEVICE static float number(int word) { return ptx::float_of(static_cast<uint32_t>(word)); }

  SIRDAR_DEVICE void give() const {
    const int slot = own_slot();
    SIRDAR_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      const float* four = c.out + 4 * i;
      ptx::store_global(piece(slot, i), words(four[0], four[1], four[2], four[3]));
    }
    ptx::store_global(piece(slot, kPieces), words(c.rows.reference.upper, c.rows.reference.lower,
                                                  c.rows.sum.upper, c.rows.sum.lower));
    ptx::fence_gpu();
    ptx::syncwarp();
    if (c.lane == 0) ptx::store_release(flag(slot), 1);
    // Q's buffer goes back with the leader: all warps have read it.
    if constexpr (Owner::kStagesOut) {
      ptx::barrier_sync(1 + config.num_consumers + c.warpgroup, 128);
    }
    if constexpr (sends_out(config)) c.hand_out_over(kStoredOut);
  }

  // Both relative to the larger reference; the factors of what is here, and of what comes.
  struct Factors {
    float own, other;
  };
  SIRDAR_DEVICE static Factors join(float& reference, float& sum, float other_reference,
                                    float other_sum) {
    const float top = ptx::max_of(reference, other_reference);
    const float usable = top == kMinusInfinity ? 0.0f : top;
    const Factors factors{ptx::exp2_approx(reference - usable),
                          ptx::exp2_approx(other_reference - usable)};
    reference = top;
    sum = ptx::fma_of(sum, factors.own, other_sum * factors.other);
    return factors;
  }

  SIRDAR_DEVICE void take(int slot) const {
    if (c.lane == 0) ptx::wait_until_equal(flag(slot), 1);
    ptx::syncwarp();
    const ptx::Int4 end = ptx::load_once_int4(piece(slot, kPieces));
    const Factors upper =
        join(c.rows.reference.upper, c.rows.sum.upper, number(end.x), number(end.z));
    const Factors lower =
        join(c.rows.reference.lower, c.rows.sum.lower, number(end.y), number(end.w));
    SIRDAR_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      const ptx::Int4 four = ptx::load_once_int4(piece(slot, i));
      float* const own = c.out + 4 * i;
      own[0] = ptx::fma_of(own[0], upper.own, number(four.x) * upper.other);
      own[1] = ptx::fma_of(own[1], upper.own, number(four.y) * upper.other);
      own[2] = ptx::fma_of(own[2], lower.own, number(four.z) * lower.other);
      own[3] = ptx::fma_of(own[3], lower.own, number(four.w) * lower.other);
    }
    ptx::syncwarp();
    if (c.lane == 0) ptx::store_global(flag(slot), 0);  // as it was found
  }
};

// `inverse` is of a whole item's rows; of others it is found when all parts are here.
template <ForwardConfig config, class Modification>
SIRDAR_DEVICE void finish_share(Consumer<config, Modification>& c, RowPair inverse) {
  const Share<config, Modification> share{c};
  if (c.item.split < 0) return share.give();
  if (c.item.split > 0) {
    SIRDAR_NO_UNROLL
    for (int part = 1; part <= c.item.split; ++part) share.take(share.own_slot() + part);
    c.item.split = 0;
    inverse = c.end_rows();
  }
  finish_item(c, c.item, inverse);
}

}  // namespace sirdar::sm90
