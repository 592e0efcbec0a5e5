// One pass of `sirdar attend`, timed.
#pragma once

#include <sirdar/plan.hpp>

#include <optional>

namespace sirdar::cli {

struct PassReport {
  std::string implementation, explanation;
  double seconds = 0;
  std::optional<double> flops;         // nothing: only the data tell, and counting takes too long
  std::optional<int64_t> extra_bytes;  // peak memory beyond inputs and outputs
};

// Plans a pass and checks its arguments, so that of two passes none runs in vain. Messages name
// flags. It runs on the device_of(where).
Result<Plan> plan_pass(const Problem& problem, const Args& args, const PlanOptions& options,
                       const std::string& where);

Result<PassReport> run_pass(const Plan& plan, const Args& args);

struct CheckReport {
  bool ok = true;
  std::string text;  // "max error 2.1e-07, 0.4 of what rounding allows (dq)"
};
// Against float64 on the same inputs.
CheckReport check_pass(const Problem& problem, const Args& args);

}  // namespace sirdar::cli
