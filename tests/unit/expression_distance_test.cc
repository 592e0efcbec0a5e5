// What depends on the distance of a query and a key alone is computed once per distance.
#include <gtest/gtest.h>

#include "expression/translation.h"
#include "expression/vector_program.h"

namespace sirdar::expression {
namespace {

VectorProgram code_of(Kind kind, const std::string& text, bool has_distances = true) {
  static const std::vector<ExpressionTensor> tensors{{"slope", DType::fp32, 1},
                                                     {"table", DType::fp32, 2},
                                                     {"width", DType::int32, 1},
                                                     {"doc", DType::int32, 1}};
  static const std::vector<std::string> scalars{"cap"};
  const Result<Program> program = Program::parse(kind, text, tensors, scalars);
  EXPECT_TRUE(program.ok()) << program.status().message();
  return vectorise(program.value(), has_distances);
}

size_t pair_operations(const VectorProgram& code) {
  return code.of(Section::pairs).instructions.size();
}

TEST(ExpressionDistance, MasksOfDistancesLeaveNothingToDoPerPair) {
  for (const char* text :
       {"q_pos >= k", "q >= k", "q_pos >= k && q_pos - k < 256",
        "k > q_pos - 256 && k <= q_pos + 3", "(q_pos - k) % 4 == 0", "q_pos - k < width[h]",
        "abs(2 * k - q - q_pos) < 9 + b", "q_pos - k < cap", "min(q_pos, k + 7) >= k",
        "table[h, max(k - q, 0)] > 0"}) {
    const VectorProgram code = code_of(Kind::mask_mod, text);
    EXPECT_EQ(pair_operations(code), 0u) << text;
    EXPECT_EQ(code.result.section, Section::distances) << text;
    EXPECT_GT(pair_operations(code_of(Kind::mask_mod, text, false)), 0u) << text;
  }
}

TEST(ExpressionDistance, ScoresOfDistancesLeaveOneOperationPerPair) {
  for (const char* text :
       {"score - slope[h] * abs(q_pos - k)", "score + 0.1 * (k - q_pos)",
        "score * exp(-(q - k) * cap)", "score + table[h, min(max(q_pos - k, -12), 12) + 12]"}) {
    EXPECT_EQ(pair_operations(code_of(Kind::score_mod, text)), 1u) << text;
  }
}

TEST(ExpressionDistance, WhatMovesIsNotADistance) {
  for (const char* text : {"q_pos / 128 == k / 128", "doc[q] == doc[k]", "q + k < 9",
                           "q_pos - 2 * k < 5", "k % 2 == q % 2", "0.5 * q < k",
                           // Where the order may turn because an int wraps.
                           "q_pos + 2147483647 > k", "q * 100 + 7 < k * 100"}) {
    const VectorProgram code = code_of(Kind::mask_mod, text);
    EXPECT_TRUE(code.of(Section::distances).instructions.empty()) << text;
    EXPECT_EQ(code.of(Section::distances).num_registers, 0) << text;
  }
}

// Part of an expression by distance, the rest by pair.
TEST(ExpressionDistance, AreFoundInsideOfOthers) {
  const VectorProgram code =
      code_of(Kind::mask_mod, "q_pos >= k && (q_pos - k) % 3 != 1 && doc[q] == doc[k]");
  EXPECT_EQ(pair_operations(code), 2u);  // the comparison of documents and one &&
}

}  // namespace
}  // namespace sirdar::expression
