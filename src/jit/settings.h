// Where kernels come from and go to: JitOptions, completed by the environment.
#pragma once

#include <sirdar/sirdar.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace sirdar::jit {

struct Settings {
  std::filesystem::path cache_dir;           // empty: nothing is kept on disk
  std::string no_cache_reason;               // why cache_dir is empty
  std::vector<std::filesystem::path> packs;  // searched before the cache, never written
  std::filesystem::path kernel_dir;          // empty: the headers that the library carries
  std::filesystem::path dump_dir;            // empty: nothing is dumped
  std::filesystem::path nvrtc;               // empty: searched for
  bool may_compile = true;
};

// What set_jit_options() and the environment say now.
Settings settings();

// The folder of the library itself (of the program where it is linked in); empty if unknown.
std::filesystem::path library_dir();

}  // namespace sirdar::jit
