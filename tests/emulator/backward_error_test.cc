// Errors of dq and dk against float64: their parts are the roundings of dS, of the result and,
// unless remainders of weights are kept, of P, which are about as large: with two of three the
// error is sqrt(2/3) = 0.82 times what it is with all. dV pays for it: its weights are cut, not
// rounded.
#include <gtest/gtest.h>

#include "emulator/support/backward_run.h"

namespace sirdar::emulator_tests {
namespace {

void expect_fewer_roundings(const std::string& text) {
  constexpr uint64_t kSeed = 5;
  constexpr int kNumSms = 4;
  BackwardResult rounded = expect_right(text, kSeed, kNumSms);
  BackwardResult kept = expect_right(text + " | keeps_remainders=true", kSeed, kNumSms);
  for (const char* name : {"dq", "dk"})
    EXPECT_LE(kept.errors[name], 0.88 * rounded.errors[name]) << text << ": " << name;
  EXPECT_LE(kept.errors["dv"], 1.12 * rounded.errors["dv"]) << text;
}

TEST(EmulatedBackwardError, Plain) { expect_fewer_roundings("bwd b1 sq300 sk333 h2 d64 bf16"); }

TEST(EmulatedBackwardError, Modified) {
  expect_fewer_roundings("bwd b2 sq100 sk150 hq2 hkv1 d128 bf16 alibi causal");
}

}  // namespace
}  // namespace sirdar::emulator_tests
