// Rows that a NaN or an infinity in V has reached. A key that a row does not see has weight 0
// there, and 0 times those is NaN, in the products of tiles that the row sees in part. So where
// masks can hide, results are looked at once per item, and rows that are not finite are made again
// pair by pair, without the hidden ones. Slow, and as rare as such values.
#pragma once

#include "cuda/sm90/forward/modify.cuh"
#include "cuda/sm90/forward/work.cuh"
#include "cuda/sm90/lost_rows.cuh"

namespace sirdar::sm90 {

template <ForwardConfig config>
SIRDAR_DEVICE float value_of(uint16_t bits) {
  if constexpr (config.element == Element::fp16) return ptx::f16_to_float(bits);
  return ptx::float_of(static_cast<uint32_t>(bits) << 16);
}

template <ForwardConfig config>
SIRDAR_DEVICE const uint16_t* row_of(const RowView& view, int batch, int head, int row) {
  return static_cast<const uint16_t*>(view.data) + batch * view.stride_batch +
         head * view.stride_head + row * view.stride_row;
}

// The pairs of one query row, made by a whole warp.
template <ForwardConfig config, class Modification>
struct ExactRow {
  const ForwardParams& params;
  const Modification& modification;
  const WorkItem& item;
  int head, row;          // row: of the sequence
  int begin, end;         // keys that its own bounds leave, and the item
  int key_head, k_begin;  // k_begin: the sequence's first key in ragged tensors

  SIRDAR_DEVICE ExactRow(const ForwardParams& p, const Modification& m, const WorkItem& of,
                         int tile_row)
      : params(p), modification(m), item(of) {
    const QueryRow own = query_row_of<config>(p, of, tile_row);
    head = own.head;
    row = own.row;
    const KeyBounds<config> bounds(p, of.seqlen_q, of.seqlen_k);
    begin = bounds.lo(row);
    end = bounds.hi(row);
    key_head = p.by_group.quotient(of.head);
    if constexpr (is_split(config)) {
      begin = ptx::max_of(begin, of.first_block * config.block_n);
      end = ptx::min_of(end, (of.first_block + of.num_blocks) * config.block_n);
    }
    k_begin = rows_of<config>(p.cu_seqlens_k, p.seqused_k, p.seqlen_k, of.batch).begin;
  }

  // Logits as the softmax takes them.
  SIRDAR_DEVICE float score(int key) const {
    const uint16_t* own = row_of<config>(params.q_rows, item.batch, head, item.q_begin + row);
    const uint16_t* other = row_of<config>(params.k_rows, item.batch, key_head, k_begin + key);
    float sum = 0;
    SIRDAR_NO_UNROLL
    for (int d = 0; d < config.head_dim; ++d) {
      sum = ptx::fma_of(value_of<config>(ptx::load_constant(own + d)),
                        value_of<config>(ptx::load_constant(other + d)), sum);
    }
    return sum;
  }
  SIRDAR_DEVICE float bias(int key) const {
    const BiasView& view = params.bias;
    const long long offset = item.batch * view.stride_batch + head * view.stride_head +
                             row * view.stride_row + key * view.stride_key;
    if constexpr (config.bias == Bias::fp32) {
      return ptx::load_constant(static_cast<const float*>(view.data) + offset);
    } else {
      const BiasPair<config.bias> pair{
          ptx::load_constant(static_cast<const uint16_t*>(view.data) + offset)};
      return pair.first();
    }
  }

  // 2^(logit - reference); negative where the pair is hidden.
  SIRDAR_DEVICE float weight(int key, float scale, float reference) const {
    constexpr float kHidden = -1.0f;
    return of_pair(key, kHidden, [&](float logit) {
      return ptx::exp2_approx(ptx::fma_of(logit, scale, -reference));
    });
  }
  // To the sums of columns `column` and the next what 32 keys from `key` on add, whose weights the
  // lanes hold; negative ones are hidden.
  SIRDAR_DEVICE void add_values(float weights, int key, int column, float& first,
                                float& second) const {
    SIRDAR_NO_UNROLL
    for (int j = 0; j < 32; ++j) {
      const float weight = ptx::float_of(ptx::shfl(ptx::bits_of(weights), j));
      if (weight < 0 || column >= config.head_dim_v) continue;
      const uint16_t* pair =
          row_of<config>(params.v_rows, item.batch, key_head, k_begin + key + j) + column;
      first = ptx::fma_of(weight, value_of<config>(ptx::load_constant(pair)), first);
      second = ptx::fma_of(weight, value_of<config>(ptx::load_constant(pair + 1)), second);
    }
  }

  // The row's weights, taken relative to `reference`, times V: two columns a lane at a time.
  template <class Write>
  SIRDAR_DEVICE void each_sum(float scale, float reference, int lane, Write write) const {
    SIRDAR_NO_UNROLL
    for (int column = 2 * lane; column < columns(config.head_dim_v); column += 64) {
      float first = 0, second = 0;
      SIRDAR_NO_UNROLL
      for (int key = begin; key < end; key += 32) {
        add_values(weight(key + lane, scale, reference), key, column, first, second);
      }
      write(column, first, second);
    }
  }

  // finish(logit), or `hidden`; key: from `begin` on.
  template <class Finish>
  SIRDAR_DEVICE float of_pair(int key, float hidden, Finish finish) const {
    if (key >= end) return hidden;
    const int q_pos = row + item.seqlen_k - item.seqlen_q;
    float logit = score(key);
    if constexpr (config.has_logits) logit *= params.scale_log2;
    if constexpr (config.has_softcap) logit = saturated(logit / params.softcap) * params.softcap;
    if constexpr (config.has_alibi) {
      const float slope =
          params.alibi[item.batch * params.stride_alibi_batch + head * params.stride_alibi_head];
      logit -= slope * ptx::absolute(static_cast<float>(q_pos - key));
    }
    if constexpr (config.bias != Bias::none) {
      const float more = bias(key);
      if (more == kMinusInfinity) return hidden;
      logit += more;
    }
    if constexpr (config.has_score_mod || config.has_mask_mod) {
      const auto of_row = modification.begin_row(item.batch, head, row, q_pos);
      const auto of_key = modification.begin_key(item.batch, head, key);
      if constexpr (config.has_score_mod) logit = modification.score(of_row, of_key, logit);
      if constexpr (config.has_mask_mod) {
        if (!modification.visible(of_row, of_key)) return hidden;
      }
    }
    return finish(logit);
  }
};

// Of a warp's sixteen results those that are not finite (cuda/sm90/lost_rows.cuh).
struct LostRows {
  uint32_t upper = 0, lower = 0;
};
template <int kCount>
SIRDAR_DEVICE LostRows lost_rows(const float (&out)[kCount]) {
  return find_lost<2>(out, [](uint32_t upper, uint32_t lower) { return LostRows{upper, lower}; });
}

// Makes them again, two columns a lane at a time, so that few registers are held; write(row of
// sixteen, column, two results). first_row: tile row of the first; `inverse` are the
// normalisers.
template <ForwardConfig config, class Modification, class Write>
SIRDAR_DEVICE void restore_rows(const ForwardParams& params, const Modification& modification,
                                const WorkItem& item, int first_row, int lane, float scale,
                                LostRows lost, RowPair reference, RowPair inverse, Write write) {
  SIRDAR_NO_UNROLL
  while ((lost.upper | lost.lower) != 0) {
    const bool is_lower = lost.upper == 0;
    const uint32_t left = is_lower ? lost.lower : lost.upper;
    const int owner = ptx::lowest_bit(left), place = owner / 4 + (is_lower ? 8 : 0);
    lost.upper &= lost.upper - (is_lower ? 0 : 1);
    lost.lower &= lost.lower - (is_lower ? 1 : 0);
    const auto of_owner = [&](RowPair pair) {
      return ptx::float_of(ptx::shfl(ptx::bits_of(is_lower ? pair.lower : pair.upper), owner));
    };
    const float at = of_owner(reference), factor = of_owner(inverse);
    const int row = query_row<config>(first_row + place);
    // A row that sees nothing has no reference, and its result is 0 already.
    if (row >= item.seqlen_q || at == kMinusInfinity) continue;
    if (!has_head<config>(params, first_row + place)) continue;
    const ExactRow<config, Modification> exact(params, modification, item, first_row + place);
    exact.each_sum(scale, at, lane, [&](int column, float first, float second) {
      write(place, column, first * factor, second * factor);
    });
  }
}

}  // namespace sirdar::sm90
