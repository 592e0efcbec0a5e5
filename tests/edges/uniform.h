// Visibility made visible: with q = 0 all visible keys of a row weigh the same, so the output is
// the mean of their values and lse the logarithm of their number, both known by counting.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "support/call.h"

namespace sirdar::test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Visible = std::function<bool(int64_t b, int64_t h, int64_t i, int64_t j)>;

// Zero queries; value j + 1 in every column of key j.
inline void make_uniform(Call& call) {
  const Problem& p = call.problem;
  for (int64_t b = 0; b < p.batch; ++b) {
    const auto n = static_cast<size_t>(b);
    const int64_t q_columns = p.num_heads_q * p.head_dim,
                  v_columns = p.num_heads_kv * p.value_dim();
    for (int64_t i = 0; i < call.lengths().used_q[n]; ++i) {
      for (int64_t c = 0; c < q_columns; ++c)
        call.q.set_flat(call.query_row(b, i) * q_columns + c, 0);
    }
    for (int64_t j = 0; j < call.lengths().used_k[n]; ++j) {
      for (int64_t c = 0; c < v_columns; ++c) {
        call.v.set_flat(call.key_row(b, j) * v_columns + c, static_cast<double>(j + 1));
      }
    }
  }
}

// Runs a call prepared by make_uniform and checks out and lse of every row in use.
inline void expect_uniform(Call& call, const Variant& variant, const Visible& visible) {
  SCOPED_TRACE(call.problem.str() + " " + variant.str());
  const Status status = call.run(variant);
  ASSERT_TRUE(status.ok()) << status.message();
  const Problem& p = call.problem;
  for (int64_t b = 0; b < p.batch; ++b) {
    const auto n = static_cast<size_t>(b);
    for (int64_t h = 0; h < p.num_heads_q; ++h) {
      for (int64_t i = 0; i < call.lengths().used_q[n]; ++i) {
        double sum = 0, count = 0;
        for (int64_t j = 0; j < call.lengths().used_k[n]; ++j) {
          if (visible(b, h, i, j)) sum += static_cast<double>(j + 1), ++count;
        }
        const double mean = count > 0 ? sum / count : 0;
        const int64_t row = call.query_row(b, i) * p.num_heads_q + h;
        for (int64_t c = 0; c < p.value_dim(); ++c) {
          ASSERT_NEAR(call.out.flat(row * p.value_dim() + c), mean, 1e-5 * (1 + mean))
              << "b " << b << " h " << h << " i " << i;
        }
        if (!call.lse.present()) continue;
        const double lse = call.lse.flat(call.statistic(b, h, i));
        if (count == 0) {
          ASSERT_EQ(lse, -kInfinity) << "b " << b << " h " << h << " i " << i;
        } else {
          ASSERT_NEAR(lse, std::log(count), 1e-5 * (1 + std::log(count))) << "i " << i;
        }
      }
    }
  }
}

// The same on every implementation.
inline void expect_visibility(const std::string& problem, const Visible& visible,
                              const Lengths& lengths = {}) {
  Call call(problem, lengths);
  make_uniform(call);
  const std::vector<Variant> all = variants(call.problem);
  ASSERT_FALSE(all.empty()) << "nothing serves " << problem;
  for (const Variant& variant : all) expect_uniform(call, variant, visible);
}

}  // namespace sirdar::test
