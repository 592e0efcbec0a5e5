// The host half of the row-by-row backward: what it takes, which kernels, and their launches.
#include "cuda/rows/backward/backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/suggest.h"
#include "cuda/modified_params.h"
#include "cuda/rows/backward/arguments.h"
#include "cuda/rows/backward/choose.h"
#include "cuda/rows/forward/choose.h"
#include "cuda/rows/scores.h"
#include "jit/source.h"
#include "plan/config_fields.h"

namespace sirdar::rows {
namespace {

Status supports(const Problem& problem, const Device& device) {
  if (problem.op != Op::backward) return {StatusCode::unsupported, "computes gradients only"};
  return check_limits(problem, device,
                      cuda::param_bytes<BackwardParams>(expression::modification_of(problem)));
}

Result<Config> configure(const Problem& problem, const Device&, const PlanOptions& options) {
  if (options.knobs.empty()) return Config::of(choose_backward_config(problem));
  return Status(StatusCode::invalid_argument,
                fmt::format("knobs: {} has none, '{}' included; leave them out.", kBackward.name,
                            shortened(options.knobs[0].first)),
                "knobs");
}

std::string print(const Config& config) { return print_fields(config.as<BackwardConfig>()); }

size_t workspace_bytes(const Problem& problem, const Config&) {
  return backward_workspace_bytes(problem);
}

// A kernel by its function, and what a profiler calls it.
struct PassNames {
  std::string_view function, entry;
};
PassNames names_of(Pass pass) {
  switch (pass) {
    case Pass::query_rows:
      return {"query_rows", "dq"};
    case Pass::key_rows:
      return {"key_rows", "dkv"};
    case Pass::query_states:
      return {"query_states", "states"};
    case Pass::key_terms:
      return {"key_terms", "terms"};
    case Pass::bias_rows:
      return {"bias_rows", "dbias"};
    case Pass::tensor_sums:
      return {"tensor_sums", "tensors"};
    case Pass::tensor_gradient:
      return {"tensor_gradient", "dtensor"};
    case Pass::term_sums:
      break;
  }
  return {"term_sums", "sums"};
}

KernelSource kernel_source(const expression::DeviceModification& modification,
                           const BackwardConfig& config, Pass pass) {
  const PassNames names = names_of(pass);
  KernelSource source;
  source.header = "cuda/rows/backward/backward.cuh";
  source.scope = "sirdar::rows";
  source.config_type = "BackwardConfig";
  source.config_text = jit::config_text(config, source.config_type);
  source.function = names.function;
  source.params_type = "BackwardParams";
  source.entry = entry_name(config, names.entry);
  source.threads = kThreads;
  source.min_blocks = std::max(config.columns, config.columns_v) <= 128 ? 2 : 1;
  source.shared_bytes = shared_bytes(config);
  const bool adds_up = pass == Pass::term_sums || pass == Pass::tensor_gradient;
  if (modification.is_empty() || adds_up) return source;
  source.definitions = modification.definition;
  source.function = fmt::format("modified_{}", names.function);
  source.params_type = "ModifiedBackwardParams<Modification>";
  source.entry += "_modified";
  return source;
}

std::vector<KernelSource> sources_of(const Problem& problem,
                                     const expression::DeviceModification& modification,
                                     const std::vector<Pass>& passes) {
  std::vector<KernelSource> sources;
  for (const Pass pass : passes)
    sources.push_back(kernel_source(modification, choose_backward_config(problem), pass));
  return sources;
}

std::vector<KernelSource> kernel_sources(const Problem& problem,
                                         const expression::DeviceModification& modification) {
  return sources_of(problem, modification, passes_of(problem));
}

Result<std::vector<KernelSource>> kernels(const Problem& problem, const Config&) {
  return kernel_sources(problem, expression::modification_of(problem));
}

std::shared_ptr<const void> prepare(const Problem& problem) {
  return std::make_shared<BackwardLauncher>(problem);
}

BackwardLauncher& launcher_of(const Plan::State& state) {
  return *static_cast<BackwardLauncher*>(const_cast<void*>(state.prepared.get()));
}

Status warm_up(const Plan::State& state) {
  return launcher_of(state).load(state.problem, state.device);
}

Status run(const Plan::State& state, const Args& args, Stream stream) {
  return launcher_of(state).run(state, args, stream);
}

}  // namespace

std::vector<KernelSource> companion_sources(const Problem& problem,
                                            const expression::DeviceModification& modification) {
  return sources_of(problem, modification, companions_of(problem));
}

BackwardLauncher::BackwardLauncher(const Problem& problem)
    : modification_(expression::modification_of(problem)) {}

Status BackwardLauncher::load(const Problem& problem, const Device& device) {
  return kernels_.load([&] { return kernel_sources(problem, modification_); }, device, problem);
}

Status BackwardLauncher::run(const Plan::State& state, const Args& args, Stream stream) {
  if (Status status = load(state.problem, state.device); !status.ok()) return status;
  const Result<std::vector<cuda::Step>> steps = make_steps(state.problem, modification_, args);
  if (!steps.ok()) return steps.status();
  const Result<const cuda::Driver*> driver = cuda::driver();
  if (!driver.ok()) return driver.status();
  const Result<cuda::ContextScope> scope =
      cuda::ContextScope::of_stream(*driver.value(), state.device.index, stream);
  if (!scope.ok()) return scope.status();
  return kernels_.run(scope.value(), steps.value(), state.problem, stream);
}

const Implementation kBackward = {
    .name = "cuda.rows.backward",
    .understands = feature::backward | feature::gqa | feature::head_dim_v | feature::ragged_q |
                   feature::ragged_kv | feature::seqused_q | feature::seqused_k | feature::causal |
                   feature::window | feature::chunk | feature::document | feature::mask_tensor |
                   feature::mask_mod | feature::score_mod | feature::softcap | feature::bias |
                   feature::alibi | feature::sink | feature::dropout | feature::dlse |
                   feature::dbias | feature::dsink | feature::dtensor | feature::top_left |
                   feature::dtype_fp32 | feature::dtype_bf16 | feature::dtype_fp16 |
                   feature::dtype_out,
    .note = "one warp a query or key row, without tensor cores",
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
