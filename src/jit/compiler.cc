#include "jit/compiler.h"

#include "jit/settings.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>

namespace sirdar::jit {

// The functions used, with NVRTC's types spelled out: 0 is success, a program is an opaque pointer.
struct Compiler::Api {
  using Program = void*;
  int (*version)(int* major, int* minor);
  const char* (*error_text)(int error);
  int (*create)(Program*, const char* source, const char* name, int num_headers,
                const char* const* headers, const char* const* names);
  int (*destroy)(Program*);
  int (*compile)(Program, int num_options, const char* const* options);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
  int (*ptx_size)(Program, size_t*);
  int (*ptx)(Program, char*);
  int (*num_archs)(int*);
  int (*archs)(int*);
};

namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
// Where NVIDIA's wheels put the library, below a site-packages folder.
constexpr const char* kWheelFolders[] = {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"};

template <class F>
bool bind(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

std::unique_ptr<const Compiler::Api> bind_all(void* library) {
  auto api = std::make_unique<Compiler::Api>();
  const bool is_complete = bind(library, "nvrtcVersion", api->version) &&
                           bind(library, "nvrtcGetErrorString", api->error_text) &&
                           bind(library, "nvrtcCreateProgram", api->create) &&
                           bind(library, "nvrtcDestroyProgram", api->destroy) &&
                           bind(library, "nvrtcCompileProgram", api->compile) &&
                           bind(library, "nvrtcGetProgramLogSize", api->log_size) &&
                           bind(library, "nvrtcGetProgramLog", api->log) &&
                           bind(library, "nvrtcGetCUBINSize", api->cubin_size) &&
                           bind(library, "nvrtcGetCUBIN", api->cubin) &&
                           bind(library, "nvrtcGetPTXSize", api->ptx_size) &&
                           bind(library, "nvrtcGetPTX", api->ptx) &&
                           bind(library, "nvrtcGetNumSupportedArchs", api->num_archs) &&
                           bind(library, "nvrtcGetSupportedArchs", api->archs);
  if (!is_complete) return nullptr;
  return api;
}

Result<Compiler> load(const std::string& file) {
  const auto broken = [&](std::string_view how) {
    return Status(StatusCode::compile_failed,
                  fmt::format("nvrtc: {} {}; install NVRTC 12 or 13 again.", file, how), "nvrtc");
  };
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return broken(fmt::format("cannot be loaded ({})", dlerror()));
  std::unique_ptr<const Compiler::Api> api = bind_all(library);
  int major = 0, minor = 0;
  if (!api || api->version(&major, &minor) != 0) return broken("lacks functions of a compiler");
  // NVRTC looks for its second half by name alone; it finds what is loaded already.
  const std::string builtins = fmt::format("libnvrtc-builtins.so.{}.{}", major, minor);
  if (const fs::path dir = fs::path(file).parent_path(); !dir.empty())
    dlopen((dir / builtins).c_str(), RTLD_NOW | RTLD_LOCAL);
  return Compiler{file, fmt::format("{}.{}", major, minor), api.release()};
}

void add_library(const fs::path& dir, std::vector<std::string>& files) {
  std::error_code error;
  for (const char* name : kNames)
    if (fs::exists(dir / name, error)) files.push_back(dir / name);
}

// Sorted, so that the choice does not depend on the file system.
std::vector<fs::path> children(const fs::path& dir, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with(prefix)) found.push_back(it->path());
  std::sort(found.rbegin(), found.rend());
  return found;
}

// A folder of packages, a virtual environment, or a folder of libraries.
void add_from(const fs::path& dir, std::vector<std::string>& files) {
  add_library(dir, files);
  for (const char* folder : kWheelFolders) add_library(dir / folder, files);
  for (const fs::path& python : children(dir / "lib", "python3"))
    for (const char* folder : kWheelFolders) add_library(python / "site-packages" / folder, files);
}

std::vector<std::string> candidates() {
  std::vector<std::string> files;
  for (fs::path dir = library_dir(); dir.has_relative_path(); dir = dir.parent_path()) {
    for (const char* folder : kWheelFolders) add_library(dir / folder, files);
    if (dir.filename() == "site-packages" || dir.filename() == "dist-packages") break;
  }
  files.insert(files.end(), std::begin(kNames), std::end(kNames));
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    add_from(value, files);
    for (const char* lib : {"lib", "lib64"}) add_library(fs::path(value) / lib, files);
  }
  for (const fs::path& cuda : children("/usr/local", "cuda"))
    for (const char* lib : {"lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"})
      add_library(cuda / lib, files);
  return files;
}

// In the order in which they are tried; `where` may be a file, or is not empty or a folder.
std::vector<std::string> files_of(const fs::path& where) {
  std::error_code error;
  if (where.empty()) return candidates();
  if (!fs::is_directory(where, error)) return {where.string()};
  std::vector<std::string> files;
  add_from(where, files);
  return files;
}

// The version that the file's second half, which lies beside it, has in its name; empty where none
// or several do.
std::string version_beside(const fs::path& file) {
  constexpr std::string_view kBuiltins = "libnvrtc-builtins.so.";
  const std::string name = file.filename().string();
  std::string version;
  for (const fs::path& other : children(file.parent_path(), kBuiltins)) {
    std::string found = other.filename().string().substr(kBuiltins.size());
    const size_t dot = found.find('.');
    if (dot == found.npos) continue;
    found = found.substr(0, found.find('.', dot + 1));
    const bool is_other = !name.starts_with(fmt::format("libnvrtc.so.{}", found.substr(0, dot)));
    if (is_other || found == version) continue;
    if (!version.empty()) return {};
    version = found;
  }
  return version;
}

// Successes of find_compiler, by where.
struct Found {
  std::mutex mutex;
  std::map<std::string, Compiler> compilers;
};
Found& found() {
  static Found* const instance = new Found;
  return *instance;
}

Result<Compiler> search(const fs::path& where) {
  std::error_code error;
  if (!where.empty() && !fs::is_directory(where, error)) return load(where);
  const std::vector<std::string> files = files_of(where);
  Status first_odd;  // a file that is there but does not work says more than those that are missing
  for (const std::string& file : files) {
    Result<Compiler> compiler = load(file);
    if (compiler.ok()) return compiler;
    if (first_odd.ok() && file.find('/') != file.npos) first_odd = compiler.status();
  }
  if (!first_odd.ok()) return first_odd;
  return Status(
      StatusCode::compile_failed,
      fmt::format("nvrtc: {} not found{}; install it ('pip install nvidia-cuda-nvrtc', or "
                  "the CUDA toolkit), or use kernels compiled elsewhere ('sirdar cache "
                  "pack').",
                  fmt::join(kNames, " and "),
                  where.empty() ? std::string() : " in " + where.string()),
      "nvrtc");
}

// A program, its log included, until the end of a scope.
class Program {
 public:
  explicit Program(const Compiler::Api& api) : api_(api) {}
  ~Program() {
    if (handle_ != nullptr) api_.destroy(&handle_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void** address() { return &handle_; }
  void* get() const { return handle_; }

  // Text or bytes that NVRTC hands out in two steps; empty if it has none.
  std::string read(int (*size_of)(void*, size_t*), int (*copy)(void*, char*)) const {
    size_t size = 0;
    if (size_of(handle_, &size) != 0 || size == 0) return {};
    std::string bytes(size, '\0');
    return copy(handle_, bytes.data()) == 0 ? bytes : std::string();
  }

 private:
  const Compiler::Api& api_;
  void* handle_ = nullptr;
};

double now_ms(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

std::string without_final_zero(std::string text) {
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

}  // namespace

Result<Compiler> find_compiler(const fs::path& where) {
  const std::lock_guard lock(found().mutex);
  auto& kept = found().compilers;
  if (const auto it = kept.find(where.string()); it != kept.end()) return it->second;
  Result<Compiler> compiler = search(where);
  // A missing compiler may be installed while the process runs: only success is remembered.
  if (compiler.ok()) kept.emplace(where.string(), compiler.value());
  return compiler;
}

std::string version_of_compiler(const fs::path& where) {
  {
    const std::lock_guard lock(found().mutex);
    const auto it = found().compilers.find(where.string());
    if (it != found().compilers.end()) return it->second.version;
  }
  for (const std::string& file : files_of(where)) {
    if (file.find('/') == file.npos) {  // a name that the loader may know, which only loading tells
      if (dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) continue;
    } else if (std::string version = version_beside(file); !version.empty()) {
      return version;
    }
    break;
  }
  const Result<Compiler> compiler = find_compiler(where);
  return compiler.ok() ? compiler.value().version : std::string();
}

Status check_arch(const Compiler& compiler, std::string_view arch) {
  int count = 0;
  if (compiler.api->num_archs(&count) != 0 || count <= 0) return {};
  std::vector<int> archs(static_cast<size_t>(count));
  if (compiler.api->archs(archs.data()) != 0) return {};
  std::vector<std::string> names;
  for (const int number : archs) {
    names.push_back(fmt::format("sm_{}", number));
    // "sm_90a" is 90 with its own instructions.
    if (arch == names.back() || arch == names.back() + "a") return {};
  }
  return Status(StatusCode::compile_failed,
                fmt::format("arch: {} is none that NVRTC {} compiles for; it knows {}; compile for "
                            "one of them, or install an NVRTC that knows it.",
                            arch, compiler.version, fmt::join(names, ", ")),
                "arch");
}

std::vector<std::string> compile_options(std::string_view arch) {
  return {fmt::format("--gpu-architecture={}", arch), "-std=c++20", "-default-device",
          "--ptxas-options=-v"};
}

Result<Compilation> compile_source(const Compiler& compiler, const std::string& source,
                                   const std::vector<Header>& headers,
                                   const std::vector<std::string>& options) {
  const Compiler::Api& api = *compiler.api;
  std::vector<const char*> names, texts, words;
  for (const Header& header : headers) {
    names.push_back(header.name.c_str());
    texts.push_back(header.text.c_str());
  }
  for (const std::string& option : options) words.push_back(option.c_str());
  // Its own cache would write where nobody asked for it; ours keeps the result.
  if (compiler.version.starts_with("13.")) words.push_back("--no-cache");

  const double begin = now_ms(CLOCK_MONOTONIC), cpu_begin = now_ms(CLOCK_THREAD_CPUTIME_ID);
  Program program(api);
  int error = api.create(program.address(), source.c_str(), "kernel.cu",
                         static_cast<int>(headers.size()), texts.data(), names.data());
  if (error == 0) error = api.compile(program.get(), static_cast<int>(words.size()), words.data());
  Compilation result;
  if (program.get() != nullptr)
    result.log = without_final_zero(program.read(api.log_size, api.log));
  if (error == 0) {
    result.cubin = program.read(api.cubin_size, api.cubin);
    result.ptx = without_final_zero(program.read(api.ptx_size, api.ptx));
  }
  result.milliseconds = static_cast<int>(now_ms(CLOCK_MONOTONIC) - begin);
  result.cpu_milliseconds = static_cast<int>(now_ms(CLOCK_THREAD_CPUTIME_ID) - cpu_begin);
  if (error != 0 || result.cubin.empty())
    return Status(StatusCode::compile_failed,
                  fmt::format("NVRTC {} ({}) says: {}", compiler.version,
                              error != 0 ? api.error_text(error) : "no cubin", result.log));
  return result;
}

}  // namespace sirdar::jit
