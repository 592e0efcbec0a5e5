#include "expression/slope.h"

#include <numbers>

namespace sirdar::expression {
namespace {

// The nodes of the tree, and after them those of the adjoints (d value / d node), from the value
// down to the nodes that are wanted. Each node has one user, and so one way down to it: where ?:,
// min and max choose otherwise on that way, the value does not depend on it.
class Adjoints {
 public:
  // Of a value that is real.
  Adjoints(const Program::Tree& tree, const std::vector<bool>& is_wanted)
      : tree_(tree),
        count_(tree.nodes.size()),
        adjoints_(count_, kZero),
        depends_(count_, kAlways),
        is_wanted_(is_wanted) {
    const std::vector<bool> leads_on = find_users();
    adjoints_[count_ - 1] = one();
    for (size_t at = count_; at-- > 0;) {
      const Node node = tree_.nodes[at];
      if (!leads_on[at] || node.type != Type::real || adjoints_[at] == kZero) continue;
      if (is_wanted_[at]) {
        found_.push_back({static_cast<int32_t>(at), marked(at)});
      } else {
        hand_on(node, static_cast<int32_t>(at), leads_on);
      }
    }
  }

  const std::vector<ElementSlope>& found() const { return found_; }
  // The tree with the sum of what was found as its value.
  Program::Tree take_sum() {
    int32_t root = kZero;
    for (const ElementSlope& one : found_) root = sum(root, one.slope);
    if (root == kZero) root = real(kNoSlope);
    // Nothing that stands behind the value is part of it.
    tree_.nodes.resize(static_cast<size_t>(root) + 1);
    return std::move(tree_);
  }
  Program::Tree take() { return std::move(tree_); }

 private:
  static constexpr int32_t kZero = -1, kAlways = -1;

  std::vector<bool> find_users() const {
    std::vector<bool> users;
    for (size_t at = 0; at < count_; ++at) {
      const Node& node = tree_.nodes[at];
      bool one = is_wanted_[at];
      for (int i = 0; i < node.num_operands; ++i)
        one = one || users[static_cast<size_t>(node.operands[i])];
      users.push_back(one);
    }
    return users;
  }

  int32_t add(const Node& node) {
    tree_.nodes.push_back(node);
    return static_cast<int32_t>(tree_.nodes.size()) - 1;
  }
  int32_t real(double value) { return add({.op = Op::literal, .type = Type::real, .real = value}); }
  int32_t one() { return one_ == kZero ? one_ = real(1) : one_; }
  int32_t apply(Op op, int32_t a) { return add({op, Type::real, 1, {a}}); }
  int32_t apply(Op op, int32_t a, int32_t b) { return add({op, Type::real, 2, {a, b}}); }
  int32_t test(Op op, int32_t a, int32_t b) { return add({op, Type::boolean, 2, {a, b}}); }
  int32_t negated(int32_t condition) {
    return add({Op::logical_not, Type::boolean, 1, {condition}});
  }
  int32_t select(int32_t condition, int32_t a, int32_t b) {
    return add({Op::select, Type::real, 3, {condition, a, b}});
  }
  int32_t sum(int32_t a, int32_t b) {
    return a == kZero ? b : b == kZero ? a : apply(Op::add, a, b);
  }
  // `value`, which is some multiple of the adjoint; 0 where that is 0, whatever the value.
  int32_t unless_zero(int32_t adjoint, int32_t value) {
    const Node& node = tree_.nodes[static_cast<size_t>(adjoint)];
    if (node.op == Op::literal && node.real != 0) return value;
    const int32_t zero = real(0);
    const int32_t stops = test(Op::equal, adjoint, zero);
    return select(stops, zero, value);
  }
  int32_t product(int32_t adjoint, int32_t slope) {
    if (adjoint == one_) return slope;
    return unless_zero(adjoint, apply(Op::multiply, adjoint, slope));
  }
  // Of a node that is wanted: a slope of 0 is +0, and kNoSlope where the value does not depend on
  // the node. Sums of such slopes are such a slope.
  int32_t marked(size_t at) {
    const int32_t slope = adjoints_[at], depends = depends_[at];
    const int32_t number = slope == one_ ? slope : apply(Op::add, slope, real(0));
    return depends == kAlways ? number : select(depends, number, real(kNoSlope));
  }

  // height s (1 - s) with s = sigmoid(rate |x|) below 1/2: small slopes are exact too, where the
  // difference of 1 and a number near it would be all rounding.
  int32_t bell(int32_t x, double rate, double height) {
    const int32_t s = apply(Op::sigmoid, apply(Op::multiply, apply(Op::abs, x), real(rate)));
    const int32_t slope = apply(Op::multiply, s, apply(Op::subtract, one(), s));
    return height == 1 ? slope : apply(Op::multiply, slope, real(height));
  }

  // d f(x) / d x of f with one operand; y = f(x).
  int32_t slope_of(Op op, int32_t x, int32_t y) {
    switch (op) {
      case Op::negate:
        return real(-1);
      case Op::abs: {  // 0 at 0, NaN at NaN
        const int32_t zero = real(0);
        const int32_t not_above = select(test(Op::less, x, zero), real(-1), x);
        return select(test(Op::less, zero, x), one(), not_above);
      }
      case Op::exp:
        return y;
      case Op::exp2:
        return apply(Op::multiply, y, real(std::numbers::ln2));
      case Op::log:
        return apply(Op::divide, one(), x);
      case Op::tanh:
        return bell(x, -2, 4);
      case Op::sigmoid:
        return bell(x, -1, 1);
      case Op::sqrt:
        return apply(Op::divide, real(0.5), y);
      default:
        return kZero;  // floor
    }
  }

  void give(int32_t operand, int32_t adjoint, int32_t depends) {
    adjoints_[static_cast<size_t>(operand)] = adjoint;
    depends_[static_cast<size_t>(operand)] = depends;
  }
  // To what a condition chooses.
  void give_if(int32_t condition, int32_t operand, int32_t adjoint, int32_t depends) {
    const int32_t both = depends == kAlways ? condition : test(Op::logical_and, depends, condition);
    give(operand, select(condition, adjoint, real(0)), both);
  }

  void hand_on(const Node& node, int32_t at, const std::vector<bool>& leads_on) {
    const int32_t adjoint = adjoints_[static_cast<size_t>(at)];
    const int32_t depends = depends_[static_cast<size_t>(at)];
    const int32_t first = node.operands[0], second = node.operands[1];
    const auto wanted = [&](int i) { return leads_on[static_cast<size_t>(node.operands[i])]; };
    switch (node.op) {
      case Op::add:
        if (wanted(0)) give(first, adjoint, depends);
        if (wanted(1)) give(second, adjoint, depends);
        break;
      case Op::subtract:
        if (wanted(0)) give(first, adjoint, depends);
        if (wanted(1)) give(second, apply(Op::negate, adjoint), depends);
        break;
      case Op::multiply:
        if (wanted(0)) give(first, product(adjoint, second), depends);
        if (wanted(1)) give(second, product(adjoint, first), depends);
        break;
      case Op::divide:
        if (wanted(0))
          give(first, unless_zero(adjoint, apply(Op::divide, adjoint, second)), depends);
        if (wanted(1)) {
          const int32_t product = adjoint == one_ ? at : apply(Op::multiply, adjoint, at);
          const int32_t quotient = apply(Op::divide, product, second);
          give(second, unless_zero(adjoint, apply(Op::negate, quotient)), depends);
        }
        break;
      case Op::min:
      case Op::max: {
        const int32_t is_nan = test(Op::not_equal, first, first);
        const int32_t precedes =
            test(node.op == Op::min ? Op::less_equal : Op::greater_equal, first, second);
        const int32_t takes_first = test(Op::logical_or, is_nan, precedes);
        if (wanted(0)) give_if(takes_first, first, adjoint, depends);
        if (wanted(1)) give_if(negated(takes_first), second, adjoint, depends);
        break;
      }
      case Op::select:
        if (wanted(1)) give_if(first, second, adjoint, depends);
        if (wanted(2)) give_if(negated(first), node.operands[2], adjoint, depends);
        break;
      case Op::to_real:
        break;  // an int has no derivative
      default: {
        const int32_t slope = slope_of(node.op, first, at);
        if (slope != kZero) give(first, product(adjoint, slope), depends);
      }
    }
  }

  Program::Tree tree_;
  size_t count_;
  std::vector<int32_t> adjoints_;  // place of each node's in the tree
  std::vector<int32_t> depends_;   // place of whether the value depends on it
  const std::vector<bool>& is_wanted_;
  std::vector<ElementSlope> found_;
  int32_t one_ = kZero;
};

// An int has none.
bool has_slopes(const Program& score_mod) {
  return score_mod.tree().nodes.back().type == Type::real;
}

Program program_of(Program::Tree tree) {
  return Program(std::make_shared<const Program::Tree>(std::move(tree)));
}

}  // namespace

Program slope_of(const Program& score_mod) {
  if (!has_slopes(score_mod)) {
    Program::Tree tree = score_mod.tree();
    tree.nodes = {{.op = Op::literal, .type = Type::real, .real = kNoSlope}};
    return program_of(std::move(tree));
  }
  std::vector<bool> is_score;
  for (const Node& node : score_mod.tree().nodes) is_score.push_back(node.op == Op::score);
  return program_of(Adjoints(score_mod.tree(), is_score).take_sum());
}

ElementSlopes element_slopes_of(const Program& score_mod, const std::vector<bool>& wanted) {
  if (!has_slopes(score_mod)) return {score_mod, {}};
  std::vector<bool> is_wanted;
  for (const Node& node : score_mod.tree().nodes) {
    is_wanted.push_back(node.op == Op::element && node.type == Type::real &&
                        wanted[static_cast<size_t>(node.integer)]);
  }
  Adjoints adjoints(score_mod.tree(), is_wanted);
  std::vector<ElementSlope> reads = adjoints.found();
  return {program_of(adjoints.take()), std::move(reads)};
}

}  // namespace sirdar::expression
