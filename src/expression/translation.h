// What stays the same when a query and a key move together: such a value depends on the distance
// between them and on the head, and there are far fewer distances than pairs.
#pragma once

#include "expression/ast.h"

namespace sirdar::expression {

// Positions of queries and keys for which the answer holds: q and k below it, as many keys as that
// before or after the first query.
inline constexpr int64_t kMaxTranslated = int64_t{1} << 28;

// Per node: is value(q + t, q_pos + t, k + t) = value(q, q_pos, k) for every t? No when in doubt.
std::vector<bool> unmoved_nodes(const Program::Tree& tree);

}  // namespace sirdar::expression
