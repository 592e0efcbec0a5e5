// What the CPU forward promises beyond the right result: the same bits whatever threads, tiles and
// neighbours there are, little memory, and the caller's executor.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "check/inputs.h"
#include "check/run_check.h"

namespace sirdar::cpu {
namespace {

struct Tensors {
  Problem problem;
  std::vector<float> q, k, v, out, lse;

  explicit Tensors(const char* text) : problem(Problem::parse(text).value()) {
    const auto fill = [](std::vector<float>& x, int64_t count, uint32_t seed) {
      std::mt19937 engine(seed);
      std::normal_distribution<float> normal;
      x.resize(static_cast<size_t>(count));
      for (float& value : x) value = normal(engine);
    };
    const Problem& p = problem;
    fill(q, p.batch * p.seqlen_q * p.num_heads_q * p.head_dim, 1);
    fill(k, p.batch * p.seqlen_k * p.num_heads_kv * p.head_dim, 2);
    fill(v, p.batch * p.seqlen_k * p.num_heads_kv * p.value_dim(), 3);
    out.resize(static_cast<size_t>(p.batch * p.seqlen_q * p.num_heads_q * p.value_dim()));
    lse.resize(static_cast<size_t>(p.batch * p.seqlen_q * p.num_heads_q));
  }

  void run(const PlanOptions& options) {
    const Problem& p = problem;
    const Plan plan = Plan::create(p, options).value();
    std::vector<std::byte> memory(plan.workspace_bytes() + 64);
    Args args;
    const auto view = [&](std::vector<float>& x, int64_t rows, int64_t heads, int64_t dim) {
      return TensorView::contiguous(x.data(), DType::fp32, {p.batch, rows, heads, dim});
    };
    args.q = view(q, p.seqlen_q, p.num_heads_q, p.head_dim);
    args.k = view(k, p.seqlen_k, p.num_heads_kv, p.head_dim);
    args.v = view(v, p.seqlen_k, p.num_heads_kv, p.value_dim());
    args.out = view(out, p.seqlen_q, p.num_heads_q, p.value_dim());
    args.lse =
        TensorView::contiguous(lse.data(), DType::fp32, {p.batch, p.num_heads_q, p.seqlen_q});
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
    args.workspace = memory.data() + (64 - address % 64) % 64;
    args.workspace_bytes = plan.workspace_bytes();
    const Status status = plan.run(args);
    ASSERT_TRUE(status.ok()) << status.message();
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(CpuForward, BitsDoNotDependOnThreadsOrTiles) {
  for (const char* text : {"fwd b1 sq70 sk3000 hq4 hkv2 d24 causal lse",
                           "fwd b2 s300 h2 d64 window:40,9 lse", "fwd b1 sq1 sk9000 h1 d16 lse"}) {
    for (const char* isa : {"scalar", "neon", "avx2", "avx512"}) {
      PlanOptions options;
      options.isa = isa;
      Tensors tensors(text);
      if (!Plan::create(tensors.problem, options).ok()) continue;
      options.num_threads = 1;
      tensors.run(options);
      const std::vector<float> out = tensors.out, lse = tensors.lse;
      for (const int threads : {2, 5}) {
        for (const char* block_m : {"32", "128", "512"}) {
          options.num_threads = threads;
          options.knobs = {{"block_m", block_m}};
          tensors.run(options);
          EXPECT_TRUE(same_bits(out, tensors.out) && same_bits(lse, tensors.lse))
              << text << ' ' << isa << " threads " << threads << " block_m " << block_m;
        }
      }
    }
  }
}

// One sequence alone is cut into segments for several threads; forty of them are not.
TEST(CpuForward, BitsDoNotDependOnTheRestOfTheBatch) {
  Tensors many("fwd b40 sq3 sk5000 h1 d16 lse"), one("fwd b1 sq3 sk5000 h1 d16 lse");
  many.run({});
  for (const size_t b : {size_t{0}, size_t{17}, size_t{39}}) {
    const auto part = [&](const std::vector<float>& from, size_t count) {
      return std::vector<float>(from.begin() + static_cast<ptrdiff_t>(b * count),
                                from.begin() + static_cast<ptrdiff_t>((b + 1) * count));
    };
    one.q = part(many.q, one.q.size());
    one.k = part(many.k, one.k.size());
    one.v = part(many.v, one.v.size());
    one.run({});
    EXPECT_TRUE(same_bits(one.out, part(many.out, one.out.size()))) << b;
    EXPECT_TRUE(same_bits(one.lse, part(many.lse, one.lse.size()))) << b;
  }
}

TEST(CpuForward, NeedsLittleMemory) {
  PlanOptions options;
  options.num_threads = 8;
  const Problem problem = Problem::parse("fwd b1 s32768 h16 d64 fp32 causal lse").value();
  EXPECT_LT(Plan::create(problem, options).value().workspace_bytes(), size_t{64} << 20);
}

TEST(CpuForward, UsesTheCallersExecutor) {
  struct Serial {
    int calls = 0;
    static void parallel_for(void* context, int64_t count, int max_slots, Executor::Function fn,
                             void* arg) {
      ++static_cast<Serial*>(context)->calls;
      // Backwards, over all slots: order and slot must not matter.
      for (int64_t i = count - 1; i >= 0; --i) fn(arg, i, static_cast<int>(i % max_slots));
    }
  } serial;
  const Executor executor{Serial::parallel_for, &serial};
  Tensors tensors("fwd b2 sq65 sk2100 h2 d8 lse");
  tensors.run({});
  const std::vector<float> out = tensors.out;
  PlanOptions options;
  options.executor = &executor;
  options.num_threads = 3;
  tensors.run(options);
  EXPECT_GT(serial.calls, 0);
  EXPECT_TRUE(same_bits(out, tensors.out));
}

// A NaN or infinity in V where some rows of the same tile see it and others do not.
TEST(CpuForward, NonFiniteValuesReachTheRowsThatSeeThemOnly) {
  for (const char* text :
       {"fwd b1 s70 h2 d16 causal lse", "fwd b1 s70 h2 d16 window:3,2 lse",
        "fwd b1 s70 hq4 hkv2 d9 document causal lse", "fwd b1 s70 h2 d16 mask lse"}) {
    check::Inputs inputs(Problem::parse(text).value(), 11);
    const TensorView& v = inputs.args().v;
    float* rows = static_cast<float*>(v.data);
    rows[30 * v.stride[1] + 2] = std::numeric_limits<float>::quiet_NaN();
    rows[41 * v.stride[1] + v.stride[2]] = std::numeric_limits<float>::infinity();
    inputs.accept();
    for (const char* isa : {"scalar", "neon", "avx2", "avx512"}) {
      PlanOptions options;
      options.implementation = "cpu.forward";
      options.isa = isa;
      if (!Plan::create(inputs.problem(), options).ok()) continue;
      const check::Report report = check::check(inputs, options, 11);
      EXPECT_TRUE(report.ok) << isa << ": " << report.text;
    }
  }
}

TEST(CpuForward, ScoresOfAnyFiniteLevelAreExact) {
  for (const float level : {1e30f, -1e30f, 1e4f, -5e4f, std::numeric_limits<float>::lowest()}) {
    Tensors tensors("fwd b1 sq2 sk5 h1 d1 scale:1 lse");
    tensors.q = {1.0f, 1.0f};
    tensors.k.assign(5, level);
    tensors.v = {1, 2, 3, 4, 5};
    tensors.run({});
    EXPECT_FLOAT_EQ(tensors.out[0], 3.0f) << level;
    EXPECT_FLOAT_EQ(tensors.lse[0], level + std::log(5.0f)) << level;
  }
}

}  // namespace
}  // namespace sirdar::cpu
