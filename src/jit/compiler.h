// NVRTC, loaded where it is found: CUDA C++ in, machine code out. Needs no GPU.
#pragma once

#include "jit/headers.h"

#include <sirdar/status.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace sirdar::jit {

// A loaded NVRTC; never unloaded.
struct Compiler {
  std::string file;     // as it was asked of the loader
  std::string version;  // "13.0"
  struct Api;
  const Api* api = nullptr;
};

// The compiler at `where` (a file, or a folder that pip installed it in), or, if that is empty, the
// first of: packages beside this library, the loader's own search, $VIRTUAL_ENV and $CONDA_PREFIX,
// $CUDA_HOME, $CUDA_PATH and /usr/local/cuda*. What was found is kept.
Result<Compiler> find_compiler(const std::filesystem::path& where);

struct Compilation {
  std::string cubin, ptx, log;
  int milliseconds = 0, cpu_milliseconds = 0;  // wall clock, and the compiler's thread
};

// Its version without loading it, which takes longer than finding a kernel in the cache, where the
// names of its files tell; empty if there is none.
std::string version_of_compiler(const std::filesystem::path& where);

// Ok, or why this version of NVRTC makes no code for "sm_70".
Status check_arch(const Compiler& compiler, std::string_view arch);

// The options that every kernel is compiled with.
std::vector<std::string> compile_options(std::string_view arch);

// On an error the message holds the log.
Result<Compilation> compile_source(const Compiler& compiler, const std::string& source,
                                   const std::vector<Header>& headers,
                                   const std::vector<std::string>& options);

}  // namespace sirdar::jit
