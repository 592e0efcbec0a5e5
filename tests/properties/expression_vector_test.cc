// Random typed expressions by the vector program of every instruction set: where only ints and
// bools are involved the values are those of the language exactly, and reals lie within the stated
// rounding.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>

#include "cpu/dispatch.h"
#include "support/random_expression.h"
#include "support/rounded_bounds.h"
#include "support/vector_evaluation.h"

namespace sirdar::testing {
namespace {

using expression::Box;
using expression::Kind;
using expression::Point;
using expression::Program;

std::vector<const cpu::MicroKernels*> all_kernels() {
  std::vector<const cpu::MicroKernels*> result;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    const Result<Isa> chosen = cpu::choose_isa(Device::host(), std::string(name_of(isa)));
    if (chosen.ok()) result.push_back(&cpu::kernels_for(isa));
  }
  return result;
}

Box narrow_box(int width) {
  Box box = random_box();
  box.q.end = box.q.begin + 1 + below(width);
  box.num_heads = 1;
  return box;
}

template <class Visit>
void for_each_pair(const Box& box, Visit visit) {
  for (int64_t k = box.k.begin; k < box.k.end; ++k) {
    for (int64_t q = box.q.begin; q < box.q.end; ++q)
      visit(Point{.b = box.b, .h = box.h, .q = q, .k = k, .q_pos = q + box.shift});
  }
}

float some_score() {
  constexpr float kScores[] = {0.0f,  -0.0f, 1.0f,     -1.0f,     2.5f,  -77.0f,
                               1e-3f, 88.9f, INFINITY, -INFINITY, 3e38f, NAN};
  const int n = below(24);
  return n < 12 ? kScores[n] : 0.37f * static_cast<float>(below(2000) - 1000);
}

RC_GTEST_PROP(ExpressionVectors, ScoresLieWithinTheStatedRounding, ()) {
  const ExpressionWorld world;
  const Program program = random_program(world, Kind::score_mod);
  for (const cpu::MicroKernels* kernels : all_kernels()) {
    const int vectors = 1 + below(2);
    const Box box = narrow_box(vectors * kernels->lanes);
    std::vector<float> scores(static_cast<size_t>(box.q.size() * box.k.size()));
    for (float& score : scores) score = some_score();
    const std::vector<int32_t> actual =
        evaluate(*kernels, vectors, program, world.bindings(), box, scores, below(2) == 0);
    size_t at = 0;
    for_each_pair(box, [&](Point point) {
      point.score = scores[at];
      const float value = std::bit_cast<float>(actual[at++]);
      const auto bounds = rounded_bounds(program.tree(), world.bindings(), point).back();
      RC_LOG() << name_of(kernels->isa) << " q " << point.q << " k " << point.k << " score "
               << point.score << ": " << value << " in [" << bounds.real.lo << ", "
               << bounds.real.hi << "]" << std::endl;
      RC_ASSERT(contains(bounds, value));
    });
  }
}

RC_GTEST_PROP(ExpressionVectors, MasksAreThoseOfTheLanguage, ()) {
  const ExpressionWorld world;
  const Program program = random_program(world, Kind::mask_mod);
  for (const cpu::MicroKernels* kernels : all_kernels()) {
    const int vectors = 1 + below(2);
    const Box box = narrow_box(vectors * kernels->lanes);
    const std::vector<int32_t> actual =
        evaluate(*kernels, vectors, program, world.bindings(), box, {}, below(2) == 0);
    size_t at = 0;
    for_each_pair(box, [&](const Point& point) {
      const int32_t value = actual[at++];
      RC_ASSERT(value == 0 || value == -1);
      const auto bounds = rounded_bounds(program.tree(), world.bindings(), point).back();
      RC_ASSERT(contains(bounds, value != 0));
      // Unless rounding can turn it, the value is the reference's.
      const bool is_sure = !(bounds.truth.may_be_true && bounds.truth.may_be_false);
      if (is_sure) RC_ASSERT((value != 0) == program.allows(world.bindings(), point));
    });
  }
}

}  // namespace
}  // namespace sirdar::testing
