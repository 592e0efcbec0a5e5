// The third warp of the producer warpgroup, where results are so wide that consumers have no
// registers to make rows again themselves. They store what they have and say after every item
// whether all of it was finite; where it was not, this warp looks for the rows and makes them again
// pair by pair, from the reference on.
#pragma once

#include "cuda/sm90/forward/consumer.cuh"

namespace sirdar::sm90 {

template <ForwardConfig config, class Modification>
struct Restorer {
  const ForwardParams& params;
  const Modification& modification;
  SharedAddresses<config> s;
  int lane;

  template <class Join>
  SIRDAR_DEVICE static float over_lanes(float x, Join join) {
    SIRDAR_NO_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) x = join(x, ptx::shfl_xor(x, distance));
    return x;
  }

  // 32-bit words, two columns each.
  SIRDAR_DEVICE uint32_t* words_of(const WorkItem& item, int tile_row) const {
    const auto [head, row] = query_row_of<config>(params, item, tile_row);
    const RowView& view = params.out_rows;
    return reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(view.data) +
                                       item.batch * view.stride_batch + head * view.stride_head +
                                       (item.q_begin + row) * view.stride_row);
  }
  SIRDAR_DEVICE bool is_lost(const uint32_t* words) const {
    constexpr uint32_t kExponent = config.element == Element::bf16 ? 0x7f80u : 0x7c00u;
    bool is_any = false;
    SIRDAR_NO_UNROLL
    for (int i = lane; i < config.head_dim_v / 2; i += 32) {
      const uint32_t word = words[i];
      is_any |= (word & kExponent) == kExponent;
      is_any |= (word >> 16 & kExponent) == kExponent;
    }
    return ptx::any_sync(is_any);
  }

  // Two columns a lane at a time, so that few registers are held.
  SIRDAR_DEVICE void make_again(const WorkItem& item, int tile_row, uint32_t* words) const {
    const float scale = config.has_logits ? kLog2e : params.scale_log2;
    const ExactRow<config, Modification> exact(params, modification, item, tile_row);
    SIRDAR_NO_UNROLL
    for (int column = 2 * lane; column < columns(config.head_dim_v); column += 64) {
      float reference = kMinusInfinity, sum = 0, first = 0, second = 0;
      SIRDAR_NO_UNROLL
      for (int key = exact.begin; key < exact.end; key += 32) {
        bool is_visible = false;
        const float logit = exact.of_pair(key + lane, kMinusInfinity, [&](float score) {
          is_visible = true;
          return score * scale;
        });
        const float top = ptx::max_of(
            reference, over_lanes(logit, [](float a, float b) { return ptx::max_of(a, b); }));
        const float usable = top == kMinusInfinity ? 0.0f : top;
        const float factor = ptx::exp2_approx(reference - usable);
        const float weight = is_visible ? ptx::exp2_approx(logit - usable) : -1.0f;
        reference = top;
        sum = ptx::fma_of(sum, factor, is_visible ? weight : 0.0f);
        first *= factor;
        second *= factor;
        exact.add_values(weight, key, column, first, second);
      }
      float sink = kMinusInfinity;
      if constexpr (config.has_sink) sink = params.sink[exact.head * params.stride_sink] * kLog2e;
      sum = over_lanes(sum, [](float a, float b) { return a + b; });
      const float inverse = finish_row(reference, sum, sink).inverse;
      if (column < config.head_dim_v)
        words[column / 2] = pack<config.element>(first * inverse, second * inverse);
    }
  }

  // The same of a part of the keys, whose weights are relative to what the consumers took.
  SIRDAR_DEVICE bool is_lost(const float* part) const {
    bool is_any = false;
    SIRDAR_NO_UNROLL
    for (int i = lane; i < config.head_dim_v; i += 32) {
      is_any |= !(ptx::absolute(part[i]) < -kMinusInfinity);
    }
    return ptx::any_sync(is_any);
  }
  SIRDAR_DEVICE void look_at_part(const WorkItem& item, int tile_row) const {
    const QueryRow of = query_row_of<config>(params, item, tile_row);
    float* const part = part_results<config>(params.parts, item, of);
    if (!is_lost(part)) return;
    const float scale = config.has_logits ? kLog2e : params.scale_log2;
    const float reference = read_end(params.parts, item, of).reference;
    const ExactRow<config, Modification> exact(params, modification, item, tile_row);
    exact.each_sum(scale, reference, lane, [&](int column, float first, float second) {
      if (column < config.head_dim_v) {
        ptx::store_global(reinterpret_cast<TwoFloats*>(part + column), {first, second});
      }
    });
  }

  SIRDAR_DEVICE void look_at(int slot) const {
    const WorkItem item = read_item<config>(params, s.info(slot));
    const int first = item.block * block_m(config);
    SIRDAR_NO_UNROLL
    for (int row = first; row < first + block_m(config); ++row) {
      if (query_row<config>(row) >= item.seqlen_q || !has_head<config>(params, row)) continue;
      if constexpr (is_split(config)) {
        look_at_part(item, row);
      } else {
        uint32_t* words = words_of(item, row);
        if (is_lost(words)) make_again(item, row, words);
      }
    }
  }

  SIRDAR_DEVICE void run() const {
    for (int slot = 0;; slot = (slot + 1) % num_items_ahead(config)) {
      ptx::mbarrier_wait(s.lost_full(), slot & 1);
      const bool has_word = lane < 4 * config.num_consumers;
      auto what = Handed::finite;
      if (has_word) what = static_cast<Handed>(ptx::load_shared(s.lost(lane)));
      if (ptx::any_sync(what == Handed::no_more_items)) return;
      if (ptx::any_sync(what == Handed::lost)) {
        if (has_word) ptx::store_shared(s.lost(lane), static_cast<uint32_t>(Handed::finite));
        look_at(slot);
      }
      ptx::mbarrier_arrive(s.lost_empty());  // every lane has read words
    }
  }
};

}  // namespace sirdar::sm90
