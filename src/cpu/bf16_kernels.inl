// The products in bf16 with sums in fp32, over dot_pairs() and pairs_of() of a vector layer: the
// kernels of kernels.inl, which was included before, with two elements in a word.
struct Bf16Dots {
  static constexpr int kPerWord = 2;
  static F add_product(F sum, F a, F b) { return dot_pairs(sum, a, b); }
  static F word_of(F low, F high) { return pairs_of(low, high); }
  static F first_of(F word) { return bits_as<F>(bits_as<Words>(word) & 0xffffu); }
};

// After dropout, which works on floats.
template <int W>
__attribute__((noinline)) void join_weights(float* p, int num_keys) {
  constexpr int kWidth = W * kLanes;
  float* to = p;
  for (int j = 0; j < num_keys; j += 2, p += 2 * kWidth, to += kWidth) {
    for (int at = 0; at < kWidth; at += kLanes) {
      const F second = j + 1 < num_keys ? load(p + kWidth + at) : all(0.0f);
      store(to + at, pairs_of(load(p + at), second));
    }
  }
}

__attribute__((noinline)) float dot_peak(int64_t rounds) {
  F acc[kPeakChains];
#pragma GCC unroll 16
  for (int i = 0; i < kPeakChains; ++i) acc[i] = all(static_cast<float>(i));
  // 0.75 - 0.75: the sums stay as they are.
  const F a = pairs_of(all(0.75f), all(-0.75f)), b = pairs_of(all(1.0f), all(1.0f));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kPeakChains; ++i) acc[i] = dot_pairs(acc[i], a, b);
  }
  F sum = acc[0];
#pragma GCC unroll 16
  for (int i = 1; i < kPeakChains; ++i) sum = add(sum, acc[i]);
  return sum_of(sum);
}

constexpr ProductKernels make_products() {
  return {.per_word = Bf16Dots::kPerWord,
          .qk = {qk_run<Bf16Dots, 1, true>, qk_run<Bf16Dots, 2, true>},
          .softmax = {softmax_block<Bf16Dots, 1>, softmax_block<Bf16Dots, 2>},
          .pv = {pv_block<Bf16Dots, 1>, pv_block<Bf16Dots, 2>},
          .narrow_qk = narrow_qk<Bf16Dots, Bf16Pair>,
          .narrow_pv = narrow_pv<Bf16Dots, Bf16Pair>,
          .pack_k = pack_keys<Bf16Pair>,
          .pack_v = pack_values<Bf16Pair>,
          .pack_q = {pack_rows<Bf16Pair, 1>, pack_rows<Bf16Pair, 2>},
          .join = {join_weights<1>, join_weights<2>},
          .peak = dot_peak,
          .flops_per_round = 2 * 2 * kPeakChains * kLanes};
}
