// Random expressions as device code, compiled for the host: ints and bools are those of the
// language exactly, and reals lie within the stated rounding.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "expression/slope.h"
#include "support/emitted_code.h"
#include "support/random_expression.h"
#include "support/rounded_bounds.h"

namespace sirdar::testing {
namespace {

using expression::DeviceModification;
using expression::Kind;
using expression::Modifications;
using expression::Point;
using expression::Program;

// An expression with all that it reads, beyond the property that drew it.
struct Sample {
  std::string text;
  std::unique_ptr<ExpressionWorld> world;
  Modifications programs;
  DeviceModification device;
  std::vector<std::byte> bytes;
  std::vector<EmittedPoint> points;
  std::vector<expression::Box> boxes;

  const Program& program() const {
    return programs.score_mod ? *programs.score_mod : *programs.mask_mod;
  }
};

float some_score() {
  constexpr float kScores[] = {0.0f,  -0.0f, 1.0f,     -1.0f,     2.5f,  -77.0f,
                               1e-3f, 88.9f, INFINITY, -INFINITY, 3e38f, NAN};
  const int n = below(24);
  return n < 12 ? kScores[n] : 0.37f * static_cast<float>(below(2000) - 1000);
}

Sample draw(Kind kind) {
  Sample sample;
  sample.world = std::make_unique<ExpressionWorld>();
  sample.text = random_text(kind, 1 + below(5));
  const ExpressionWorld& world = *sample.world;
  (kind == Kind::score_mod ? sample.programs.score_mod : sample.programs.mask_mod) =
      world.parse(kind, sample.text);
  Problem problem;
  problem.op = Op::backward;  // with slopes
  problem.tensors = world.tensors;
  problem.scalars = world.names;
  sample.device = emit_cuda(problem, sample.programs);
  Args args;
  for (size_t i = 0; i < world.tensors.size(); ++i)
    args.tensors.push_back({world.tensors[i].name, world.views[i]});
  args.scalars.emplace_back(world.names[0], world.scalars[0]);
  sample.bytes.resize(sample.device.num_bytes());
  RC_ASSERT(pack_operands(sample.device, problem, args, sample.bytes.data()).ok());
  for (int i = 0; i < 12; ++i) {
    const int q = below(16), shift = below(9) - 4;
    sample.points.push_back({below(3), below(3), q, below(16), q + shift, some_score()});
  }
  for (int i = 0; i < 8; ++i) {
    sample.boxes.push_back(random_box());
    sample.boxes.back().num_heads = 1;
  }
  return sample;
}

std::vector<Sample> draw_all(Kind kind) {
  std::vector<Sample> samples;
  rc::check("expressions are drawn", [&] { samples.push_back(draw(kind)); });
  return samples;
}

EmittedCode compile(const std::vector<Sample>& samples) {
  std::vector<DeviceModification> devices;
  for (const Sample& sample : samples) devices.push_back(sample.device);
  return EmittedCode(devices);
}

Point at(const EmittedPoint& p) {
  return {.score = p.score, .b = p.b, .h = p.h, .q = p.q, .k = p.k, .q_pos = p.q_pos};
}

TEST(EmittedExpressions, ScoresLieWithinTheStatedRounding) {
  const std::vector<Sample> samples = draw_all(Kind::score_mod);
  ASSERT_GE(samples.size(), 50u);
  const EmittedCode code = compile(samples);
  for (size_t i = 0; i < samples.size(); ++i) {
    for (const EmittedPoint& point : samples[i].points) {
      const float value = code.score(i, samples[i].bytes.data(), point);
      const auto bounds =
          rounded_bounds(samples[i].program().tree(), samples[i].world->bindings(), at(point))
              .back();
      ASSERT_TRUE(contains(bounds, value))
          << samples[i].text << "\n"
          << samples[i].device.definition << "q " << point.q << " q_pos " << point.q_pos << " k "
          << point.k << " score " << point.score << ": " << value << " in [" << bounds.real.lo
          << ", " << bounds.real.hi << "]";
    }
  }
}

TEST(EmittedExpressions, SlopesAreThoseOfTheLanguage) {
  const std::vector<Sample> samples = draw_all(Kind::score_mod);
  const EmittedCode code = compile(samples);
  for (size_t i = 0; i < samples.size(); ++i) {
    const Program slope = expression::slope_of(samples[i].program());
    for (const EmittedPoint& point : samples[i].points) {
      const float value = code.slope(i, samples[i].bytes.data(), point);
      const auto bounds =
          rounded_bounds(slope.tree(), samples[i].world->bindings(), at(point)).back();
      ASSERT_TRUE(contains(bounds, value))
          << samples[i].text << "\n"
          << samples[i].device.definition << "q " << point.q << " q_pos " << point.q_pos << " k "
          << point.k << " score " << point.score << ": " << value << " in [" << bounds.real.lo
          << ", " << bounds.real.hi << "]";
    }
  }
}

void expect_masks(const std::vector<Sample>& samples, const EmittedCode& code) {
  for (size_t i = 0; i < samples.size(); ++i) {
    for (const EmittedPoint& point : samples[i].points) {
      const bool value = code.visible(i, samples[i].bytes.data(), point);
      const Program& program = samples[i].program();
      const auto bounds =
          rounded_bounds(program.tree(), samples[i].world->bindings(), at(point)).back();
      ASSERT_TRUE(contains(bounds, value)) << samples[i].text << samples[i].device.definition;
      // Unless rounding can turn it, the value is the reference's.
      const bool is_sure = !(bounds.truth.may_be_true && bounds.truth.may_be_false);
      if (is_sure) {
        ASSERT_EQ(value, program.allows(samples[i].world->bindings(), at(point)))
            << samples[i].text << "\n"
            << samples[i].device.definition;
      }
    }
  }
}

// Whether pairs of a box are visible, as the reference has it.
struct Seen {
  bool some = false, all = true;
};
Seen look(const Program& program, const expression::Bindings& bindings,
          const expression::Box& box) {
  Seen seen;
  for (int64_t q = box.q.begin; q < box.q.end; ++q) {
    for (int64_t k = box.k.begin; k < box.k.end; ++k) {
      const Point point{.b = box.b, .h = box.h, .q = q, .k = k, .q_pos = q + box.shift};
      const auto truth = rounded_bounds(program.tree(), bindings, point).back().truth;
      // Where rounding decides, either may be said.
      const bool is_sure = !(truth.may_be_true && truth.may_be_false);
      if (!is_sure) continue;
      seen.some |= truth.may_be_true;
      seen.all &= truth.may_be_true;
    }
  }
  return seen;
}

void expect_covers(const std::vector<Sample>& samples, const EmittedCode& code) {
  int decided = 0, decidable = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    for (const expression::Box& box : samples[i].boxes) {
      const Cover cover = code.cover(i, samples[i].bytes.data(), box);
      const Seen seen = look(samples[i].program(), samples[i].world->bindings(), box);
      ASSERT_FALSE(cover == Cover::none && seen.some) << samples[i].text << "\n"
                                                      << samples[i].device.definition;
      ASSERT_FALSE(cover == Cover::all && !seen.all) << samples[i].text << "\n"
                                                     << samples[i].device.definition;
      decided += cover != Cover::part;
      decidable += !seen.some || seen.all;
    }
  }
  EXPECT_GT(2 * decided, decidable);  // and is often sharp
}

TEST(EmittedExpressions, MasksAreThoseOfTheLanguageAndTheirCoverIsNeverWrong) {
  const std::vector<Sample> samples = draw_all(Kind::mask_mod);
  ASSERT_GE(samples.size(), 50u);
  const EmittedCode code = compile(samples);
  expect_masks(samples, code);
  expect_covers(samples, code);
}

}  // namespace
}  // namespace sirdar::testing
