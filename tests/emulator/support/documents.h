// A modification for kernels on the emulated machine: documents and slopes. The struct is as
// expression/emit_cuda.cc writes it for
//   score_mod:"score - slope[h] * abs(q_pos - k)" document
#pragma once

#include <cstdlib>
#include <vector>

#include "emulator/support/forward_run.h"

namespace sirdar {

struct Modification {
  static constexpr bool kScores = true, kMasks = true;
  TensorOperand tensors[3];

  struct Row {
    int v4;
    float v8;
    int v9;
  };
  inline Row begin_row(int b, int h, int q, int q_pos) const {
    const int v4 = language::read<int>(tensors[0], b, q);
    const float v8 = language::read<float>(tensors[2], h);
    return {v4, v8, q_pos};
  }
  struct Key {
    int v3;
    int v5;
  };
  inline Key begin_key(int b, int, int k) const {
    return {language::read<int>(tensors[1], b, k), k};
  }
  inline float score(const Row& row, const Key& key, float score) const {
    const int v10 = language::absolute(language::subtract(row.v9, key.v5));
    return score - row.v8 * language::to_real(v10);
  }
  inline bool visible(const Row& row, const Key& key) const { return row.v4 == key.v3; }

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

// Documents that end inside blocks, one that no key belongs to, and ones that come back, so that
// blocks between are hidden and others seen whole.
struct Documents {
  std::vector<int> document_q, document_k;
  std::vector<float> slopes{0.25f, -0.01f};

  explicit Documents(const ForwardProblem& problem) {
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

}  // namespace emulator_tests
}  // namespace sirdar
