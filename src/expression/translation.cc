#include "expression/translation.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace sirdar::expression {
namespace {

constexpr int64_t kAnyReach = std::numeric_limits<int64_t>::max();
// Of q, q_pos and k, also where they stand for a distance.
constexpr int64_t kPositionReach = 2 * kMaxTranslated;

// How a value moves: value(+t) = value + step * t modulo 2^32. Sums and products of ints keep to
// that even where they wrap; an order of two ints is kept only where neither does, so `reach`
// bounds the sizes of all that an int was computed from. `step` of anything but an int is 0.
struct Motion {
  bool is_known = false;
  uint32_t step = 0;
  int64_t reach = kAnyReach;

  bool is_unmoved() const { return is_known && step == 0; }
  bool can_be_ordered() const { return reach <= std::numeric_limits<int32_t>::max(); }
};

constexpr Motion kMoving{};
constexpr Motion kUnmoved{true, 0, kAnyReach};

int64_t sum(int64_t a, int64_t b) { return a > kAnyReach - b ? kAnyReach : a + b; }

Motion product(const Motion& a, const Node& b) {
  const int64_t factor = std::abs(int64_t{b.integer});
  const bool fits = factor == 0 || a.reach <= kAnyReach / factor;
  return {true, a.step * static_cast<uint32_t>(b.integer), fits ? a.reach * factor : kAnyReach};
}

bool is_comparison(Op op) { return op >= Op::less && op <= Op::not_equal; }

class Walk {
 public:
  explicit Walk(const Program::Tree& tree) : tree_(tree) {
    for (const Node& node : tree.nodes) motions_.push_back(motion(node));
  }
  const std::vector<Motion>& motions() const { return motions_; }

 private:
  const Motion& of(const Node& node, int i) const { return motions_[node.operands[i]]; }

  Motion motion(const Node& node) const {
    switch (node.op) {
      case Op::score:
        return kMoving;
      case Op::q:
      case Op::k:
      case Op::q_pos:
        return {true, 1, kPositionReach};
      case Op::literal:
        return {true, 0, node.type == Type::integer ? std::abs(int64_t{node.integer}) : kAnyReach};
      case Op::select:
        return of(node, 0).is_unmoved() ? together(of(node, 1), of(node, 2)) : kMoving;
      default:
        break;
    }
    if (is_comparison(node.op) && tree_.operand(node, 0).type == Type::integer) {
      return ordered(of(node, 0), of(node, 1)).is_known ? kUnmoved : kMoving;
    }
    if (node.type == Type::integer && node.op != Op::element) {
      const Motion result = arithmetic(node);
      if (result.is_known) return result;
    }
    for (int i = 0; i < node.num_operands; ++i)
      if (!of(node, i).is_unmoved()) return kMoving;
    return kUnmoved;
  }

  static Motion together(const Motion& a, const Motion& b) {
    if (!a.is_known || !b.is_known || a.step != b.step) return kMoving;
    return {true, a.step, std::max(a.reach, b.reach)};
  }
  // Two ints of which one may be the larger.
  static Motion ordered(const Motion& a, const Motion& b) {
    const Motion both = together(a, b);
    return both.is_unmoved() || both.can_be_ordered() ? both : kMoving;
  }

  Motion arithmetic(const Node& node) const {
    if (node.num_operands < 1) return kMoving;
    const Motion& a = of(node, 0);
    if (node.op == Op::negate) return {a.is_known, 0 - a.step, a.reach};
    if (node.num_operands < 2) return kMoving;
    const Motion& b = of(node, 1);
    if (!a.is_known || !b.is_known) return kMoving;
    switch (node.op) {
      case Op::add:
        return {true, a.step + b.step, sum(a.reach, b.reach)};
      case Op::subtract:
        return {true, a.step - b.step, sum(a.reach, b.reach)};
      case Op::multiply:
        if (tree_.operand(node, 1).op == Op::literal) return product(a, tree_.operand(node, 1));
        if (tree_.operand(node, 0).op == Op::literal) return product(b, tree_.operand(node, 0));
        return kMoving;
      case Op::min:
      case Op::max:
        return ordered(a, b);
      default:
        return kMoving;
    }
  }

  const Program::Tree& tree_;
  std::vector<Motion> motions_;
};

}  // namespace

std::vector<bool> unmoved_nodes(const Program::Tree& tree) {
  std::vector<bool> result;
  const Walk walk(tree);
  for (const Motion& motion : walk.motions()) result.push_back(motion.is_unmoved());
  return result;
}

}  // namespace sirdar::expression
