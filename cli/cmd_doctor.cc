// doctor: this program, this machine, and what will run on it.
#include "commands.h"
#include "core/device.h"
#include "cuda_presence.h"
#include "implementations.h"

#include <CLI/CLI.hpp>

#include <sirdar/sirdar.hpp>

#include <fmt/format.h>

#include <cstdlib>
#include <memory>

namespace sirdar::cli {
namespace {

std::string print_cache(int64_t bytes) {
  return bytes >= 1 << 20 && bytes % (1 << 20) == 0 ? fmt::format("{} MiB", bytes >> 20)
                                                    : fmt::format("{} KiB", bytes >> 10);
}

void print_machine(const Device& host) {
  std::string isas;
  for (const Isa isa : {Isa::scalar, Isa::neon, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    if (isa_runs_on(isa, host.isa)) isas += (isas.empty() ? "" : ", ") + std::string(name_of(isa));
  }
  fmt::print("sirdar       {}\n", version());
  fmt::print("cpu          {}\n", host.name);
  fmt::print("isa          {} (may run: {})\n", name_of(host.isa), isas);
  fmt::print("caches       L1d {}, L2 {} a core\n", print_cache(host.l1d_bytes),
             print_cache(host.l2_bytes));
  fmt::print("threads      {}\n", host.num_threads);
}

// What the planner takes for a plain causal problem; features may change it, explain tells.
void print_choices() {
  const Silence silence;
  fmt::print("what runs    {:<10} {:<14} {:<14}\n", "inputs", "forward", "backward");
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16, DType::fp8_e4m3}) {
    std::string names[2];
    for (const Op op : {Op::forward, Op::backward}) {
      Problem problem;
      problem.op = op;
      problem.seqlen_q = problem.seqlen_k = 1024;
      problem.dtype_q = problem.dtype_kv = dtype;
      problem.mask = Mask::causal();
      PlanOptions options;
      options.allow_reference = true;
      const Result<Plan> plan = Plan::create(problem, options);
      names[op == Op::forward ? 0 : 1] = plan.ok() ? plan.value().name() : "nothing";
    }
    fmt::print("             {:<10} {:<14} {:<14}\n", name_of(dtype), names[0], names[1]);
  }
  fmt::print("             'sirdar explain PROBLEM' says what other features need\n");
}

void print_switches() {
  struct Switch {
    const char *name, *effect;
  };
  constexpr Switch kSwitches[] = {
      {"SIRDAR_LOG", "notices go to stderr"},
      {"SIRDAR_FORCE", "the implementation to take"},
      {"SIRDAR_NUM_THREADS", "threads"},
      {"SIRDAR_CACHE_DIR", "where compiled kernels are kept, then packs"},
      {"SIRDAR_KERNEL_DIR", "device code that stands in for the library's own"},
      {"SIRDAR_DUMP", "where kernels are written for people to read"},
      {"SIRDAR_NO_JIT", "1: kernels are not compiled, only found"}};
  bool is_any_set = false;
  for (const Switch& one : kSwitches) {
    const char* value = std::getenv(one.name);
    if (!value) continue;
    fmt::print("{:<12} {}={} ({})\n", is_any_set ? "" : "environment", one.name, value, one.effect);
    is_any_set = true;
  }
  if (!is_any_set) fmt::print("environment  no SIRDAR_ switch is set\n");
}

// A switch that every plan is refused for would show as a machine on which nothing runs.
Status check_switches() {
  const Silence silence;
  PlanOptions options;
  options.allow_reference = true;
  Problem problem;
  problem.seqlen_q = problem.seqlen_k = 1;
  const Result<Plan> plan = Plan::create(problem, options);
  return plan.ok() || plan.status().code() == StatusCode::unsupported ? Status() : plan.status();
}

int doctor() {
  if (Status status = check_switches(); !status.ok()) return fail(status);
  print_machine(Device::host());
  print_choices();
  fmt::print("gpu          {}\n", describe_gpus());
  fmt::print("nvrtc        {}\n", describe_nvrtc());
  fmt::print("kernels      {}\n", describe_cache());
  print_switches();
  return kExitOk;
}

}  // namespace

Action declare_doctor(CLI::App& app) {
  app.footer("Example:\n  sirdar doctor");
  return doctor;
}

}  // namespace sirdar::cli
