// The host half of the Hopper forward: what it takes, which kernel, and one launch.
#include "cuda/sm90/forward/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "core/log.h"
#include "cuda/context.h"
#include "cuda/kernel.h"
#include "cuda/launch.h"
#include "cuda/memory.h"
#include "cuda/modified_params.h"
#include "cuda/rows/forward/choose.h"
#include "cuda/rows/forward/forward.h"
#include "cuda/rows/forward/params.h"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/forward/arguments.h"
#include "cuda/sm90/forward/check_config.h"
#include "cuda/sm90/forward/choose.h"
#include "cuda/sm90/forward/config_names.h"
#include "cuda/sm90/forward/last_round.h"
#include "cuda/sm90/forward/modified.h"
#include "cuda/sm90/forward/pack.h"
#include "cuda/sm90/forward/split.h"
#include "jit/source.h"
#include "plan/config_fields.h"

namespace sirdar::sm90 {
namespace {

constexpr int64_t kMaxSeqlen = int64_t{1} << 30;  // positions and their sums are 32-bit
constexpr int64_t kMaxItems = int64_t{1} << 30;

Status unsupported(std::string reason) { return {StatusCode::unsupported, std::move(reason)}; }

Status supports(const Problem& problem, const Device& device) {
  if (Status status = check_limits(problem, device, kMaxSeqlen); !status.ok()) return status;
  if ((problem.seqlen_q / 64 + 1) * problem.batch * problem.num_heads_q > kMaxItems) {
    return unsupported(fmt::format("takes up to {} blocks of 64 query rows", kMaxItems));
  }
  const expression::DeviceModification modification = expression::modification_of(problem);
  if (largest_cover_count(problem, choose_config(problem), modification) > kMaxItems) {
    return unsupported(fmt::format("takes masks that read data of up to {} tiles", kMaxItems));
  }
  if (cuda::param_bytes<ForwardParams>(modification) > cuda::kMaxParamBytes) {
    return unsupported(
        fmt::format("takes tensors and scalars of expressions that fit the {} bytes of a kernel's "
                    "parameters, about 50 tensors",
                    cuda::kMaxParamBytes));
  }
  return {};
}

std::optional<int> number_of_knob(const PlanOptions& options, std::string_view knob) {
  std::optional<int> found;
  for (const auto& [name, value] : options.knobs) {
    if (int number = 1; name == knob && sirdar::parse_field(value, number).ok()) found = number;
  }
  return found;
}

Status knob_refusal(std::string_view knob, int number, const Status& reason) {
  return Status(StatusCode::invalid_argument,
                fmt::format("knobs: {}={} cannot be ({}); give another number.", knob, number,
                            reason.message()),
                "knobs");
}

// Of the numbers of heads and splits the whole tile follows, so they are read before other knobs.
Result<Given> given_by_knobs(const Problem& problem, const PlanOptions& options) {
  const Given given{number_of_knob(options, "num_packed_heads"),
                    number_of_knob(options, "num_splits")};
  if (given.num_packed_heads) {
    const Status status = check_packing(problem, *given.num_packed_heads);
    if (!status.ok()) return knob_refusal("num_packed_heads", *given.num_packed_heads, status);
  }
  if (given.num_splits) {
    const ForwardConfig whole = choose_config(problem, true, {given.num_packed_heads, 1});
    const Status status = check_splitting(problem, whole, *given.num_splits);
    if (!status.ok()) return knob_refusal("num_splits", *given.num_splits, status);
  }
  return given;
}

Result<Config> configure(const Problem& problem, const Device&, const PlanOptions& options) {
  const Result<Given> given = given_by_knobs(problem, options);
  if (!given.ok()) return given.status();
  ForwardConfig chosen = choose_config(problem, true, given.value());
  ForwardConfig config = chosen;
  if (Status status = override_fields(config, options.knobs, kForwardKnobs); !status.ok())
    return status;
  // Chosen by the library, they give way to what the caller wants.
  if (!is_valid(config) && !given.value().num_splits && is_split(chosen)) {
    chosen = choose_config(problem, true, {given.value().num_packed_heads, 1});
    config = chosen;
    if (Status status = override_fields(config, options.knobs, kForwardKnobs); !status.ok())
      return status;
  }
  const auto asks = [](const auto& knob) { return knob.first == "shares_last_round"; };
  if (!is_valid(config) && std::ranges::none_of(options.knobs, asks))
    config.shares_last_round = false;
  KnobFault fault = fault_of(chosen, config);
  if (!fault.is_fault() && problem.batch_invariant && config.shares_last_round) {
    fault = {"shares_last_round=true",
             "with batch_invariant it is false: who shares follows from the batch"};
  }
  if (!fault.is_fault() &&
      largest_cover_count(problem, config, expression::modification_of(problem)) > kMaxItems) {
    fault = {print_differences(chosen, config),
             fmt::format("a mask that reads data may have {} tiles", kMaxItems)};
  }
  if (fault.is_fault()) return knob_error(fault, "cuda.sm90.forward");
  return Config::of(config);
}

std::string packing(const Problem& problem, const Config& config) {
  return packing_note(problem, config.as<ForwardConfig>());
}

std::string splitting(const Problem& problem, const Config& config) {
  return splitting_note(problem, config.as<ForwardConfig>());
}

std::string print(const Config& config) { return print_fields(config.as<ForwardConfig>()); }

// The counter, then what is known about key blocks, or the parts of split keys; or flags and slots.
size_t workspace_bytes(const Problem& problem, const Config& bytes) {
  const ForwardConfig config = bytes.as<ForwardConfig>();
  if (config.has_mask_mod) {
    const CoverView cover =
        cover_view(problem, config, expression::modification_of(problem), nullptr);
    return kCounterBytes + cover_bytes(cover, config, num_blocks_m(problem, config));
  }
  if (config.shares_last_round) return kFlagBytes + slot_bytes(config);
  if (is_split(config)) return kCounterBytes + parts_bytes(problem, config);
  return draws_tickets(config) ? kCounterBytes : 0;
}

// The forward's last.
std::vector<KernelSource> kernel_sources(const Problem& problem,
                                         const expression::DeviceModification& modification,
                                         const Config& bytes) {
  ForwardConfig config = bytes.as<ForwardConfig>();
  config.num_splits = std::min(config.num_splits, 2);
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
  source.spill_bytes_known = spill_bytes_known(config);
  std::vector<KernelSource> sources;
  if (!modification.is_empty()) {
    add_modification(modification, source);
    if (config.has_mask_mod) sources.push_back(cover_source(source, problem));
  }
  if (is_split(config)) sources.push_back(combine_source(source));
  if (draws_tickets(config)) source.num_workspaces = kMostWorkspaces;
  if (config.shares_last_round) {
    source.num_workspaces = kMostSharingWorkspaces;
    source.counters_per_workspace = kCountersPerWorkspace;
  }
  sources.push_back(source);
  return sources;
}

Result<std::vector<KernelSource>> kernels(const Problem& problem, const Config& config) {
  return kernel_sources(problem, expression::modification_of(problem), config);
}

// The kernels of one config, compiled when they are first needed.
struct Compiled {
  std::once_flag once;
  Status status;
  std::vector<cuda::KernelPtr> kernels;  // as kernel_sources() lists them
};

struct Prepared {
  explicit Prepared(const Problem& problem)
      : modification(expression::modification_of(problem)), rows(problem) {}

  expression::DeviceModification modification;
  Compiled planned, unstaged;  // unstaged: for a bias that TMA cannot reach
  rows::Launcher rows;         // for other tensors that it cannot

  struct Call {
    ForwardConfig config;
    ForwardParams params;
  };
  LastArgs<Call> last;  // with its tensor maps
};

std::shared_ptr<const void> prepare(const Problem& problem) {
  return std::make_shared<Prepared>(problem);
}

Prepared& own_of(const Plan::State& state) {
  return *static_cast<Prepared*>(const_cast<void*>(state.prepared.get()));
}

// The kernels of the plan's config, or of the one that differs in how the bias is read.
Result<const Compiled*> compiled_of(const Plan::State& state, const Config& config) {
  Prepared& prepared = own_of(state);
  const bool is_planned = config.as<ForwardConfig>() == state.config.as<ForwardConfig>();
  Compiled& compiled = is_planned ? prepared.planned : prepared.unstaged;
  std::call_once(compiled.once, [&] {
    for (const KernelSource& source :
         kernel_sources(state.problem, prepared.modification, config)) {
      Result<cuda::KernelPtr> loaded = cuda::load_kernel(source, state.device, state.problem.str());
      if (loaded.ok()) {
        compiled.kernels.push_back(loaded.value());
      } else if (compiled.status.ok()) {
        compiled.status = loaded.status();
      }
    }
  });
  if (!compiled.status.ok()) return compiled.status;
  return &compiled;
}

Status warm_up(const Plan::State& state) {
  const Result<const Compiled*> compiled = compiled_of(state, state.config);
  return compiled.ok() ? Status() : compiled.status();
}

// The config that this call runs. Its workspace is that of the plan's, which knobs may have made
// another than what would be chosen.
ForwardConfig config_of(const Plan::State& state, const Args& args) {
  ForwardConfig config = state.config.as<ForwardConfig>();
  if (config.num_stages_bias == 0 || check_bias_reach(args).ok()) return config;
  const Given given{config.num_packed_heads, 1};  // nothing with such a bias is split
  if (config == choose_config(state.problem, true, given)) {
    return choose_config(state.problem, false, given);
  }
  config.num_stages_bias = 0;
  return config;
}

// The kernel that looks at key blocks, and the forward.
Status run_modified(const Plan::State& state, const Compiled& compiled,
                    const cuda::ContextScope& scope, cuda::Launch forward,
                    const ForwardParams& params, const Args& args, Stream stream) {
  const Result<std::vector<std::byte>> bytes =
      cuda::modified_params(params, own_of(state).modification, state.problem, args);
  if (!bytes.ok()) return bytes.status();
  if (params.cover.words != nullptr) {
    cuda::Launch cover;
    cover.kernel = compiled.kernels.front().get();
    cover.grid.x = static_cast<unsigned>(num_cover_blocks(params.cover, params.num_blocks_m));
    cover.problem = &state.problem;
    Status status = cuda::launch_bytes(scope, cover, bytes.value().data(), stream);
    if (!status.ok()) return status;
    forward.is_programmatic = true;  // it waits for the other kernel where it needs it
  }
  return cuda::launch_bytes(scope, forward, bytes.value().data(), stream);
}

// The kernel that adds the parts of split keys; its way to the parts hides behind the forward.
Status run_combine(const Compiled& compiled, const cuda::ContextScope& scope,
                   const cuda::Launch& forward, const ForwardConfig& config,
                   const ForwardParams& params, Stream stream) {
  cuda::Launch launch;
  launch.kernel = compiled.kernels.front().get();
  launch.grid.x = static_cast<unsigned>(num_combine_blocks(config, params));
  launch.is_programmatic = true;
  launch.problem = forward.problem;
  return cuda::launch_bytes(scope, launch, &params, stream);
}

// Counters that are zeros. The kernel leaves zeros: its own need not be cleared before every call,
// as the caller's workspace, which holds anything.
Status place_counters(const cuda::Kernel& kernel, const cuda::ContextScope& scope, const Args& args,
                      size_t num_words, Stream stream, ForwardParams& params) {
  params.counters = kernel.counters_of(args.workspace);
  if (params.counters >= 0) return {};
  params.counter = static_cast<int*>(args.workspace);
  return cuda::clear_words(scope, params.counter, num_words, stream);
}

// Expressions whose tensors fit these parameters fit those.
static_assert(sizeof(rows::ForwardParams) <= sizeof(ForwardParams));

// What has other strides than TMA's is computed all the same, by a kernel that takes any.
Status run_rows(const Plan::State& state, const Args& args, Stream stream, const Status& reason) {
  log_once(LogLevel::notice, "rows: " + state.problem.str(),
           fmt::format("'{}' is computed by cuda.rows.forward, which is slower ({}).",
                       state.problem.str(), reason.message()));
  const rows::ForwardConfig config = rows::choose_config(state.problem, state.device);
  return own_of(state).rows.run(state, config, args, stream);
}

Status run(const Plan::State& state, const Args& args, Stream stream) {
  std::optional<Prepared::Call> call = own_of(state).last.find(args);
  const ForwardConfig config = call ? call->config : config_of(state, args);
  if (!call) {
    const Status reach = check_reach(state.problem, config, args);
    if (!reach.ok()) return run_rows(state, args, stream, reach);
  }
  const Result<const cuda::Driver*> driver = cuda::driver();
  if (!driver.ok()) return driver.status();
  // Tensor maps are encoded in a context too.
  const Result<cuda::ContextScope> scope =
      cuda::ContextScope::of_stream(*driver.value(), state.device.index, stream);
  if (!scope.ok()) return scope.status();
  if (!call) {
    const Result<ForwardParams> made = make_params(state.problem, config, args, nullptr);
    if (!made.ok()) return made.status();
    call = Prepared::Call{config, made.value()};
    own_of(state).last.keep(args, *call);
  }
  ForwardParams& params = call->params;
  const Result<const Compiled*> compiled = compiled_of(state, Config::of(config));
  if (!compiled.ok()) return compiled.status();
  cuda::Launch launch;
  launch.kernel = compiled.value()->kernels.back().get();
  if (draws_tickets(config) || config.shares_last_round) {
    const size_t num_words = config.shares_last_round ? kFlagBytes / sizeof(int) : 2;
    Status status = place_counters(*launch.kernel, scope.value(), args, num_words, stream, params);
    if (!status.ok()) return status;
  }
  const int size = config.cluster_size;
  const int most = config.is_persistent ? state.device.num_sms / size : params.num_items;
  int blocks = std::min(params.num_items, most);
  if (config.shares_last_round) {
    blocks = std::min(blocks, kMostSlots);
    share_last_round(config, blocks, static_cast<std::byte*>(args.workspace) + kFlagBytes, params);
  }
  launch.grid.x = static_cast<unsigned>(size * blocks);
  launch.cluster.x = static_cast<unsigned>(size);
  launch.problem = &state.problem;
  const expression::DeviceModification& modification = own_of(state).modification;
  auto* memory = static_cast<std::byte*>(args.workspace);
  if (memory != nullptr) memory += kCounterBytes;
  if (is_split(config)) params.parts = parts_view(state.problem, config, memory);
  Status status;
  if (modification.is_empty()) {
    status = cuda::launch_bytes(scope.value(), launch, &params, stream);
  } else {
    params.cover = cover_view(state.problem, config, modification, memory);
    status = run_modified(state, *compiled.value(), scope.value(), launch, params, args, stream);
  }
  if (!status.ok() || !is_split(config)) return status;
  return run_combine(*compiled.value(), scope.value(), launch, config, params, stream);
}

}  // namespace

const Implementation kForward = {
    .name = "cuda.sm90.forward",
    .understands = feature::gqa | feature::head_dim_v | feature::ragged_q | feature::ragged_kv |
                   feature::seqused_q | feature::seqused_k | feature::causal | feature::window |
                   feature::chunk | feature::softcap | feature::alibi | feature::sink |
                   feature::lse | feature::max_logit | feature::top_left | feature::dtype_bf16 |
                   feature::dtype_fp16 | feature::bias | feature::document | feature::mask_tensor |
                   feature::mask_mod | feature::score_mod,
    .note =
        "q, k, v and out whose addresses or strides are no multiples of 16 bytes, or whose "
        "strides are negative, are computed by cuda.rows.forward, which is slower",
    .supports = supports,
    .configure = configure,
    .print = print,
    .packing = packing,
    .splitting = splitting,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
    .kernels = kernels,
    .warm_up = warm_up,
    .run = run,
};

}  // namespace sirdar::sm90
