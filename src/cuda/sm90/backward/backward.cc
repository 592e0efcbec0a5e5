// The host half of the Hopper backward: what it takes, which kernels, and three launches.
#include "cuda/sm90/backward/backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/last_args.h"
#include "core/log.h"
#include "cuda/context.h"
#include "cuda/modified_params.h"
#include "cuda/rows/backward/backward.h"
#include "cuda/rows/backward/params.h"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/backward/arguments.h"
#include "cuda/sm90/backward/check_config.h"
#include "cuda/sm90/backward/choose.h"
#include "cuda/sm90/backward/walk.h"
#include "cuda/sm90/enum_words.h"
#include "jit/source.h"
#include "plan/config_fields.h"

namespace sirdar::sm90 {
namespace {

constexpr int64_t kMaxSeqlen = int64_t{1} << 28;  // positions and sums of four are 32-bit
constexpr int64_t kMaxBlocks = int64_t{1} << 30;
constexpr double kLeastScale = 1e-20;  // lse is divided by it

Status unsupported(std::string reason) { return {StatusCode::unsupported, std::move(reason)}; }

Status supports(const Problem& problem, const Device& device) {
  if (problem.op != Op::backward) return unsupported("computes gradients only");
  if (Status status = check_limits(problem, device, kMaxSeqlen); !status.ok()) return status;
  const bool has_rows = problem.layout_q == Layout::ragged ? problem.total_q > 0 : true;
  const bool has_keys = problem.layout_kv == Layout::ragged ? problem.total_k > 0 : true;
  if (problem.seqlen_q < 1 || problem.seqlen_k < 1 || !has_rows || !has_keys) {
    return unsupported("takes at least one query row and one key");
  }
  // Whole tiles of 128 rows.
  const int64_t row_blocks = 4 * (problem.seqlen_q / 128 + 1) * problem.num_heads_q;
  const int64_t key_blocks = (problem.seqlen_k / 64 + 1) * problem.num_heads_kv;
  if (std::max(row_blocks, key_blocks) > kMaxBlocks / std::max<int64_t>(problem.batch, 1)) {
    return unsupported(
        fmt::format("takes up to {} blocks of 32 query rows, or of 64 keys", kMaxBlocks));
  }
  const expression::DeviceModification modification = expression::modification_of(problem);
  if (largest_walk_count(problem, choose_backward_config(problem), modification) > kMaxBlocks) {
    return unsupported(fmt::format("takes masks that read data of up to {} tiles", kMaxBlocks));
  }
  if (std::max(cuda::param_bytes<BackwardParams>(modification),
               cuda::param_bytes<ForwardParams>(modification)) > cuda::kMaxParamBytes) {
    return unsupported(
        fmt::format("takes tensors and scalars of expressions that fit the {} bytes of a kernel's "
                    "parameters, about 50 tensors",
                    cuda::kMaxParamBytes));
  }
  if (std::abs(problem.scale()) < kLeastScale) {
    return unsupported(fmt::format("takes a softmax_scale of {:g} or more in magnitude, not {:g}",
                                   kLeastScale, problem.scale()));
  }
  return {};
}

bool has_knob(const PlanOptions& options, std::string_view name) {
  return std::any_of(options.knobs.begin(), options.knobs.end(),
                     [&](const auto& knob) { return knob.first == name; });
}

Result<Config> configure(const Problem& problem, const Device&, const PlanOptions& options) {
  const BackwardConfig chosen = choose_backward_config(problem);
  BackwardConfig config = chosen;
  if (Status status = override_fields(config, options.knobs, kBackwardKnobs); !status.ok())
    return status;
  // Multiprocessors are spared for an early convert alone.
  if (!config.converts_early && !has_knob(options, "num_spare")) config.num_spare = 0;
  KnobFault fault = fault_of(chosen, config);
  if (!fault.is_fault() &&
      largest_walk_count(problem, config, expression::modification_of(problem)) > kMaxBlocks) {
    fault = {print_differences(chosen, config),
             fmt::format("a mask that reads data may have {} thread blocks", kMaxBlocks)};
  }
  if (fault.is_fault()) return knob_error(fault, "cuda.sm90.backward");
  return Config::of(config);
}

std::string print(const Config& config) { return print_fields(config.as<BackwardConfig>()); }

size_t workspace_bytes(const Problem& problem, const Config& config) {
  const size_t own =
      workspace_of(problem, config.as<BackwardConfig>(), expression::modification_of(problem)).end;
  return std::max(own, rows::backward_workspace_bytes(problem));
}

// Bytes of a thread's registers that the assembler is known to store: a few numbers a tile, plain
// wide kernels once an item.
int spill_bytes_known(const BackwardConfig& config) {
  if (config.has_score_mod || config.has_mask_mod) return 512;
  if (config.keeps_remainders) return 176;
  const bool is_staged = config.num_stages_bias > 0 && !config.has_softcap;
  if (is_modified(config)) return is_staged ? 72 : 176;
  if (!is_wide(config)) return config.is_persistent ? 48 : 0;
  if (config.is_persistent) return config.cluster_size > 1 ? 80 : 32;
  return config.cluster_size > 1 || is_scaled(config) ? 32 : 24;
}

// Of convert on a multiprocessor. More sums are more values of a thread. Where results may be made
// again, a few registers more keep all that out of the loop: spilled numbers come back through
// memory that is busy, which made a call of 4,096 blocks 30 microseconds longer.
int convert_blocks(const BackwardConfig& config) {
  if (config.num_sums > 1) return 5;
  return restores(config) ? 7 : 8;
}

KernelSource source_of(const BackwardConfig& config) {
  KernelSource source;
  source.header = "cuda/sm90/backward/backward.cuh";
  source.scope = "sirdar::sm90";
  source.config_type = "BackwardConfig";
  source.config_text = jit::config_text(config, source.config_type);
  source.function = "backward";
  source.params_type = "BackwardParams";
  source.entry = entry_name(config);
  source.threads = kBackwardThreads;
  source.shared_bytes = shared_bytes(config);
  source.spill_bytes_known = spill_bytes_known(config);
  return source;
}

// Of a kernel whose config holds that of the backward.
KernelSource companion_of(const KernelSource& backward, std::string type, std::string function) {
  KernelSource source = backward;
  source.config_text = fmt::format("{{{}}}", backward.config_text);
  source.config_type = std::move(type);
  source.entry += "_" + function;
  source.function = std::move(function);
  source.spill_bytes_known = 0;
  return source;
}

void add_modification(const expression::DeviceModification& modification, KernelSource& source) {
  if (modification.is_empty()) return;
  source.definitions = modification.definition;
  source.function = "modified_" + source.function;
  source.params_type = "ModifiedBackwardParams<Modification>";
  source.entry += "_modified";
}

KernelSource source_of(const Problem& problem, const BackwardConfig& config, BackwardPass pass,
                       const expression::DeviceModification& modification) {
  KernelSource source = source_of(config);
  switch (pass) {
    case BackwardPass::prepare:
      source = companion_of(source, "PrepareConfig", "prepare");
      source.threads = kPrepareThreads;
      source.min_blocks = 4;
      source.shared_bytes = shared_bytes(PrepareConfig{config});
      source.spill_bytes_known = has_levels(config) ? 64 : 0;  // by softmaxes that are made again
      if (has_levels(config)) add_modification(modification, source);
      break;
    case BackwardPass::backward:
      add_modification(modification, source);
      break;
    case BackwardPass::convert:
      source = companion_of(source, "ConvertConfig", "convert");
      source.threads = kConvertThreads;
      source.min_blocks = convert_blocks(config);
      source.spill_bytes_known = !restores(config) ? 0 : has_levels(config) ? 192 : 64;
      source.shared_bytes = shared_bytes(ConvertConfig{config});
      if (restores(config)) add_modification(modification, source);
      break;
    case BackwardPass::sink_gradient:
      source = companion_of(source, "SinkConfig", "sink_gradient");
      source.threads = kSinkThreads;
      source.shared_bytes = shared_bytes(SinkConfig{config});
      break;
    case BackwardPass::cover:
      source = tile_cover_source(problem, config, modification);
      break;
    case BackwardPass::cover_walks:
      source = companion_of(source, "WalkConfig", "cover_walks");
      source.definitions = modification.definition;
      source.params_type = "ModifiedBackwardParams<Modification>";
      source.threads = kWalkThreads;
      source.shared_bytes = 0;
      break;
  }
  return source;
}

std::vector<KernelSource> kernel_sources(const Problem& problem, const BackwardConfig& config,
                                         const expression::DeviceModification& modification) {
  std::vector<KernelSource> sources;
  for (const BackwardPass pass : passes_of(problem))
    sources.push_back(source_of(problem, config, pass, modification));
  for (KernelSource& source : rows::companion_sources(problem, modification))
    sources.push_back(std::move(source));
  return sources;
}

Result<std::vector<KernelSource>> kernels(const Problem& problem, const Config& config) {
  return kernel_sources(problem, config.as<BackwardConfig>(), expression::modification_of(problem));
}

using Steps = std::vector<cuda::Step>;

struct Prepared {
  explicit Prepared(const Problem& problem)
      : modification(expression::modification_of(problem)), rows(problem) {}

  expression::DeviceModification modification;
  cuda::PlanKernels kernels, unstaged;  // unstaged: for a bias that TMA cannot reach

  struct Call {
    BackwardConfig config;
    Steps steps;  // with their tensor maps
  };
  LastArgs<std::shared_ptr<const Call>> last;
  rows::BackwardLauncher rows;  // for other tensors that it cannot
};

std::shared_ptr<const void> prepare(const Problem& problem) {
  return std::make_shared<Prepared>(problem);
}

Prepared& own_of(const Plan::State& state) {
  return *static_cast<Prepared*>(const_cast<void*>(state.prepared.get()));
}

// The kernels of the plan's config, or of the one that differs in how the bias is read.
Result<const cuda::PlanKernels*> kernels_of(const Plan::State& state,
                                            const BackwardConfig& config) {
  Prepared& own = own_of(state);
  const bool is_planned = config == state.config.as<BackwardConfig>();
  cuda::PlanKernels& kernels = is_planned ? own.kernels : own.unstaged;
  const Status status =
      kernels.load([&] { return kernel_sources(state.problem, config, own.modification); },
                   state.device, state.problem);
  if (!status.ok()) return status;
  return &kernels;
}

Status warm_up(const Plan::State& state) {
  const auto found = kernels_of(state, state.config.as<BackwardConfig>());
  return found.ok() ? Status() : found.status();
}

// The config that this call runs. Its workspace is that of the plan's.
BackwardConfig config_of(const Plan::State& state, const Args& args) {
  const BackwardConfig config = state.config.as<BackwardConfig>();
  const bool reads_bias = config.num_stages_bias > 0 && !check_bias_reach(args).ok();
  return reads_bias ? without_staged_bias(config) : config;
}

// Expressions whose tensors fit these parameters fit those.
static_assert(sizeof(rows::BackwardParams) <= sizeof(BackwardParams));

// What has other strides than TMA's is computed all the same, by kernels that take any.
Status run_rows(const Plan::State& state, const Args& args, Stream stream, const Status& reason) {
  log_once(LogLevel::notice, "rows: " + state.problem.str(),
           fmt::format("'{}' is computed by cuda.rows.backward, which is slower ({}).",
                       state.problem.str(), reason.message()));
  return own_of(state).rows.run(state, args, stream);
}

Status run(const Plan::State& state, const Args& args, Stream stream) {
  Prepared& own = own_of(state);
  std::shared_ptr<const Prepared::Call> call = own.last.find(args).value_or(nullptr);
  if (call == nullptr) {
    const Status reach = check_reach(state.problem, state.config.as<BackwardConfig>(), args);
    if (!reach.ok()) return run_rows(state, args, stream, reach);
  }
  const Result<const cuda::Driver*> driver = cuda::driver();
  if (!driver.ok()) return driver.status();
  // Tensor maps are encoded in a context too.
  const Result<cuda::ContextScope> scope =
      cuda::ContextScope::of_stream(*driver.value(), state.device.index, stream);
  if (!scope.ok()) return scope.status();
  if (call == nullptr) {
    const BackwardConfig config = config_of(state, args);
    const Result<Steps> made =
        make_steps(state.problem, config, own.modification, args, state.device.num_sms);
    if (!made.ok()) return made.status();
    call = std::make_shared<const Prepared::Call>(Prepared::Call{config, made.value()});
    own.last.keep(args, call);
  }
  const Result<const cuda::PlanKernels*> kernels = kernels_of(state, call->config);
  if (!kernels.ok()) return kernels.status();
  return kernels.value()->run(scope.value(), call->steps, state.problem, stream);
}

}  // namespace

const Implementation kBackward = {
    .name = "cuda.sm90.backward",
    .understands = feature::backward | feature::gqa | feature::head_dim_v | feature::ragged_q |
                   feature::ragged_kv | feature::seqused_q | feature::seqused_k | feature::causal |
                   feature::window | feature::chunk | feature::dlse | feature::top_left |
                   feature::softcap | feature::alibi | feature::sink | feature::dsink |
                   feature::document | feature::mask_tensor | feature::mask_mod |
                   feature::score_mod | feature::bias | feature::dbias | feature::dtensor |
                   feature::dtype_bf16 | feature::dtype_fp16,
    .note =
        "dbias and gradients of tensors that expressions read are made by kernels of "
        "cuda.rows.backward, which are slower, behind those of dq, dk and dv; tensors whose "
        "addresses or strides are no multiples of 16 bytes, or whose strides are negative, are "
        "computed by cuda.rows.backward altogether",
    .supports = supports,
    .configure = configure,
    .print = print,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
    .kernels = kernels,
    .warm_up = warm_up,
    .run = run,
};

}  // namespace sirdar::sm90
