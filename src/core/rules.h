// The table of rules, and the one way in which breaking one is said.
#pragma once

#include "core/validate.h"

namespace sirdar {

// "<argument>: <sentence>" as invalid_argument, with the rule's id. The sentence says what was
// given, what is allowed and what to do.
Status broken(std::string_view id, std::string_view argument, std::string_view sentence);

// docs/rules.md, whole.
std::string rules_as_markdown();

}  // namespace sirdar
