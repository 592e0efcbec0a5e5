// What every node of a tree can be while b and h stand still and q and k run over ranges.
#pragma once

#include "expression/interval.h"
#include "expression/sections.h"

#include <span>

namespace sirdar::expression {

struct Bounds {  // the node's type says which member is meant
  IntRange integer;
  RealRange real;
  Truth truth;
};

bool is_same(Type type, const Bounds& a, const Bounds& b);

// Places for the bounds of every node, in a list per section: tiles that share their queries or
// their keys share a list.
struct BoundsTable {
  std::span<const Section> sections;  // of the tree's nodes
  std::array<Bounds*, kNumSections> lists{};
  Bounds& operator[](size_t node) const { return lists[static_cast<size_t>(sections[node])][node]; }
};

// Fills the nodes of one section, of which `nodes` is the list in ascending order. Those they read
// must be there: `lanes` before `keys` before `pairs`. Of the box, `lanes` reads b, h and q, `keys`
// b and k.
void bound_section(const Program::Tree& tree, const Bindings& bindings, const Box& box,
                   std::span<const int32_t> nodes, const BoundsTable& table);

// One node, from those of its operands.
void bound_node(const Program::Tree& tree, const Bindings& bindings, const Box& box, size_t node,
                const BoundsTable& table);

constexpr Cover cover_of(Truth truth) {
  return !truth.may_be_true ? Cover::none : truth.may_be_false ? Cover::part : Cover::all;
}

// All nodes, in the order of Tree::nodes. `score` may be anything. Box::q and Box::k are not empty.
std::vector<Bounds> bounds(const Program::Tree& tree, const Bindings& bindings, const Box& box);

}  // namespace sirdar::expression
