// A page table only says where keys lie: whatever the page size, the order of pages and the
// contents of memory that holds no key, the bits of the result are those of the dense call (B010,
// B013, B143, B148).
#include <gtest/gtest.h>

#include "support/call.h"

namespace sirdar::test {
namespace {

class PagedEqualsDense : public ::testing::TestWithParam<int64_t> {};

// The dense call with the same keys, shortened to the same lengths.
Call dense_of(const Call& paged) {
  Problem p = paged.problem;
  p.layout_kv = Layout::dense;
  p.page_size = 0;
  return Call(p, paged.lengths());
}

TEST_P(PagedEqualsDense, BitForBit) {
  for (const char* rest :
       {"sq4 sk70 hq4 hkv2 d16 fp32 causal", "sq1 sk70 hq4 hkv1 d24 fp32",
        "sq33 sk70 hq2 hkv2 d16 bf16 window:20,", "sq8 sk3 hq2 hkv1 d64 bf16 causal"}) {
    const std::string text =
        "fwd b3 " + std::string(rest) + " paged" + std::to_string(GetParam()) + " lse";
    Call paged(text);
    Call dense = dense_of(paged);
    for (const Variant& variant : variants(paged.problem)) {
      SCOPED_TRACE(text + " " + variant.str());
      ASSERT_TRUE(paged.run(variant).ok());
      ASSERT_TRUE(dense.run(variant).ok());
      EXPECT_EQ(paged.output_bits(), dense.output_bits());
    }
  }
}

TEST_P(PagedEqualsDense, UnusedPagesAndTailsAreNeverRead) {
  const std::string text = "fwd b2 sq4 sk17 hq2 hkv1 d16 bf16 paged" + std::to_string(GetParam());
  for (const bool causal : {false, true}) {
    Call clean(text + (causal ? " causal" : "")), dirty(text + (causal ? " causal" : ""));
    for (Tensor* tensor : {&clean.k, &clean.v}) {  // only the clean pool has numbers everywhere
      for (int64_t n = 0; n < tensor->size(); ++n) {
        if (tensor->flat(n) != tensor->flat(n)) tensor->set_flat(n, 0);
      }
    }
    for (const Variant& variant : variants(clean.problem)) {
      SCOPED_TRACE(variant.str());
      ASSERT_TRUE(clean.run(variant).ok());
      ASSERT_TRUE(dirty.run(variant).ok());
      EXPECT_EQ(clean.output_bits(), dirty.output_bits());
    }
  }
}

// Two sequences that share the pages of a common prefix.
TEST(PagedEqualsDenseShared, PagesMayBeShared) {
  Call call("fwd b2 sq3 sk40 hq2 hkv1 d16 fp32 paged8 causal lse", {{}, {}, {}, {40, 40}});
  for (int64_t page = 0; page < 3; ++page) {
    call.page_table.set({1, page}, call.page_table.at({0, page}));
  }
  Call dense = dense_of(call);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t j = 0; j < 40; ++j) {
      copy_row(dense.k, dense.key_row(b, j), call.k, call.key_row(b, j));
      copy_row(dense.v, dense.key_row(b, j), call.v, call.key_row(b, j));
    }
  }
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    ASSERT_TRUE(dense.run(variant).ok());
    EXPECT_EQ(call.output_bits(), dense.output_bits());
  }
}

// B148: five new tokens behind a cached prefix of 48 are the last five rows of an uncached prefill.
TEST(PagedEqualsDensePrefix, NewTokensEqualTheRowsOfAPrefill) {
  Call prefill("fwd b2 sq53 sk53 hq4 hkv2 d16 fp32 causal lse");
  Call cached("fwd b2 sq5 sk53 hq4 hkv2 d16 fp32 ragged_q:10 paged16 causal lse",
              {{5, 5}, {}, {}, {53, 53}});
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < 5; ++i) {
      copy_row(cached.q, cached.query_row(b, i), prefill.q, prefill.query_row(b, 48 + i));
    }
    for (int64_t j = 0; j < 53; ++j) {
      copy_row(cached.k, cached.key_row(b, j), prefill.k, prefill.key_row(b, j));
      copy_row(cached.v, cached.key_row(b, j), prefill.v, prefill.key_row(b, j));
    }
  }
  for (const Variant& variant : variants(cached.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(prefill.run(variant).ok());
    ASSERT_TRUE(cached.run(variant).ok());
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t h = 0; h < 4; ++h) {
          EXPECT_NEAR(cached.lse.flat(cached.statistic(b, h, i)), prefill.lse.at({b, h, 48 + i}),
                      1e-5);
          for (int64_t c = 0; c < 16; ++c) {
            EXPECT_NEAR(cached.out.at({cached.query_row(b, i), h, c}),
                        prefill.out.at({b, 48 + i, h, c}), 1e-5);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PageSizes, PagedEqualsDense, ::testing::Values(1, 2, 16, 19, 32, 64, 256));

}  // namespace
}  // namespace sirdar::test
