// A bias, in the layout of a score tile.
#pragma once

#include "cuda/sm90/forward/softmax.cuh"
#include "cuda/sm90/forward/work.cuh"
#include "ptx/memory.cuh"

namespace sirdar::sm90 {

// Two neighbouring keys' entries.
template <Bias kForm>
struct BiasPair {
  uint32_t bits;

  SIRDAR_DEVICE float first() const {
    if constexpr (kForm == Bias::bf16) return ptx::float_of(bits << 16);
    return ptx::f16_to_float(static_cast<uint16_t>(bits));
  }
  SIRDAR_DEVICE float second() const {
    if constexpr (kForm == Bias::bf16) return ptx::float_of(bits & 0xffff0000u);
    return ptx::f16_to_float(static_cast<uint16_t>(bits >> 16));
  }
  SIRDAR_DEVICE static BiasPair read(const void* address) {
    return {ptx::load_constant(static_cast<const uint32_t*>(address))};
  }
  SIRDAR_DEVICE static BiasPair read(const void* a, const void* b) {
    const uint32_t low = ptx::load_constant(static_cast<const uint16_t*>(a));
    return {low | static_cast<uint32_t>(ptx::load_constant(static_cast<const uint16_t*>(b))) << 16};
  }
};
template <>
struct BiasPair<Bias::fp32> {
  float a, b;

  SIRDAR_DEVICE float first() const { return a; }
  SIRDAR_DEVICE float second() const { return b; }
  SIRDAR_DEVICE static BiasPair read(const void* address) {
    const ptx::Float2 pair = ptx::load_constant_float2(address);
    return {pair.x, pair.y};
  }
  SIRDAR_DEVICE static BiasPair read(const void* first, const void* second) {
    return {ptx::load_constant(static_cast<const float*>(first)),
            ptx::load_constant(static_cast<const float*>(second))};
  }
};

// A thread's entries: kKeys columns of two rows, eight apart; pair 2 i is the upper row's of column
// group i, pair 2 i + 1 the lower one's.
template <Bias kForm, int kKeys>
struct BiasTile {
  static constexpr int kBytes = kForm == Bias::fp32 ? 4 : 2;
  BiasPair<kForm> pairs[kKeys / 4];

  // Asks for the entries of two rows. What lies past the ends of the sequence is read from its last
  // row and key, and not used.
  template <bool kAreOfOneHead>
  SIRDAR_DEVICE void load(const BiasView& view, const WorkItem& item, QueryRow upper,
                          QueryRow lower, int first_key, int lane) {
    const auto base_of = [&](int head) {
      return static_cast<const char*>(view.data) +
             kBytes * (item.batch * view.stride_batch + head * view.stride_head);
    };
    const char* base = base_of(upper.head);
    const char* other = kAreOfOneHead ? base : base_of(lower.head);
    const int last_row = ptx::max_of(item.seqlen_q - 1, 0);
    const char* rows[2] = {base + kBytes * (ptx::min_of(upper.row, last_row) * view.stride_row),
                           other + kBytes * (ptx::min_of(lower.row, last_row) * view.stride_row)};
    const int key = first_key + 2 * (lane % 4);
    if (view.reads_pairs != 0 && first_key + kKeys <= item.seqlen_k) {
      load_pairs(rows, key);
      return;
    }
    const int last_key = ptx::max_of(item.seqlen_k - 1, 0);
    SIRDAR_UNROLL
    for (int i = 0; i < kKeys / 4; ++i) {
      const int first = ptx::min_of(key + 8 * (i / 2), last_key);
      const int second = ptx::min_of(key + 8 * (i / 2) + 1, last_key);
      pairs[i] = BiasPair<kForm>::read(rows[i & 1] + kBytes * (first * view.stride_key),
                                       rows[i & 1] + kBytes * (second * view.stride_key));
    }
  }

  // Two neighbouring keys a load.
  SIRDAR_DEVICE void load_pairs(const char* const (&rows)[2], int key) {
    const char* columns[2] = {rows[0] + kBytes * key, rows[1] + kBytes * key};
    SIRDAR_UNROLL
    for (int i = 0; i < kKeys / 4; ++i) {
      pairs[i] = BiasPair<kForm>::read(columns[i & 1] + kBytes * 8 * (i / 2));
    }
  }

  // Brings half a row of the tile whose first key is `key` nearer, where it can be read line by
  // line; a warp's lanes bring its sixteen rows.
  SIRDAR_DEVICE static void prefetch(const BiasView& view, const WorkItem& item, int head, int row,
                                     int key, int half) {
    if (view.reads_pairs == 0 || row >= item.seqlen_q) return;
    const long long offset = item.batch * view.stride_batch + head * view.stride_head +
                             row * view.stride_row + key + half * (kKeys / 2);
    ptx::prefetch_l2(static_cast<const char*>(view.data) + kBytes * offset);
  }

  // A pair whose entry is -inf is hidden, whatever its score.
  template <int kCount>
  SIRDAR_DEVICE void add(float (&scores)[kCount]) const {
    SIRDAR_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      const float first = pairs[i].first(), second = pairs[i].second();
      scores[2 * i] = first == kMinusInfinity ? first : scores[2 * i] + first;
      scores[2 * i + 1] = second == kMinusInfinity ? second : scores[2 * i + 1] + second;
    }
  }
};
template <int kKeys>
struct BiasTile<Bias::none, kKeys> {};

// A thread's entries of a tile that TMA brought, in the registers of wgmma's accumulators: word
// 4 i + j has those of scores 8 i + 2 j and 8 i + 2 j + 1.
template <Bias kForm, int kKeys>
struct StagedBias {
  uint32_t words[kKeys / 4];

  // `tile` has row 0 of the warpgroup.
  SIRDAR_DEVICE void load(uint32_t tile, int warp, int lane) {
    const int row = 16 * warp + (lane & 15);
    // Sixteen keys further under the swizzle is another bit of the address.
    const uint32_t start = tile + row * 128 + (((lane >> 4) ^ (row & 7)) << 4);
    SIRDAR_UNROLL
    for (int i = 0; i < kKeys / 16; ++i) {
      auto& four = reinterpret_cast<uint32_t(&)[4]>(words[4 * i]);
      ptx::ldmatrix_x4(four, (start ^ ((i % 4) * 32)) + (i / 4) * (64 * 128));
    }
  }

  // score * scale + bias. kIsExact: a pair whose entry is -inf is hidden whatever its score;
  // otherwise NaN and +inf make it NaN, which the caller looks for.
  template <bool kIsExact>
  SIRDAR_DEVICE static void add(float& first, float& second, uint32_t word, float scale) {
    const auto sum = [&](float score, float bias) {
      const float logit = ptx::fma_of(score, scale, bias);
      return kIsExact && bias == kMinusInfinity ? bias : logit;
    };
    const BiasPair<kForm> pair{word};
    first = sum(first, pair.first());
    second = sum(second, pair.second());
  }
  template <bool kIsExact, int kCount>
  SIRDAR_DEVICE void add(float (&scores)[kCount], float scale) const {
    SIRDAR_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      add<kIsExact>(scores[2 * i], scores[2 * i + 1], words[i], scale);
    }
  }

  // The same from the tensor, whose keys are adjacent, exactly. What lies past the ends of the
  // sequence is read from its last row and key, and not used.
  template <int kCount>
  SIRDAR_DEVICE static void add_again(float (&scores)[kCount], float scale, const BiasView& view,
                                      const WorkItem& item, int row, int first_key, int lane) {
    const auto* base = static_cast<const uint16_t*>(view.data) + item.batch * view.stride_batch +
                       item.head * view.stride_head;
    const int last_row = item.seqlen_q - 1, last_key = item.seqlen_k - 1;
    const uint16_t* rows[2] = {base + ptx::min_of(row, last_row) * view.stride_row,
                               base + ptx::min_of(row + 8, last_row) * view.stride_row};
    SIRDAR_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      const int key = first_key + 2 * (lane % 4) + 8 * (i / 2);
      const int first = ptx::min_of(key, last_key), second = ptx::min_of(key + 1, last_key);
      const BiasPair<kForm> pair = BiasPair<kForm>::read(rows[i & 1] + first, rows[i & 1] + second);
      add<true>(scores[2 * i], scores[2 * i + 1], pair.bits, scale);
    }
  }
};
template <int kKeys>
struct StagedBias<Bias::none, kKeys> {};

}  // namespace sirdar::sm90
