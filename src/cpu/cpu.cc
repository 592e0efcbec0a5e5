#include "cpu/cpu.h"

#include <fmt/format.h>

#include <algorithm>

#include "cpu/dispatch.h"
#include "cpu/executor.h"
#include "cpu/forward.h"
#include "plan/config_fields.h"

namespace sirdar::cpu {
namespace {

// Positions relative to a block are 32-bit in the kernels.
constexpr int64_t kMaxSeqlen = int64_t{1} << 30;

Status supports(const Problem& problem, const Device& device) {
  if (device.kind != DeviceKind::cpu)
    return {StatusCode::unsupported, fmt::format("runs on a CPU, and {} is a GPU", device.name)};
  if (std::max(problem.seqlen_q, problem.seqlen_k) > kMaxSeqlen)
    return {StatusCode::unsupported, fmt::format("takes sequences of up to {} rows", kMaxSeqlen)};
  return {};
}

Status check(const ForwardConfig& config) {
  const auto invalid = [](std::string message) {
    return Status(StatusCode::invalid_argument, "knobs: " + std::move(message), "knobs");
  };
  const int width = kMaxVectors * kernels_for(config.isa).lanes;
  if (config.block_m < width || config.block_m > 2048 || config.block_m % width != 0)
    return invalid(fmt::format("block_m={} is not a multiple of {} up to 2048; choose one.",
                               config.block_m, width));
  if (config.block_n < 8 || config.block_n > 1024 || config.block_n % 8 != 0)
    return invalid(
        fmt::format("block_n={} is not a multiple of 8 up to 1024; choose one.", config.block_n));
  if (config.group_n < 1 || config.group_n > kMaxGroupBlocks)
    return invalid(fmt::format("group_n={} is not from 1 to {} blocks; choose one that is.",
                               config.group_n, kMaxGroupBlocks));
  if (config.split_n < 1 || config.split_n > 1 << 20)
    return invalid(fmt::format("split_n={} is not from 1 to {} blocks; choose one that is.",
                               config.split_n, 1 << 20));
  if (config.num_threads < 1 || config.num_threads > kMaxThreads)
    return invalid(fmt::format("num_threads={} is not from 1 to {}; choose one that is.",
                               config.num_threads, kMaxThreads));
  return {};
}

// Masks that may hide most of the keys from most queries, so that much less is computed than is
// brought in and put away. A causal mask is none of them.
bool may_be_sparse(const Problem& problem) {
  const Mask& mask = problem.mask;
  return !problem.mask_mod.empty() || problem.has_document || problem.has_mask_tensor ||
         mask.window_left || mask.window_right || mask.chunk_size > 0;
}

// Rows of a tile of which the transposed queries and states take three eighths of the L2 cache, at
// most a chunk.
int32_t resident_rows(const Problem& problem, const Device& device, int width) {
  const int64_t row_bytes = 4 * (problem.head_dim + 2 * problem.value_dim());
  const int64_t most = device.l2_bytes * 3 / 8 / row_bytes;
  int32_t rows = kMaxChunkPanels * width;
  while (rows > width && rows > most) rows /= 2;
  return rows;
}

// Query rows per tile: large tiles read and pack K and V less often, small ones keep all threads
// busy.
int32_t choose_block_m(const Problem& problem, const Device& device, int width, int num_threads) {
  const int64_t rows = problem.seqlen_q * problem.group_size();
  int block_m = std::max(problem.head_dim <= 128 ? 2048 : 512, width);
  if (may_be_sparse(problem)) block_m = std::min(block_m, resident_rows(problem, device, width));
  const auto tiles = [&](int rows_per_tile) {
    int64_t count = problem.batch * ((rows + rows_per_tile - 1) / rows_per_tile);
    // The longest of a ragged batch may hold most of its rows: short ones are not whole tiles.
    if (problem.total_q > 0) {
      const int64_t total = problem.total_q * problem.group_size();
      count = std::min(count, (total + rows_per_tile - 1) / rows_per_tile);
    }
    return problem.num_heads_kv * count;
  };
  while (block_m / 2 >= width &&
         (!shared_evenly(tiles(block_m), num_threads) || rows <= block_m / 2))
    block_m /= 2;
  return block_m;
}

// Blocks of K and V whose packed copies take the L2 cache: all panels of a tile pass over them, and
// to bring in a part of them once more for each chunk of panels costs less than to bring in the
// panels' states for each group. A tile of one panel has no use for more than one, and where masks
// are sparse the queries stay instead.
int32_t choose_group_n(const Problem& problem, const Device& device, const ForwardConfig& config,
                       int width) {
  if (config.block_m <= width || may_be_sparse(problem)) return 1;
  const int64_t words = config.block_n / product_kernels_for(config.isa, problem.dtype_q).per_word;
  const int64_t bytes = 4 * words * (problem.head_dim + problem.value_dim());
  const int64_t blocks = (problem.seqlen_k + config.block_n - 1) / config.block_n;
  const int64_t most = std::clamp<int64_t>(blocks, 1, kMaxGroupBlocks);
  return static_cast<int32_t>(std::clamp<int64_t>(device.l2_bytes / bytes, 1, most));
}

Result<Config> configure(const Problem& problem, const Device& device, const PlanOptions& options) {
  const Result<Isa> isa = choose_isa(device, options.isa, problem, kCpuForward.name);
  if (!isa.ok()) return isa.status();
  ForwardConfig config;
  config.isa = isa.value();
  config.block_n = problem.head_dim <= 128 ? 256 : 128;
  config.split_n = 1024 / config.block_n;
  config.num_threads = std::min(device.num_threads, kMaxThreads);
  const int width = kMaxVectors * kernels_for(config.isa).lanes;
  config.block_m = choose_block_m(problem, device, width, config.num_threads);
  config.group_n = choose_group_n(problem, device, config, width);
  if (Status status = override_fields(config, options.knobs); !status.ok()) return status;
  if (Status status = check_isa(device, config.isa, kCpuForward.name); !status.ok()) return status;
  if (Status status = check(config); !status.ok()) return status;
  return Config::of(config);
}

std::string print(const Config& config) { return print_fields(config.as<ForwardConfig>()); }

std::shared_ptr<const void> prepare(const Problem& problem) { return Expressions::of(problem); }

size_t workspace_bytes(const Problem& problem, const Config& config) {
  return forward_workspace_bytes(problem, config.as<ForwardConfig>(),
                                 Expressions::of(problem).get());
}

Status run(const Plan::State& state, const Args& args, Stream) {
  const ForwardConfig config = state.config.as<ForwardConfig>();
  if (Status status = check_isa_here(config.isa, kCpuForward.name); !status.ok()) return status;
  const Executor* executor = state.options.executor;
  const auto* expressions = static_cast<const Expressions*>(state.prepared.get());
  run_forward(ForwardCall(state.problem, config, args, expressions),
              executor != nullptr ? *executor : default_executor());
  return {};
}

}  // namespace

const Implementation kCpuForward = {
    .name = "cpu.forward",
    .understands = feature::gqa | feature::head_dim_v | feature::ragged_q | feature::ragged_kv |
                   feature::seqused_q | feature::seqused_k | feature::causal | feature::window |
                   feature::chunk | feature::document | feature::mask_tensor | feature::softcap |
                   feature::bias | feature::alibi | feature::sink | feature::lse |
                   feature::max_logit | feature::top_left | feature::dtype_fp32 |
                   feature::dtype_bf16 | feature::dtype_fp16 | feature::dtype_fp8 |
                   feature::dtype_out | feature::paged_kv | feature::dropout | feature::mask_mod |
                   feature::score_mod,
    .supports = supports,
    .configure = configure,
    .print = print,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
    .run = run,
};

}  // namespace sirdar::cpu
