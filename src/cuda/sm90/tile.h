// What the configs of all Hopper kernels say of their tiles. Read by g++, clang and NVRTC.
#pragma once

namespace sirdar::sm90 {

inline constexpr int kMostSharedBytes = 232448;  // of one thread block

enum class Element : int { bf16, fp16 };

// Which keys a row may see, all as one interval lo(q) <= k < hi(q).
//   full      every key of the sequence
//   upper     lo is 0: causal
//   interval  both ends move: windows and chunks
enum class MaskForm : int { full, upper, interval };

// What a bias is stored as.
enum class Bias : int { none, fp32, bf16, fp16 };

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Tiles lie in shared memory as chunks of 64 columns, [columns / 64][rows][64], 128-byte swizzle.
// Columns that do not exist are zeros that TMA fills in.
constexpr int columns(int head_dim) { return round_up(head_dim, 64); }

}  // namespace sirdar::sm90
