#include "emulator/support/backward_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "core/elements.h"
#include "emulator/support/emulated_driver.h"
#include "emulator/support/emulated_steps.h"

namespace sirdar::emulator_tests {
namespace {

// What fill_with_numbers() fills a word with; no word of marks or rows is that.
constexpr uint32_t kUnwritten = 0x4b4b4b4b;

template <class T>
std::span<const T> part_of(const void* workspace, size_t begin, size_t end) {
  const auto* const bytes = static_cast<const std::byte*>(workspace);
  return {reinterpret_cast<const T*>(bytes + begin), (end - begin) / sizeof(T)};
}

// The same bias with rows that TMA can reach, in `memory`; behind them is NaN.
TensorView reachable(const TensorView& view, std::vector<float>& memory) {
  const int64_t elements = 16 / size_bytes(view.dtype);
  TensorView other = view;
  int64_t stride = 1;
  for (size_t axis = 4; axis-- > 0;) {
    if (view.shape[axis] > 1 || axis == 3) other.stride[axis] = stride;
    stride = (stride * view.shape[axis] + 2 * elements - 1) / elements * elements;
  }
  memory.assign(static_cast<size_t>(stride) + 4, std::numeric_limits<float>::quiet_NaN());
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  other.data = reinterpret_cast<std::byte*>(memory.data()) + (16 - address % 16) % 16;
  std::vector<double> values;
  for_each_element(view,
                   [&](int64_t offset, int64_t) { values.push_back(load_element(view, offset)); });
  for_each_element(other, [&](int64_t offset, int64_t index) {
    store_element(other, offset, values[static_cast<size_t>(index)]);
  });
  return other;
}

}  // namespace

emulator::Overlapping overlapping(const ListedKernels& kernels, const cuda::Step& step,
                                  uint64_t seed) {
  const KernelSource& source = kernels.sources[step.kernel];
  const auto run = emulated_kernel(source);
  emulator::Launch launch;
  launch.grid.x = step.grid.x;
  launch.cluster = static_cast<int>(step.cluster.x);
  launch.threads = source.threads;
  launch.shared_bytes = source.shared_bytes;
  launch.seed = seed;
  const void* const params = step.params.data();
  return {launch, [=] { run(params); }};
}

std::string launch_all(const ListedKernels& kernels, const std::vector<cuda::Step>& steps,
                       uint64_t seed, const std::function<void()>& behind_convert) {
  const bool overlaps = kernels.config.as<sm90::BackwardConfig>().converts_early;
  // Of three that overlap, those of masks and prepare, two.
  const char* const first_of_masks = seed % 2 == 0 ? "cover_keys" : "cover_walks";
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto is = [&](sm90::BackwardPass pass) {
      return steps[i].kernel == static_cast<size_t>(pass);
    };
    emulator::Overlapping one = overlapping(kernels, steps[i], seed);
    if (is(sm90::BackwardPass::backward)) {
      constexpr int kMostBlocks = 60;  // which leaves convert some
      one.launch.misalignment = static_cast<unsigned>(16 * (seed % 3));
      one.launch.resident =
          static_cast<int>(std::min<unsigned>(steps[i].grid.x, kMostBlocks)) / one.launch.cluster;
    }
    emulator::Report report;
    const bool is_first = kernels.sources[steps[i].kernel].function == first_of_masks ||
                          (is(sm90::BackwardPass::backward) && overlaps);
    if (is_first && i + 1 < steps.size()) {
      report = emulator::launch(one, overlapping(kernels, steps[++i], seed));
    } else {
      report = emulator::launch(one.launch, one.kernel);
    }
    if (!report.ok()) return kernels.sources[steps[i].kernel].entry + ": " + report.fault;
    EXPECT_EQ(report.counters.stmatrix_conflicts, 0u);
    if (is(sm90::BackwardPass::convert) && behind_convert) behind_convert();
  }
  return "";
}

std::string lost_gradients(const sm90::BackwardWorkspace& layout, const void* workspace) {
  const auto words = part_of<uint32_t>(workspace, layout.lost, layout.peaks);
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == 0 || words[i] == kUnwritten) continue;
    return fmt::format("keys of sixteen of block {}, word {}: {:#x}", i / sm90::kLostWords,
                       i % sm90::kLostWords, words[i]);
  }
  const auto sums = part_of<float>(workspace, layout.dq_sum, layout.turns);
  for (size_t i = 0; i < sums.size(); ++i)
    if (!std::isfinite(sums[i])) return fmt::format("dq: sum {} is {}", i, sums[i]);
  return "";
}

int64_t num_far_rows(const sm90::BackwardWorkspace& layout, const void* workspace) {
  int64_t count = 0;
  for (const uint32_t word : part_of<uint32_t>(workspace, layout.far_rows, layout.end))
    count += word == kUnwritten ? 0 : std::popcount(word);
  return count;
}

namespace {

double relative_error(const check::Expected& expected) {
  double squares = 0, all = 0;
  for_each_element(expected.view, [&](int64_t offset, int64_t index) {
    const double value = expected.value[static_cast<size_t>(index)];
    squares += std::pow(load_element(expected.view, offset) - value, 2);
    all += value * value;
  });
  return std::sqrt(squares / all);
}

}  // namespace

BackwardResult run_backward(const std::string& text, uint64_t seed, int num_sms, const Edit& edit) {
  const ListedKernels kernels = listed_kernels(text, "cuda.sm90.backward").value();
  const auto config = kernels.config.as<sm90::BackwardConfig>();
  const expression::DeviceModification modification = expression::modification_of(kernels.problem);
  check::Inputs inputs(kernels.problem, seed, check::Style::hostile, 16);
  if (edit) edit(inputs);
  std::vector<float> bias;
  if (config.num_stages_bias > 0) inputs.args().bias = reachable(inputs.args().bias, bias);
  inputs.accept();
  const sm90::BackwardWorkspace layout = sm90::workspace_of(kernels.problem, config, modification);
  inputs.set_workspace(layout.end);
  inputs.reset_outputs();
  fill_with_numbers(inputs.args());
  const check::Oracle oracle = check::make_oracle(kernels.problem, inputs.args());
  const EmulatedDriver driver;
  const auto steps =
      sm90::make_steps(kernels.problem, config, modification, inputs.args(), num_sms);
  EXPECT_TRUE(steps.ok()) << steps.status().message();
  if (!steps.ok()) return {};
  BackwardResult result;
  const auto look = [&] {
    result.lost = lost_gradients(layout, inputs.args().workspace);
    if (has_levels(config)) result.far_rows = num_far_rows(layout, inputs.args().workspace);
  };
  EXPECT_EQ(launch_all(kernels, steps.value(), seed, look), "");
  EXPECT_EQ(inputs.damage(), "");
  result.verdict = check::judge(oracle);
  for (const check::Expected& one : oracle.expected) result.errors[one.name] = relative_error(one);
  return result;
}

BackwardResult expect_right(const std::string& text, uint64_t seed, int num_sms, const Edit& edit,
                            Lost lost) {
  SCOPED_TRACE(text + ", seed " + std::to_string(seed));
  BackwardResult result = run_backward(text, seed, num_sms, edit);
  for (const std::string& fault : result.verdict.faults) ADD_FAILURE() << fault;
  if (lost != Lost::anything) {
    EXPECT_EQ(result.lost.empty(), lost == Lost::nothing) << result.lost;
  }
  return result;
}

}  // namespace sirdar::emulator_tests
