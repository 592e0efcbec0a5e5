// The Hopper forward with scores and masks of the caller's, on the emulated machine. The struct is
// as expression/emit_cuda.cc writes it for
//   score_mod:"score - slope[h] * abs(q_pos - k)" document
#include <gtest/gtest.h>

#include "emulator/support/forward_run.h"

namespace sirdar {

struct Modification {
  static constexpr bool kScores = true, kMasks = true;
  TensorOperand tensors[3];

  struct Row {
    int v0;
    int v4;
    float v8;
    int v9;
  };
  inline Row begin_row(int b, int h, int q, int q_pos) const {
    const int v4 = language::read<int>(tensors[0], b, q);
    const float v8 = language::read<float>(tensors[2], h);
    return {b, v4, v8, q_pos};
  }
  inline float score(const Row& row, float score, int k) const {
    const int v10 = language::absolute(language::subtract(row.v9, k));
    return score - row.v8 * language::to_real(v10);
  }
  inline bool visible(const Row& row, int k) const {
    return row.v4 == language::read<int>(tensors[1], row.v0, k);
  }

  struct RowBounds {
    language::IntRange v0;
    language::IntRange v4;
  };
  inline RowBounds begin_row_bounds(const language::Box& box) const {
    const language::IntRange v0 = language::exactly(box.b);
    return {v0, language::read_bounds<int>(tensors[0], box, v0, box.q)};
  }
  inline language::Truth visible_bounds(const RowBounds& row, const language::Box& box) const {
    return language::equal(row.v4, language::read_bounds<int>(tensors[1], box, row.v0, box.k));
  }
};

namespace emulator_tests {
namespace {

using sm90::ForwardConfig;
using sm90::MaskForm;
using sm90::Softmax;

// Documents that end inside blocks, one that no key belongs to, and ones that come back, so that
// blocks between are hidden and others seen whole.
struct World {
  std::vector<int> document_q, document_k;
  std::vector<float> slopes{0.25f, -0.01f};

  explicit World(const ForwardProblem& problem) {
    const int length = problem.document;
    for (int q = 0; q < problem.seqlen_q; ++q) document_q.push_back(q == 77 ? -1 : q / length % 3);
    for (int k = 0; k < problem.seqlen_k; ++k) document_k.push_back(k / length % 3);
  }
  Modification modification() const {
    const auto rows = [](const std::vector<int>& ids) {
      const int count = static_cast<int>(ids.size());
      return TensorOperand{ids.data(), {0, 1}, {1, count}};
    };
    return {{rows(document_q), rows(document_k), {slopes.data(), {1}, {2}}}};
  }
  double modify(double logit, int h, int q, int k, int q_pos) const {
    const auto at = [](const auto& list, int i) { return list[static_cast<size_t>(i)]; };
    if (at(document_q, q) != at(document_k, k)) return -HUGE_VAL;
    return logit - double{at(slopes, h)} * std::abs(q_pos - k);
  }
};

template <ForwardConfig config>
void expect_right(ForwardProblem problem) {
  const World world(problem);
  const int shift = problem.seqlen_k - problem.seqlen_q;
  problem.modify = [&](double logit, int, int h, int q, int k) {
    return world.modify(logit, h, q, k, q + shift);
  };
  ForwardRun run(config, problem);
  const Modification modification = world.modification();
  if constexpr (config.has_cover) {
    EXPECT_EQ((run_cover<config>(run, modification)), "");
    // Rows 128 to 255 are of the document of keys 0 to 255, and not of that of keys 256 to 767.
    const auto all = static_cast<uint32_t>(run.params().cover.words[1] >> 32);
    const auto some = static_cast<uint32_t>(run.params().cover.words[1]);
    EXPECT_EQ(some & 0x0ff0u, 0u);
    EXPECT_EQ(all & some & 8u, 8u);
  }
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const emulator::Report report = run_forward<config>(run, run.launch_of(seed), modification);
    EXPECT_EQ(report.fault, "") << "seed " << seed;
  }
}

TEST(EmulatedModification, ConditionalSoftmax) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .softmax = Softmax::conditional,
                                 .has_logits = true,
                                 .has_score_mod = true,
                                 .has_mask_mod = true,
                                 .writes_lse = true};
  expect_right<config>({.seqlen_q = 200, .seqlen_k = 330});
}

TEST(EmulatedModification, GuardedSoftmaxUnderACausalMask) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .mask = MaskForm::upper,
                                 .has_logits = true,
                                 .has_score_mod = true,
                                 .has_mask_mod = true,
                                 .writes_lse = true};
  expect_right<config>({.seqlen_q = 256, .seqlen_k = 300, .is_causal = true});
}

TEST(EmulatedModification, HiddenBlocksArePassedOver) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .block_n = 64,
                                 .softmax = Softmax::conditional,
                                 .has_logits = true,
                                 .has_score_mod = true,
                                 .has_mask_mod = true,
                                 .has_cover = true,
                                 .writes_lse = true};
  expect_right<config>({.seqlen_q = 400, .seqlen_k = 900, .document = 256});
}

TEST(EmulatedModification, HiddenBlocksArePassedOverUnderAWindow) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .block_n = 64,
                                 .mask = MaskForm::interval,
                                 .has_logits = true,
                                 .has_score_mod = true,
                                 .has_mask_mod = true,
                                 .has_cover = true,
                                 .writes_lse = true};
  expect_right<config>({.seqlen_q = 400, .seqlen_k = 900, .window_left = 700, .document = 256});
}

}  // namespace
}  // namespace emulator_tests
}  // namespace sirdar
