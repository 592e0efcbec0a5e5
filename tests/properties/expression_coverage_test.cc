// Random typed expressions: text survives print and parse, every node's value lies in its bounds,
// and what coverage() says of a tile is true of each pair in it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "expression/bounds.h"
#include "support/random_expression.h"

namespace sirdar::expression {
namespace {

using testing::below;
using testing::random_box;

using World = testing::ExpressionWorld;

Program random_program(const World& world) {
  return testing::random_program(world, below(2) == 0 ? Kind::score_mod : Kind::mask_mod);
}

template <class Visit>
void for_each_pair(const Box& box, Visit visit) {
  for (int64_t q = box.q.begin; q < box.q.end; ++q) {
    for (int64_t k = box.k.begin; k < box.k.end; ++k) {
      for (int64_t h = box.h; h < box.h + box.num_heads; ++h)
        visit(Point{.b = box.b, .h = h, .q = q, .k = k, .q_pos = q + box.shift});
    }
  }
}

bool contains(const Bounds& bounds, Type type, Slot value) {
  if (type == Type::integer) {
    return bounds.integer.lo <= value.integer && value.integer <= bounds.integer.hi;
  }
  if (type == Type::boolean) {
    return value.boolean ? bounds.truth.may_be_true : bounds.truth.may_be_false;
  }
  if (std::isnan(value.real)) return bounds.real.may_be_nan;
  return bounds.real.lo <= value.real && value.real <= bounds.real.hi;
}

RC_GTEST_PROP(ExpressionProperties, PrintedTextParsesToAnEqualProgram, ()) {
  const World world;
  const Program program = random_program(world);
  const std::string text = program.str();
  const Program again = world.parse(program.tree().kind, text);
  RC_ASSERT(again == program);
  RC_ASSERT(again.str() == text);
}

RC_GTEST_PROP(ExpressionProperties, EveryNodeStaysInItsBounds, ()) {
  const World world;
  const Program program = random_program(world);
  const Box box = random_box();
  const auto known = bounds(program.tree(), world.bindings(), box);
  std::vector<Slot> values(program.tree().nodes.size());
  for_each_pair(box, [&](Point point) {
    point.score = 0.1 * static_cast<double>(point.q - point.k);
    evaluate(program.tree(), world.bindings(), point, values.data());
    for (size_t at = 0; at < values.size(); ++at) {
      RC_ASSERT(contains(known[at], program.tree().nodes[at].type, values[at]));
    }
  });
}

RC_GTEST_PROP(ExpressionProperties, NeverContradictsThePairs, ()) {
  const World world;
  const Program program = testing::random_program(world, Kind::mask_mod);
  const Box box = random_box();
  const Cover cover = program.coverage(world.bindings(), box);
  RC_CLASSIFY(cover == Cover::none, "none");
  RC_CLASSIFY(cover == Cover::all, "all");
  for_each_pair(box, [&](const Point& point) {
    const bool is_visible = program.allows(world.bindings(), point);
    RC_ASSERT(cover == Cover::part || is_visible == (cover == Cover::all));
  });
}

}  // namespace
}  // namespace sirdar::expression
