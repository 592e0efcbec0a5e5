// Every example of docs/expressions.md is a problem whose expressions parse.
#include <gtest/gtest.h>

#include <fstream>

#include "expression/expression.h"

namespace sirdar::expression {
namespace {

TEST(ExpressionGallery, EveryExampleParses) {
  std::ifstream file(std::string(SIRDAR_TEST_DIR) + "/../docs/expressions.md");
  ASSERT_TRUE(file.good());
  int count = 0;
  bool is_code = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) is_code = !is_code;
    if (!is_code || line.find("_mod:\"") == std::string::npos) continue;
    SCOPED_TRACE(line);
    ++count;
    const Result<Problem> problem = Problem::parse("s64 h2 d16 " + line);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    EXPECT_TRUE(problem.value().validate().ok()) << problem.value().validate().message();
    const Result<Modifications> parsed = parse(problem.value());
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  }
  EXPECT_EQ(count, 15);
}

}  // namespace
}  // namespace sirdar::expression
