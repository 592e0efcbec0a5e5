#include "support/rule_cases.h"

#include <gtest/gtest.h>

namespace sirdar::testing {

void expect_broken(const Status& status, std::string_view rule, std::string_view part) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << rule << " should be broken: " << part;
  EXPECT_EQ(status.rule(), rule) << status.message();
  EXPECT_TRUE(status.message().starts_with(status.argument() + ": ")) << status.message();
  EXPECT_TRUE(status.message().ends_with('.')) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

}  // namespace sirdar::testing
