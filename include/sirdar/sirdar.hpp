// Sirdar's C++ interface: exact attention, forward and backward.
//
//   sirdar::Problem problem;                     // what
//   problem.seqlen_q = problem.seqlen_k = 2048;
//   problem.num_heads_q = problem.num_heads_kv = 8;
//   problem.mask = sirdar::Mask::causal();
//   sirdar::Plan plan = sirdar::Plan::create(problem).value();   // how
//   sirdar::Status status = plan.run(args);      // go
#pragma once

#include <sirdar/device.hpp>
#include <sirdar/plan.hpp>
#include <sirdar/problem.hpp>
#include <sirdar/status.hpp>
#include <sirdar/tensor.hpp>

#include <functional>
#include <string>

namespace sirdar {

// Version as "major.minor.patch".
SIRDAR_API std::string_view version();

// Where notices go (a fallback taken, a cache that cannot be written). Silent until set; the
// callback may be called from any thread. An empty function silences again.
enum class LogLevel : uint8_t { notice, warning };
SIRDAR_API void set_log_sink(std::function<void(LogLevel, std::string_view)> sink);

// How GPU kernels are compiled and kept (docs/jit.md). Empty fields follow the environment: the
// switch named beside each, then the default.
struct JitOptions {
  // SIRDAR_CACHE_DIR: where compiled kernels are kept, then packs that are only read, separated by
  // colons. Default: sirdar/ in $XDG_CACHE_HOME or in ~/.cache.
  std::string cache_dir;
  std::string kernel_dir;  // SIRDAR_KERNEL_DIR: device code of a checkout's src/, not the library's
  std::string dump_dir;    // SIRDAR_DUMP: source, PTX, cubin and report of every kernel go here
  std::string nvrtc;       // NVRTC's file, or a folder that pip installed it in; empty: search
  bool may_compile = true;  // SIRDAR_NO_JIT=1 forbids: only what is on disk runs
};
// For the whole process, from the next kernel on.
SIRDAR_API void set_jit_options(const JitOptions& options);
SIRDAR_API JitOptions jit_options();  // as set, without the environment

}  // namespace sirdar
