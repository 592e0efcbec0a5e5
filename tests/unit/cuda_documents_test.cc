// When tiles of the Hopper forward begin where documents do, and what memory that takes, without a
// GPU.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include "cuda/sm90/forward/choose.h"

namespace sirdar::sm90 {
namespace {

Result<Plan> planned(std::string_view text, const char* follows = nullptr) {
  PlanOptions options;
  options.implementation = "cuda.sm90.forward";
  if (follows != nullptr) options.knobs = {{"follows_documents", follows}};
  return Plan::create(Problem::parse(text).value(), options, Device::named("h200").value());
}

TEST(CudaDocuments, TilesFollowThem) {
  for (const auto& [text, follows] :
       {std::pair{"fwd b2 s8192 h16 d128 bf16 causal document", true},
        {"fwd b2 sq300 sk500 h2 d256 fp16 document window:9,9 alibi sink lse", true},
        {"fwd b2 s300 h2 d64 bf16 document mask:bk mask_mod:\"k > 3\"", true},
        {"fwd b2 s300 h2 d64 bf16 mask_mod:\"k > 3\"", false},
        {"fwd b2 s300 h2 d64 bf16 causal", false},
        // A value for each pair, tiles of a bias, sequences' own lengths, rows of several heads.
        {"fwd b2 s300 h2 d64 bf16 document mask:qk", false},
        {"fwd b2 s300 h2 d64 bf16 document bias:k", false},
        {"fwd b2 s300 h2 d64 bf16 document seqused_k", false},
        {"fwd b2 sq4 sk300 hq8 hkv2 d64 bf16 document", false}}) {
    const ForwardConfig config = choose_config(Problem::parse(text).value());
    EXPECT_EQ(config.follows_documents, follows) << text;
    EXPECT_TRUE(is_valid(config)) << text;
  }
}

TEST(CudaDocuments, WorkspaceIsCountedByHand) {
  const char* const problem = "fwd b2 s8192 h16 d128 bf16 causal document";
  // Counters; of 2 sequences 64 windows of two tiles: two records and words of 65 key blocks, and a
  // bit a pair of 8 blocks.
  EXPECT_EQ(planned(problem).value().workspace_bytes(),
            size_t{64 + 2 * 128 * (5 * 16 + 8 * 128 * 128 / 8)});
  // Of 64 tiles words of 64 key blocks, and the bits of 16.
  EXPECT_EQ(planned(problem, "false").value().workspace_bytes(),
            size_t{64 + 2 * 64 * (2 * 16 + 16 * 128 * 128 / 8)});
}

}  // namespace
}  // namespace sirdar::sm90
