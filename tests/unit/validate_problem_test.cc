// Each rule about a Problem is broken once; the message says what was given and what is allowed.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <set>
#include <sstream>

#include "core/rules.h"
#include "support/rule_cases.h"

namespace sirdar::testing {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

Problem base() {
  Problem p;
  p.batch = 2;
  p.seqlen_q = 5;
  p.seqlen_k = 7;
  p.num_heads_q = 4;
  p.num_heads_kv = 2;
  return p;
}

constexpr int64_t kTooLong = int64_t{1} << 31;
Problem& beyond_expressions(Problem& p) {
  p.mask_mod = "q_pos >= k";
  return p;
}

struct Case {
  std::string_view rule;
  std::function<void(Problem&)> breaks;
  std::string_view message;  // a part of it
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"V001", [](Problem& p) { p.op = static_cast<Op>(7); }, "op: value 7"},
      {"V001", [](Problem& p) { p.layout_kv = static_cast<Layout>(3); }, "layout_kv: value 3"},
      {"V001", [](Problem& p) { p.mask.alignment = static_cast<Alignment>(2); },
       "alignment: value 2"},
      {"V002", [](Problem& p) { p.batch = -1; }, "batch: -1 is negative"},
      {"V002", [](Problem& p) { p.seqlen_k = INT64_MIN; }, "seqlen_k: -9223372036854775808"},
      {"V003", [](Problem& p) { p.num_heads_kv = 0; }, "num_heads_kv: 0"},
      {"V004", [](Problem& p) { p.num_heads_q = 5; }, "5 is not a multiple of num_heads_kv = 2"},
      {"V005", [](Problem& p) { p.head_dim = 0; }, "head_dim: 0 is not from 1 to 512"},
      {"V005", [](Problem& p) { p.head_dim = 513; }, "head_dim: 513"},
      {"V006", [](Problem& p) { p.head_dim_v = -1; }, "head_dim_v: -1"},
      {"V007", [](Problem& p) { p.dtype_q = p.dtype_kv = DType::int64; },
       "int64 is not an input dtype"},
      {"V007", [](Problem& p) { p.dtype_q = static_cast<DType>(99); }, "unknown"},
      {"V008", [](Problem& p) { p.dtype_kv = DType::bf16; }, "bf16 differs from dtype_q = fp32"},
      {"V009", [](Problem& p) { p.dtype_out = DType::fp16; },
       "fp16 is not an output dtype for fp32 inputs; use fp32, or leave it unset."},
      {"V009",
       [](Problem& p) {
         p.dtype_q = p.dtype_kv = DType::fp8_e4m3;
         p.dtype_out = DType::fp16;
       },
       "use bf16 or fp32, or leave it unset."},
      {"V010", [](Problem& p) { p.layout_q = Layout::paged; }, "queries cannot be paged"},
      {"V011", [](Problem& p) { p.total_k = 3; }, "total_k: 3 is given"},
      {"V012",
       [](Problem& p) {
         p.layout_q = Layout::ragged;
         p.total_q = 11;
       },
       "total_q: 11 rows are more than batch * seqlen_q = 2 * 5"},
      {"V013", [](Problem& p) { p.page_size = 16; }, "page_size: 16"},
      {"V013",
       [](Problem& p) {
         p.layout_kv = Layout::paged;
         p.has_seqused_k = true;
       },
       "page_size: 0"},
      {"V014",
       [](Problem& p) {
         p.layout_kv = Layout::paged;
         p.page_size = 16;
       },
       "pass seqused_k"},
      {"V015",
       [](Problem& p) {
         p.op = Op::backward;
         p.layout_kv = Layout::paged;
         p.page_size = 16;
         p.has_seqused_k = true;
       },
       "no backward pass"},
      {"V016",
       [](Problem& p) {
         p.op = Op::backward;
         p.dtype_q = p.dtype_kv = DType::fp8_e4m3;
       },
       "fp8_e4m3 has no backward pass"},
      {"V017", [](Problem& p) { p.seqlen_q = int64_t{1} << 60; }, "2^60"},
      {"V017",
       [](Problem& p) {
         p.seqlen_q = p.seqlen_k = int64_t{1} << 32;
         p.has_bias = true;
       },
       "bias larger than 2^60"},
      {"V018", [](Problem& p) { p.mask = Mask::window(-1, 2); }, "window_left: -1 is negative"},
      {"V018", [](Problem& p) { p.mask = Mask::window({}, -3); },
       "leave the side out for unbounded"},
      {"V019", [](Problem& p) { p.mask.chunk_size = -4; }, "chunk_size: -4"},
      {"V020", [](Problem& p) { p.mask.alignment = Alignment::top_left; }, "has no effect without"},
      {"V021", [](Problem& p) { p.softmax_scale = kNan; }, "softmax_scale: nan"},
      {"V021", [](Problem& p) { p.softmax_scale = -kInf; }, "softmax_scale: -inf"},
      {"V022", [](Problem& p) { p.softcap = kNan; }, "softcap: nan"},
      {"V022", [](Problem& p) { p.softcap = -1; }, "softcap: -1"},
      {"V022", [](Problem& p) { p.softcap = kInf; }, "softcap: inf"},
      {"V022", [](Problem& p) { p.softcap = 1e-40f; }, "softcap: 1e-40"},
      {"V023", [](Problem& p) { p.dropout_p = 1; }, "dropout_p: 1 "},
      {"V023", [](Problem& p) { p.dropout_p = kNan; }, "dropout_p: nan"},
      {"V024", [](Problem& p) { p.mask_axes.head = false; }, "no mask tensor"},
      {"V025", [](Problem& p) { p.bias_axes.batch = false; }, "bias_axes: "},
      {"V025", [](Problem& p) { p.dtype_bias = DType::bf16; }, "dtype_bias: "},
      {"V026",
       [](Problem& p) {
         p.has_bias = true;
         p.dtype_bias = DType::int32;
       },
       "dtype_bias: int32"},
      {"V027", [](Problem& p) { p.has_dlse = true; }, "has_dlse: "},
      {"V027",
       [](Problem& p) {
         p.score_mod = "score + a[h]";
         p.tensors = {{"a", DType::fp32, 1, true}};
       },
       "tensors.needs_grad: "},
      {"V027", [](Problem& p) { p.deterministic = false; }, "deterministic: "},
      {"V028",
       [](Problem& p) {
         p.op = Op::backward;
         p.needs_lse = true;
       },
       "backward always reads lse"},
      {"V029",
       [](Problem& p) {
         p.op = Op::backward;
         p.needs_dbias = true;
       },
       "set has_bias"},
      {"V029",
       [](Problem& p) {
         p.op = Op::backward;
         p.needs_dsink = true;
       },
       "set has_sink"},
      {"V030",
       [](Problem& p) {
         p.score_mod = "score";
         p.scalars = {"2x"};
       },
       "'2x'"},
      {"V030",
       [](Problem& p) {
         p.score_mod = "score + a[h] + a";
         p.tensors = {{"a", DType::fp32, 1, false}};
         p.scalars = {"a"};
       },
       "'a'"},
      {"V031",
       [](Problem& p) {
         p.score_mod = "score + a[h]";
         p.tensors = {{"a", DType::bf16, 1, false}};
       },
       "'a' is bf16 of rank 1"},
      {"V031",
       [](Problem& p) {
         p.score_mod = "score + a[h]";
         p.tensors = {{"a", DType::fp32, 5, false}};
       },
       "rank 5"},
      {"V032",
       [](Problem& p) {
         p.op = Op::backward;
         p.score_mod = "score + a[h]";
         p.tensors = {{"a", DType::int32, 1, true}};
       },
       "has no gradient"},
      {"V033", [](Problem& p) { p.scalars = {"w"}; }, "no expression could read it"},
      {"V033",
       [](Problem& p) {
         p.score_mod = "score";
         p.scalars = {"w"};
       },
       "'w' is read by neither"},
      {"V034", [](Problem& p) { p.score_mod = "score +"; }, "score_mod: "},
      {"V034", [](Problem& p) { p.score_mod = std::string((16 << 10) + 1, ' '); },
       "16385 bytes and 16384 are allowed"},
      {"V034", [](Problem& p) { p.mask_mod = std::string(100000, '('); },
       "100000 bytes and 16384 are allowed"},
      {"V035", [](Problem& p) { beyond_expressions(p).seqlen_k = kTooLong; },
       "seqlen_k: 2147483648 is more than the 2147483647"},
      {"V035", [](Problem& p) { beyond_expressions(p).seqlen_q = kTooLong; }, "seqlen_q: 21474"},
      {"V035", [](Problem& p) { beyond_expressions(p).batch = kTooLong; }, "batch: 2147483648"},
      {"V035", [](Problem& p) { beyond_expressions(p).num_heads_q = kTooLong; }, "num_heads_q: "},
  };
  return all;
}

TEST(ValidateProblem, BaseIsValid) { EXPECT_EQ(base().validate().message(), ""); }

TEST(ValidateProblem, EachRuleIsSaid) {
  for (const Case& one : cases()) {
    Problem p = base();
    one.breaks(p);
    expect_broken(p.validate(), one.rule, one.message);
  }
}

TEST(ValidateProblem, EveryRuleHasACase) {
  std::set<std::string_view> covered;
  for (const Case& one : cases()) covered.insert(one.rule);
  for (const Rule& rule : rules())
    if (rule.id < "V040") {
      EXPECT_TRUE(covered.contains(rule.id)) << rule.id;
    }
}

TEST(ValidateProblem, EmptySizesAreLegal) {
  for (const std::string_view text : {"b0 sq4 sk4", "sq0 sk4", "sq4 sk0", "b0 s0 ragged", "s0",
                                      "bwd sq0 sk4", "bwd b0 s3", "s4 scale:0", "s4 scale:-2"}) {
    EXPECT_EQ(Problem::parse(text).value().validate().message(), "") << text;
  }
}

TEST(ValidateProblem, ExpressionsReachAsFarAsTheirIntegers) {
  Problem p = base();
  p.mask_mod = "q_pos >= k";
  p.seqlen_q = p.seqlen_k = kTooLong - 1;
  EXPECT_EQ(p.validate().message(), "");
  p.mask_mod.clear();
  p.seqlen_q = p.seqlen_k = kTooLong;
  EXPECT_EQ(p.validate().message(), "");
}

TEST(ValidateProblem, DocumentOfRulesIsCurrent) {
  std::ifstream file(SIRDAR_TEST_DIR "/../docs/rules.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string wanted = rules_as_markdown();
  if (text.str() != wanted) {
    std::ofstream(SIRDAR_BINARY_DIR "/rules.md") << wanted;
    ADD_FAILURE() << "docs/rules.md differs from the table; copy " SIRDAR_BINARY_DIR "/rules.md";
  }
}

TEST(ValidateProblem, RuleIdsAreInOrder) {
  for (size_t i = 1; i < rules().size(); ++i) EXPECT_LT(rules()[i - 1].id, rules()[i].id);
}

}  // namespace
}  // namespace sirdar::testing
