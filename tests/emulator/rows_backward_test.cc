// The row-by-row backward on the emulated machine, launched as the library lists its launches, and
// held against float64 on hostile arguments: each at the least alignment of its elements, with gaps
// of NaN between rows and in all that is unused.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "check/inputs.h"
#include "check/run_check.h"
#include "core/elements.h"
#include "cuda/rows/backward/arguments.h"
#include "emulator/support/emulated_steps.h"
#include "emulator/support/extent.h"
#include "emulator/support/problem_list.h"
#include "support/call.h"

namespace sirdar::emulator_tests {
namespace {

constexpr const char* kList = SIRDAR_SOURCE_DIR "/tests/emulator/rows_backward.txt";
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

using Edit = std::function<void(Args&)>;

void put(const TensorView& view, std::initializer_list<int64_t> index, double value) {
  int64_t offset = 0;
  size_t axis = 0;
  for (const int64_t i : index) offset += i * view.stride[axis++];
  store_element(view, offset, value);
}

// `edit` changes inputs, of which out and lse are then made; `edit_saved` changes those.
struct Edits {
  Edit inputs, saved;
};

// `alignment`: of rows; 16 makes the kernels read many columns at once.
void expect_right(const std::string& text, uint64_t seed, int64_t alignment,
                  const Edits& edits = {}) {
  SCOPED_TRACE(text + ", alignment " + std::to_string(alignment));
  const ListedKernels kernels = listed_kernels(text, "cuda.rows.backward").value();
  const Problem& problem = kernels.problem;
  check::Inputs inputs(problem, seed, check::Style::hostile, alignment);
  if (edits.inputs) {
    edits.inputs(inputs.args());
    inputs.refresh_saved();
  }
  if (edits.saved) edits.saved(inputs.args());
  inputs.accept();
  inputs.set_workspace(rows::backward_workspace_bytes(problem));
  inputs.reset_outputs();
  const check::Oracle oracle = check::make_oracle(problem, inputs.args());
  const auto steps = rows::make_steps(problem, expression::modification_of(problem), inputs.args());
  ASSERT_TRUE(steps.ok()) << steps.status().message();
  // Too few blocks for all rows, so that each takes several.
  ASSERT_EQ(run_steps(kernels.sources, steps.value(), seed, 3), "");
  EXPECT_EQ(inputs.damage(), "");
  for (const std::string& fault : check::judge(oracle).faults) ADD_FAILURE() << fault;
}

std::vector<ListedProblem> selected() {
  std::vector<ListedProblem> chosen;
  for (const ListedProblem& one : listed_problems(kList))
    if (runs_everything() || one.is_everyday) chosen.push_back(one);
  return chosen;
}

class EmulatedRowsBackward : public ::testing::TestWithParam<ListedProblem> {};

TEST_P(EmulatedRowsBackward, MatchesFloat64) {
  const uint64_t seed = std::hash<std::string>()(GetParam().text) % 1000;
  expect_right(GetParam().text, seed, 1);
  expect_right(GetParam().text, seed + 1, 16);
}

INSTANTIATE_TEST_SUITE_P(Listed, EmulatedRowsBackward, ::testing::ValuesIn(selected()),
                         [](const auto& row) {
                           return test::named_after(row.param.text, row.index);
                         });

// A NaN reaches exactly what depends on it, through masks that cut 32 keys too.
TEST(EmulatedRowsBackwardEdges, MaskedPairsAreAsIfNeverRead) {
  const Edit edit = [](Args& args) {
    put(args.k, {0, 3, 0, 7}, kNaN);
    put(args.v, {0, 29, 1, 5}, kInf);
    put(args.q, {0, 4, 1, 1}, kInf);
    put(args.dout, {0, 44, 0, 3}, kNaN);
  };
  for (const char* mask : {"window:9,2", "causal chunk:7 window:5,"})
    expect_right(std::string("bwd b1 sq50 sk45 h2 d40 dv24 bf16 ") + mask, 7, 16, {edit, {}});
}

// exp() would turn the rounding of such an lse into any factor at all.
TEST(EmulatedRowsBackwardEdges, LevelsFarFromZero) {
  const auto shift = [](double level) {
    return [level](Args& args) {
      for (int64_t h = 0; h < args.bias.shape[1]; ++h) {
        for (int64_t k = 0; k < args.bias.shape[3]; ++k) put(args.bias, {0, h, 0, k}, level);
      }
    };
  };
  for (const double level : {-1e6, 3e4})
    expect_right("bwd b2 sq9 sk40 hq4 hkv2 d32 fp32 bias:hk dbias", 3, 1, {shift(level), {}});
}

// Keys that are a part of a larger problem's, whose out and lse are given.
TEST(EmulatedRowsBackwardEdges, OutAndLseAreTheCallers) {
  const Edit edit = [](Args& args) {
    for_each_element(args.lse, [&](int64_t offset, int64_t index) {
      const double lse = load_element(args.lse, offset);
      store_element(args.lse, offset,
                    index % 5 == 0   ? -kInf
                    : index % 5 == 1 ? lse + 1.5
                                     : lse + 0.25);
    });
    for_each_element(args.out, [&](int64_t offset, int64_t) {
      store_element(args.out, offset, 0.5 * load_element(args.out, offset));
    });
  };
  expect_right("bwd b1 sq40 sk45 hq4 hkv1 d40 dv24 bf16 softcap:2 sink dsink dlse", 5, 1,
               {{}, edit});
}

TEST(EmulatedRowsBackwardEdges, AnyStrides) {
  const Edit edit = [](Args& args) {
    args.k.stride[2] = 0;  // one head for all
    args.v.data = static_cast<uint16_t*>(args.v.data) + 44 * args.v.stride[1];
    args.v.stride[1] = -args.v.stride[1];
    args.dout.data = static_cast<uint16_t*>(args.dout.data) + args.dout.stride[0];
    args.dout.stride[0] = -args.dout.stride[0];
  };
  for (const int64_t alignment : {1, 16})
    expect_right("bwd b2 sq11 sk45 hq4 hkv2 d40 dv24 bf16", 9, alignment, {edit, {}});
}

}  // namespace
}  // namespace sirdar::emulator_tests
