// ALiBi: slope times distance from the aligned position, with slopes of the caller's.
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// With q = 0 the weights are e^(-slope * |i + d - j|) and nothing else.
void expect_distances(Call& call, const std::function<double(int64_t b, int64_t h)>& slope) {
  const Problem& p = call.problem;
  make_uniform(call);
  for (const Variant& variant : variants(p)) {
    SCOPED_TRACE(p.str() + variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    for (int64_t b = 0; b < p.batch; ++b) {
      const auto n = static_cast<size_t>(b);
      const int64_t used_q = call.lengths().used_q[n], used_k = call.lengths().used_k[n];
      for (int64_t h = 0; h < p.num_heads_q; ++h) {
        for (int64_t i = 0; i < used_q; ++i) {
          double sum = 0, weighted = 0;
          for (int64_t j = 0; j < used_k; ++j) {
            const double weight =
                std::exp(-slope(b, h) * static_cast<double>(std::abs(i + used_k - used_q - j)));
            sum += weight, weighted += weight * static_cast<double>(j + 1);
          }
          if (used_k == 0) continue;
          const int64_t row = call.query_row(b, i) * p.num_heads_q + h;
          ASSERT_NEAR(call.out.flat(row * p.value_dim()), weighted / sum,
                      2e-5 * (1 + weighted / sum));
          ASSERT_NEAR(call.lse.flat(call.statistic(b, h, i)), std::log(sum), 2e-5);
        }
      }
    }
  }
}

// B131: slopes per sequence and head, with a head count that is no power of two, in every layout.
TEST(Alibi, SlopesMayDifferPerSequence) {
  for (const char* layout : {"", " ragged_q:13 ragged_k:21", " paged4", " seqused_q seqused_k"}) {
    Call call(std::string("fwd b2 sq9 sk14 hq40 hkv8 d4 fp32 alibi lse") + layout);
    call.alibi = Tensor(DType::fp32, {2, 40}).fill_by([](const int64_t* c) {
      return static_cast<double>(c[0] + 1) * 0.0625 * static_cast<double>(c[1] % 5);
    });
    expect_distances(call, [](int64_t b, int64_t h) {
      return static_cast<double>(b + 1) * 0.0625 * static_cast<double>(h % 5);
    });
  }
}

TEST(Alibi, OneSlopePerHeadOrOneRowOfThem) {
  for (const bool has_row : {false, true}) {
    Call call("fwd b2 sq9 sk14 hq6 hkv6 d4 fp32 alibi lse");
    if (has_row) call.alibi = Tensor(DType::fp32, {1, 6});
    call.alibi.fill({0, 0.5, 0.25, -0.125, 1, 8});
    const double slopes[] = {0, 0.5, 0.25, -0.125, 1, 8};
    expect_distances(call, [&](int64_t, int64_t h) { return slopes[h]; });
  }
}

// B132: heads split over two calls with their own slopes, joined, are the unsplit heads.
TEST(Alibi, ShardsOfHeadsJoin) {
  Call whole("fwd b2 sq9 sk9 hq16 hkv16 d8 fp32 alibi causal");
  for (const Variant& variant : variants(whole.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(whole.run(variant).ok());
    for (int64_t rank = 0; rank < 2; ++rank) {
      Call shard("fwd b2 sq9 sk9 hq8 hkv8 d8 fp32 alibi causal");
      for (auto [to, from] : {std::pair(&shard.q, &whole.q), std::pair(&shard.k, &whole.k),
                              std::pair(&shard.v, &whole.v)}) {
        to->fill_by([&, source = from](const int64_t* c) {
          return source->at({c[0], c[1], c[2] + 8 * rank, c[3]});
        });
      }
      shard.alibi.fill_by([&](const int64_t* c) { return whole.alibi.at({c[0] + 8 * rank}); });
      ASSERT_TRUE(shard.run(variant).ok());
      for (int64_t i = 0; i < 9; ++i) {
        for (int64_t h = 0; h < 8; ++h) {
          EXPECT_EQ(shard.out.at({1, i, h, 3}), whole.out.at({1, i, h + 8 * rank, 3}));
        }
      }
    }
  }
}

// The distance is measured from the bottom-right position whatever the mask is aligned to.
TEST(Alibi, IgnoresTheMasksAlignment) {
  Call call("fwd b1 sq2 sk5 hq1 hkv1 d4 fp32 alibi causal top-left lse");
  make_uniform(call);
  call.alibi.fill(1);
  for (const Variant& variant : variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    // Row 0 sees key 0, three positions away; row 1 keys 0 and 1, four and three away.
    EXPECT_NEAR(call.lse.at({0, 0, 0}), -3, 1e-6);
    EXPECT_NEAR(call.lse.at({0, 0, 1}), std::log(std::exp(-4) + std::exp(-3)), 1e-5);
  }
}

}  // namespace
}  // namespace sirdar::test
