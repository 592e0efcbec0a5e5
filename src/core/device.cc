#include "core/device.h"

#include <fmt/format.h>

#include <sched.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "core/suggest.h"

namespace sirdar {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxThreads = 4096;

struct IsaRow {
  Isa isa;
  std::string_view name;
};
constexpr IsaRow kIsas[] = {{Isa::scalar, "scalar"},
                            {Isa::neon, "neon"},
                            {Isa::avx2, "avx2"},
                            {Isa::avx512, "avx512"},
                            {Isa::avx512_bf16, "avx512_bf16"}};

Device cpu(std::string name, Isa isa, int num_threads, int64_t l1d_kib, int64_t l2_kib) {
  Device device;
  device.name = std::move(name);
  device.isa = isa;
  device.num_threads = num_threads;
  device.l1d_bytes = l1d_kib << 10;
  device.l2_bytes = l2_kib << 10;
  return device;
}

Device with_fast_bf16_dot(Device device) {
  device.has_fast_bf16_dot = true;
  return device;
}

Device gpu(std::string name, int arch, int num_sms, int64_t smem_kib, int64_t l2_mib) {
  Device device;
  device.kind = DeviceKind::cuda;
  device.name = std::move(name);
  device.arch = arch;
  device.num_sms = num_sms;
  device.smem_bytes = smem_kib << 10;
  device.l2_bytes = l2_mib << 20;
  return device;
}

// CPUs with the threads of the machine and the data caches of a core.
struct Recorded {
  std::string_view name;
  Device device;
};

const std::vector<Recorded>& recorded() {
  static const std::vector<Recorded>* const rows = new std::vector<Recorded>{
      {"h200", gpu("NVIDIA H200", 90, 132, 227, 60)},
      {"h100", gpu("NVIDIA H100 80GB HBM3", 90, 132, 227, 50)},
      {"a100", gpu("NVIDIA A100-SXM4-80GB", 80, 108, 163, 40)},
      {"zen4", with_fast_bf16_dot(cpu("Ryzen 9 7950X", Isa::avx512_bf16, 32, 32, 1024))},
      {"emerald_rapids", cpu("Emerald Rapids, 64 cores", Isa::avx512, 64, 48, 2048)},
      {"sapphire_rapids", cpu("Xeon Platinum 8480+", Isa::avx512_bf16, 112, 48, 2048)},
      {"skylake", cpu("Xeon Platinum 8175", Isa::avx512, 48, 32, 1024)},
      {"avx2", cpu("Core i7-4770", Isa::avx2, 8, 32, 256)},
      {"neon", cpu("Neoverse V1", Isa::neon, 64, 64, 1024)},
      {"scalar", cpu("Core 2 Duo E8400", Isa::scalar, 2, 32, 6144)},
  };
  return *rows;
}

// Who made it tells: AMD's cores with the instruction run it at full width.
bool detect_fast_bf16_dot() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

#if defined(__x86_64__)
// clang 14 has no name for it in __builtin_cpu_supports. Saved with the AVX state.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

bool is_avx512_bf16_assumed = false;

Isa detect_isa() {
#if defined(__x86_64__)
  // The builtin also asks the operating system whether it saves the wide registers.
  return best_isa(
      {.avx2 = __builtin_cpu_supports("avx2") != 0,
       .fma = __builtin_cpu_supports("fma") != 0,
       .f16c = has_f16c(),
       .avx512f = __builtin_cpu_supports("avx512f") != 0,
       .avx512bw = __builtin_cpu_supports("avx512bw") != 0,
       .avx512dq = __builtin_cpu_supports("avx512dq") != 0,
       .avx512vl = __builtin_cpu_supports("avx512vl") != 0,
       .avx512bf16 = is_avx512_bf16_assumed || __builtin_cpu_supports("avx512bf16") != 0});
#elif defined(__aarch64__)
  return Isa::neon;
#else
  return Isa::scalar;
#endif
}

std::string detect_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

// Data cache of a level, per core; `otherwise` where sysfs does not say.
int64_t detect_cache(int level, int64_t otherwise) {
  const fs::path cpu0 = "/sys/devices/system/cpu/cpu0/cache";
  for (int index = 0; index < 8; ++index) {
    const fs::path cache = cpu0 / fmt::format("index{}", index);
    const std::string type = read_text(cache / "type");
    if (type.rfind("Instruction", 0) == 0) continue;
    if (std::atoi(read_text(cache / "level").c_str()) != level) continue;
    const int64_t size = parse_cache_size(read_text(cache / "size"));
    if (size > 0) return size;
  }
  return otherwise;
}

int affinity_cpus() {
  // Machines with more CPUs than cpu_set_t holds make the call fail; then ask for a larger set.
  for (int cpus = CPU_SETSIZE; cpus <= (1 << 18); cpus *= 4) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) break;
    const size_t size = CPU_ALLOC_SIZE(cpus);
    const bool known = sched_getaffinity(0, size, set) == 0;
    const int count = known ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (known) return std::max(count, 1);
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int usable_threads() {
  // A value that cannot be read is refused by whoever plans: check_environment().
  if (const char* text = std::getenv("SIRDAR_NUM_THREADS")) {
    if (const std::optional<int> wanted = parse_num_threads(text)) return *wanted;
  }
  const int granted = cgroup_cpus("/sys/fs/cgroup", read_text("/proc/self/cgroup"));
  const int allowed = affinity_cpus();
  return granted > 0 ? std::min(granted, allowed) : allowed;
}

int ceil_quota(double quota, double period) {
  if (!(quota > 0) || !(period > 0)) return 0;
  return static_cast<int>(std::clamp((quota + period - 1) / period, 1.0, 1e6));
}

// Quota of one cgroup directory, either version; 0 for none.
int directory_quota(const fs::path& directory) {
  double quota = 0, period = 0;
  std::istringstream both(
      read_text(directory / "cpu.max"));  // "max 100000" fails to parse: no limit
  if (both >> quota >> period) return ceil_quota(quota, period);
  std::istringstream v1_quota(read_text(directory / "cpu.cfs_quota_us"));  // -1: no limit
  std::istringstream v1_period(read_text(directory / "cpu.cfs_period_us"));
  if (v1_quota >> quota && v1_period >> period) return ceil_quota(quota, period);
  return 0;
}

}  // namespace

void assume_avx512_bf16() { is_avx512_bf16_assumed = true; }

std::string_view name_of(Isa isa) {
  for (const IsaRow& row : kIsas)
    if (row.isa == isa) return row.name;
  return "unknown";
}

Result<Isa> parse_isa(std::string_view name) {
  std::string known;
  for (const IsaRow& row : kIsas) {
    if (row.name == name) return row.isa;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Status(
      StatusCode::invalid_argument,
      fmt::format("isa: '{}' is not an instruction set; use one of {}.", shortened(name), known),
      "isa");
}

Isa best_isa(const X86Features& has) {
  const bool has_avx2 = has.avx2 && has.fma && has.f16c;
  const bool has_avx512 = has_avx2 && has.avx512f && has.avx512bw && has.avx512dq && has.avx512vl;
  if (has_avx512 && has.avx512bf16) return Isa::avx512_bf16;
  if (has_avx512) return Isa::avx512;
  return has_avx2 ? Isa::avx2 : Isa::scalar;
}

bool isa_runs_on(Isa wanted, Isa best) {
  if (wanted == Isa::scalar || wanted == best) return true;
  // NEON sits between scalar and AVX2 in the list but belongs to other machines.
  return wanted != Isa::neon && best != Isa::neon && wanted < best;
}

int cgroup_cpus(const fs::path& root, std::string_view membership) {
  int least = 0;
  const auto walk = [&](const fs::path& base, std::string_view relative) {
    fs::path directory = base;
    const auto take = [&] {
      const int quota = directory_quota(directory);
      if (quota > 0) least = least == 0 ? quota : std::min(least, quota);
    };
    take();
    for (const fs::path& part : fs::path(relative).relative_path()) {
      directory /= part;
      take();
    }
  };
  std::istringstream lines{std::string(membership)};
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) walk(root, path);
    if (("," + controllers + ",").find(",cpu,") != std::string::npos) walk(root / "cpu", path);
  }
  return least;
}

int64_t parse_cache_size(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value <= 0 || value > (1 << 24)) return 0;
  const char unit = end != text.data() + text.size() ? *end : '\0';
  if (unit == 'K') return value << 10;
  if (unit == 'M') return value << 20;
  return 0;
}

std::optional<int> parse_num_threads(std::string_view text) {
  int value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last || value < 1 || value > kMaxThreads) return std::nullopt;
  return value;
}

Device Device::host() {
  // What cannot change while the process runs is read once; threads may be bound at any time.
  static const Device fixed = [] {
    const Device defaults;
    Device device = cpu(detect_name(), detect_isa(), 1, 0, 0);
    device.has_fast_bf16_dot = detect_fast_bf16_dot();
    device.l1d_bytes = detect_cache(1, defaults.l1d_bytes);
    device.l2_bytes = detect_cache(2, defaults.l2_bytes);
    return device;
  }();
  Device device = fixed;
  device.num_threads = usable_threads();
  return device;
}

Result<Device> Device::named(std::string_view name) {
  if (name == "host") return Device::host();
  if (name == "cuda") return Device::cuda(0);
  if (name.starts_with("cuda:")) {
    const std::string_view digits = name.substr(5);
    int index = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc() && end == digits.data() + digits.size() && index >= 0)
      return Device::cuda(index);
  }
  std::string known = "host, cuda, cuda:0";
  std::vector<std::string_view> names{"host", "cuda"};
  for (const Recorded& row : recorded()) {
    if (row.name == name) return row.device;
    names.push_back(row.name);
    known += ", " + std::string(row.name);
  }
  return Status(StatusCode::invalid_argument,
                fmt::format("device: '{}' is not a machine here or a recorded one; use one of {}{}",
                            shortened(name), known, suggestion_or_stop(name, names)),
                "device");
}

}  // namespace sirdar
