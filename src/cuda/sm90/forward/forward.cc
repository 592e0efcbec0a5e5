// The host half of the Hopper forward: what it takes, which kernel, and one launch.
#include "cuda/sm90/forward/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "cuda/context.h"
#include "cuda/kernel.h"
#include "cuda/launch.h"
#include "cuda/memory.h"
#include "cuda/sm90/forward/arguments.h"
#include "cuda/sm90/forward/choose.h"
#include "cuda/sm90/forward/config_names.h"
#include "jit/source.h"
#include "plan/config_fields.h"

namespace sirdar::sm90 {
namespace {

constexpr int64_t kMaxSeqlen = int64_t{1} << 30;  // positions and their sums are 32-bit
constexpr int64_t kMaxItems = int64_t{1} << 30;
constexpr int kMaxHeadDim = 256;

Status unsupported(std::string reason) { return {StatusCode::unsupported, std::move(reason)}; }

Status supports(const Problem& problem, const Device& device) {
  if (device.kind != DeviceKind::cuda) {
    return unsupported(fmt::format("runs on a Hopper GPU, and {} is a CPU", device.name));
  }
  if (device.arch != 90) {
    return unsupported(
        fmt::format("uses instructions of sm_90 alone, and {} is sm_{}", device.name, device.arch));
  }
  const int64_t widest = std::max(problem.head_dim, problem.value_dim());
  if (problem.head_dim % 8 != 0 || problem.value_dim() % 8 != 0 || widest > kMaxHeadDim) {
    return unsupported(
        fmt::format("takes head_dim and head_dim_v that are multiples of 8 up to {}, "
                    "not {} and {}",
                    kMaxHeadDim, problem.head_dim, problem.value_dim()));
  }
  if (std::max({problem.seqlen_q, problem.seqlen_k, problem.total_q, problem.total_k}) >
      kMaxSeqlen) {
    return unsupported(fmt::format("takes up to {} rows", kMaxSeqlen));
  }
  if ((problem.seqlen_q / 64 + 1) * problem.batch * problem.num_heads_q > kMaxItems) {
    return unsupported(fmt::format("takes up to {} blocks of 64 query rows", kMaxItems));
  }
  return {};
}

Result<Config> configure(const Problem& problem, const Device&, const PlanOptions& options) {
  ForwardConfig config = choose_config(problem);
  if (Status status = override_fields(config, options.knobs); !status.ok()) return status;
  if (!is_valid(config)) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("knobs: '{}' is not a kernel: tiles must fit {} bytes of shared memory "
                    "(these take {}) and block_n be a multiple of 16; change a field.",
                    print_fields(config), 232448, shared_bytes(config)),
        "knobs");
  }
  return Config::of(config);
}

std::string print(const Config& config) { return print_fields(config.as<ForwardConfig>()); }

size_t workspace_bytes(const Problem&, const Config& config) {
  return draws_tickets(config.as<ForwardConfig>()) ? kCounterBytes : 0;
}

KernelSource kernel_source(const Problem&, const Config& bytes) {
  const ForwardConfig config = bytes.as<ForwardConfig>();
  KernelSource source;
  source.header = "cuda/sm90/forward/forward.cuh";
  source.scope = "sirdar::sm90";
  source.config_type = "ForwardConfig";
  source.config_text = jit::config_text(config, source.config_type);
  source.function = "forward";
  source.params_type = "ForwardParams";
  source.entry = entry_name(config);
  source.threads = num_threads(config);
  source.shared_bytes = shared_bytes(config);
  return source;
}

Result<std::vector<KernelSource>> kernels(const Problem& problem, const Config& config) {
  return std::vector<KernelSource>{kernel_source(problem, config)};
}

// A plan's kernel, compiled when it is first run.
struct Prepared {
  std::once_flag once;
  Status status;
  cuda::KernelPtr kernel;
};

std::shared_ptr<const void> prepare(const Problem&) { return std::make_shared<Prepared>(); }

Result<const cuda::Kernel*> kernel_of(const Plan::State& state) {
  auto& prepared = *static_cast<Prepared*>(const_cast<void*>(state.prepared.get()));
  std::call_once(prepared.once, [&] {
    Result<cuda::KernelPtr> loaded = cuda::load_kernel(kernel_source(state.problem, state.config),
                                                       state.device, state.problem.str());
    if (loaded.ok()) {
      prepared.kernel = loaded.value();
    } else {
      prepared.status = loaded.status();
    }
  });
  if (!prepared.status.ok()) return prepared.status;
  return prepared.kernel.get();
}

Status warm_up(const Plan::State& state) {
  const Result<const cuda::Kernel*> kernel = kernel_of(state);
  return kernel.ok() ? Status() : kernel.status();
}

Status run(const Plan::State& state, const Args& args, Stream stream) {
  const ForwardConfig config = state.config.as<ForwardConfig>();
  const bool draws = draws_tickets(config);
  int* counter = draws ? static_cast<int*>(args.workspace) : nullptr;
  const Result<const cuda::Driver*> driver = cuda::driver();
  if (!driver.ok()) return driver.status();
  // Tensor maps are encoded in a context too.
  const Result<cuda::ContextScope> scope =
      cuda::ContextScope::of_stream(*driver.value(), state.device.index, stream);
  if (!scope.ok()) return scope.status();
  const Result<ForwardParams> params = make_params(state.problem, config, args, counter);
  if (!params.ok()) return params.status();
  const Result<const cuda::Kernel*> kernel = kernel_of(state);
  if (!kernel.ok()) return kernel.status();
  if (draws) {
    // The caller's workspace holds anything; the kernel leaves zeros, but not for the next caller.
    Status status = cuda::clear_words(state.device.index, counter, 2, stream);
    if (!status.ok()) return status;
  }
  cuda::Launch launch;
  launch.kernel = kernel.value();
  launch.grid.x = static_cast<unsigned>(std::min(params.value().num_items, state.device.num_sms));
  launch.problem = &state.problem;
  return cuda::launch(launch, params.value(), stream);
}

}  // namespace

const Implementation kForward = {
    .name = "cuda.sm90.forward",
    .understands = feature::gqa | feature::head_dim_v | feature::ragged_q | feature::ragged_kv |
                   feature::seqused_q | feature::seqused_k | feature::causal | feature::window |
                   feature::chunk | feature::softcap | feature::alibi | feature::sink |
                   feature::lse | feature::max_logit | feature::top_left | feature::dtype_bf16 |
                   feature::dtype_fp16,
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
