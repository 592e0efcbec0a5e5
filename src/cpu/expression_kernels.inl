// Kernels of expressions: each operation of a vector program as one loop over rows of lanes, and
// the masks that come after them. Included by kernels.inl; the same restrictions hold.
using expression::Instruction;
using expression::Place;
using expression::Section;
using expression::VectorOp;

// p(f) close to 2^f on [-1/2, 1/2], relative error 9e-8, times 2^n, also where that is subnormal.
inline F scaled_exp2(F f, I n) {
  F p = fma(all(1.326472717e-3f), f, all(9.671512642e-3f));
  p = fma(p, f, all(5.550733743e-2f));
  p = fma(p, f, all(2.402224209e-1f));
  p = fma(p, f, all(6.931469776e-1f));
  p = fma(p, f, all(1.0f));
  const I half = shift_right(n, 1), rest = sub_int(n, half);
  const F low = as_float(shift_left(add_int(half, all_int(127)), 23));
  const F high = as_float(shift_left(add_int(rest, all_int(127)), 23));
  return mul(mul(p, low), high);
}

// The integer next to x, |x| < 2^22, twice.
inline F nearest(F x, I& n) {
  const F magic = all(12582912.0f);  // 1.5 * 2^23
  const F biased = add(x, magic);
  n = sub_int(as_int(biased), as_int(magic));
  return sub(biased, magic);
}

// ln 2 in two parts; the first has 10 bits, so that its products with exponents are exact.
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

inline F exp_any(F x) {
  const F clamped = min(all(90.0f), max(all(-104.0f), x));  // inf and 0 lie beyond
  I n;
  const F whole = nearest(mul(clamped, all(1.44269504f)), n);
  const F rest = fma(whole, all(-kLn2Low), fma(whole, all(-kLn2High), clamped));
  return scaled_exp2(mul(rest, all(1.44269504f)), n);
}

inline F exp2_any(F x) {
  const F clamped = min(all(130.0f), max(all(-151.0f), x));
  I n;
  const F whole = nearest(clamped, n);
  return scaled_exp2(sub(clamped, whole), n);
}

// x = 2^e (1 + t) with 1 + t between the roots of 1/2 and 2; ln(1 + t) = t - t^2/2 + t^3 P(t), P a
// relative minimax of degree 7 (6e-9).
inline F log_any(F x) {
  const M is_tiny = less(x, all(1.17549435e-38f));
  const F normal = select(is_tiny, mul(x, all(8388608.0f)), x);
  const I bits = as_int(normal);
  const I exponent = shift_right(sub_int(bits, all_int(0x3f3504f3)), 23);
  const F e = sub(to_float(exponent), select(is_tiny, all(23.0f), all(0.0f)));
  const F t = sub(as_float(sub_int(bits, shift_left(exponent, 23))), all(1.0f));
  F p = fma(all(-7.646109248e-2f), t, all(1.277912021e-1f));
  p = fma(p, t, all(-1.316418663e-1f));
  p = fma(p, t, all(1.419969498e-1f));
  p = fma(p, t, all(-1.662276481e-1f));
  p = fma(p, t, all(2.000129272e-1f));
  p = fma(p, t, all(-2.500083796e-1f));
  p = fma(p, t, all(3.33333312e-1f));
  const F square = mul(t, t);
  F y = mul(mul(p, t), square);
  y = fma(e, all(kLn2Low), y);
  y = fma(square, all(-0.5f), y);
  y = fma(e, all(kLn2High), add(y, t));
  const F zero = all(0.0f), infinity = all(__builtin_inff());
  const F outside = select(equal(x, zero), sub(zero, infinity), all(__builtin_nanf("")));
  y = select(less(zero, x), y, outside);
  return select(equal(x, infinity), infinity, y);
}

inline F sigmoid_any(F x) {
  const F e = exp_any(as_float(or_int(as_int(x), all_int(INT32_MIN))));  // of -|x|
  const F one = all(1.0f);
  return mul(select(less(x, all(0.0f)), e, one), inverse(add(one, e)));
}

// 1 - tanh(x)^2 = (2 h / (1 + h^2))^2 with h = exp(-|x|): no difference of numbers near 1.
inline F tanh_slope(F x) {
  const F h = exp_of(as_float(or_int(as_int(x), all_int(INT32_MIN))));
  const F root = mul(add(h, h), inverse(fma(h, h, all(1.0f))));
  return mul(root, root);
}

inline F negative(F x) { return as_float(xor_int(as_int(x), all_int(INT32_MIN))); }
inline F unless_zero(F x, F y) { return select(equal(x, all(0.0f)), all(0.0f), y); }
// A NaN of either passes; the first operand where both are equal.
inline F lesser(F a, F b) { return select(not_equal(a, a), a, select(less_equal(a, b), a, b)); }
inline F greater(F a, F b) { return select(not_equal(a, a), a, select(less_equal(b, a), a, b)); }
inline I less_of(F a, F b) { return truth(less(a, b)); }
inline I less_equal_of(F a, F b) { return truth(less_equal(a, b)); }
inline I equal_of(F a, F b) { return truth(equal(a, b)); }
inline I not_equal_of(F a, F b) { return truth(not_equal(a, b)); }

inline I complement(I x) { return xor_int(x, all_int(-1)); }
inline I negative_int(I x) { return sub_int(all_int(0), x); }
inline I magnitude_int(I x) { return max_int(x, negative_int(x)); }  // of -2^31: itself
inline I less_int_of(I a, I b) { return truth(less_int(a, b)); }
inline I less_equal_int_of(I a, I b) { return complement(truth(less_int(b, a))); }
inline I equal_int_of(I a, I b) { return truth(equal_int(a, b)); }
inline I not_equal_int_of(I a, I b) { return complement(truth(equal_int(a, b))); }
// A zero divisor gives 0: what its lane computed is wiped out.
inline I quotient_of(I a, I b) {
  const I is_zero = truth(equal_int(b, all_int(0)));
  return and_int(quotient(a, sub_int(b, is_zero)), complement(is_zero));
}
inline I remainder_of(I a, I b) {
  const I is_zero = truth(equal_int(b, all_int(0)));
  return and_int(sub_int(a, mul_int(quotient_of(a, b), b)), complement(is_zero));
}
inline I same(I x) { return x; }

// One operation, its operands found. Row r of operand i starts at at[i] + r * stride[i].
struct Operation {
  float* result;
  int rows;
  const float* at[4];
  int64_t stride[4];
  int num_operands;
  int32_t immediate;
  const ElementArray* tensor;
};

inline void put(float* p, F x) { store(p, x); }
inline void put(float* p, I x) { store_int(reinterpret_cast<int32_t*>(p), x); }
template <class T, bool is_column>
inline T fetch(const float* row, int w) {
  if constexpr (__is_same(T, F)) {
    return is_column ? all(*row) : load(row + w * kLanes);
  } else {
    const int32_t* at = reinterpret_cast<const int32_t*>(row);
    return is_column ? all_int(*at) : load_int(at + w * kLanes);
  }
}

template <class R, class X>
X operand_type(R (*)(X));
template <class R, class X>
X operand_type(R (*)(X, X));

using Kernel = void (*)(const Operation&);

template <auto fn, bool is_column, int W>
__attribute__((noinline)) void unary(const Operation& op) {
  using X = decltype(operand_type(fn));
  float* to = op.result;
  const float* a = op.at[0];
  for (int row = 0; row < op.rows; ++row, to += W * kLanes, a += op.stride[0])
    for (int w = 0; w < W; ++w) put(to + w * kLanes, fn(fetch<X, is_column>(a, w)));
}

template <auto fn, bool a_is_column, bool b_is_column, int W>
__attribute__((noinline)) void binary(const Operation& op) {
  using X = decltype(operand_type(fn));
  float* to = op.result;
  const float *a = op.at[0], *b = op.at[1];
  const int64_t a_stride = op.stride[0], b_stride = op.stride[1];
  for (int row = 0; row < op.rows; ++row, to += W * kLanes, a += a_stride, b += b_stride)
    for (int w = 0; w < W; ++w)
      put(to + w * kLanes, fn(fetch<X, a_is_column>(a, w), fetch<X, b_is_column>(b, w)));
}

template <int W>
__attribute__((noinline)) void choose(const Operation& op) {
  for (int row = 0; row < op.rows; ++row) {
    for (int w = 0; w < W; ++w) {
      const I condition = fetch<I, false>(op.at[0] + row * op.stride[0], w);
      const F yes = fetch<F, false>(op.at[1] + row * op.stride[1], w);
      const F no = fetch<F, false>(op.at[2] + row * op.stride[2], w);
      put(op.result + (row * W + w) * kLanes, select(holds(condition), yes, no));
    }
  }
}

template <int W>
__attribute__((noinline)) void fill(const Operation& op) {
  const I bits = all_int(op.immediate);
  for (int v = 0; v < op.rows * W; ++v) put(op.result + v * kLanes, bits);
}

// 1 / divisor, a little too large: a multiple of the divisor must not fall below its quotient, and
// the next quotient is 2^-31 away at least.
inline double inverse_of(int32_t divisor) { return 1.0 / divisor * (1 + 0x1p-50); }

template <bool is_remainder, int W>
__attribute__((noinline)) void divide_by_constant(const Operation& op) {
  const double inverse = inverse_of(op.immediate);
  const I divisor = all_int(op.immediate);
  for (int row = 0; row < op.rows; ++row) {
    for (int w = 0; w < W; ++w) {
      const I a = fetch<I, false>(op.at[0] + row * op.stride[0], w);
      const I whole = scaled(a, inverse);
      put(op.result + (row * W + w) * kLanes,
          is_remainder ? sub_int(a, mul_int(whole, divisor)) : whole);
    }
  }
}

// By divisors that stand still along the keys: times their reciprocals, within 1.5 ulp. Where a
// reciprocal or what it is of lies at the ends of the range, a true division.
template <int W>
__attribute__((noinline)) void divide_by_unusual_lane(const Operation& op) {
  for (int row = 0; row < op.rows; ++row) {
    for (int w = 0; w < W; ++w) {
      const F x = fetch<F, false>(op.at[0] + row * op.stride[0], w);
      const F divisor = fetch<F, false>(op.at[1], w), size = magnitude(divisor);
      const M usual = both(less(all(0x1p-100f), size), less(size, all(0x1p+100f)));
      const F y = mul(x, div(all(1.0f), divisor));
      put(op.result + (row * W + w) * kLanes, select(usual, y, div(x, divisor)));
    }
  }
}
template <int W>
__attribute__((noinline)) void divide_by_lane(const Operation& op) {
  F factor[W];
  bool is_usual = true;
  for (int w = 0; w < W; ++w) {
    const F divisor = fetch<F, false>(op.at[1], w);
    factor[w] = div(all(1.0f), divisor);
    float sizes[kLanes];
    store(sizes, magnitude(divisor));
    for (int lane = 0; lane < kLanes; ++lane)
      is_usual &= sizes[lane] > 0x1p-100f && sizes[lane] < 0x1p+100f;
  }
  if (!is_usual) return divide_by_unusual_lane<W>(op);
  float* to = op.result;
  const float* a = op.at[0];
  for (int row = 0; row < op.rows; ++row, to += W * kLanes, a += op.stride[0])
    for (int w = 0; w < W; ++w) put(to + w * kLanes, mul(fetch<F, false>(a, w), factor[w]));
}

inline I index_of(const Operation& op, int axis, int row, int w) {
  const I index = fetch<I, false>(op.at[axis] + row * op.stride[axis], w);
  return max_int(min_int(index, all_int(op.tensor->last[axis])), all_int(0));
}

// Elements of 4 bytes with 32-bit offsets.
template <int W>
inline void gather_narrow(const Operation& op) {
  const int32_t* base = static_cast<const int32_t*>(op.tensor->data);
  for (int row = 0; row < op.rows; ++row) {
    for (int w = 0; w < W; ++w) {
      I offset = all_int(0);
      for (int axis = 0; axis < op.num_operands; ++axis) {
        const I stride = all_int(static_cast<int32_t>(op.tensor->stride[axis]));
        offset = add_int(offset, mul_int(index_of(op, axis, row, w), stride));
      }
      put(op.result + (row * W + w) * kLanes, gather(base, offset));
    }
  }
}

template <class T, int W>
inline void gather_wide(const Operation& op) {
  const T* base = static_cast<const T*>(op.tensor->data);
  for (int row = 0; row < op.rows; ++row) {
    for (int w = 0; w < W; ++w) {
      int64_t offset[kLanes] = {};
      int32_t index[kLanes], value[kLanes];
      for (int axis = 0; axis < op.num_operands; ++axis) {
        store_int(index, index_of(op, axis, row, w));
        for (int lane = 0; lane < kLanes; ++lane)
          offset[lane] += index[lane] * op.tensor->stride[axis];
      }
      for (int lane = 0; lane < kLanes; ++lane) {
        const T element = base[offset[lane]];
        value[lane] = sizeof(T) == 1 ? -(element != 0) : static_cast<int32_t>(element);
      }
      put(op.result + (row * W + w) * kLanes, load_int(value));
    }
  }
}

template <bool is_boolean, int W>
__attribute__((noinline)) void read_elements(const Operation& op) {
  if (op.tensor->is_empty) {
    fill<W>(op);  // the immediate of an element is 0
  } else if (is_boolean) {
    gather_wide<uint8_t, W>(op);
  } else if (op.tensor->is_narrow) {
    gather_narrow<W>(op);
  } else {
    gather_wide<int32_t, W>(op);
  }
}

// There are fewer than 2^31 elements.
template <int W>
__attribute__((noinline)) void element_places(const Operation& op) {
  for (int row = 0; row < op.rows; ++row) {
    for (int w = 0; w < W; ++w) {
      I place = all_int(0);
      for (int axis = 0; axis < op.num_operands; ++axis) {
        const I size = all_int(op.tensor->last[axis] + 1);
        place = add_int(mul_int(place, size), index_of(op, axis, row, w));
      }
      put(op.result + (row * W + w) * kLanes, place);
    }
  }
}

// By which operand is a value per key: none, the first, the second.
struct KernelRow {
  Kernel by_column[3];
};
template <Kernel kernel>
constexpr KernelRow row_of() {
  return {{kernel, nullptr, nullptr}};
}
template <auto fn, int W>
constexpr KernelRow unary_row() {
  return {{unary<fn, false, W>, nullptr, nullptr}};
}
template <auto fn, int W>
constexpr KernelRow binary_row() {
  return {{binary<fn, false, false, W>, binary<fn, true, false, W>, binary<fn, false, true, W>}};
}

// In the order of VectorOp.
template <int W>
constexpr KernelRow kKernelRows[] = {
    row_of<fill<W>>(),                  // constant
    row_of<fill<W>>(),                  // scalar
    row_of<read_elements<false, W>>(),  // element_integer
    row_of<read_elements<false, W>>(),  // element_real
    row_of<read_elements<true, W>>(),   // element_boolean
    row_of<element_places<W>>(),
    {{unary<same, false, W>, unary<same, true, W>, nullptr}},
    unary_row<to_float, W>(),
    unary_row<negative_int, W>(),
    unary_row<magnitude_int, W>(),
    row_of<divide_by_constant<false, W>>(),
    row_of<divide_by_constant<true, W>>(),
    unary_row<complement, W>(),
    unary_row<negative, W>(),
    unary_row<magnitude, W>(),
    unary_row<floor, W>(),
    unary_row<exp_any, W>(),
    unary_row<exp2_any, W>(),
    unary_row<log_any, W>(),
    unary_row<tanh_of, W>(),
    unary_row<tanh_slope, W>(),
    unary_row<sigmoid_any, W>(),
    unary_row<sqrt, W>(),
    binary_row<add_int, W>(),
    binary_row<sub_int, W>(),
    binary_row<mul_int, W>(),
    binary_row<quotient_of, W>(),
    binary_row<remainder_of, W>(),
    binary_row<min_int, W>(),
    binary_row<max_int, W>(),
    binary_row<add, W>(),
    binary_row<sub, W>(),
    binary_row<mul, W>(),
    binary_row<div, W>(),
    row_of<divide_by_lane<W>>(),
    binary_row<unless_zero, W>(),
    binary_row<lesser, W>(),
    binary_row<greater, W>(),
    binary_row<less_int_of, W>(),
    binary_row<less_equal_int_of, W>(),
    binary_row<equal_int_of, W>(),
    binary_row<not_equal_int_of, W>(),
    binary_row<less_of, W>(),
    binary_row<less_equal_of, W>(),
    binary_row<equal_of, W>(),
    binary_row<not_equal_of, W>(),
    binary_row<and_int, W>(),
    binary_row<or_int, W>(),
    row_of<choose<W>>(),
};

inline float* register_of(const EvaluateArgs& args, Place place) {
  const int section = static_cast<int>(place.section);
  const bool in_pairs = place.section == Section::pairs;
  if (in_pairs && place.index == 0) return args.scores;
  return args.registers[section] +
         (place.index - (in_pairs ? 1 : 0)) * args.register_stride[section];
}

template <int W>
__attribute__((noinline)) void evaluate_section(const EvaluateArgs& args) {
  static_assert(sizeof(kKernelRows<W>) / sizeof(KernelRow) == expression::kNumVectorOps);
  for (int n = 0; n < args.num_instructions; ++n) {
    const Instruction& one = args.instructions[n];
    Operation op;
    op.result = register_of(args, {args.section, one.result});
    op.rows = args.rows;
    op.num_operands = one.num_operands;
    op.immediate = one.immediate;
    if (one.op == VectorOp::scalar) __builtin_memcpy(&op.immediate, args.scalars + one.index, 4);
    op.tensor = args.tensors + one.index;
    int column = 0;
    for (int i = 0; i < one.num_operands; ++i) {
      const Place place = one.operands[i];
      op.at[i] = register_of(args, place);
      if (place.section == args.section) {
        op.stride[i] = W * kLanes;
      } else if (place.section == Section::lanes) {
        op.stride[i] = 0;
      } else if (place.section == Section::distances) {
        op.stride[i] = args.distance_stride;
      } else {
        op.stride[i] = 1;
        column = i + 1;
      }
    }
    kKernelRows<W>[static_cast<int>(one.op)].by_column[column](op);
  }
}

template <int W>
__attribute__((noinline)) void mask_block(const MaskArgs& args) {
  if (args.lo == nullptr && args.document_q == nullptr && args.bias == nullptr &&
      args.visible == nullptr)
    return row_maxima<W>(args.scores, args.num_keys, args.max_in, args.max_out);
  const F lowest = all(-__builtin_inff());
  for (int w = 0; w < W; ++w) {
    const int lane = w * kLanes;
    F row_max = load(args.max_in + lane);
    for (int j = 0; j < args.num_keys; ++j) {
      const int64_t at = static_cast<int64_t>(j) * (W * kLanes) + lane;
      F s = load(args.scores + at);
      if (args.bias != nullptr) s = select(equal(load(args.bias + at), lowest), lowest, s);
      M visible = always();
      if (args.lo != nullptr) {
        const int key = args.first_key + j;
        visible = both(less_int(load_int(args.lo + lane), all_int(key + 1)),
                       less_int(all_int(key), load_int(args.hi + lane)));
      }
      if (args.document_q != nullptr) {
        visible =
            both(visible, equal_int(load_int(args.document_q + lane), all_int(args.document_k[j])));
      }
      if (args.visible != nullptr)
        visible = both(visible, holds(load_int(args.visible + j * args.visible_stride + lane)));
      s = select(visible, s, lowest);
      row_max = max(s, row_max);
      store(args.scores + at, s);
    }
    store(args.max_out + lane, row_max);
  }
}
