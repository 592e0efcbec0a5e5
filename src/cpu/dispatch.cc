#include "cpu/dispatch.h"

#include <fmt/format.h>

#include "core/device.h"
#include "cpu/microkernel_backward.h"

namespace sirdar::cpu {
namespace {

// Instruction sets with kernels in this build, and what of it a device of `best` may run: newer
// sets of one family contain the older; neon and the x86 sets are unrelated.
bool may_run(Isa isa, Isa best) {
  switch (isa) {
    case Isa::scalar:
      return true;
#if defined(__x86_64__)
    case Isa::avx2:
      return best == Isa::avx2 || best == Isa::avx512 || best == Isa::avx512_bf16;
    case Isa::avx512:
      return best == Isa::avx512 || best == Isa::avx512_bf16;
    case Isa::avx512_bf16:
      return best == Isa::avx512_bf16;
#endif
#if defined(__aarch64__)
    case Isa::neon:
      return best == Isa::neon;
#endif
    default:
      return false;
  }
}

constexpr Isa kBestFirst[] = {Isa::avx512_bf16, Isa::avx512, Isa::avx2, Isa::neon, Isa::scalar};

#if defined(__x86_64__)
const ProductKernels* bf16_products = &kAvx512Bf16Products;
#endif

}  // namespace

Result<Isa> choose_isa(const Device& device, const std::string& forced, std::string_view user) {
  std::string usable;
  for (const Isa isa : kBestFirst) {
    if (!may_run(isa, device.isa)) continue;
    if (forced.empty() || forced == name_of(isa)) return isa;
    usable += fmt::format("{}{}", usable.empty() ? "" : ", ", name_of(isa));
  }
  return Status(
      StatusCode::unsupported,
      fmt::format(
          "isa: '{}' cannot be used by {} on '{}', whose best is {}; use one of {}, or leave "
          "it out.",
          forced, user, device.name, name_of(device.isa), usable),
      "isa");
}

Result<Isa> choose_isa(const Device& device, const std::string& forced, const Problem& problem,
                       std::string_view user) {
  const Result<Isa> isa = choose_isa(device, forced, user);
  if (!isa.ok() || isa.value() != Isa::avx512_bf16) return isa;
  const bool is_wanted = device.has_fast_bf16_dot || !forced.empty();
  const bool has_own = is_wanted && problem.op == Op::forward && problem.dtype_q == DType::bf16;
  return has_own ? Isa::avx512_bf16 : Isa::avx512;
}

Status check_isa(const Device& device, Isa isa, std::string_view user) {
  return choose_isa(device, std::string(name_of(isa)), user).status();
}

Status check_isa_here(Isa isa, std::string_view user) {
  static const Device host = Device::host();
  return check_isa(host, isa, user);
}

const MicroKernels& kernels_for(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512 || isa == Isa::avx512_bf16) return kAvx512Kernels;
  if (isa == Isa::avx2) return kAvx2Kernels;
#elif defined(__aarch64__)
  if (isa == Isa::neon) return kNeonKernels;
#endif
  static_cast<void>(isa);
  return kScalarKernels;
}

ProductKernels product_kernels_for(Isa isa, DType dtype) {
#if defined(__x86_64__)
  if (isa == Isa::avx512_bf16 && dtype == DType::bf16) return *bf16_products;
#endif
  const MicroKernels& kernels = kernels_for(isa);
  const auto format = static_cast<size_t>(dtype);
  return {.per_word = 1,
          .qk = {kernels.qk[0], kernels.qk[1]},
          .softmax = {kernels.softmax[0], kernels.softmax[1]},
          .pv = {kernels.pv[0], kernels.pv[1]},
          .narrow_qk = kernels.narrow_qk[format],
          .narrow_pv = kernels.narrow_pv[format],
          .pack_k = kernels.pack_k[format],
          .pack_v = kernels.pack_v[format],
          .pack_q = {kernels.pack[format][0], kernels.pack[format][1]},
          .join = {},
          .peak = kernels.fma_peak,
          .flops_per_round = kernels.flops_per_round};
}

void emulate_avx512_bf16(const ProductKernels& kernels) {
#if defined(__x86_64__)
  bf16_products = &kernels;
  assume_avx512_bf16();
#else
  static_cast<void>(kernels);
#endif
}

const BackwardKernels& backward_kernels_for(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512 || isa == Isa::avx512_bf16) return kAvx512Backward;
  if (isa == Isa::avx2) return kAvx2Backward;
#elif defined(__aarch64__)
  if (isa == Isa::neon) return kNeonBackward;
#endif
  static_cast<void>(isa);
  return kScalarBackward;
}

}  // namespace sirdar::cpu
