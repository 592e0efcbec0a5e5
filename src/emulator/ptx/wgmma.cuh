#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

enum class MmaType { bf16, f16 };

inline void wgmma_fence(Here here = Here::current()) {
  if (machine().enter(Op::kWgmmaFence, here) == Change::kLeftOut) return;
  emulator::wgmma_fence();
}

inline void wgmma_commit_group(Here here = Here::current()) {
  if (machine().enter(Op::kWgmmaCommit, here) == Change::kLeftOut) return;
  emulator::wgmma_commit();
}

template <int kPending>
inline void wgmma_wait_group(Here here = Here::current()) {
  const Change change = machine().enter(Op::kWgmmaWait, here);
  if (change == Change::kLeftOut) return;
  emulator::wgmma_wait(kPending + (change == Change::kMore));
}

template <int kCount>
inline void registers_ready(float (&d)[kCount], Here here = Here::current()) {
  machine().enter(Op::kRegistersReady, here);
  emulator::registers_ready(d, kCount);
}

inline uint64_t wgmma_descriptor(uint32_t address, int leading_bytes, int stride_bytes) {
  const uint32_t low =
      (static_cast<uint32_t>(leading_bytes >> 4) << 16) | ((address & 0x3ffff) >> 4);
  const uint32_t high = (1u << 30) | static_cast<uint32_t>(stride_bytes >> 4);
  return (static_cast<uint64_t>(high) << 32) | low;
}

template <int kN>
struct Wgmma {
  static_assert(kN >= 16 && kN <= 256 && kN % 16 == 0);

  template <MmaType kType, int kTransposeA = 0, int kTransposeB = 0>
  static void ss(float (&d)[kN / 2], uint64_t a, uint64_t b, int scale_d,
                 Here here = Here::current()) {
    const Change change = machine().enter(Op::kWgmma, here);
    emulator::wgmma({d, kN, nullptr, a, b, kTransposeA != 0, kTransposeB != 0, scale_d != 0,
                     kType == MmaType::f16},
                    change);
  }
  template <MmaType kType, int kTransposeB = 0>
  static void rs(float (&d)[kN / 2], const uint32_t* a, uint64_t b, int scale_d,
                 Here here = Here::current()) {
    const Change change = machine().enter(Op::kWgmma, here);
    emulator::wgmma({d, kN, a, 0, b, false, kTransposeB != 0, scale_d != 0, kType == MmaType::f16},
                    change);
  }

  template <MmaType kType, int kStepA, int kStepB, int kTransposeA = 0, int kTransposeB = 0>
  static void ss4(float (&d)[kN / 2], uint64_t a, uint64_t b, int scale_d,
                  Here here = Here::current()) {
    for (int i = 0; i < 4; ++i) {
      ss<kType, kTransposeA, kTransposeB>(d, a + i * kStepA, b + i * kStepB, i > 0 ? 1 : scale_d,
                                          here);
    }
  }
  template <MmaType kType, int kStep, int kTransposeB = 0>
  static void rs4(float (&d)[kN / 2], const uint32_t* a, uint64_t b, int scale_d,
                  Here here = Here::current()) {
    for (int i = 0; i < 4; ++i) {
      rs<kType, kTransposeB>(d, a + 4 * i, b + i * kStep, i > 0 ? 1 : scale_d, here);
    }
  }
};

}  // namespace sirdar::ptx
