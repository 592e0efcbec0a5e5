#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t src, Here here = Here::current()) {
  if (machine().enter(Op::kLdmatrix, here) == Change::kOther) src ^= 16;
  emulator::ldmatrix(src, 4, false, r);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t src, Here here = Here::current()) {
  if (machine().enter(Op::kLdmatrix, here) == Change::kOther) src ^= 16;
  emulator::ldmatrix(src, 4, true, r);
}
inline void ldmatrix_x2(uint32_t (&r)[2], uint32_t src, Here here = Here::current()) {
  if (machine().enter(Op::kLdmatrix, here) == Change::kOther) src ^= 16;
  emulator::ldmatrix(src, 2, false, r);
}
inline void stmatrix_x4(uint32_t dst, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3,
                        Here here = Here::current()) {
  const uint32_t rows[4] = {r0, r1, r2, r3};
  const Change change = machine().enter(Op::kStmatrix, here);
  emulator::stmatrix(dst, 4, false, rows, change);
}

inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              Here here = Here::current()) {
  if (machine().enter(Op::kMma, here) == Change::kLeftOut) return;
  emulator::mma_m16n8k16(d, a, b, false);
}
inline void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             Here here = Here::current()) {
  if (machine().enter(Op::kMma, here) == Change::kLeftOut) return;
  emulator::mma_m16n8k16(d, a, b, true);
}

}  // namespace sirdar::ptx
