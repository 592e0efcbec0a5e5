// ldmatrix, stmatrix and mma.sync: the warp-wide matrix instructions. Collective over the 32 lanes.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

// Four 8x8 matrices of 16-bit elements; lane l gives the 16-byte row l % 8 of matrix l / 8.
SIRDAR_DEVICE void ldmatrix_x4(uint32_t (&r)[4], uint32_t src) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(src)
               : "memory");
}
// Each matrix transposed: lane l gets elements of rows 2 (l % 4) and the next, of column l / 4.
SIRDAR_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t src) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(src)
               : "memory");
}
// Two matrices; the addresses of lanes 0 to 15 count.
SIRDAR_DEVICE void ldmatrix_x2(uint32_t (&r)[2], uint32_t src) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(src)
               : "memory");
}
SIRDAR_DEVICE void stmatrix_x4(uint32_t dst, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(dst),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// d += A B with A 16x16 row-major, B 16x8 column-major; fragments as the PTX manual has them.
SIRDAR_DEVICE void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
SIRDAR_DEVICE void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace sirdar::ptx
