// What every case of a broken rule checks.
#pragma once

#include <sirdar/status.hpp>

namespace sirdar::testing {

// invalid_argument with this rule, and a message that starts with the argument and contains `part`.
void expect_broken(const Status& status, std::string_view rule, std::string_view part);

}  // namespace sirdar::testing
