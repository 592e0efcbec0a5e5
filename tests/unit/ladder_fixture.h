// One random head for the tests of the ladder, and attention by a second formula in float64: whole
// matrices, no maximum subtracted, gradients by the textbook's matrix products.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "reference/ladder/ladder.h"

namespace sirdar::ladder {

struct MatrixAttention {
  std::vector<double> out, lse, dq, dk, dv;
};

struct RandomHead {
  Head head;
  std::vector<float> q, k, v, dout;

  RandomHead(int64_t seqlen, int64_t head_dim, uint64_t seed = 7)
      : head{seqlen, head_dim, 0.7F / std::sqrt(static_cast<float>(head_dim))} {
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    for (auto* values : {&q, &k, &v, &dout}) {
      values->resize(static_cast<size_t>(seqlen * head_dim));
      for (float& value : *values) value = normal(generator);
    }
  }

  Tensors tensors(Machine& machine) const {
    const auto size = static_cast<int64_t>(q.size());
    return {machine.input(q),    machine.input(k),     machine.input(v),     machine.output(size),
            machine.input(dout), machine.output(size), machine.output(size), machine.output(size)};
  }

  MatrixAttention exact(const std::function<bool(int64_t, int64_t)>& visible =
                            [](int64_t, int64_t) { return true; }) const {
    const int64_t n = head.seqlen, d = head.head_dim;
    const auto at = [](const auto& matrix, int64_t row, int64_t width, int64_t column) -> double {
      return matrix[static_cast<size_t>(row * width + column)];
    };
    // sum over x of a[...] b[...] with the indices that the callers spell out
    const auto product = [](int64_t count, const std::function<double(int64_t)>& term) {
      double sum = 0;
      for (int64_t x = 0; x < count; ++x) sum += term(x);
      return sum;
    };
    MatrixAttention r;
    std::vector<double> p(static_cast<size_t>(n * n)), ds(p);
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        const double dot = product(d, [&](int64_t c) { return at(q, i, d, c) * at(k, j, d, c); });
        const double e = visible(i, j) ? std::exp(double{head.scale} * dot) : 0;
        p[static_cast<size_t>(i * n + j)] = e;
        sum += e;
      }
      for (int64_t j = 0; j < n; ++j) p[static_cast<size_t>(i * n + j)] /= sum > 0 ? sum : 1;
      r.lse.push_back(std::log(sum));
    }
    const auto dp = [&](int64_t i, int64_t j) {
      return product(d, [&](int64_t c) { return at(dout, i, d, c) * at(v, j, d, c); });
    };
    for (int64_t i = 0; i < n; ++i) {
      const double mean = product(n, [&](int64_t j) { return at(p, i, n, j) * dp(i, j); });
      for (int64_t j = 0; j < n; ++j) {
        ds[static_cast<size_t>(i * n + j)] =
            double{head.scale} * at(p, i, n, j) * (dp(i, j) - mean);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < d; ++c) {
        r.out.push_back(product(n, [&](int64_t j) { return at(p, i, n, j) * at(v, j, d, c); }));
        r.dq.push_back(product(n, [&](int64_t j) { return at(ds, i, n, j) * at(k, j, d, c); }));
        r.dk.push_back(product(n, [&](int64_t j) { return at(ds, j, n, i) * at(q, j, d, c); }));
        r.dv.push_back(product(n, [&](int64_t j) { return at(p, j, n, i) * at(dout, j, d, c); }));
      }
    }
    return r;
  }
};

// Largest absolute difference; infinite if anything is not a number or a size differs.
inline double distance(const std::vector<float>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(double{got[i]} - expected[i]);
    if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
  }
  return largest;
}

// Values are of order 1 and sums have at most a few hundred terms: a few hundred float32 roundings.
inline constexpr double kTolerance = 1e-5;

// Lengths around tiles, dimensions below and above them.
struct Size {
  int64_t seqlen, head_dim;
};
inline constexpr Size kSizes[] = {{1, 1}, {2, 3}, {7, 4}, {16, 8}, {33, 5}, {64, 16}, {65, 1}};

}  // namespace sirdar::ladder
