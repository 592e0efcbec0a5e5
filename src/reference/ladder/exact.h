// Attention of one head by its formula in float64: what the ladder's errors are measured against.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "reference/ladder/ladder.h"

namespace sirdar::ladder {

struct Exact {
  std::vector<double> out;         // [seqlen, head_dim]
  std::vector<double> dq, dk, dv;  // [seqlen, head_dim]; empty where no dout was given
};

// Whether query row i sees key j. Rows that see nothing give out = 0.
using Visible = std::function<bool(int64_t i, int64_t j)>;

// q, k, v and dout (which may be empty) are [seqlen, head_dim].
Exact exact_attention(const Head& head, std::span<const float> q, std::span<const float> k,
                      std::span<const float> v, std::span<const float> dout,
                      const Visible& visible);

// Softmax of each row of [rows, size].
std::vector<double> exact_softmax(std::span<const float> scores, int64_t size);

}  // namespace sirdar::ladder
