// What is known about a compiled kernel, and how it is written down.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sirdar::jit {

struct CompileReport {
  std::string entry, arch, nvrtc;  // "sirdar_fwd_...", "sm_90a", "13.0"
  std::string problem;             // that asked for it first
  std::string options;             // of the compiler, separated by spaces
  int threads = 0;
  int registers = 0;  // of a thread
  int spill_store_bytes = 0, spill_load_bytes = 0;
  int stack_bytes = 0;                            // of a thread, spills included
  int static_shared_bytes = 0, shared_bytes = 0;  // of a block; the latter is dynamic
  int compile_ms = 0, cpu_ms = 0;                 // of the compiler: wall clock, and its thread's
  long long cubin_bytes = 0;
  // The assembler's remarks that a kernel cannot be fast with: wgmma that it serialises (C7510 to
  // C7519).
  std::vector<std::string> remarks;

  bool has_spills() const { return spill_store_bytes + spill_load_bytes > 0; }
  bool is_clean() const { return !has_spills() && remarks.empty(); }
};

// Fills what the assembler tells about `report.entry` with -v: registers, spills, stack, static
// shared memory, remarks. False if it tells nothing about that kernel.
bool read_log(std::string_view log, CompileReport& report);

// "key value" lines, and back; nothing if a line is missing or odd.
std::string print(const CompileReport& report);
std::optional<CompileReport> parse_report(std::string_view text);

}  // namespace sirdar::jit
