// Every rung of the ladder that is climbed on a GPU, on the emulated machine: no fault, the right
// answer, with several items a block and lengths that no tile divides.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cuda/sm90/forward/rungs.h"
#include "emulator/support/forward_run.h"

namespace sirdar::emulator_tests {
namespace {

using sm90::ForwardConfig;
using sm90::MaskForm;

template <ForwardConfig product, size_t index>
void expect_right(const ForwardProblem& problem) {
  if constexpr (sm90::has_rung(product, index)) {
    constexpr ForwardConfig config = sm90::config_of_rung(product, index);
    static_assert(is_valid(config));
    ForwardRun run(config, problem);
    emulator::Launch launch = run.launch_of(index + 1);
    if (!config.is_persistent) {
      launch.grid.x = static_cast<unsigned>(run.params().num_items);
      launch.resident = 2;
    }
    const emulator::Report report = run_forward<config>(run, launch);
    EXPECT_EQ(report.fault, "") << sm90::kRungs[index].name;
  }
}

template <ForwardConfig product, size_t... kIndices>
void expect_all_right(const ForwardProblem& problem, std::index_sequence<kIndices...>) {
  (expect_right<product, kIndices>(problem), ...);
}

TEST(EmulatedRungs, Causal) {
  constexpr ForwardConfig product{.head_dim = 64,
                                  .head_dim_v = 64,
                                  .block_n = 64,
                                  .num_stages_v = 3,
                                  .mask = MaskForm::upper,
                                  .trim = 1,
                                  .writes_lse = true};
  expect_all_right<product>({.seqlen_q = 200, .seqlen_k = 200, .is_causal = true},
                            std::make_index_sequence<sm90::kRungs.size()>());
}

// Query tiles that a cluster has no rows for, and keys that no tile divides.
TEST(EmulatedRungs, ClustersWithoutAMask) {
  constexpr ForwardConfig config{.head_dim = 64,
                                 .head_dim_v = 64,
                                 .num_consumers = 1,
                                 .block_n = 64,
                                 .takes_turns = false,
                                 .moves_registers = false,
                                 .cluster_size = 2,
                                 .writes_lse = true};
  ForwardRun run(config, {.num_heads = 3, .seqlen_q = 150, .seqlen_k = 280});
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    EXPECT_EQ(run_forward<config>(run, run.launch_of(seed)).fault, "") << "seed " << seed;
  }
}

// Scores that leave the guarded range, beyond what a float's exponent holds too.
TEST(EmulatedRungs, PolynomialRepairs) {
  constexpr ForwardConfig config{
      .head_dim = 64, .head_dim_v = 64, .block_n = 64, .num_polynomial = 4};
  ForwardRun run(config, {.seqlen_q = 128, .seqlen_k = 256, .input_scale = 6.0f});
  EXPECT_EQ(run_forward<config>(run, run.launch_of(1)).fault, "");
}

template <int kDegree, bool kIsBounded>
double worst_error(float last) {
  double worst = 0;
  for (float x = -125.999f; x < last; x += 0.00137f) {
    const double exact = std::exp2(double{x});
    const double value = double{sm90::exp2_polynomial<kDegree, kIsBounded>(x)};
    worst = std::max(worst, std::fabs(value / exact - 1));
  }
  return worst;
}

TEST(Polynomial, IsWithinWhatItsDegreePromises) {
  EXPECT_LE((worst_error<3, false>(127.4f)), 7.6e-5);
  EXPECT_LE((worst_error<4, false>(127.4f)), 2.8e-6);
  EXPECT_LE((worst_error<5, false>(127.4f)), 2.3e-7);
  EXPECT_LE((worst_error<3, true>(20.0f)), 7.6e-5);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {-127.5f, -1e30f, -kInfinity}) {
    EXPECT_EQ((sm90::exp2_polynomial<3, false>(x)), 0.0f) << x;
    EXPECT_EQ((sm90::exp2_polynomial<5, true>(x)), 0.0f) << x;
  }
  for (const float x : {128.0f, 1e30f, kInfinity}) {
    EXPECT_EQ((sm90::exp2_polynomial<3, false>(x)), kInfinity) << x;
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sm90::exp2_polynomial<3, false>(nan)));
  EXPECT_TRUE(std::isnan(sm90::exp2_polynomial<4, true>(nan)));
}

}  // namespace
}  // namespace sirdar::emulator_tests
