// The pieces of Device::host() that can be tried on texts from other machines.
#pragma once

#include <sirdar/device.hpp>

#include <filesystem>
#include <optional>

namespace sirdar {

// What an x86-64 CPU and its operating system allow. Every set needs those before it.
struct X86Features {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool avx512bf16 = false;
};
Isa best_isa(const X86Features& features);

// For tests: from now on AVX512_BF16 counts as one of the machine's features. To be called before
// anything asks for the host.
void assume_avx512_bf16();

// May code for `wanted` run where the best instruction set is `best`?
bool isa_runs_on(Isa wanted, Isa best);

// The CPUs a cgroup quota grants, rounded up, for a process whose /proc/self/cgroup holds
// `membership` and whose cgroup file system is at `root`; 0 where nothing limits it. Reads versions
// 1 and 2.
int cgroup_cpus(const std::filesystem::path& root, std::string_view membership);

// "48K" and "2M" as sysfs writes them, in bytes; 0 when it is neither.
int64_t parse_cache_size(std::string_view text);

// SIRDAR_NUM_THREADS: a whole number from 1 to 4096, or nothing.
std::optional<int> parse_num_threads(std::string_view text);

}  // namespace sirdar
