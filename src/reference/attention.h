// The definition of the operation in float64 (docs/semantics.md, line by line). Slow and clear.
#pragma once

#include <sirdar/plan.hpp>

#include <vector>

namespace sirdar::reference {

// Row-major, dense over the sequence maxima or the ragged total, like the tensors of Args:
// out [rows, num_heads_q, head_dim_v] with rows = batch * seqlen_q or total_q (batch-major);
// lse, max_logit [batch, num_heads_q, seqlen_q] or [num_heads_q, total_q].
struct Forward {
  std::vector<double> out, lse, max_logit;
};

struct Gradients {
  std::vector<double> dq, dk, dv;             // laid out like q, k, v made contiguous
  std::vector<double> dbias;                  // like bias made contiguous
  std::vector<double> dsink;                  // [num_heads_q]
  std::vector<std::vector<double>> dtensors;  // in the order of Problem::tensors
};

// Arguments must be valid (core/validate.h); outputs in args are not touched.
Forward forward(const Problem& problem, const Args& args);

// out and lse are what the gradient is taken at: forward()'s for an oracle, the caller's rounded
// ones (possibly of a larger merged problem) for an implementation.
Gradients backward(const Problem& problem, const Args& args, const Forward& saved);

// The exact visibility of one pair, mask tensors and expressions included.
bool visible(const Problem& problem, const Args& args, int64_t b, int64_t h, int64_t i, int64_t j);

}  // namespace sirdar::reference
