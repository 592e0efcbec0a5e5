// compile: the kernels of problems, made without a GPU, and what they take.
#include "commands.h"
#include "flag_terms.h"
#include "implementations.h"
#include "jit/jit.h"
#include "parse.h"
#include "plan/implementation.h"
#include "progress.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

namespace sirdar::cli {
namespace {

struct CompileFlags {
  std::vector<std::string> words;
  std::optional<std::string> arch;
  bool is_json = false;
};

struct Row {
  std::string implementation;
  jit::CompiledKernelPtr kernel;
  std::string problem;
  int spill_bytes_known = 0;

  bool is_clean() const {
    return kernel->report.spill_store_bytes <= spill_bytes_known && kernel->report.remarks.empty();
  }
};

// A machine of the architecture, as far as kernels are chosen by it: a recorded one where there is
// one. What each kernel runs on, the kernels say.
Result<Device> device_of(const std::string& arch) {
  int number = 0;
  const std::string_view digits = std::string_view(arch).substr(std::min<size_t>(arch.size(), 3));
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  Device device = Device::named(number >= 90 ? "h200" : "a100").value();
  device.arch = number;
  if (device.arch != 80 && device.arch != 90) device.name = "the GPU asked for";
  if (device.arch >= 10 && device.arch < 1000 && jit::arch_of(device) == arch) return device;
  return bad_flag(
      "--arch", fmt::format("'{}' is not an architecture that code is compiled for; give one like "
                            "sm_75, sm_80, sm_86 or sm_89, or with its own instructions from "
                            "Hopper on: sm_90a, sm_100a.",
                            arch));
}

nlohmann::ordered_json to_json(const Row& row) {
  const jit::CompileReport& r = row.kernel->report;
  return {{"problem", row.problem},
          {"implementation", row.implementation},
          {"kernel", r.entry},
          {"arch", r.arch},
          {"nvrtc", r.nvrtc},
          {"origin", jit::name_of(row.kernel->origin)},
          {"threads", r.threads},
          {"registers", r.registers},
          {"spill_store_bytes", r.spill_store_bytes},
          {"spill_load_bytes", r.spill_load_bytes},
          {"spill_bytes_known", row.spill_bytes_known},
          {"stack_bytes", r.stack_bytes},
          {"shared_bytes", r.shared_bytes},
          {"static_shared_bytes", r.static_shared_bytes},
          {"compile_ms", r.compile_ms},
          {"cpu_ms", r.cpu_ms},
          {"cubin_bytes", r.cubin_bytes},
          {"remarks", r.remarks},
          {"entry", row.kernel->name}};
}

void print_header() {
  fmt::print("{:<44} {:>9} {:>7} {:>8} {:>7} {:>7} {:>8}  {}\n", "kernel", "registers", "spills",
             "shared B", "ms", "CPU ms", "cubin B", "from");
}

void print_row(const Row& row) {
  const jit::CompileReport& r = row.kernel->report;
  fmt::print("{:<44} {:>9} {:>7} {:>8} {:>7} {:>7} {:>8}  {}\n", r.entry, r.registers,
             r.spill_store_bytes + r.spill_load_bytes, r.shared_bytes + r.static_shared_bytes,
             r.compile_ms, r.cpu_ms, r.cubin_bytes, jit::name_of(row.kernel->origin));
  if (r.spill_store_bytes > row.spill_bytes_known)
    fmt::print("  stores {} bytes of spilled registers a thread; {} are known of such kernels\n",
               r.spill_store_bytes, row.spill_bytes_known);
  for (const std::string& remark : r.remarks) fmt::print("  {}\n", remark);
}

int compile_all(const CompileFlags& flags) {
  const Result<std::vector<Problem>> problems = read_problems(flags.words);
  if (!problems.ok()) return fail(problems.status());
  const Result<std::string> arch = parse_word("--arch", flags.arch, "sm_90a");
  if (!arch.ok()) return fail(arch.status());
  const Result<Device> device = device_of(arch.value());
  if (!device.ok()) return fail(device.status());
  // All are known to exist before the first takes its second.
  std::vector<KernelsOf> wanted;
  for (const Problem& problem : problems.value()) {
    const Result<KernelsOf> kernels = kernels_of(problem, device.value());
    if (!kernels.ok()) return fail(kernels.status());
    wanted.push_back(kernels.value());
  }
  Progress progress("compile");
  bool is_first = true, is_clean = true;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string problem = problems.value()[i].str();
    progress.show(static_cast<int64_t>(i), static_cast<int64_t>(wanted.size()), problem);
    for (const KernelSource& source : wanted[i].sources) {
      const auto kernel = jit::compile(source, arch.value(), problem);
      progress.clear();
      if (!kernel.ok()) return fail(in_flag_terms(kernel.status()));
      const Row row{wanted[i].implementation, kernel.value(), problem, source.spill_bytes_known};
      if (is_first && !flags.is_json) print_header();
      is_first = false;
      is_clean = is_clean && row.is_clean();
      if (flags.is_json) {
        fmt::print("{}\n", to_json(row).dump());
      } else {
        print_row(row);
      }
      if (Status status = flush_output(); !status.ok()) return fail(status);
    }
  }
  return is_clean ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action declare_compile(CLI::App& app) {
  auto flags = std::make_shared<CompileFlags>();
  app.add_option("PROBLEM", flags->words, "problem strings, or suites of them (*.txt)")
      ->type_name("");
  app.add_option("--arch", flags->arch,
                 "sm_90a (default), sm_80, sm_75, ...: each kernel says what it runs on")
      ->type_name("NAME");
  add_switch(app, "--json", flags->is_json, "one JSON object a line instead of the table");
  app.footer(
      "Kernels go into the cache (SIRDAR_CACHE_DIR); 'from' says whether they were there. Exit "
      "code\n1: one spills more registers than is known of its kind, or its products wait.\n"
      "Examples:\n"
      "  sirdar compile 'fwd b2 s4096 h16 d128 bf16 causal'\n"
      "  sirdar compile 'fwd b2 s4096 h16 d128 fp16' --arch sm_86\n"
      "  SIRDAR_CACHE_DIR=kernels sirdar compile suite.txt --json");
  return [flags] { return compile_all(*flags); };
}

}  // namespace sirdar::cli
