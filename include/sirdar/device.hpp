// Device: the facts a plan depends on, as plain data, so that planning for a machine that is not
// here is an ordinary function call.
#pragma once

#include <sirdar/status.hpp>

#include <string>

namespace sirdar {

enum class DeviceKind : uint8_t { cpu, cuda };

// Instruction sets a CPU implementation may use, weakest first.
enum class Isa : uint8_t { scalar, neon, avx2, avx512, avx512_bf16 };
SIRDAR_API std::string_view name_of(Isa isa);
SIRDAR_API Result<Isa> parse_isa(std::string_view name);

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;  // "Intel(R) Xeon(R) ...", "NVIDIA H200"
  int index = 0;     // CUDA ordinal

  // CPU
  Isa isa = Isa::scalar;  // the best one that may run
  // Whether products of bf16 pairs (avx512_bf16) run at twice the rate of fp32, as on Zen 4. Xeons
  // with AMX have the instruction at half that rate, and are faster with fp32 arithmetic.
  bool has_fast_bf16_dot = false;
  int num_threads = 1;           // usable at once (affinity and cgroup quota respected)
  int64_t l1d_bytes = 32 << 10;  // per core
  int64_t l2_bytes = 1 << 20;    // per core; for CUDA the whole L2

  // CUDA
  int arch = 0;  // 90 for sm_90
  int num_sms = 0;
  int64_t smem_bytes = 0;  // opt-in shared memory of one block

  // The machine this runs on. Reads SIRDAR_NUM_THREADS; nothing else.
  SIRDAR_API static Device host();
  // A GPU that is here, by its CUDA ordinal; or why there is none. Creates nothing on it.
  SIRDAR_API static Result<Device> cuda(int index = 0);
  // "host", "cuda" or "cuda:1" for a GPU that is here, or a recorded machine by name ("h200",
  // "zen4", "avx2", "scalar", ...).
  SIRDAR_API static Result<Device> named(std::string_view name);
};

}  // namespace sirdar
