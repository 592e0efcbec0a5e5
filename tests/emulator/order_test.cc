// In which order the Hopper forward's tickets name query blocks and heads.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cuda/sm90/arguments.h"
#include "cuda/sm90/forward/arguments.h"
#include "cuda/sm90/forward/choose.h"
#include "cuda/sm90/forward/work.cuh"

namespace sirdar::sm90 {
namespace {

struct Order {
  ForwardParams params{};
  std::vector<std::pair<int, int>> places;  // query block, head of the batch

  template <ForwardConfig config>
  static Order of(std::string_view text) {
    const Problem problem = Problem::parse(text).value();
    Order order;
    add_mask(problem.mask, order.params);
    add_work(problem, choose_config(problem), order.params);
    for (int ticket = 0; ticket < order.params.num_items; ++ticket) {
      auto& [block, head] = order.places.emplace_back();
      place_of<config>(order.params, ticket, block, head);
    }
    return order;
  }
  // Each query block of each head once.
  bool is_whole() const {
    const std::set<std::pair<int, int>> all(places.begin(), places.end());
    const std::pair<int, int> last{params.num_blocks_m - 1,
                                   params.num_items / params.num_blocks_m - 1};
    for (const auto& [block, head] : all)
      if (block < 0 || block > last.first || head < 0 || head > last.second) return false;
    return all.size() == places.size() && !places.empty();
  }
};

constexpr ForwardConfig kCausal{.mask = MaskForm::upper}, kWindow{.mask = MaskForm::interval},
    kFull{};

TEST(ForwardOrder, NamesEveryItemOnce) {
  for (const char* text :
       {"fwd b8 s2048 h8 d256 bf16 causal", "fwd b3 s2000 h5 d128 bf16 causal",
        "fwd b8 s512 h8 d256 bf16 causal", "fwd b2 s16384 hq32 hkv8 d128 bf16 causal",
        "fwd b1 s131072 h1 d64 bf16 causal", "fwd b7 s2048 h3 d64 bf16 causal top-left",
        "fwd b2 sq2048 sk8192 h16 d128 bf16 causal", "fwd b1 s1 h1 d64 bf16 causal"})
    EXPECT_TRUE(Order::of<kCausal>(text).is_whole()) << text;
  EXPECT_TRUE(Order::of<kWindow>("fwd b2 s8192 h16 d128 bf16 window:1024,0").is_whole());
  EXPECT_TRUE(Order::of<kFull>("fwd b8 s2048 h8 d256 bf16").is_whole());
}

// 64 heads of 16 query blocks: the second and the first of all of them, behind all others.
TEST(ForwardOrder, EndsWithTheShortestBlocks) {
  const Order order = Order::of<kCausal>("fwd b8 s2048 h8 d256 bf16 causal");
  ASSERT_EQ(order.places.size(), 1024u);
  for (size_t i = 0; i < 1024; ++i) {
    const int block = order.places[i].first;
    EXPECT_EQ(block < 2, i >= 1024 - 128) << i;
    EXPECT_EQ(block < 1, i >= 1024 - 64) << i;
  }
}

// Of few query blocks, and where the first ones see nearly as much as the last, the last section
// ends the work.
TEST(ForwardOrder, EndsWithASectionOtherwise) {
  for (const char* text :
       {"fwd b16 s1024 h8 d256 bf16 causal", "fwd b4 sq2048 sk8192 h16 d128 bf16 causal"}) {
    const Order order = Order::of<kCausal>(text);
    EXPECT_EQ(order.params.short_blocks, 0) << text;
    EXPECT_EQ(order.places.back(),
              std::pair(0, order.params.num_items / order.params.num_blocks_m - 1));
    EXPECT_EQ(order.params.last_heads + order.params.num_sections * order.params.section_heads,
              order.params.num_items / order.params.num_blocks_m);
  }
}

}  // namespace
}  // namespace sirdar::sm90
