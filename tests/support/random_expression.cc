#include "support/random_expression.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <cmath>

namespace sirdar::testing {

using expression::Kind;

int below(int bound) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, bound)); }

namespace {

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
      return one_of("q", "k", "q_pos", "q_pos - k", "k - q", "b", "h", "0", "1", "2", "3", "7",
                    "2147483647");
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
    if (depth == 0)
      return one_of("true", "false", "q_pos >= k", "q == k", "k < 2", "k + 3 > q_pos");
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

}  // namespace

std::string random_text(Kind kind, int depth) {
  Writer writer(kind);
  return kind == Kind::score_mod ? writer.number(depth) : writer.boolean(depth);
}

ExpressionWorld::ExpressionWorld()
    : ids(*rc::gen::container<std::vector<int32_t>>(5, rc::gen::inRange(-3, 9))),
      grid(*rc::gen::container<std::vector<int32_t>>(12, rc::gen::inRange(-2, 3))),
      weights{-2.5f, 0.0f, 0.75f, 1e30f, NAN, -INFINITY},
      keep{1, 0, 0, 1, 1, 1},
      tensors{{"ids", DType::int32, 1},
              {"grid", DType::int32, 2},
              {"weights", DType::fp32, 1},
              {"keep", DType::boolean, 1}},
      views{TensorView::strided(ids.data() + 4, DType::int32, {5}, {-1}),
            TensorView::strided(grid.data(), DType::int32, {3, 4}, {1, 3}),
            TensorView::contiguous(weights.data(), DType::fp32, {6}),
            TensorView::contiguous(keep.data(), DType::boolean, {6})} {}

expression::Program ExpressionWorld::parse(Kind kind, const std::string& text) const {
  // A divisor that is always 0 is refused, rightly: not what is tested here.
  Result<expression::Program> program = expression::Program::parse(kind, text, tensors, names);
  const bool is_refused =
      !program.ok() && (program.status().message().find("is always 0") != std::string::npos ||
                        program.status().message().find("starts at 0") != std::string::npos);
  RC_PRE(!is_refused);
  RC_ASSERT(program.ok());
  return std::move(program).value();
}

expression::Program random_program(const ExpressionWorld& world, Kind kind) {
  const std::string text = random_text(kind, 1 + below(5));
  RC_LOG() << text << std::endl;
  return world.parse(kind, text);
}

expression::Box random_box() {
  expression::Box box;
  box.b = below(3);
  box.h = below(3);
  box.q.begin = below(12);
  box.q.end = box.q.begin + 1 + below(6);
  box.k.begin = below(12);
  box.k.end = box.k.begin + 1 + below(6);
  box.shift = below(9) - 4;
  box.num_heads = 1 + below(3);
  return box;
}

}  // namespace sirdar::testing
