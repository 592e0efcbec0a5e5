// What the library says, and where: to a sink, to stderr when SIRDAR_LOG asks for it, else nowhere.
#include "core/log.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace sirdar {
namespace {

class Log : public ::testing::Test {
 protected:
  void SetUp() override { ::unsetenv("SIRDAR_LOG"); }
  void TearDown() override {
    set_log_sink({});
    ::unsetenv("SIRDAR_LOG");
  }
  template <class Action>
  static std::string stderr_of(const Action& action) {
    ::testing::internal::CaptureStderr();
    action();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(Log, IsSilentUnlessAsked) {
  const auto say = [] { log(LogLevel::notice, "something happened"); };
  EXPECT_EQ(stderr_of(say), "");
  ::setenv("SIRDAR_LOG", "0", 1);
  EXPECT_EQ(stderr_of(say), "");
  ::setenv("SIRDAR_LOG", "", 1);
  EXPECT_EQ(stderr_of(say), "");
}

TEST_F(Log, GoesToStderrWhenTheEnvironmentSaysSo) {
  ::setenv("SIRDAR_LOG", "1", 1);
  EXPECT_EQ(stderr_of([] { log(LogLevel::notice, "first"); }), "sirdar: notice: first\n");
  EXPECT_EQ(stderr_of([] { log(LogLevel::warning, "second"); }), "sirdar: warning: second\n");
}

TEST_F(Log, AFallbackOfThePlannerIsPrinted) {
  ::setenv("SIRDAR_LOG", "1", 1);
  const std::string text = stderr_of([] {
    PlanOptions options;
    options.allow_reference = true;
    const Problem problem = Problem::parse("bwd sq71 sk1073741825 d8 bf16").value();
    EXPECT_TRUE(Plan::create(problem, options).ok());
  });
  EXPECT_EQ(text.find("sirdar: notice: 'bwd b1 sq71 "), 0u) << text;
  EXPECT_NE(text.find("float64 reference"), std::string::npos) << text;
}

TEST_F(Log, ASinkHearsTheLevelAndTheText) {
  std::string heard;
  set_log_sink([&](LogLevel level, std::string_view text) {
    heard += (level == LogLevel::warning ? "w:" : "n:") + std::string(text) + ";";
  });
  log(LogLevel::warning, "a");
  log_once(LogLevel::notice, "key of this test", "b");
  log_once(LogLevel::notice, "key of this test", "b again");
  EXPECT_EQ(heard, "w:a;n:b;");
}

}  // namespace
}  // namespace sirdar
