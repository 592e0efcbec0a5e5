// The memory that the Hopper forward takes for documents, without a GPU.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

namespace sirdar {
namespace {

TEST(CudaDocuments, WorkspaceIsCountedByHand) {
  PlanOptions options;
  options.implementation = "cuda.sm90.forward";
  const Result<Plan> plan =
      Plan::create(Problem::parse("fwd b2 s8192 h16 d128 bf16 causal document").value(), options,
                   Device::named("h200").value());
  // Counters; of 2 sequences 64 query blocks: words of 64 key blocks, and a bit a pair of 16
  // blocks.
  EXPECT_EQ(plan.value().workspace_bytes(), size_t{64 + 2 * 64 * (2 * 16 + 16 * 128 * 128 / 8)});
}

}  // namespace
}  // namespace sirdar
