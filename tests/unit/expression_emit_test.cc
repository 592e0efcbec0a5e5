// Device code of expressions: its text, what it makes of bias, documents and masks, and how exact
// its elementary functions are.
#include "expression/emit_cuda.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "support/emitted_code.h"

namespace sirdar::testing {
namespace {

using expression::DeviceModification;

DeviceModification emitted(const std::string& words) {
  const Result<Problem> problem = Problem::parse("s64 h2 d16 " + words);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  const auto modifications = expression::parse(problem.value());
  EXPECT_TRUE(modifications.ok()) << modifications.status().message();
  return emit_cuda(problem.value(), modifications.value());
}

TEST(ExpressionEmit, WhatDependsOnTheQueryStandsApart) {
  EXPECT_EQ(
      emitted("score_mod:\"score - slope[h] * abs(q_pos - k)\" tensor:slope:fp32:1").definition,
      R"(struct Modification {
  static constexpr bool kScores = true, kMasks = false;
  TensorOperand tensors[1];

  struct Row {
    float v2;
    int v3;
  };
  SIRDAR_DEVICE Row begin_row(int b, int h, int q, int q_pos) const {
    const int v1 = h;
    const float v2 = language::read<float>(tensors[0], v1);
    const int v3 = q_pos;
    return {v2, v3};
  }

  struct Key {
    int v4;
  };
  SIRDAR_DEVICE Key begin_key(int b, int h, int k) const {
    const int v4 = k;
    return {v4};
  }

  SIRDAR_DEVICE float score(const Row& row, const Key& key, float score) const {
    const int v5 = language::subtract(row.v3, key.v4);
    const int v6 = language::absolute(v5);
    const float v7 = language::to_real(v6);
    const float v8 = row.v2 * v7;
    const float v9 = score - v8;
    return v9;
  }
};
)");
}

// In a backward pass; what the value and its slope share is computed once by the compiler.
TEST(ExpressionEmit, SlopesStandBesideScores) {
  const std::string text = emitted("bwd score_mod:\"q > 3 ? score * score : 2.0\"").definition;
  EXPECT_NE(text.find("float slope(const Row& row, const Key& key, float score) const"), text.npos);
  EXPECT_NE(text.find("-0x0p+0f"), text.npos) << "where the value does not depend on the score";
  EXPECT_EQ(emitted("score_mod:\"score * score\"").definition.find("slope"), text.npos);
}

TEST(ExpressionEmit, NamesOfTheCallerAreNotInTheText) {
  const auto text = [](const std::string& name) {
    return emitted("mask_mod:\"" + name + "[q] == " + name + "[k]\" tensor:" + name + ":int32:1")
        .definition;
  };
  EXPECT_EQ(text("doc"), text("asm"));
  EXPECT_EQ(text("doc").find("doc"), std::string::npos);
}

TEST(ExpressionEmit, NothingIsEmittedForNothing) {
  const DeviceModification plain = emitted("causal alibi softcap:30");
  EXPECT_TRUE(plain.is_empty());
  EXPECT_EQ(plain.definition, "");
}

TEST(ExpressionEmit, WhatVisibilityDependsOn) {
  EXPECT_FALSE(emitted("mask_mod:\"q_pos >= k\"").mask_reads_head);
  EXPECT_FALSE(emitted("mask_mod:\"q_pos >= k\"").mask_reads_batch);
  const DeviceModification windows =
      emitted("mask_mod:\"q_pos - k < width[h]\" tensor:width:int32:1");
  EXPECT_TRUE(windows.mask_reads_head);
  EXPECT_FALSE(windows.mask_reads_batch);
  EXPECT_TRUE(emitted("document").mask_reads_batch);
  EXPECT_TRUE(emitted("mask").mask_reads_head);
  EXPECT_FALSE(emitted("mask:1").has_score_mod);
}

// The functions of the language over many floats, as the text of one expression each.
TEST(ExpressionEmit, FunctionsAreExactTo5e7) {
  struct Function {
    const char* text;
    double (*exact)(double);
  };
  const Function functions[] = {
      {"exp(score)", [](double x) { return std::exp(x); }},
      {"exp2(score)", [](double x) { return std::exp2(x); }},
      {"log(score)", [](double x) { return std::log(x); }},
      {"tanh(score)", [](double x) { return std::tanh(x); }},
      {"sigmoid(score)", [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"sqrt(score)", [](double x) { return std::sqrt(x); }},
      {"1 / score", [](double x) { return 1 / x; }},
      {"score / 3e38", [](double x) { return x / static_cast<double>(3e38f); }},
      {"score / 1e-40", [](double x) { return x / static_cast<double>(1e-40f); }},
  };
  std::vector<DeviceModification> devices;
  for (const Function& function : functions)
    devices.push_back(emitted(std::string("score_mod:\"") + function.text + "\""));
  const EmittedCode code(devices);
  const std::byte none{};
  std::vector<float> inputs = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 3.4e38f};
  for (uint32_t bits = 1 << 23; bits < 0x7f800000u; bits += 0x00048d15u) {
    inputs.push_back(std::bit_cast<float>(bits));
    inputs.push_back(-inputs.back());
  }
  for (float x = -104.0f; x < 104.0f; x += 0.0437f) inputs.push_back(x);
  for (float x = 0.5f; x < 2.0f; x += 0.00137f) inputs.push_back(x);
  for (size_t i = 0; i < devices.size(); ++i) {
    for (const float x : inputs) {
      const double exact = functions[i].exact(x);
      const float value = code.score(i, &none, {.score = x});
      const double size = std::abs(exact);
      if (std::isnan(exact)) {
        ASSERT_TRUE(std::isnan(value)) << functions[i].text << " at " << x << ": " << value;
      } else if (size > 3.40282e38) {
        ASSERT_TRUE(std::abs(value) > 3.4028e38f && (value > 0) == (exact > 0))
            << functions[i].text << " at " << x << ": " << value;
      } else {
        ASSERT_LE(std::abs(value - exact), size < 1.2e-38 ? 1.2e-38 : 5e-7 * size)
            << functions[i].text << " at " << x << ": " << value << " for " << exact;
      }
    }
  }
}

}  // namespace
}  // namespace sirdar::testing
