// Any text as an expression: a program that can be printed, evaluated, differentiated and bounded,
// or a sentence; and the vector programs of the machine say what the tree says. The first byte
// chooses the kind, the second the tile.
#include "expression/expression.h"

#include <bit>
#include <cmath>
#include <cstdlib>

#include "cpu/dispatch.h"
#include "support/rounded_bounds.h"
#include "support/slopes.h"
#include "support/vector_evaluation.h"

namespace {

using namespace sirdar;
using namespace sirdar::expression;

void require(bool holds) {
  if (!holds) std::abort();
}

struct World {
  std::vector<int32_t> ids{3, -1, 2, 2, 0, 7};
  std::vector<float> table{0.5f, -INFINITY, NAN, 1e30f};
  std::vector<uint8_t> keep{1, 0, 1};
  std::vector<ExpressionTensor> tensors{{"ids", DType::int32, 2},
                                        {"t", DType::fp32, 1},
                                        {"keep", DType::boolean, 1},
                                        {"none", DType::fp32, 3}};
  std::vector<TensorView> views{TensorView::strided(ids.data(), DType::int32, {3, 2}, {1, 3}),
                                TensorView::strided(table.data() + 3, DType::fp32, {4}, {-1}),
                                TensorView::contiguous(keep.data(), DType::boolean, {3}),
                                TensorView::contiguous(table.data(), DType::fp32, {2, 0, 2})};
  std::vector<std::string> names{"s"};
  std::vector<double> scalars{-0.25};
  Bindings bindings() const { return {views, scalars}; }
};

void run_score(const World& world, const Program& program, const Point& point) {
  const Bindings bindings = world.bindings();
  (void)program.value(bindings, point);
  require(testing::slopes_agree(program, bindings, point));
  (void)program.check(bindings, point);
}

void run_mask(const World& world, const Program& program, const Box& box) {
  const Bindings bindings = world.bindings();
  const Cover cover = program.coverage(bindings, box);
  for (int64_t q = box.q.begin; q < box.q.end; ++q) {
    for (int64_t k = box.k.begin; k < box.k.end; ++k) {
      const Point point{.b = box.b, .h = box.h, .q = q, .k = k, .q_pos = q + box.shift};
      const bool is_visible = program.allows(bindings, point);
      require(cover == Cover::part || is_visible == (cover == Cover::all));
      (void)program.check(bindings, point);
    }
  }
}

// Each pair by the vector program of every instruction set, within its stated rounding.
void run_vectors(const World& world, const Program& program, const Box& box, bool has_distances) {
  std::vector<float> scores;
  for (int64_t n = 0; n < box.q.size() * box.k.size(); ++n)
    scores.push_back(n == 5 ? NAN : 1.75f * static_cast<float>(n - 6));
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (!cpu::choose_isa(Device::host(), std::string(name_of(isa))).ok()) continue;
    const std::vector<int32_t> values = testing::evaluate(
        cpu::kernels_for(isa), 1, program, world.bindings(), box, scores, has_distances);
    for (size_t n = 0; n < values.size(); ++n) {
      const int64_t q = box.q.begin + static_cast<int64_t>(n) % box.q.size();
      const int64_t k = box.k.begin + static_cast<int64_t>(n) / box.q.size();
      const Point point{scores[n], box.b, box.h, q, k, q + box.shift};
      const auto bounds = testing::rounded_bounds(program.tree(), world.bindings(), point).back();
      require(program.tree().kind == Kind::score_mod
                  ? testing::contains(bounds, std::bit_cast<float>(values[n]))
                  : testing::contains(bounds, values[n] != 0));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const World world;
  const Kind kind = data[0] % 2 == 0 ? Kind::score_mod : Kind::mask_mod;
  const int tile = data[1];
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Result<Program> parsed = Program::parse(kind, text, world.tensors, world.names);
  if (!parsed.ok()) {
    require(parsed.status().message().starts_with(kind == Kind::score_mod ? "score_mod: "
                                                                          : "mask_mod: "));
    return 0;
  }
  const Program& program = parsed.value();
  const Result<Program> again = Program::parse(kind, program.str(), world.tensors, world.names);
  require(again.ok() && again.value() == program);
  const Box box{.b = tile % 2,
                .h = tile % 3,
                .q = {tile % 7, tile % 7 + 3},
                .k = {tile % 5, tile % 5 + 4},
                .shift = tile % 11 - 5};
  run_vectors(world, program, box, tile % 2 == 0);
  if (kind == Kind::score_mod) {
    run_score(world, program,
              {.score = tile - 100.5, .b = 1, .h = 2, .q = 3, .k = tile, .q_pos = 4});
  } else {
    run_mask(world, program, box);
  }
  return 0;
}
