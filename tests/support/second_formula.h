// Attention by the textbook: whole matrices, one head at a time, written from docs/semantics.md and
// sharing no code with the reference (only Philox itself, which has known answers).
#pragma once

#include <sirdar/plan.hpp>

#include <functional>
#include <string>
#include <vector>

namespace sirdar::testing {

// An expression with its meaning and derivatives written by hand.
struct HandWritten {
  struct At {
    int64_t b, h, q, k, q_pos;
    std::function<double(const char* tensor, int64_t i, int64_t j)> tensor;  // j unused for rank 1
    double scalar;
  };
  std::string text;
  std::function<double(double score, const At&)> value;       // score_mod
  std::function<double(double score, const At&)> derivative;  // d value / d score
  std::function<double(double score, const At&)>
      by_tensor;  // d value / d the element of tensors[0]
  std::function<int64_t(const At&, int64_t columns)> element;  // which element, row-major
  std::function<bool(const At&)> allows;                       // mask_mod
};

struct Matrices {  // the tensors of reference::Forward and Gradients, same order
  std::vector<double> out, lse, max_logit;
  std::vector<double> dq, dk, dv, dbias, dsink, dtensor;
};

// Null pointers: the problem has no such expression.
Matrices second_formula(const Problem& problem, const Args& args, const HandWritten* score_mod,
                        const HandWritten* mask_mod);

}  // namespace sirdar::testing
