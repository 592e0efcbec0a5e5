// Problems as text: what is printed parses to the same problem, and what does not parse is
// explained.
#include "core/problem_string.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <sstream>

#include "support/random_problem.h"

namespace sirdar {
namespace {

Problem parsed(std::string_view text) {
  const Result<Problem> problem = Problem::parse(text);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  return problem.ok() ? problem.value() : Problem{};
}

std::string error(std::string_view text) {
  const Result<Problem> problem = Problem::parse(text);
  EXPECT_FALSE(problem.ok()) << text;
  if (problem.ok()) return {};
  EXPECT_EQ(problem.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(problem.status().argument(), "problem");
  return problem.status().message();
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

RC_GTEST_PROP(ProblemString, PrintedProblemsParseToThemselves, (const Problem& problem)) {
  const Status status = problem.validate();
  RC_ASSERT(status.message() == "");
  const Result<Problem> again = Problem::parse(problem.str());
  RC_ASSERT(again.status().message() == "");
  RC_ASSERT(again.value() == problem);
  RC_ASSERT(again.value().str() == problem.str());
}

TEST(ProblemString, OrdinaryProblemIsOneReadableLine) {
  const std::string text = "fwd b2 sq4096 sk4096 hq32 hkv8 d128 bf16 causal";
  const Problem p = parsed(text);
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.seqlen_q, 4096);
  EXPECT_EQ(p.num_heads_q, 32);
  EXPECT_EQ(p.num_heads_kv, 8);
  EXPECT_EQ(p.head_dim, 128);
  EXPECT_EQ(p.dtype_kv, DType::bf16);
  EXPECT_TRUE(p.mask.is_causal);
  EXPECT_EQ(p.str(), text);
}

TEST(ProblemString, ShorthandsSetBothSides) {
  EXPECT_EQ(parsed("s128 h4"), parsed("fwd b1 sq128 sk128 hq4 hkv4 d64 fp32"));
  EXPECT_EQ(parsed("s128 hq4"), parsed("s128 h4")) << "K/V heads default to query heads";
  EXPECT_EQ(parsed("causal:top-left s9"), parsed("top-left causal s9"));
  EXPECT_EQ(parsed("b3 s10 ragged"), parsed("ragged:30,30 b3 s10"));
  EXPECT_EQ(parsed("b3 ragged_q s10"), parsed("ragged_q:30 b3 s10"));
  EXPECT_EQ(parsed("s8 paged16"), parsed("s8 paged16 seqused_k"));
}

TEST(ProblemString, EverySideOfAWindowMayBeLeftOut) {
  EXPECT_EQ(parsed("s8 window:3,").mask, Mask::window(3, std::nullopt));
  EXPECT_EQ(parsed("s8 window:,0").mask, Mask::window(std::nullopt, 0));
  EXPECT_EQ(parsed("s8 window:3,4").mask, Mask::window(3, 4));
  EXPECT_TRUE(contains(error("s8 window:,"), "LEFT,RIGHT"));
  EXPECT_TRUE(contains(error("s8 window:4"), "LEFT,RIGHT"));
  EXPECT_TRUE(contains(error("s8 window:-1,2"), "LEFT,RIGHT"));
}

TEST(ProblemString, AxesAndDtypesOfBiasAndMask) {
  const Problem p = parsed("s8 bias:qk:bf16 mask:1");
  EXPECT_EQ(p.bias_axes, (Axes{false, false, true, true}));
  EXPECT_EQ(p.dtype_bias, DType::bf16);
  EXPECT_EQ(p.mask_axes, (Axes{false, false, false, false}));
  EXPECT_TRUE(contains(error("s8 bias:kq"), "bhqk"));
}

TEST(ProblemString, ExpressionsKeepBlanksQuotesAndBackslashes) {
  Problem p = parsed("s8");
  p.score_mod = "a \"quoted\" \\ text\nwith lines ";
  EXPECT_EQ(parsed(p.str()).score_mod, p.score_mod);
  EXPECT_TRUE(contains(error("s8 score_mod:\"x"), "does not close"));
  EXPECT_TRUE(contains(error("s8 score_mod:x"), "double quotes"));
  EXPECT_TRUE(contains(error("s8 score_mod:\"\""), "not empty"));
  EXPECT_TRUE(contains(error("s8 score_mod:\"a\"b\"c\""), "double quotes"));
}

TEST(ProblemString, FloatsAreShortestAndExact) {
  Problem p = parsed("s8 scale:0.1");
  EXPECT_EQ(p.softmax_scale, 0.1F);
  EXPECT_TRUE(contains(p.str(), "scale:0.1")) << p.str();
  EXPECT_EQ(parsed("s8 scale:0").softmax_scale, 0.0F);
  EXPECT_EQ(parsed("s8 scale:-1e30").softmax_scale, -1e30F);
}

TEST(ProblemString, ErrorsQuoteBothEndsOfALongWord) {
  const std::string word = "first" + std::string(1'000'000, 'x') + "last";
  for (const std::string& line : {word, "s8 " + word, "s8 softcap:" + word, "s8 causal " + word}) {
    const std::string said = error(line);
    EXPECT_LT(said.size(), 1000u) << said.substr(0, 100);
    EXPECT_TRUE(contains(said, "xxx ... xxx") && contains(said, "last' at column")) << said;
  }
  // Characters of several bytes stay whole.
  std::string letters;
  for (int i = 0; i < 100; ++i) letters += "\u20ac";
  EXPECT_TRUE(contains(error("s8 " + letters), "\u20ac ... \u20ac"));
}

TEST(ProblemString, ErrorsNameTheWordItsColumnAndWhatIsAllowed) {
  EXPECT_EQ(
      error("s8 causl"),
      "problem: 'causl' at column 4 is not a word of a problem string; did you mean 'causal'?");
  EXPECT_EQ(error("s8 sq9"),
            "problem: 'sq9' at column 4 sets again what 's8' at column 1 does; keep one of the "
            "two.");
  EXPECT_EQ(error("sq8"),
            "problem: seqlen_k is not given; add skN, or sN for queries and keys alike.");
  EXPECT_TRUE(contains(error("s8 chunk"), "write chunk:N"));
  EXPECT_TRUE(contains(error("s8 b-2"), "'b-2' at column 4"));
  EXPECT_TRUE(contains(error("s8 b9223372036854775808"), "whole number"));
  EXPECT_TRUE(contains(error("s8 softcap:1e99"), "fp32"));
  EXPECT_TRUE(contains(error("s8 softcap:"), "fp32"));
  for (const char* none : {"chunk:0", "softcap:0", "dropout:0", "softcap:-1", "softcap:nan"})
    EXPECT_TRUE(contains(error(std::string("s8 ") + none), "leave the word out for none")) << none;
  EXPECT_TRUE(contains(error("s8 out:fp99"), "dtype"));
  EXPECT_TRUE(contains(error("s8 tensor:a:fp32"), "NAME:DTYPE:RANK"));
  EXPECT_TRUE(contains(error("s8 tensor:a:fp32:9"), "NAME:DTYPE:RANK"));
  EXPECT_TRUE(contains(error("s8 zzzzzz"), "the words are fwd, bwd, bN"));
  EXPECT_TRUE(contains(error("b9223372036854775807 s9 ragged"), "64 bits"));
}

TEST(ProblemString, EveryWordIsInTheDocument) {
  std::ifstream file(SIRDAR_TEST_DIR "/../docs/problem_strings.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const Word& word : problem_words())
    EXPECT_TRUE(contains(text.str(), fmt::format("`{}`", word.usage))) << word.usage;
}

}  // namespace
}  // namespace sirdar
