#include "reference/ladder/exact.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sirdar::ladder {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double dot(const float* a, const float* b, int64_t size) {
  double sum = 0;
  for (int64_t c = 0; c < size; ++c) sum += double{a[c]} * double{b[c]};
  return sum;
}

// In place; a row of -inf becomes zeros.
void softmax(std::span<double> row) {
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (double& x : row) sum += x = largest == kMinusInfinity ? 0 : std::exp(x - largest);
  for (double& x : row) x = sum == 0 ? 0 : x / sum;
}

}  // namespace

std::vector<double> exact_softmax(std::span<const float> scores, int64_t size) {
  std::vector<double> weights(scores.begin(), scores.end());
  for (size_t begin = 0; begin < weights.size(); begin += static_cast<size_t>(size)) {
    softmax(std::span(weights).subspan(begin, static_cast<size_t>(size)));
  }
  return weights;
}

Exact exact_attention(const Head& head, std::span<const float> q, std::span<const float> k,
                      std::span<const float> v, std::span<const float> dout,
                      const Visible& visible) {
  const int64_t n = head.seqlen, d = head.head_dim;
  Exact result;
  result.out.assign(static_cast<size_t>(n * d), 0);
  if (!dout.empty()) result.dq = result.dk = result.dv = result.out;
  std::vector<double> weights(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const float* q_row = q.data() + i * d;
    for (int64_t j = 0; j < n; ++j) {
      weights[static_cast<size_t>(j)] =
          visible(i, j) ? double{head.scale} * dot(q_row, k.data() + j * d, d) : kMinusInfinity;
    }
    softmax(weights);
    double* out = result.out.data() + i * d;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t c = 0; c < d; ++c)
        out[c] += weights[static_cast<size_t>(j)] * v[static_cast<size_t>(j * d + c)];
    }
    if (dout.empty()) continue;
    const float* dout_row = dout.data() + i * d;
    double delta = 0;
    for (int64_t c = 0; c < d; ++c) delta += double{dout_row[c]} * out[c];
    for (int64_t j = 0; j < n; ++j) {
      const double weight = weights[static_cast<size_t>(j)];
      const double dscore = head.scale * weight * (dot(dout_row, v.data() + j * d, d) - delta);
      for (int64_t c = 0; c < d; ++c) {
        result.dv[static_cast<size_t>(j * d + c)] += weight * dout_row[c];
        result.dq[static_cast<size_t>(i * d + c)] += dscore * k[static_cast<size_t>(j * d + c)];
        result.dk[static_cast<size_t>(j * d + c)] += dscore * q_row[c];
      }
    }
  }
  return result;
}

}  // namespace sirdar::ladder
