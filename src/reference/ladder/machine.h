// The counted machine that the ladder's programs run on: one processor with a small fast memory and
// a large slow one. Arrays in slow memory are reached only through load, store, read and write,
// which count bytes; arrays in fast memory are taken from a budget that cannot be exceeded;
// arithmetic goes through the functions below, which count it. A handful of scalars ("registers")
// is free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sirdar::ladder {

// How numbers are kept and, after every operation, rounded. Attention rungs use fp32.
enum class Precision : uint8_t { fp32, fp16 };

struct Counts {
  int64_t matmul_flops = 0;  // multiplications and additions inside matrix products
  int64_t other_flops = 0;   // all other additions, multiplications, divisions and comparisons
  int64_t exps = 0;          // exponentials and logarithms
  int64_t read_bytes = 0, written_bytes = 0;  // slow memory
  int64_t peak_extra_bytes = 0;               // slow memory beyond inputs and outputs
  int64_t peak_fast_bytes = 0;
  int64_t tiles = 0, masked_tiles = 0;  // score tiles computed; those masked by element
  bool operator==(const Counts&) const = default;
};

// What happened between two readings. Peaks are those of the whole run so far.
Counts operator-(const Counts& after, const Counts& before);

class Machine;

// An array in slow memory. Programs see its size; only the machine moves its elements.
class Slow {
 public:
  Slow() = default;
  Slow(Slow&& other) noexcept;
  Slow& operator=(Slow&& other) noexcept;
  ~Slow();

  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  // For whoever watches the experiment; a program that called these would cheat.
  const std::vector<float>& values() const { return values_; }
  int64_t elements_read() const { return elements_read_; }
  int64_t elements_written() const { return elements_written_; }

 private:
  friend class Machine;
  std::vector<float> values_;
  Machine* owner_ = nullptr;  // set where the array counts as extra memory
  mutable int64_t elements_read_ = 0;
  int64_t elements_written_ = 0;
};

// An array in fast memory, given back at the end of its life. Elements start as NaN.
class Fast {
 public:
  Fast(const Fast&) = delete;
  Fast& operator=(const Fast&) = delete;
  ~Fast();

  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  float& operator[](int64_t index) { return values_[static_cast<size_t>(index)]; }
  float* row(int64_t index, int64_t width) { return values_.data() + index * width; }
  void fill(float value) { values_.assign(values_.size(), value); }

 private:
  friend class Machine;
  Fast(Machine& owner, int64_t size);
  std::vector<float> values_;
  Machine& owner_;
};

// Capacity overruns and accesses outside an array throw sirdar::Error: they are faults of a
// program, and climb() turns them into a Status.
class Machine {
 public:
  explicit Machine(int64_t fast_memory_bytes, Precision precision = Precision::fp32);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  int64_t element_bytes() const { return precision_ == Precision::fp16 ? 2 : 4; }
  int64_t fast_elements() const { return fast_bytes_ / element_bytes(); }  // the M of the formulas
  const Counts& counts() const { return counts_; }

  // Slow memory. Inputs are rounded to the machine's precision; the rest starts as NaN.
  Slow input(std::span<const float> values);
  Slow output(int64_t size);
  Slow scratch(int64_t size);  // extra memory

  // Fast memory.
  Fast fast(int64_t size);

  // Moves `count` elements; fast offsets first, slow offsets second.
  void load(Fast& to, const Slow& from, int64_t from_offset, int64_t count);
  void store(Slow& to, int64_t to_offset, Fast& from, int64_t count);
  float read(const Slow& from, int64_t offset);
  void write(Slow& to, int64_t offset, float value);

  // Matrix products. a, b, y: `size` elements in fast memory.
  float dot(const float* a, const float* b, int64_t size);
  void add_scaled(float* y, float scale, const float* x, int64_t size);  // y += scale * x

  // Everything else, one operation each.
  float add(float a, float b) { return ++counts_.other_flops, rounded(a + b); }
  float sub(float a, float b) { return ++counts_.other_flops, rounded(a - b); }
  float mul(float a, float b) { return ++counts_.other_flops, rounded(a * b); }
  float div(float a, float b) { return ++counts_.other_flops, rounded(a / b); }
  float max(float a, float b) { return ++counts_.other_flops, a < b ? b : a; }
  float exp(float x);
  float log(float x);

  void count_tile(bool is_masked) { ++counts_.tiles, counts_.masked_tiles += is_masked; }

 private:
  friend class Slow;
  friend class Fast;
  float rounded(float x) const { return precision_ == Precision::fp16 ? round_to_fp16(x) : x; }
  static float round_to_fp16(float x);

  int64_t fast_bytes_;
  Precision precision_;
  int64_t fast_used_ = 0, extra_used_ = 0;  // elements
  Counts counts_;
};

}  // namespace sirdar::ladder
