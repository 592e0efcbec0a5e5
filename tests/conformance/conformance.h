// One corpus problem on every implementation, instruction set and thread count that accepts it,
// against float64; and a reason from every implementation that does not.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "check/run_check.h"
#include "plan/implementation.h"
#include "support/call.h"
#include "support/corpus.h"

namespace sirdar::test {

inline void expect_refusal_says_why(const Problem& problem, const std::string& name) {
  PlanOptions options;
  options.implementation = name;
  const Result<Plan> plan = Plan::create(problem, options);
  if (plan.ok()) return;
  EXPECT_EQ(plan.status().code(), StatusCode::unsupported) << plan.status().message();
  const std::string& message = plan.status().message();
  const size_t at = message.find(name + ": ");
  ASSERT_NE(at, std::string::npos) << message;
  EXPECT_GT(message.size(), at + name.size() + 2 + 4) << "no reason given: " << message;
}

inline void expect_conforms(const CorpusLine& line) {
  const std::string where = line.file + ":" + std::to_string(line.line);
  SCOPED_TRACE(where + " " + line.text);
  const Result<Problem> problem = Problem::parse(line.text);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const Status legal = problem.value().validate();
  ASSERT_TRUE(legal.ok()) << legal.message();
  const std::vector<Variant> ways = variants(problem.value());
  ASSERT_FALSE(ways.empty()) << "nothing serves a legal problem";
  const uint64_t seed = std::hash<std::string>()(line.text) % 1000;
  check::Inputs inputs(problem.value(), seed);
  const check::Oracle oracle = check::make_oracle(inputs);
  for (const Variant& way : ways) {
    const check::Report report = check::check(inputs, oracle, way.options(), seed);
    EXPECT_TRUE(report.ok) << way.str() << "\n" << report.text;
  }
  for (const Implementation* one : implementations()) {
    expect_refusal_says_why(problem.value(), std::string(one->name));
  }
}

inline std::string named_after_line(const ::testing::TestParamInfo<CorpusLine>& param) {
  return named_after(param.param.text, param.index);
}

}  // namespace sirdar::test
