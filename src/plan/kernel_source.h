// One kernel to be compiled at run time, as the few facts in which kernels of a family differ.
// Plain data: an implementation fills it without compiling anything, jit/source.cc makes the text.
#pragma once

#include <string>

namespace sirdar {

struct KernelSource {
  std::string header;       // "cuda/sm90/forward/forward.cuh": declares all that is named below
  std::string scope;        // "sirdar::sm90", the namespace of those names
  std::string definitions;  // code between the header and the config; usually empty
  std::string config_type;  // "ForwardConfig"
  std::string config_text;  // "{.block_m = 128, ...}"; config_text() of jit/source.h writes it
  std::string function;     // "forward", called as forward<config>(params)
  std::string params_type;  // "ForwardParams", the kernel's only parameter, by value
  std::string entry;        // "sirdar_fwd_bf16_d128_causal": a profiler shows it
  int threads = 0;          // of one block
  int min_blocks = 1;       // of one multiprocessor, for the compiler's register budget
  // Dynamic shared memory of one block. The source asserts that shared_bytes(config) says the same.
  int shared_bytes = 0;
  // So many workspaces have counters, so many each, in device memory that belongs to the kernel's
  // code, sirdar_counters[]: 32 bytes that are zeros when it is loaded and after each launch.
  int num_workspaces = 0;
  int counters_per_workspace = 1;
  // Of a thread's registers the assembler may store so many bytes in memory: kernels of this kind
  // are measured with that. Not part of the text.
  int spill_bytes_known = 0;
};

}  // namespace sirdar
