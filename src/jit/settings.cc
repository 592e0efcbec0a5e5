#include "jit/settings.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

namespace sirdar {
namespace {

namespace fs = std::filesystem;

struct State {
  std::mutex mutex;
  JitOptions options;
};

// Never destroyed: other threads may compile while static objects go away.
State& state() {
  static State* const instance = new State;
  return *instance;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string first_of(std::string option, const char* name) {
  return option.empty() ? environment(name) : option;
}

// "a:b" -> {"a", "b"}; empty parts are left out.
std::vector<fs::path> split(const std::string& list) {
  std::vector<fs::path> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) parts.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void default_cache(jit::Settings& settings) {
  if (const fs::path base = environment("XDG_CACHE_HOME"); base.is_absolute()) {
    settings.cache_dir = base / "sirdar";
  } else if (const fs::path home = environment("HOME"); home.is_absolute()) {
    settings.cache_dir = home / ".cache" / "sirdar";
  } else {
    settings.no_cache_reason = "neither SIRDAR_CACHE_DIR nor HOME names a directory";
  }
}

}  // namespace

void set_jit_options(const JitOptions& options) {
  const std::lock_guard lock(state().mutex);
  state().options = options;
}

JitOptions jit_options() {
  const std::lock_guard lock(state().mutex);
  return state().options;
}

namespace jit {

fs::path library_dir() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&library_dir), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code error;
  const fs::path file = fs::weakly_canonical(info.dli_fname, error);
  return error ? fs::path() : file.parent_path();
}

Settings settings() {
  const JitOptions options = jit_options();
  Settings result;
  std::vector<fs::path> dirs = split(first_of(options.cache_dir, "SIRDAR_CACHE_DIR"));
  if (dirs.empty()) {
    default_cache(result);
  } else {
    result.cache_dir = dirs.front();
    result.packs.assign(dirs.begin() + 1, dirs.end());
  }
  if (const fs::path dir = library_dir(); !dir.empty()) {
    std::error_code error;
    const fs::path beside = dir / "sirdar-kernels";
    if (fs::is_directory(beside, error)) result.packs.push_back(beside);
  }
  result.kernel_dir = first_of(options.kernel_dir, "SIRDAR_KERNEL_DIR");
  result.dump_dir = first_of(options.dump_dir, "SIRDAR_DUMP");
  result.nvrtc = options.nvrtc;
  result.may_compile = options.may_compile && environment("SIRDAR_NO_JIT") != "1";
  return result;
}

}  // namespace jit
}  // namespace sirdar
