// Kernels that show what single instructions do; the same text runs on the emulated machine and, by
// NVRTC, on a GPU. It stands in a namespace of sirdar behind ptx/all.cuh, and includes nothing.

enum class Kind : int {
  load,
  load5,
  store,
  reduce,
  product,
  matrices,
  approximations,
  exact,
  parity
};

// Of products: D[64][n] = A[64][64] B[64][n], operands as TMA brings them.
struct ProbeConfig {
  Kind kind = Kind::load;
  int n = 64, span_a = 128, span_b = 128, transpose_a = 0, transpose_b = 0, a_in_registers = 0;
  bool is_fp16 = false;
};
template <class C, class Visit>
constexpr void fields(C& c, Visit visit) {
  visit("kind", c.kind);
  visit("n", c.n);
  visit("span_a", c.span_a);
  visit("span_b", c.span_b);
  visit("transpose_a", c.transpose_a);
  visit("transpose_b", c.transpose_b);
  visit("a_in_registers", c.a_in_registers);
  visit("is_fp16", c.is_fp16);
}

constexpr int kDataBytes = 96 << 10;
constexpr int shared_bytes(const ProbeConfig&) { return kDataBytes + 2048; }

struct ProbeParams {
  TensorMap a, b;
  int at[5];      // coordinates of a box
  int bytes;      // of the box
  int offset;     // of the box from an address that every swizzle likes
  int num_words;  // of out; of shared memory that is shown; of pairs that are read
  const uint32_t* in;
  uint32_t* out;
};

// Small integers, so that sums are exact in any order.
SIRDAR_DEVICE float element(int row, int k, int salt) {
  return static_cast<float>((row * 7 + k * 5 + salt) % 9 - 4);
}

struct Probe {
  const ProbeParams& p;
  int thread;
  uint32_t base;

  SIRDAR_DEVICE explicit Probe(const ProbeParams& params)
      : p(params), thread(ptx::thread_idx_x()), base((ptx::dynamic_shared() + 1023) & ~1023u) {}
  SIRDAR_DEVICE uint32_t bar() const { return base + kDataBytes; }

  SIRDAR_DEVICE void init() const {
    if (thread == 0) {
      ptx::mbarrier_init(bar(), 1);
      ptx::fence_mbarrier_init();
    }
    ptx::syncthreads();
  }
  // A box that announces other bytes than it brings must not hang a GPU.
  SIRDAR_DEVICE bool has_arrived() const {
    SIRDAR_NO_UNROLL
    for (int i = 0; i < 20000; ++i) {
      if (ptx::mbarrier_try_wait(bar(), 0)) return true;
    }
    return false;
  }
  SIRDAR_DEVICE void fill(int mark) const {
    for (int i = thread; i < p.num_words / 4; i += 128) {
      ptx::store_shared(base + 16 * static_cast<uint32_t>(i),
                        {mark + 4 * i, mark + 4 * i + 1, mark + 4 * i + 2, mark + 4 * i + 3});
    }
    ptx::fence_proxy_async_shared();
    ptx::syncthreads();
  }
  SIRDAR_DEVICE void show() const {
    for (int i = thread; i < p.num_words / 4; i += 128) {
      const ptx::Int4 piece = ptx::load_shared_int4(base + 16 * static_cast<uint32_t>(i));
      p.out[4 * i] = static_cast<uint32_t>(piece.x);
      p.out[4 * i + 1] = static_cast<uint32_t>(piece.y);
      p.out[4 * i + 2] = static_cast<uint32_t>(piece.z);
      p.out[4 * i + 3] = static_cast<uint32_t>(piece.w);
    }
  }

  template <bool kIsFive>
  SIRDAR_DEVICE void load() const {
    init();
    fill(0x5a000000);
    const uint32_t dst = base + static_cast<uint32_t>(p.offset);
    if (thread == 0) {
      const uint64_t policy = ptx::createpolicy_evict_first();
      ptx::mbarrier_arrive_expect_tx(bar(), p.bytes);
      if constexpr (kIsFive) {
        ptx::cp_async_bulk_tensor_5d_load(dst, p.a, bar(), p.at[0], p.at[1], p.at[2], p.at[3],
                                          p.at[4], policy);
      } else {
        ptx::cp_async_bulk_tensor_4d_load(dst, p.a, bar(), p.at[0], p.at[1], p.at[2], p.at[3],
                                          policy);
      }
    }
    if (has_arrived()) show();
  }

  template <bool kAdds>
  SIRDAR_DEVICE void store() const {
    fill(kAdds ? 0x3f803f80 : 0x01000000);
    if (thread != 0) return;
    if constexpr (kAdds) {
      ptx::cp_async_bulk_tensor_4d_reduce_add(p.a, base, p.at[0], p.at[1], p.at[2], p.at[3]);
    } else {
      ptx::cp_async_bulk_tensor_4d_store(p.a, base, p.at[0], p.at[1], p.at[2], p.at[3]);
    }
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group<0>();
  }

  // Lanes give addresses and registers in an order of their own.
  SIRDAR_DEVICE void matrices() const {
    if (thread >= 32) return;
    const int lane = thread;
    const uint32_t row = base + 16 * static_cast<uint32_t>(lane * 5 % 32);
    const uint32_t mark = static_cast<uint32_t>(lane) * 0x00080008u;
    ptx::stmatrix_x4(row, mark + 0x10000, mark + 0x30002, mark + 0x50004, mark + 0x70006);
    ptx::syncwarp();
    const ptx::Int4 stored = ptx::load_shared_int4(base + 16 * static_cast<uint32_t>(lane));
    uint32_t four[4], two[2];
    ptx::ldmatrix_x4(four, base + 16 * static_cast<uint32_t>((lane * 7 + 3) % 32));
    ptx::ldmatrix_x2(two, base + 16 * static_cast<uint32_t>((lane * 11 + 5) % 32));
    uint32_t a[4], b[2];
    float d[4] = {0.5f, 1.5f, 2.5f, 3.5f};
    SIRDAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      a[i] = ptx::pack_bf16x2(element(lane, i, 1), element(lane, i, 2));
    }
    SIRDAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      b[i] = ptx::pack_bf16x2(element(lane, i, 3), element(lane, i, 4));
    }
    ptx::mma_m16n8k16_bf16(d, a, b);
    uint32_t* out = p.out + 14 * lane;
    out[0] = static_cast<uint32_t>(stored.x), out[1] = static_cast<uint32_t>(stored.y);
    out[2] = static_cast<uint32_t>(stored.z), out[3] = static_cast<uint32_t>(stored.w);
    SIRDAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      out[4 + i] = four[i];
      out[8 + i] = ptx::bits_of(d[i]);
    }
    out[12] = two[0], out[13] = two[1];
  }

  template <ProbeConfig config>
  SIRDAR_DEVICE void product() const {
    constexpr auto kType = config.is_fp16 ? ptx::MmaType::f16 : ptx::MmaType::bf16;
    constexpr int kN = config.n;
    const Tile a_tile{base, config.span_a, 64, config.transpose_a != 0};
    const Tile b_tile{base + (16 << 10), config.span_b, kN, config.transpose_b != 0};
    init();
    if (thread == 0) {
      ptx::mbarrier_arrive_expect_tx(bar(), 2 * 64 * (64 + kN));
      a_tile.load(p.a, bar());
      b_tile.load(p.b, bar());
    }
    ptx::mbarrier_wait(bar(), 0);
    float d[kN / 2];
    uint32_t a[16];
    SIRDAR_UNROLL
    for (int i = 0; i < 16; ++i) {  // as an accumulator of 64 columns lies
      const int row = 16 * (thread / 32) + thread % 32 / 4 + 8 * (i % 2);
      const int column = 8 * (i / 2) + 2 * (thread % 4);
      const float low = element(row, column, 1), high = element(row, column + 1, 1);
      a[i] = config.is_fp16 ? ptx::pack_f16x2(low, high) : ptx::pack_bf16x2(low, high);
    }
    ptx::wgmma_fence();
    SIRDAR_UNROLL
    for (int step = 0; step < 4; ++step) {
      const uint64_t b = b_tile.descriptor(step);
      if constexpr (config.a_in_registers != 0) {
        ptx::Wgmma<kN>::template rs<kType, config.transpose_b>(d, a + 4 * step, b, step > 0);
      } else {
        ptx::Wgmma<kN>::template ss<kType, config.transpose_a, config.transpose_b>(
            d, a_tile.descriptor(step), b, step > 0);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::registers_ready(d);
    SIRDAR_UNROLL
    for (int i = 0; i < kN / 2; ++i) p.out[thread * (kN / 2) + i] = ptx::bits_of(d[i]);
  }

  // One operand in shared memory: chunks of a span's width, as boxes lie.
  struct Tile {
    uint32_t at;
    int span, rows;
    bool transposed;

    SIRDAR_DEVICE int width() const { return transposed ? rows : 64; }
    SIRDAR_DEVICE int height() const { return transposed ? 64 : rows; }
    SIRDAR_DEVICE uint32_t chunk_bytes() const {
      return static_cast<uint32_t>(height()) * static_cast<uint32_t>(span);
    }
    SIRDAR_DEVICE void load(const TensorMap& map, uint32_t bar) const {
      const uint64_t policy = ptx::createpolicy_evict_first();
      for (int c = 0; c < width() * 2 / span; ++c) {
        ptx::cp_async_bulk_tensor_4d_load(at + static_cast<uint32_t>(c) * chunk_bytes(), map, bar,
                                          c * span / 2, 0, 0, 0, policy);
      }
    }
    // Of the step'th 16 columns of the reduction.
    SIRDAR_DEVICE uint64_t descriptor(int step) const {
      uint32_t start = at, leading = 16;
      const uint32_t wide = static_cast<uint32_t>(span);
      if (transposed) {
        start += static_cast<uint32_t>(step) * 16 * wide;
        leading = chunk_bytes();
      } else {
        const uint32_t byte = static_cast<uint32_t>(step) * 32;
        start += byte / wide * chunk_bytes() + byte % wide;
      }
      const uint64_t layout = span == 128 ? 1 : span == 64 ? 2 : 3;
      return (start & 0x3ffff) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 |
             static_cast<uint64_t>(8 * wide >> 4) << 32 | layout << 62;
    }
  };

  // One NaN stands for all.
  SIRDAR_DEVICE static uint32_t bits_of(float x) { return x != x ? 0x7fc00000u : ptx::bits_of(x); }
  // Of inputs for which the results are exact.
  SIRDAR_DEVICE void approximations() const {
    for (int i = thread; i < p.num_words / 4; i += 128) {
      const float x = ptx::float_of(p.in[2 * i]);
      p.out[4 * i] = bits_of(ptx::exp2_approx(x));
      p.out[4 * i + 1] = bits_of(ptx::log2_approx(x));
      p.out[4 * i + 2] = bits_of(ptx::reciprocal_approx(x));
      p.out[4 * i + 3] = bits_of(ptx::rsqrt_approx(x));
    }
  }
  SIRDAR_DEVICE void exact() const {
    for (int i = thread; i < p.num_words / 4; i += 128) {
      const float x = ptx::float_of(p.in[2 * i]), y = ptx::float_of(p.in[2 * i + 1]);
      p.out[4 * i] = ptx::pack_bf16x2(x, y);
      p.out[4 * i + 1] = ptx::pack_f16x2(x, y);
      p.out[4 * i + 2] = bits_of(ptx::max_of(x, y));
      p.out[4 * i + 3] = bits_of(ptx::floor_of(x));
    }
  }

  // The phase before the first counts as completed.
  SIRDAR_DEVICE void parity() const {
    init();
    if (thread != 0) return;
    p.out[0] = ptx::mbarrier_try_wait(bar(), 1);
    p.out[1] = ptx::mbarrier_try_wait(bar(), 0);
  }
};

template <ProbeConfig config>
SIRDAR_DEVICE void probe(const ProbeParams& params) {
  const Probe probe(params);
  if constexpr (config.kind == Kind::load) probe.load<false>();
  if constexpr (config.kind == Kind::load5) probe.load<true>();
  if constexpr (config.kind == Kind::store) probe.store<false>();
  if constexpr (config.kind == Kind::reduce) probe.store<true>();
  if constexpr (config.kind == Kind::product) probe.product<config>();
  if constexpr (config.kind == Kind::matrices) probe.matrices();
  if constexpr (config.kind == Kind::approximations) probe.approximations();
  if constexpr (config.kind == Kind::exact) probe.exact();
  if constexpr (config.kind == Kind::parity) probe.parity();
}
