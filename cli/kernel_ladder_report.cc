// What sirdar ladder --device cuda prints.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernel_ladder.h"

namespace sirdar::cli {
namespace {

std::string ratio_text(const KernelRung& rung) {
  return rung.ratio > 0 ? fmt::format("{:.3f}", rung.ratio) : "-";
}

void print_line(const KernelRung& rung, bool compile_only) {
  const jit::CompileReport& r = rung.kernel->report;
  fmt::print("{:<4} {:<58}", rung.system, (rung.is_extra ? "beside: " : "") + rung.name);
  if (compile_only) {
    fmt::print(" {:>9} {:>7} {:>8} {:>7} {:>7}\n", r.registers,
               r.spill_store_bytes + r.spill_load_bytes, r.shared_bytes, r.compile_ms, r.cpu_ms);
  } else {
    fmt::print(" {:>8.3f} {:>8.1f} {:>6} {:>8.1e} {:>7}\n", rung.ms, rung.tflops, ratio_text(rung),
               rung.max_error, r.spill_store_bytes + r.spill_load_bytes);
  }
  for (const std::string& remark : r.remarks) fmt::print("  {}\n", remark);
  if (!rung.fault.empty()) fmt::print("  WRONG: {}\n", rung.fault);
}

}  // namespace

void print_kernels(const Problem& problem, const std::vector<KernelRung>& rungs,
                   const KernelLadderOptions& options) {
  fmt::print("{}\n\n{:<4} {:<58}", problem.str(), "", "adds");
  if (options.compile_only) {
    fmt::print(" {:>9} {:>7} {:>8} {:>7} {:>7}\n", "registers", "spills", "shared B", "ms",
               "CPU ms");
  } else {
    fmt::print(" {:>8} {:>8} {:>6} {:>8} {:>7}\n", "ms", "TFLOP/s", "ratio", "error", "spills");
  }
  for (const KernelRung& rung : rungs) {
    print_line(rung, options.compile_only);
    if (rung.is_product) fmt::print("     (the product's kernel)\n");
  }
  if (options.compile_only) return;
  fmt::print(
      "\nratio: to the rung before, of what stands beside to the product; error: largest\n"
      "difference from float64 on a small problem; spills: bytes of registers\n");
}

void print_kernels_json(const Problem& problem, const std::vector<KernelRung>& rungs,
                        const KernelLadderOptions& options) {
  using nlohmann::ordered_json;
  for (const KernelRung& rung : rungs) {
    const jit::CompileReport& r = rung.kernel->report;
    ordered_json line = {{"kind", "kernel"},
                         {"problem", problem.str()},
                         {"system", rung.system},
                         {"rung", rung.name},
                         {"is_extra", rung.is_extra},
                         {"is_product", rung.is_product},
                         {"config", rung.config},
                         {"registers", r.registers},
                         {"spill_store_bytes", r.spill_store_bytes},
                         {"spill_load_bytes", r.spill_load_bytes},
                         {"shared_bytes", r.shared_bytes},
                         {"compile_ms", r.compile_ms},
                         {"cpu_ms", r.cpu_ms},
                         {"remarks", r.remarks}};
    if (!options.compile_only) {
      line["ms"] = rung.ms;
      line["tflops"] = rung.tflops;
      if (rung.ratio > 0) line["ratio"] = rung.ratio;
      line["max_error"] = rung.max_error;
      line["ok"] = rung.fault.empty();
    }
    fmt::print("{}\n", line.dump());
  }
}

}  // namespace sirdar::cli
