// The formats that rows are stored in, as floats and back, a vector at a time. Decoding is exact;
// encoding rounds to nearest, ties to even, and a NaN stays a NaN: what shared/float_bits.h defines
// element by element. Includes no function of it: a linker could keep a copy compiled for this
// instruction set.
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = uint16_t __attribute__((vector_size(2 * kLanes)));

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

inline void store_halves(uint16_t* p, Words x) {
  const Halves narrow = __builtin_convertvector(x, Halves);
  __builtin_memcpy(p, &narrow, sizeof(narrow));
}

// x[c] = the c-th column of kLanes rows, four elements of `quads(rows + r, c)` at a time.
template <class Quads>
__attribute__((always_inline)) inline void turn_quads(const void* const* rows, F* x, Quads quads) {
  // Row by row: with rows 4 KiB apart all lines at a column share one set of the cache, which has
  // room for fewer of them than a vector has keys.
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r)
#pragma GCC unroll 4
    for (int quad = 0; quad < kLanes; quad += 4) x[quad + r] = quads(rows + r, quad);
#pragma GCC unroll 4
  for (int quad = 0; quad < kLanes; quad += 4) transpose_quads(x + quad);
}

// A format gives words, one a lane: a float, or kPerWord elements that the kernels take together.
// `turn` gives columns of kLanes rows from word c on, kTurned of them in a vector, and `turned` the
// n-th of these: two columns of bf16 pass as one.
struct Fp32 {
  using Raw = float;
  static constexpr int kPerWord = 1, kTurned = 1;
  static void turn(const void* const* rows, int64_t c, F* x) { turn_floats(rows, 4 * c, x); }
  static F turned(F x, int) { return x; }
  static F decode(const Raw* p) { return load(p); }
  static void encode(Raw* p, F x) { store(p, x); }
};

struct Bf16 {
  using Raw = uint16_t;
  static constexpr int kPerWord = 1, kTurned = 2;
  static void turn(const void* const* rows, int64_t c, F* x) { turn_floats(rows, 2 * c, x); }
  static F turned(F x, int n) {
    const Words bits = bits_as<Words>(x);
    return bits_as<F>(n == 0 ? bits << 16 : bits & 0xffff0000u);
  }
  static F decode(const Raw* p) { return bits_as<F>(bits_as<Words>(load_u16(p)) << 16); }
  static void encode(Raw* p, F x) {
    const Words bits = bits_as<Words>(x);
    const Words rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const Words quiet = bits >> 16 | 0x40u;
    store_halves(p, (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
};

struct Fp16 {
  using Raw = uint16_t;
  static constexpr int kPerWord = 1, kTurned = 1;
  static void turn(const void* const* rows, int64_t c, F* x) {
    turn_quads(rows, x, [=](const void* const* quad_rows, int64_t quad) {
      return load_quads_fp16(quad_rows, 2 * (c + quad));
    });
  }
  static F turned(F x, int) { return x; }
  static F decode(const Raw* p) { return load_fp16(p); }
  static void encode(Raw* p, F x) { store_fp16(p, x); }
};

struct E4m3 {
  using Raw = uint8_t;
  static constexpr int kPerWord = 1, kTurned = 1;
  static void turn(const void* const* rows, int64_t c, F* x) {
    turn_quads(rows, x, [=](const void* const* quad_rows, int64_t quad) {
      return of(load_quads_u8(quad_rows, c + quad));
    });
  }
  static F turned(F x, int) { return x; }
  static F decode(const Raw* p) { return of(load_u8(p)); }
  static F of(I bytes) {
    const Words bits = bits_as<Words>(bytes), size = bits & 0x7fu;
    // Exponents are biased by 7, those of a float by 127.
    const Words normal = (size << 20) + (120u << 23);
    // (1 + mantissa / 8) * 2^-6 - 2^-6: exact, and no subnormal float on the way.
    const Words one_above = (size << 20) + (121u << 23);
    const Words subnormal = bits_as<Words>(sub(bits_as<F>(one_above), all(0x1p-6f)));
    Words result = size < 8u ? subnormal : normal;
    result = size == 0x7fu ? Words{} + 0x7ff00000u : result;
    return bits_as<F>(result | (bits & 0x80u) << 24);
  }
};

// Two neighbours of a row of bf16 as they lie, the first in the low half.
struct Bf16Pair {
  struct Raw {
    uint16_t half[2];
  };
  static constexpr int kPerWord = 2, kTurned = 1;
  static void turn(const void* const* rows, int64_t c, F* x) { turn_floats(rows, 4 * c, x); }
  static F turned(F x, int) { return x; }
  static F decode(const Raw* p) {
    F words;
    __builtin_memcpy(&words, p, sizeof(words));
    return words;
  }
};

template <class T>
constexpr int words_of(int elements) {
  return (elements + T::kPerWord - 1) / T::kPerWord;
}

// The first n elements, fewer than fill a vector, and nothing behind them: zeros follow.
template <class T>
inline F decode_part(const typename T::Raw* from, int n) {
  typename T::Raw part[kLanes] = {};
  __builtin_memcpy(part, from, sizeof(part[0]) / T::kPerWord * static_cast<size_t>(n));
  return T::decode(part);
}

template <class T>
inline void encode_part(F x, int n, typename T::Raw* to) {
  typename T::Raw part[kLanes];
  T::encode(part, x);
  __builtin_memcpy(to, part, sizeof(part[0]) * static_cast<size_t>(n));
}

// The words of n elements; writes up to the next multiple of kLanes.
template <class T>
inline void decode_row(const void* from, int n, float* to) {
  const typename T::Raw* raw = static_cast<const typename T::Raw*>(from);
  int c = 0;
  for (; (c + kLanes) * T::kPerWord <= n; c += kLanes) store(to + c, T::decode(raw + c));
  if (c * T::kPerWord < n) store(to + c, decode_part<T>(raw + c, n - c * T::kPerWord));
}

// `from` is readable up to the next multiple of kLanes.
template <class T>
inline void encode_row(const float* from, int n, void* to) {
  typename T::Raw* raw = static_cast<typename T::Raw*>(to);
  int c = 0;
  for (; c + kLanes <= n; c += kLanes) T::encode(raw + c, load(from + c));
  if (c < n) encode_part<T>(load(from + c), n - c, raw + c);
}

struct RowBuffer {
  alignas(64) float at[kMaxColumns + kLanes];
};

// The row itself where it is floats, else a copy of its words.
template <class T>
inline const float* as_words(const void* row, int n, RowBuffer& buffer) {
  if constexpr (alignof(typename T::Raw) == alignof(float)) {
    static_cast<void>(n), static_cast<void>(buffer);
    return static_cast<const float*>(row);
  } else {
    decode_row<T>(row, n, buffer.at);
    return buffer.at;
  }
}

// Two rows of bf16 side by side: element c of the first in the low half of word c. Writes up to the
// next multiple of kLanes; a second row that is null is zeros.
inline void interleave_rows(const void* const* rows, bool has_second, int n, float* to) {
  const uint16_t* low = static_cast<const uint16_t*>(rows[0]);
  const uint16_t* high = has_second ? static_cast<const uint16_t*>(rows[1]) : nullptr;
  for (int c = 0; c < n; c += kLanes) {
    const size_t bytes = sizeof(uint16_t) * static_cast<size_t>(n - c < kLanes ? n - c : kLanes);
    uint16_t part[2][kLanes] = {};
    __builtin_memcpy(part[0], low + c, bytes);
    if (has_second) __builtin_memcpy(part[1], high + c, bytes);
    store(to + c,
          bits_as<F>(bits_as<Words>(load_u16(part[0])) | bits_as<Words>(load_u16(part[1])) << 16));
  }
}

inline F joined_rows(const uint16_t* low, const uint16_t* high) {
  return bits_as<F>(bits_as<Words>(load_u16(low)) | bits_as<Words>(load_u16(high)) << 16);
}

// The words of n <= kLanes columns of V from `column` on, as interleave_rows or T makes them.
template <class T>
__attribute__((always_inline)) inline F value_vector(const void* const* rows, bool has_second,
                                                     int column, int n) {
  if constexpr (T::kPerWord == 1) {
    const typename T::Raw* v = static_cast<const typename T::Raw*>(rows[0]) + column;
    return n < kLanes ? decode_part<T>(v, n) : T::decode(v);
  } else {
    const uint16_t* low = static_cast<const uint16_t*>(rows[0]) + column;
    if (n == kLanes && has_second)
      return joined_rows(low, static_cast<const uint16_t*>(rows[1]) + column);
    const size_t bytes = sizeof(uint16_t) * static_cast<size_t>(n);
    uint16_t part[2][kLanes] = {};
    __builtin_memcpy(part[0], low, bytes);
    if (has_second)
      __builtin_memcpy(part[1], static_cast<const uint16_t*>(rows[1]) + column, bytes);
    return joined_rows(part[0], part[1]);
  }
}

// Words of V from row 0 on, of kPerWord rows or of as many as there are.
template <class T>
inline const float* value_words(const void* const* rows, int num_rows, int n, RowBuffer& buffer) {
  if constexpr (T::kPerWord == 1) {
    static_cast<void>(num_rows);
    return as_words<T>(rows[0], n, buffer);
  } else {
    interleave_rows(rows, num_rows > 1, n, buffer.at);
    return buffer.at;
  }
}

template <class T>
__attribute__((noinline)) void decode_all(const void* from, int n, float* to) {
  decode_row<T>(from, n, to);
}

template <class T>
__attribute__((noinline)) void encode_all(const float* from, int n, void* to) {
  typename T::Raw* raw = static_cast<typename T::Raw*>(to);
  for (int c = 0; c < n; c += kLanes) {
    const int count = n - c < kLanes ? n - c : kLanes;
    float part[kLanes] = {};
    __builtin_memcpy(part, from + c, sizeof(float) * static_cast<size_t>(count));
    encode_row<T>(part, count, raw + c);
  }
}
