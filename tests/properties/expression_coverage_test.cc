// Random typed expressions: text survives print and parse, every node's value lies in its bounds,
// and what coverage() says of a tile is true of each pair in it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fmt/format.h>

#include <cmath>

#include "expression/bounds.h"

namespace sirdar::expression {
namespace {

// Uniform at every size that RapidCheck is at.
int below(int bound) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, bound)); }

template <class... T>
std::string one_of(T... texts) {
  const std::string all[] = {texts...};
  return all[below(sizeof...(texts))];
}

// Random text of one type; `depth` bounds the nesting.
class Writer {
 public:
  explicit Writer(Kind kind) : kind_(kind) {}

  std::string integer(int depth) {
    if (depth == 0 || below(4) == 0) {
      return one_of("q", "k", "q_pos", "b", "h", "0", "1", "2", "3", "7", "2147483647");
    }
    switch (below(6)) {
      case 0:
        return fmt::format("ids[{}]", integer(depth - 1));
      case 1:
        return fmt::format("grid[{}, {}]", integer(depth - 1), integer(depth - 1));
      case 2:
        return fmt::format("-({})", integer(depth - 1));
      case 3:
        return call(one_of("min", "max"), integer(depth - 1), integer(depth - 1));
      case 4:
        return select(integer(depth - 1), integer(depth - 1), depth);
      default:
        return infix(integer(depth - 1), one_of("+", "-", "*", "/", "%"), integer(depth - 1));
    }
  }

  std::string real(int depth) {
    if (depth == 0 || below(4) == 0) {
      const bool has_score = kind_ == Kind::score_mod;
      return one_of("0.5", "1e-3", "2.0", "inf", "cap", has_score ? "score" : "cap");
    }
    switch (below(7)) {
      case 0:
        return fmt::format("weights[{}]", integer(depth - 1));
      case 1:
        return infix(real(depth - 1), one_of("+", "-", "*", "/"), number(depth - 1));
      case 2:
        return infix(integer(depth - 1), one_of("+", "-", "*", "/"), real(depth - 1));
      case 3:
        return call(one_of("min", "max"), real(depth - 1), number(depth - 1));
      case 4:
        return select(real(depth - 1), number(depth - 1), depth);
      case 5:
        return fmt::format("-({})", real(depth - 1));
      default:
        return fmt::format("{}({})",
                           one_of("floor", "exp", "exp2", "log", "tanh", "sigmoid", "sqrt"),
                           number(depth - 1));
    }
  }

  std::string boolean(int depth) {
    if (depth == 0) return one_of("true", "false", "q_pos >= k", "q == k", "k < 2");
    const auto comparison = [] { return one_of("<", "<=", ">", ">=", "==", "!="); };
    switch (below(7)) {
      case 0:
        return fmt::format("keep[{}]", integer(depth - 1));
      case 1:
        return fmt::format("!({})", boolean(depth - 1));
      case 2:
        return infix(boolean(depth - 1), one_of("&&", "||", "==", "!="), boolean(depth - 1));
      case 3:
        return infix(number(depth - 1), comparison(), number(depth - 1));
      case 4:
        return select(boolean(depth - 1), boolean(depth - 1), depth);
      default:
        return infix(integer(depth - 1), comparison(), integer(depth - 1));
    }
  }

  std::string number(int depth) { return below(2) == 0 ? integer(depth) : real(depth); }

 private:
  static std::string infix(const std::string& a, const std::string& op, const std::string& b) {
    return fmt::format("({}) {} ({})", a, op, b);
  }
  static std::string call(const std::string& name, const std::string& a, const std::string& b) {
    return fmt::format("{}({}, {})", name, a, b);
  }
  std::string select(const std::string& a, const std::string& b, int depth) {
    return fmt::format("({}) ? ({}) : ({})", boolean(depth - 1), a, b);
  }
  Kind kind_;
};

// The names that a Writer uses, with random contents.
struct World {
  std::vector<int32_t> ids = *rc::gen::container<std::vector<int32_t>>(5, rc::gen::inRange(-3, 9));
  std::vector<int32_t> grid =
      *rc::gen::container<std::vector<int32_t>>(12, rc::gen::inRange(-2, 3));
  std::vector<float> weights{-2.5f, 0.0f, 0.75f, 1e30f, NAN, -INFINITY};
  std::vector<uint8_t> keep{1, 0, 0, 1, 1, 1};
  std::vector<ExpressionTensor> tensors{{"ids", DType::int32, 1},
                                        {"grid", DType::int32, 2},
                                        {"weights", DType::fp32, 1},
                                        {"keep", DType::boolean, 1}};
  std::vector<TensorView> views{TensorView::strided(ids.data() + 4, DType::int32, {5}, {-1}),
                                TensorView::strided(grid.data(), DType::int32, {3, 4}, {1, 3}),
                                TensorView::contiguous(weights.data(), DType::fp32, {6}),
                                TensorView::contiguous(keep.data(), DType::boolean, {6})};
  std::vector<std::string> names{"cap"};
  std::vector<double> scalars{1.5};

  Bindings bindings() const { return {views, scalars}; }
  Program parse(Kind kind, const std::string& text) const {
    // A divisor that is always 0 is refused, rightly: not what is tested here.
    Result<Program> program = Program::parse(kind, text, tensors, names);
    const bool is_refused =
        !program.ok() && (program.status().message().find("is always 0") != std::string::npos ||
                          program.status().message().find("starts at 0") != std::string::npos);
    RC_PRE(!is_refused);
    RC_ASSERT(program.ok());
    return std::move(program).value();
  }
};

Program random_program(const World& world) {
  const Kind kind = below(2) == 0 ? Kind::score_mod : Kind::mask_mod;
  Writer writer(kind);
  const int depth = 1 + below(5);
  const std::string text = kind == Kind::score_mod ? writer.number(depth) : writer.boolean(depth);
  RC_LOG() << text << std::endl;
  return world.parse(kind, text);
}

Box random_box() {
  Box box;
  box.b = below(3);
  box.h = below(3);
  box.q.begin = below(12);
  box.q.end = box.q.begin + 1 + below(6);
  box.k.begin = below(12);
  box.k.end = box.k.begin + 1 + below(6);
  box.shift = below(9) - 4;
  return box;
}

template <class Visit>
void for_each_pair(const Box& box, Visit visit) {
  for (int64_t q = box.q.begin; q < box.q.end; ++q) {
    for (int64_t k = box.k.begin; k < box.k.end; ++k) {
      visit(Point{.b = box.b, .h = box.h, .q = q, .k = k, .q_pos = q + box.shift});
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
  const std::string text = Writer(Kind::mask_mod).boolean(1 + below(5));
  RC_LOG() << text << std::endl;
  const Program program = world.parse(Kind::mask_mod, text);
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
