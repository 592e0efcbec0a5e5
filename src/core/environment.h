// The switches that the environment sets (docs/start.md lists them).
#pragma once

#include <sirdar/status.hpp>

namespace sirdar {

// Ok, or which switch has a value that means nothing: like any argument, a switch takes effect or
// is refused. Empty values are as if unset. SIRDAR_FORCE is the planner's to check.
Status check_environment();

// SIRDAR_LOG=1.
bool is_log_on_stderr();

}  // namespace sirdar
