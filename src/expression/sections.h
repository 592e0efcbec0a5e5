// What a node depends on, and so how often it must be looked at where many pairs are.
#pragma once

#include "expression/ast.h"

namespace sirdar::expression {

// lanes: on the query or on nothing that varies within a sequence. keys: on the key. pairs: on both
// or on the score. distances: of pairs, on the distance and the head alone (translation.h).
enum class Section : uint8_t { lanes, keys, distances, pairs };
inline constexpr int kNumSections = 4;

// In the order of Tree::nodes; distances are among the pairs.
std::vector<Section> sections_of(const Program::Tree& tree);
// The places of one section's nodes, ascending.
std::vector<int32_t> nodes_of(const std::vector<Section>& sections, Section section);

}  // namespace sirdar::expression
