// The bits of a result do not depend on how many threads made it, on the order in which an executor
// runs the work, or on which slot a piece lands in.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "support/call.h"

namespace sirdar::test {
namespace {

constexpr const char* kProblems[] = {
    "fwd b2 sq130 sk200 hq4 hkv2 d32 fp32 causal lse max_logit",
    "fwd b1 sq1 sk300 hq8 hkv1 d64 fp32 lse",
    "fwd b3 sq65 sk65 hq2 hkv2 d16 fp32 window:9,4 sink lse",
    "fwd b2 sq33 sk65 hq2 hkv2 d16 bf16 causal",
    "bwd b2 sq33 sk65 hq4 hkv2 d16 fp32 causal",
    "bwd b1 sq300 sk280 hq2 hkv1 d8 fp32 causal",
    "bwd b2 sq260 sk140 hq2 hkv2 d8 bf16 dropout:0.3 dlse",
    "bwd b2 sq140 sk130 hq4 hkv2 d8 fp16 bias:h dbias sink dsink",
};

void in_order(void*, int64_t count, int, Executor::Function fn, void* arg) {
  for (int64_t i = 0; i < count; ++i) fn(arg, i, 0);
}

void reversed(void*, int64_t count, int max_slots, Executor::Function fn, void* arg) {
  for (int64_t i = count; i-- > 0;) fn(arg, i, max_slots - 1);
}

void odd_first(void*, int64_t count, int max_slots, Executor::Function fn, void* arg) {
  for (int64_t i = 1; i < count; i += 2) fn(arg, i, static_cast<int>(i % max_slots));
  for (int64_t i = 0; i < count; i += 2) fn(arg, i, static_cast<int>(i % max_slots));
}

// Real threads, fewer than the slots on offer, taking work as they come.
void few_threads(void*, int64_t count, int max_slots, Executor::Function fn, void* arg) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int slot) {
    for (int64_t i = next++; i < count; i = next++) fn(arg, i, slot);
  };
  if (max_slots < 2) return work(0);
  std::thread other(work, 1);
  work(0);
  other.join();
}

class ThreadCountInvariance : public ::testing::TestWithParam<const char*> {
 protected:
  // The bits with one thread, to which `options` are compared.
  void expect_same_bits(const Variant& variant, PlanOptions options, const std::string& what) {
    SCOPED_TRACE(variant.str() + " " + what);
    Call call(GetParam());
    if (call.problem.op == Op::backward) call.run_forward_first();
    ASSERT_TRUE(call.run(variant).ok());
    const std::vector<uint8_t> expected = call.output_bits();
    ASSERT_TRUE(call.run(options).ok());
    EXPECT_EQ(call.output_bits(), expected);
  }
};

TEST_P(ThreadCountInvariance, AnyNumberOfThreads) {
  for (const Variant& variant : few_variants(Call(GetParam()).problem)) {
    for (const int threads : {2, 3, 7, 16}) {
      PlanOptions options = variant.options();
      options.num_threads = threads;
      expect_same_bits(variant, options, std::to_string(threads) + " threads");
    }
  }
}

TEST_P(ThreadCountInvariance, AnyExecutor) {
  const std::pair<const char*, Executor> executors[] = {{"in order", {in_order, nullptr}},
                                                        {"reversed", {reversed, nullptr}},
                                                        {"odd first", {odd_first, nullptr}},
                                                        {"few threads", {few_threads, nullptr}}};
  for (const Variant& variant : few_variants(Call(GetParam()).problem)) {
    for (const auto& [name, executor] : executors) {
      for (const int threads : {1, 5}) {
        PlanOptions options = variant.options();
        options.executor = &executor;
        options.num_threads = threads;
        expect_same_bits(variant, options, name);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Problems, ThreadCountInvariance, ::testing::ValuesIn(kProblems),
                         named_after_problem);

// One plan, several callers at once.
TEST(ThreadCountInvarianceOfPlans, APlanMayRunFromManyThreads) {
  const std::string text = "fwd b2 sq65 sk65 hq2 hkv2 d16 fp32 causal lse";
  Call first(text);
  for (const Variant& variant : few_variants(first.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(first.run(variant).ok());
    const Plan plan = Plan::create(first.problem, variant.options()).value();
    std::vector<Call> calls;
    for (int t = 0; t < 4; ++t) calls.emplace_back(text);
    std::vector<std::thread> callers;
    std::vector<std::vector<std::byte>> spaces(4);
    std::atomic<int> failures{0};
    for (size_t t = 0; t < 4; ++t) {
      callers.emplace_back([&, t] {
        spaces[t].resize(plan.workspace_bytes() + 64);
        void* start = spaces[t].data();
        size_t room = spaces[t].size();
        Args args = calls[t].args();
        args.workspace = std::align(64, plan.workspace_bytes(), start, room);
        args.workspace_bytes = plan.workspace_bytes();
        failures += !plan.run(args).ok();
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(failures, 0);
    for (const Call& call : calls) EXPECT_EQ(call.output_bits(), first.output_bits());
  }
}

}  // namespace
}  // namespace sirdar::test
