// The host half of the row-by-row forward: what it takes, which kernel, and one launch.
#include "cuda/rows/forward/forward.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/modified_params.h"
#include "cuda/rows/forward/arguments.h"
#include "cuda/rows/forward/choose.h"
#include "cuda/rows/scores.h"
#include "jit/source.h"
#include "plan/config_fields.h"

namespace sirdar::rows {
namespace {

constexpr int64_t kMaxBlocks = int64_t{1} << 30;  // of a grid; more rows are further rounds

Status supports(const Problem& problem, const Device& device) {
  return check_limits(problem, device,
                      cuda::param_bytes<ForwardParams>(expression::modification_of(problem)));
}

Result<Config> configure(const Problem& problem, const Device& device, const PlanOptions& options) {
  ForwardConfig config = choose_config(problem, device);
  constexpr std::string_view kKnobs[] = {"splits"};
  if (Status status = override_fields(config, options.knobs, kKnobs); !status.ok()) return status;
  // Other fields say what the problem is.
  ForwardConfig allowed = choose_config(problem, device);
  allowed.splits = config.splits;
  if (!is_valid(config) || !(config == allowed)) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("knobs: '{}' is not a kernel of this problem; only splits may be "
                              "chosen, 1 or {}.",
                              print_fields(config), kWarps),
                  "knobs");
  }
  return Config::of(config);
}

std::string print(const Config& config) { return print_fields(config.as<ForwardConfig>()); }

size_t workspace_bytes(const Problem&, const Config&) { return 0; }

KernelSource kernel_source(const expression::DeviceModification& modification,
                           const ForwardConfig& config) {
  KernelSource source;
  source.header = "cuda/rows/forward/forward.cuh";
  source.scope = "sirdar::rows";
  source.config_type = "ForwardConfig";
  source.config_text = jit::config_text(config, source.config_type);
  source.function = "forward";
  source.params_type = "ForwardParams";
  source.entry = entry_name(config);
  source.threads = kThreads;
  source.min_blocks = min_blocks(config);
  source.shared_bytes = shared_bytes(config);
  if (modification.is_empty()) return source;
  source.definitions = modification.definition;
  source.function = "modified_forward";
  source.params_type = "ModifiedParams<Modification>";
  source.entry += "_modified";
  source.min_blocks = std::min(source.min_blocks, 2);  // the caller's code has registers too
  return source;
}

Result<std::vector<KernelSource>> kernels(const Problem& problem, const Config& config) {
  return std::vector{
      kernel_source(expression::modification_of(problem), config.as<ForwardConfig>())};
}

std::shared_ptr<const void> prepare(const Problem& problem) {
  return std::make_shared<Launcher>(problem);
}

Launcher& launcher_of(const Plan::State& state) {
  return *static_cast<Launcher*>(const_cast<void*>(state.prepared.get()));
}

Status warm_up(const Plan::State& state) {
  return launcher_of(state).load(state.problem, state.config.as<ForwardConfig>(), state.device);
}

Status run(const Plan::State& state, const Args& args, Stream stream) {
  return launcher_of(state).run(state, state.config.as<ForwardConfig>(), args, stream);
}

}  // namespace

Launcher::Launcher(const Problem& problem) : modification_(expression::modification_of(problem)) {}

Status Launcher::load(const Problem& problem, const ForwardConfig& config, const Device& device) {
  std::call_once(once_, [&] {
    Result<cuda::KernelPtr> loaded =
        cuda::load_kernel(kernel_source(modification_, config), device, problem.str());
    if (loaded.ok()) {
      kernel_ = loaded.value();
    } else {
      status_ = loaded.status();
    }
  });
  return status_;
}

Status Launcher::run(const Plan::State& state, const ForwardConfig& config, const Args& args,
                     Stream stream) {
  if (Status status = load(state.problem, config, state.device); !status.ok()) return status;
  const ForwardParams params = make_params(state.problem, config, args);
  const int64_t rows_of_block = kWarps / config.splits;
  cuda::Launch launch;
  launch.kernel = kernel_.get();
  launch.grid.x = static_cast<unsigned>(
      std::min<int64_t>((params.num_rows + rows_of_block - 1) / rows_of_block, kMaxBlocks));
  launch.problem = &state.problem;
  if (modification_.is_empty()) return cuda::launch(launch, params, stream);
  const Result<std::vector<std::byte>> bytes =
      cuda::modified_params(params, modification_, state.problem, args);
  if (!bytes.ok()) return bytes.status();
  return cuda::launch_bytes(launch, bytes.value().data(), stream);
}

const Implementation kForward = {
    .name = "cuda.rows.forward",
    .understands = feature::gqa | feature::head_dim_v | feature::ragged_q | feature::ragged_kv |
                   feature::paged_kv | feature::seqused_q | feature::seqused_k | feature::causal |
                   feature::window | feature::chunk | feature::document | feature::mask_tensor |
                   feature::mask_mod | feature::score_mod | feature::softcap | feature::bias |
                   feature::alibi | feature::sink | feature::dropout | feature::lse |
                   feature::max_logit | feature::top_left | feature::dtype_fp32 |
                   feature::dtype_bf16 | feature::dtype_fp16 | feature::dtype_out,
    .note = "one warp a query row, without tensor cores",
    .supports = supports,
    .configure = configure,
    .print = print,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
    .kernels = kernels,
    .warm_up = warm_up,
    .run = run,
};

}  // namespace sirdar::rows
