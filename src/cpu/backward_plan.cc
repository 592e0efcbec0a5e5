// The CPU backward behind the planner's door.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/geometry.h"
#include "cpu/backward.h"
#include "cpu/cpu.h"
#include "cpu/dispatch.h"
#include "cpu/executor.h"
#include "plan/config_fields.h"

namespace sirdar::cpu {
namespace {

// Positions relative to a block are 32-bit in the kernels.
constexpr int64_t kMaxSeqlen = int64_t{1} << 30;
// Of block_m, block_n and, in rows, of a range: beyond it nothing is gained.
constexpr int32_t kMaxBlock = 1024, kMaxRange = 1 << 20;

Status supports(const Problem& problem, const Device& device) {
  if (device.kind != DeviceKind::cpu)
    return {StatusCode::unsupported, fmt::format("runs on a CPU, and {} is a GPU", device.name)};
  if (problem.op != Op::backward)
    return {StatusCode::unsupported, "computes the backward pass only"};
  if (std::max(problem.seqlen_q, problem.seqlen_k) > kMaxSeqlen)
    return {StatusCode::unsupported, fmt::format("takes sequences of up to {} rows", kMaxSeqlen)};
  return {};
}

Status check(const Problem& problem, const BackwardConfig& config) {
  const auto invalid = [](std::string message) {
    return Status(StatusCode::invalid_argument, "knobs: " + std::move(message), "knobs");
  };
  const auto is_multiple = [](int32_t value, int32_t unit, int32_t most) {
    return value >= unit && value <= most && value % unit == 0;
  };
  const int width = kMaxVectors * kernels_for(config.isa).lanes;
  const auto bad_block = [&](std::string_view name, int32_t value) {
    return invalid(fmt::format("{}={} is not a multiple of {} up to {}; choose one.", name, value,
                               width, kMaxBlock));
  };
  if (!is_multiple(config.block_m, width, kMaxBlock)) return bad_block("block_m", config.block_m);
  if (!is_multiple(config.block_n, width, kMaxBlock)) return bad_block("block_n", config.block_n);
  const auto unit = static_cast<int32_t>(keys_per_sum(problem.seqlen_k, config.block_n));
  if (!is_multiple(config.range_n, unit, kMaxRange))
    return invalid(
        fmt::format("range_n={} is not a multiple of {} up to {}, the keys whose terms of dq are "
                    "summed by themselves; choose one.",
                    config.range_n, unit, kMaxRange));
  if (config.num_threads < 1 || config.num_threads > kMaxThreads)
    return invalid(fmt::format("num_threads={} is not from 1 to {}; choose one that is.",
                               config.num_threads, kMaxThreads));
  return {};
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Until the last thread is done, in blocks that are seen whole: items are taken in their order, and
// a tile's dq is added up range by range.
double time_of(const Problem& problem, const BackwardConfig& config, int64_t range_n) {
  constexpr double kTileCost = 0.25;  // a tile brought into memory, and its dq added up
  constexpr int64_t kMostTiles = 64;  // looked at
  const StructuredMask mask = structured_mask(problem.mask, problem.seqlen_q, problem.seqlen_k);
  const int64_t tiles = ceil_div(problem.seqlen_q, config.block_m);
  const int64_t step = std::max<int64_t>(1, ceil_div(tiles, kMostTiles));
  std::vector<double> free_at(static_cast<size_t>(config.num_threads), 0.0);
  for (int64_t head = 0; head < problem.batch * problem.num_heads_kv; ++head) {
    std::vector<double> added_at(static_cast<size_t>(tiles), 0.0);
    for (int64_t key = 0; key < problem.seqlen_k; key += range_n) {
      double& time = *std::ranges::min_element(free_at);
      for (int64_t tile = (tiles - 1) / step * step; tile >= 0; tile -= step) {
        const int64_t row = tile * config.block_m;
        const Range seen =
            key_range(mask, Range{row, min_of(row + config.block_m, problem.seqlen_q)});
        const Range common{max_of(seen.begin, key), min_of(seen.end, key + range_n)};
        if (common.empty()) continue;
        time += kTileCost + static_cast<double>(common.size()) / config.block_n;
        double& turn = added_at[static_cast<size_t>(tile)];
        turn = time = std::max(time, turn);
      }
    }
  }
  return std::ranges::max(free_at);
}

// Long ranges bring Q, dO and dq into panels less often; short ones keep all threads busy. The bits
// are the same.
void choose_range(const Problem& problem, BackwardConfig& config) {
  constexpr int64_t kRangeBytes = 4 << 20;  // K, V, dk and dv of a range; they are streamed
  const int64_t row_bytes = 8 * (problem.head_dim + problem.value_dim());
  // In runs of keys whose terms of dq are summed together.
  const int64_t run = keys_per_sum(problem.seqlen_k, config.block_n);
  const int64_t runs = std::max<int64_t>(1, ceil_div(problem.seqlen_k, run));
  const int64_t most = std::clamp<int64_t>(kRangeBytes / row_bytes / run, 1, runs);
  config.range_n = static_cast<int32_t>(most * run);
  const int64_t heads = problem.batch * problem.num_heads_kv;
  const int64_t wanted = int64_t{4} * config.num_threads;
  // Gradients of tensors are summed in the order of the ranges, head by head, and so is that of a
  // bias which the heads of a group share along the keys.
  const bool shares_bias = problem.needs_dbias && problem.group_size() > 1 &&
                           !problem.bias_axes.head && !problem.bias_axes.key &&
                           problem.bias_axes.query;
  if (config.num_threads == 1 || needs_dtensors(problem) || shares_bias || heads >= wanted) return;
  double least = time_of(problem, config, config.range_n);
  for (int64_t count = ceil_div(runs, most) + 1; count <= runs && heads * count <= wanted;
       count += 1 + count / 4) {
    const int64_t range_n = ceil_div(runs, count) * run;
    const double time = time_of(problem, config, range_n);
    if (time >= least) continue;
    least = time;
    config.range_n = static_cast<int32_t>(range_n);
  }
}

Result<Config> configure(const Problem& problem, const Device& device, const PlanOptions& options) {
  const Result<Isa> isa = choose_isa(device, options.isa, problem, kCpuBackward.name);
  if (!isa.ok()) return isa.status();
  BackwardConfig config;
  config.isa = isa.value();
  const int32_t width = kMaxVectors * kernels_for(config.isa).lanes;
  config.block_m = config.block_n =
      std::max(width, std::max(problem.head_dim, problem.value_dim()) <= 256 ? 128 : 64);
  config.num_threads = std::min(device.num_threads, kMaxThreads);
  choose_range(problem, config);
  if (Status status = override_fields(config, options.knobs); !status.ok()) return status;
  if (Status status = check_isa(device, config.isa, kCpuBackward.name); !status.ok()) return status;
  if (config.isa == Isa::avx512_bf16) config.isa = Isa::avx512;  // it adds nothing here
  if (Status status = check(problem, config); !status.ok()) return status;
  return Config::of(config);
}

std::string print(const Config& config) { return print_fields(config.as<BackwardConfig>()); }

std::shared_ptr<const void> prepare(const Problem& problem) { return Expressions::of(problem); }

size_t workspace_bytes(const Problem& problem, const Config& config) {
  return backward_workspace_bytes(problem, config.as<BackwardConfig>(),
                                  Expressions::of(problem).get());
}

Status run(const Plan::State& state, const Args& args, Stream) {
  const BackwardConfig config = state.config.as<BackwardConfig>();
  if (Status status = check_isa_here(config.isa, kCpuBackward.name); !status.ok()) return status;
  const Executor* executor = state.options.executor;
  const auto* expressions = static_cast<const Expressions*>(state.prepared.get());
  BackwardCall call(state.problem, config, args, expressions);
  return run_backward(call, executor != nullptr ? *executor : default_executor());
}

}  // namespace

const Implementation kCpuBackward = {
    .name = "cpu.backward",
    .understands = feature::backward | feature::gqa | feature::head_dim_v | feature::ragged_q |
                   feature::ragged_kv | feature::seqused_q | feature::seqused_k | feature::causal |
                   feature::window | feature::chunk | feature::document | feature::mask_tensor |
                   feature::softcap | feature::bias | feature::alibi | feature::sink |
                   feature::dropout | feature::dlse | feature::dbias | feature::dsink |
                   feature::top_left | feature::dtype_fp32 | feature::dtype_bf16 |
                   feature::dtype_fp16 | feature::dtype_out | feature::mask_mod |
                   feature::score_mod | feature::dtensor,
    .supports = supports,
    .configure = configure,
    .print = print,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
    .run = run,
};

}  // namespace sirdar::cpu
