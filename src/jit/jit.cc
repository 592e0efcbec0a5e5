#include "jit/jit.h"

#include "core/log.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "jit/digest.h"
#include "jit/settings.h"
#include "jit/source.h"

#include <fmt/ranges.h>

#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <optional>

namespace sirdar::jit {
namespace {

namespace fs = std::filesystem;

// Longer than any compilation; a holder that is slower is stuck.
constexpr std::chrono::seconds kLockLimit{20};

// All that a compilation depends on.
struct Request {
  const KernelSource& kernel;
  std::string arch, problem, source;
  std::vector<Header> headers;
  std::vector<std::string> options;
  std::string digest;
};

Result<Request> make_request(const KernelSource& kernel, std::string_view arch,
                             const std::string& problem, const Settings& settings) {
  std::error_code error;
  if (!settings.kernel_dir.empty() && !fs::is_directory(settings.kernel_dir, error))
    return Status(StatusCode::invalid_argument,
                  fmt::format("kernel_dir: {} (or SIRDAR_KERNEL_DIR) is not a directory; name the "
                              "src/ of a checkout, or leave it unset.",
                              settings.kernel_dir.string()),
                  "kernel_dir");
  Request request{kernel, std::string(arch), problem, emit(kernel), {}, compile_options(arch), {}};
  Result<std::vector<Header>> headers = reachable_headers(request.source, settings.kernel_dir);
  if (!headers.ok()) return headers.status();
  request.headers = std::move(headers).value();
  Sha256 digest;
  digest.update_field(fmt::format("sirdar kernel, format {}", kCacheFormat));
  digest.update_field(request.source);
  for (const Header& header : request.headers) {
    digest.update_field(header.name);
    digest.update_field(header.text);
  }
  for (const std::string& option : request.options) digest.update_field(option);
  request.digest = digest.hex();
  return request;
}

std::string entry_name(const Request& request, const std::string& nvrtc) {
  return fmt::format("{}-nvrtc{}", request.digest, nvrtc);
}

CompiledKernelPtr kernel_of(const std::string& name, Entry entry, Origin origin) {
  std::optional<CompileReport> report = parse_report(entry.report);
  if (!report) return nullptr;
  auto kernel = std::make_shared<CompiledKernel>();
  kernel->name = name;
  kernel->source = std::move(entry.source);
  kernel->cubin = std::move(entry.cubin);
  kernel->report = std::move(*report);
  kernel->origin = origin;
  return kernel;
}

// Without a compiler of its own a process takes what any version of NVRTC made, the newest first.
CompiledKernelPtr find_in(const fs::path& dir, const Request& request, const std::string& nvrtc,
                          Origin origin) {
  const std::vector<std::string> names = nvrtc.empty()
                                             ? entry_names(dir, request.digest)
                                             : std::vector<std::string>{entry_name(request, nvrtc)};
  for (const std::string& name : names) {
    std::optional<Entry> entry = read_entry(dir, name);
    if (!entry || entry->source != request.source) continue;
    if (CompiledKernelPtr kernel = kernel_of(name, std::move(*entry), origin)) return kernel;
  }
  return nullptr;
}

CompiledKernelPtr find_on_disk(const Request& request, const Settings& settings,
                               const std::string& nvrtc) {
  // A pack was made to be used as it is: any version of NVRTC will do there.
  for (const fs::path& pack : settings.packs)
    if (CompiledKernelPtr kernel = find_in(pack, request, "", Origin::pack)) return kernel;
  if (settings.cache_dir.empty()) return nullptr;
  return find_in(settings.cache_dir, request, nvrtc, Origin::cache);
}

bool write_text(const fs::path& file, std::string_view text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  return static_cast<bool>(out.flush());
}

void dump(const Settings& settings, const Request& request, const CompiledKernel& kernel,
          const std::string& ptx) {
  if (settings.dump_dir.empty()) return;
  const fs::path base =
      settings.dump_dir / fmt::format("{}-{}", request.kernel.entry, request.digest.substr(0, 8));
  std::error_code error;
  fs::create_directories(settings.dump_dir, error);
  const auto path = [&](const char* suffix) { return fs::path(base.string() + suffix); };
  bool ok = write_text(path(".cu"), kernel.source) && write_text(path(".cubin"), kernel.cubin) &&
            write_text(path(".report.txt"), print(kernel.report));
  if (!ptx.empty()) ok = write_text(path(".ptx"), ptx) && ok;
  if (!ok)
    log_once(LogLevel::notice, "dump " + settings.dump_dir.string(),
             fmt::format("dump_dir: {} cannot be written; nothing is dumped.",
                         settings.dump_dir.string()));
}

// A failed compilation: what was compiled can be looked at and tried by hand.
Status failed(const Request& request, const Settings& settings, const Status& reason) {
  std::error_code error, no_folder;
  const fs::path dir =
      settings.dump_dir.empty() ? fs::temp_directory_path(no_folder) : settings.dump_dir;
  fs::create_directories(dir, error);
  const fs::path file =
      dir / fmt::format("{}-{}.cu", request.kernel.entry, request.digest.substr(0, 8));
  const std::string saved = !no_folder && write_text(file, request.source)
                                ? fmt::format("the source is in {}", file.string())
                                : "the source could not be saved";
  return Status(
      StatusCode::compile_failed,
      fmt::format("kernel: {} does not compile with options {}; {}. {}", request.kernel.entry,
                  fmt::join(request.options, " "), saved, reason.message()),
      "kernel");
}

Result<CompiledKernelPtr> compile_now(const Request& request, const Settings& settings,
                                      const Compiler& compiler) {
  if (Status status = check_arch(compiler, request.arch); !status.ok()) return status;
  Result<Compilation> compiled =
      compile_source(compiler, request.source, request.headers, request.options);
  if (!compiled.ok()) return failed(request, settings, compiled.status());
  const Compilation& made = compiled.value();
  auto kernel = std::make_shared<CompiledKernel>();
  kernel->name = entry_name(request, compiler.version);
  kernel->source = request.source;
  kernel->cubin = made.cubin;
  CompileReport& report = kernel->report;
  report.entry = request.kernel.entry;
  report.arch = request.arch;
  report.nvrtc = compiler.version;
  report.problem = request.problem;
  report.options = fmt::format("{}", fmt::join(request.options, " "));
  report.threads = request.kernel.threads;
  report.shared_bytes = request.kernel.shared_bytes;
  report.compile_ms = made.milliseconds;
  report.cpu_ms = made.cpu_milliseconds;
  report.cubin_bytes = static_cast<long long>(made.cubin.size());
  if (!read_log(made.log, report))
    return failed(
        request, settings,
        Status(StatusCode::compile_failed, fmt::format("NVRTC {} reports no registers for it: {}",
                                                       compiler.version, made.log)));
  dump(settings, request, *kernel, made.ptx);
  if (!settings.cache_dir.empty()) {
    const Entry entry{kernel->cubin, kernel->source, print(report)};
    const Status status = publish_entry(settings.cache_dir, kernel->name, entry);
    if (!status.ok())
      log_once(LogLevel::notice, "cache " + settings.cache_dir.string(), status.message());
  } else {
    log_once(
        LogLevel::notice, "cache",
        fmt::format("cache_dir: {}, so compiled kernels are not kept.", settings.no_cache_reason));
  }
  return CompiledKernelPtr(std::move(kernel));
}

Status forbidden(const Request& request) {
  return Status(StatusCode::compile_failed,
                fmt::format("kernel: {} is in no pack and not in the cache, and compiling is "
                            "forbidden (SIRDAR_NO_JIT, or may_compile); allow it, or add a pack "
                            "that has it ('sirdar cache pack').",
                            request.kernel.entry),
                "kernel");
}

Result<CompiledKernelPtr> find_or_compile(const Request& request, const Settings& settings) {
  std::string version;
  if (settings.may_compile) version = version_of_compiler(settings.nvrtc);
  CompiledKernelPtr kernel = find_on_disk(request, settings, version);
  if (kernel == nullptr && !settings.may_compile) return forbidden(request);
  Result<Compiler> compiler(Status(StatusCode::compile_failed, ""));
  if (kernel == nullptr) {
    compiler = find_compiler(settings.nvrtc);
    // One that is there and does not work is as none.
    if (!compiler.ok()) kernel = find_on_disk(request, settings, "");
    if (kernel == nullptr && !compiler.ok()) return compiler.status();
    if (compiler.ok()) version = compiler.value().version;
  }
  std::optional<EntryLock> lock;
  if (kernel == nullptr && !settings.cache_dir.empty()) {
    lock.emplace(settings.cache_dir, entry_name(request, version), kLockLimit);
    // Whoever had the lock before may have left what is wanted.
    kernel = find_in(settings.cache_dir, request, version, Origin::cache);
  }
  if (kernel == nullptr) return compile_now(request, settings, compiler.value());
  dump(settings, request, *kernel, "");
  return kernel;
}

// Kernels of this process, finished and under way.
struct Table {
  std::mutex mutex;
  std::map<std::string, std::shared_future<Result<CompiledKernelPtr>>> kernels;
};

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

}  // namespace

std::string_view name_of(Origin origin) {
  constexpr std::string_view kNames[] = {"compiled", "cache", "pack"};
  return kNames[static_cast<int>(origin)];
}

std::string arch_of(const Device& device) {
  constexpr int kFirstOfItsOwn = 90;
  return fmt::format("sm_{}{}", device.arch, device.arch >= kFirstOfItsOwn ? "a" : "");
}

Result<CompiledKernelPtr> compile(const KernelSource& source, std::string_view arch,
                                  const std::string& problem) {
  const Settings now = settings();
  const Result<Request> request = make_request(source, arch, problem, now);
  if (!request.ok()) return request.status();
  // Options may be set between two calls: another compiler, another cache to fill.
  const std::string key =
      fmt::format("{}\n{}\n{}", request.value().digest, now.nvrtc.string(), now.cache_dir.string());
  std::promise<Result<CompiledKernelPtr>> promise;
  std::shared_future<Result<CompiledKernelPtr>> future;
  bool is_ours = false;
  {
    const std::lock_guard lock(table().mutex);
    const auto [it, is_new] = table().kernels.try_emplace(key);
    if (is_new) it->second = promise.get_future().share();
    future = it->second;
    is_ours = is_new;
  }
  if (!is_ours) return future.get();
  Result<CompiledKernelPtr> result = find_or_compile(request.value(), now);
  if (!result.ok()) {  // what is missing may be there the next time
    const std::lock_guard lock(table().mutex);
    table().kernels.erase(key);
  }
  promise.set_value(result);
  return result;
}

}  // namespace sirdar::jit
