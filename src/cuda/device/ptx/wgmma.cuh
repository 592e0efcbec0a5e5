// wgmma: matrix products of a warpgroup, D[64][N] (+)= A[64][16] B[16][N], fp32 accumulators,
// 16-bit operands. Asynchronous: between issue and wgmma_wait_group the accumulators and the
// registers of A must not be touched. All by the four warps of a warpgroup, converged.
//
// Accumulator register i of lane l in warp w: row 16 w + l / 4 + 8 ((i / 2) % 2), column
// 8 (i / 4) + 2 (l % 4) + i % 2. A in registers: four per k-step of 16, in the same order, so that
// a packed accumulator is the next product's A without a shuffle.
#pragma once

#include "ptx/base.cuh"

namespace sirdar::ptx {

// Element type of both operands.
enum class MmaType { bf16, f16 };

// Orders this thread's register accesses before the wgmmas that follow. First in every burst.
SIRDAR_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

SIRDAR_DEVICE void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// At most kPending committed groups are still running.
template <int kPending>
SIRDAR_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// After a wait: keeps the compiler from moving uses of the accumulators above it.
template <int kCount>
SIRDAR_DEVICE void registers_ready(float (&d)[kCount]) {
  SIRDAR_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Shared-memory descriptor under the 128-byte swizzle, from a shared address. `leading_bytes` is
// the distance of 64-column chunks of an operand that is transposed (ignored otherwise),
// `stride_bytes` that of groups of eight rows. Only 18 address bits may enter: in a cluster the
// rank sits above.
SIRDAR_DEVICE uint64_t wgmma_descriptor(uint32_t address, int leading_bytes, int stride_bytes) {
  const uint32_t low =
      (static_cast<uint32_t>(leading_bytes >> 4) << 16) | ((address & 0x3ffff) >> 4);
  const uint32_t high = (1u << 30) | static_cast<uint32_t>(stride_bytes >> 4);
  return (static_cast<uint64_t>(high) << 32) | low;
}

// One shape: .ss with A and B by descriptor, .rs with A in registers. scale_d 0 starts a sum, 1
// adds to d. kTranspose*: the operand lies with its reduction index as the row (MN-major). ss4 and
// rs4 are four k-steps, whose descriptors lie kStep* apart: the same instructions, which as one
// statement cost the compiler a quarter (an accumulator is an operand and a result of each).
template <int kN>
struct Wgmma;

// clang-format off

#define SIRDAR_D16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SIRDAR_R16 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define SIRDAR_D32 SIRDAR_D16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SIRDAR_R32 SIRDAR_R16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define SIRDAR_D48 SIRDAR_D32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SIRDAR_R48 SIRDAR_R32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define SIRDAR_D64 SIRDAR_D48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SIRDAR_R64 SIRDAR_R48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define SIRDAR_D80 SIRDAR_D64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SIRDAR_R80 SIRDAR_R64, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define SIRDAR_D96 SIRDAR_D80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SIRDAR_R96 SIRDAR_R80, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define SIRDAR_D112 SIRDAR_D96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SIRDAR_R112 SIRDAR_R96, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define SIRDAR_D128 SIRDAR_D112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SIRDAR_R128 SIRDAR_R112, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define SIRDAR_D144 SIRDAR_D128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SIRDAR_R144 SIRDAR_R128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define SIRDAR_D160 SIRDAR_D144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define SIRDAR_R160 SIRDAR_R144, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define SIRDAR_D176 SIRDAR_D160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define SIRDAR_R176 SIRDAR_R160, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define SIRDAR_D192 SIRDAR_D176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define SIRDAR_R192 SIRDAR_R176, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define SIRDAR_D208 SIRDAR_D192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SIRDAR_R208 SIRDAR_R192, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define SIRDAR_D224 SIRDAR_D208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define SIRDAR_R224 SIRDAR_R208, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define SIRDAR_D240 SIRDAR_D224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define SIRDAR_R240 SIRDAR_R224, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define SIRDAR_D256 SIRDAR_D240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define SIRDAR_R256 SIRDAR_R240, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// i0.. are the numbers of the operands behind the accumulators.
#define SIRDAR_WGMMA_SS(T, N, i0, i1, i2, i3, i4) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" i2 ", 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." T "." T " {" SIRDAR_D##N "}, " \
               "%" i0 ", %" i1 ", p, 1, 1, %" i3 ", %" i4 "; }" \
               : SIRDAR_R##N : "l"(a), "l"(b), "r"(scale_d), "n"(kTransposeA), "n"(kTransposeB))
#define SIRDAR_WGMMA_RS(T, N, i0, i1, i2, i3, i4, i5, i6) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" i5 ", 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." T "." T " {" SIRDAR_D##N "}, " \
               "{%" i0 ", %" i1 ", %" i2 ", %" i3 "}, %" i4 ", p, 1, 1, %" i6 "; }" \
               : SIRDAR_R##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d), \
                 "n"(kTransposeB))
#define SIRDAR_STEP(T, N, A, B, P, TRANSPOSE) \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." T "." T " {" SIRDAR_D##N "}, " \
  A ", " B ", " P ", 1, 1, " TRANSPOSE ";\n"
#define SIRDAR_STEP_SS(T, N, A, B, P, i3, i4) SIRDAR_STEP(T, N, A, B, P, "%" i3 ", %" i4)
#define SIRDAR_STEP_RS(T, N, a0, a1, a2, a3, B, P, i18) \
  SIRDAR_STEP(T, N, "{%" a0 ", %" a1 ", %" a2 ", %" a3 "}", B, P, "%" i18)
#define SIRDAR_WGMMA_SS4(T, N, i0, i1, i2, i3, i4, i5, i6) \
  asm volatile("{ .reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %" i2 ", 0;\n" \
               SIRDAR_STEP_SS(T, N, "%" i0, "%" i1, "p", i3, i4) \
               "add.s64 a, %" i0 ", %" i5 "; add.s64 b, %" i1 ", %" i6 ";\n" \
               SIRDAR_STEP_SS(T, N, "a", "b", "1", i3, i4) \
               "add.s64 a, a, %" i5 "; add.s64 b, b, %" i6 ";\n" \
               SIRDAR_STEP_SS(T, N, "a", "b", "1", i3, i4) \
               "add.s64 a, a, %" i5 "; add.s64 b, b, %" i6 ";\n" \
               SIRDAR_STEP_SS(T, N, "a", "b", "1", i3, i4) "}" \
               : SIRDAR_R##N : "l"(a), "l"(b), "r"(scale_d), "n"(kTransposeA), "n"(kTransposeB), \
                 "n"(kStepA), "n"(kStepB))
#define SIRDAR_A4(i) "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3])
#define SIRDAR_WGMMA_RS4(T, N, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12, i13, i14, i15, i16, i17, i18, i19) \
  asm volatile("{ .reg .pred p; .reg .b64 b; setp.ne.b32 p, %" i17 ", 0;\n" \
               SIRDAR_STEP_RS(T, N, i0, i1, i2, i3, "%" i16, "p", i18) \
               "add.s64 b, %" i16 ", %" i19 ";\n" \
               SIRDAR_STEP_RS(T, N, i4, i5, i6, i7, "b", "1", i18) \
               "add.s64 b, b, %" i19 ";\n" \
               SIRDAR_STEP_RS(T, N, i8, i9, i10, i11, "b", "1", i18) \
               "add.s64 b, b, %" i19 ";\n" \
               SIRDAR_STEP_RS(T, N, i12, i13, i14, i15, "b", "1", i18) "}" \
               : SIRDAR_R##N : SIRDAR_A4(0), SIRDAR_A4(4), SIRDAR_A4(8), SIRDAR_A4(12), "l"(b), \
                 "r"(scale_d), "n"(kTransposeB), "n"(kStep))
#define SIRDAR_WGMMA(N, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12, i13, i14, i15, i16, i17, i18, i19) \
  template <> struct Wgmma<N> { \
    template <MmaType kType, int kTransposeA = 0, int kTransposeB = 0> \
    SIRDAR_DEVICE static void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int scale_d) { \
      if constexpr (kType == MmaType::bf16) SIRDAR_WGMMA_SS("bf16", N, i0, i1, i2, i3, i4); \
      else SIRDAR_WGMMA_SS("f16", N, i0, i1, i2, i3, i4); \
    } \
    template <MmaType kType, int kTransposeB = 0> \
    SIRDAR_DEVICE static void rs(float (&d)[N / 2], const uint32_t* a, uint64_t b, int scale_d) { \
      if constexpr (kType == MmaType::bf16) SIRDAR_WGMMA_RS("bf16", N, i0, i1, i2, i3, i4, i5, i6); \
      else SIRDAR_WGMMA_RS("f16", N, i0, i1, i2, i3, i4, i5, i6); \
    } \
    template <MmaType kType, int kStepA, int kStepB, int kTransposeA = 0, int kTransposeB = 0> \
    SIRDAR_DEVICE static void ss4(float (&d)[N / 2], uint64_t a, uint64_t b, int scale_d) { \
      if constexpr (kType == MmaType::bf16) SIRDAR_WGMMA_SS4("bf16", N, i0, i1, i2, i3, i4, i5, i6); \
      else SIRDAR_WGMMA_SS4("f16", N, i0, i1, i2, i3, i4, i5, i6); \
    } \
    template <MmaType kType, int kStep, int kTransposeB = 0> \
    SIRDAR_DEVICE static void rs4(float (&d)[N / 2], const uint32_t* a, uint64_t b, int scale_d) { \
      if constexpr (kType == MmaType::bf16) SIRDAR_WGMMA_RS4("bf16", N, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12, i13, i14, i15, i16, i17, i18, i19); \
      else SIRDAR_WGMMA_RS4("f16", N, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12, i13, i14, i15, i16, i17, i18, i19); \
    } \
  };

SIRDAR_WGMMA(16, "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27")
SIRDAR_WGMMA(32, "16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32", "33", "34", "35")
SIRDAR_WGMMA(48, "24", "25", "26", "27", "28", "29", "30", "31", "32", "33", "34", "35", "36", "37", "38", "39", "40", "41", "42", "43")
SIRDAR_WGMMA(64, "32", "33", "34", "35", "36", "37", "38", "39", "40", "41", "42", "43", "44", "45", "46", "47", "48", "49", "50", "51")
SIRDAR_WGMMA(80, "40", "41", "42", "43", "44", "45", "46", "47", "48", "49", "50", "51", "52", "53", "54", "55", "56", "57", "58", "59")
SIRDAR_WGMMA(96, "48", "49", "50", "51", "52", "53", "54", "55", "56", "57", "58", "59", "60", "61", "62", "63", "64", "65", "66", "67")
SIRDAR_WGMMA(112, "56", "57", "58", "59", "60", "61", "62", "63", "64", "65", "66", "67", "68", "69", "70", "71", "72", "73", "74", "75")
SIRDAR_WGMMA(128, "64", "65", "66", "67", "68", "69", "70", "71", "72", "73", "74", "75", "76", "77", "78", "79", "80", "81", "82", "83")
SIRDAR_WGMMA(144, "72", "73", "74", "75", "76", "77", "78", "79", "80", "81", "82", "83", "84", "85", "86", "87", "88", "89", "90", "91")
SIRDAR_WGMMA(160, "80", "81", "82", "83", "84", "85", "86", "87", "88", "89", "90", "91", "92", "93", "94", "95", "96", "97", "98", "99")
SIRDAR_WGMMA(176, "88", "89", "90", "91", "92", "93", "94", "95", "96", "97", "98", "99", "100", "101", "102", "103", "104", "105", "106", "107")
SIRDAR_WGMMA(192, "96", "97", "98", "99", "100", "101", "102", "103", "104", "105", "106", "107", "108", "109", "110", "111", "112", "113", "114", "115")
SIRDAR_WGMMA(208, "104", "105", "106", "107", "108", "109", "110", "111", "112", "113", "114", "115", "116", "117", "118", "119", "120", "121", "122", "123")
SIRDAR_WGMMA(224, "112", "113", "114", "115", "116", "117", "118", "119", "120", "121", "122", "123", "124", "125", "126", "127", "128", "129", "130", "131")
SIRDAR_WGMMA(240, "120", "121", "122", "123", "124", "125", "126", "127", "128", "129", "130", "131", "132", "133", "134", "135", "136", "137", "138", "139")
SIRDAR_WGMMA(256, "128", "129", "130", "131", "132", "133", "134", "135", "136", "137", "138", "139", "140", "141", "142", "143", "144", "145", "146", "147")

#undef SIRDAR_D16
#undef SIRDAR_R16
#undef SIRDAR_D32
#undef SIRDAR_R32
#undef SIRDAR_D48
#undef SIRDAR_R48
#undef SIRDAR_D64
#undef SIRDAR_R64
#undef SIRDAR_D80
#undef SIRDAR_R80
#undef SIRDAR_D96
#undef SIRDAR_R96
#undef SIRDAR_D112
#undef SIRDAR_R112
#undef SIRDAR_D128
#undef SIRDAR_R128
#undef SIRDAR_D144
#undef SIRDAR_R144
#undef SIRDAR_D160
#undef SIRDAR_R160
#undef SIRDAR_D176
#undef SIRDAR_R176
#undef SIRDAR_D192
#undef SIRDAR_R192
#undef SIRDAR_D208
#undef SIRDAR_R208
#undef SIRDAR_D224
#undef SIRDAR_R224
#undef SIRDAR_D240
#undef SIRDAR_R240
#undef SIRDAR_D256
#undef SIRDAR_R256
#undef SIRDAR_WGMMA_SS
#undef SIRDAR_WGMMA_RS
#undef SIRDAR_STEP
#undef SIRDAR_STEP_SS
#undef SIRDAR_STEP_RS
#undef SIRDAR_A4
#undef SIRDAR_WGMMA_SS4
#undef SIRDAR_WGMMA_RS4
#undef SIRDAR_WGMMA
// clang-format on

}  // namespace sirdar::ptx
