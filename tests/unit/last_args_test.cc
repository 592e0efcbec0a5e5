// When two calls describe the same memory.
#include "core/last_args.h"

#include <gtest/gtest.h>

#include "support/call.h"

namespace sirdar {
namespace {

TEST(LastArgs, SeesEveryViewAndEveryPartOfOne) {
  test::Call call(
      "fwd b1 s8 h2 d8 causal bias:hqk score_mod:\"score + slope[h]\" tensor:slope:fp32:1 lse");
  const Args args = call.args();
  EXPECT_TRUE(describe_same_memory(args, call.args()));
  const auto differs = [&](auto&& change) {
    Args other = args;
    change(other);
    return !describe_same_memory(args, other);
  };
  float element = 0;
  EXPECT_TRUE(differs([&](Args& a) { a.q.data = &element; }));
  EXPECT_TRUE(differs([](Args& a) { a.k.stride[1] += 1; }));
  EXPECT_TRUE(differs([](Args& a) { a.v.shape[3] -= 1; }));
  EXPECT_TRUE(differs([](Args& a) { a.out.dtype = DType::fp16; }));
  EXPECT_TRUE(differs([](Args& a) { a.lse = {}; }));
  EXPECT_TRUE(differs([](Args& a) { a.bias.rank = 3; }));
  EXPECT_TRUE(differs([&](Args& a) { a.dsink.data = &element; }));
  EXPECT_TRUE(differs([](Args& a) { a.tensors[0].name = "other"; }));
  EXPECT_TRUE(differs([&](Args& a) { a.tensors[0].view.data = &element; }));
  EXPECT_TRUE(differs([](Args& a) { a.tensors.clear(); }));
  EXPECT_TRUE(differs([](Args& a) { a.scalars.emplace_back("cap", 1.0); }));
  EXPECT_TRUE(differs([](Args& a) { a.dropout_seed = 7; }));
  EXPECT_TRUE(differs([&](Args& a) { a.workspace = &element; }));
  EXPECT_TRUE(differs([](Args& a) { a.workspace_bytes += 64; }));
}

TEST(LastArgs, KeepsCallsApart) {
  test::Call call("fwd b1 s8 h2 d8");
  LastArgs<int> last;
  Args args = call.args();
  EXPECT_FALSE(last.find(args));
  last.keep(args, 3);
  EXPECT_EQ(last.find(args), 3);
  args.q.stride[0] += 1;
  EXPECT_FALSE(last.find(args));
  last.keep(args, 4);
  EXPECT_EQ(last.find(args), 4);
  args.q.stride[0] -= 1;
  EXPECT_FALSE(last.find(args));  // the other call of the same pointers took its place
  std::vector<float> memory(40);
  for (int n = 0; n < 40; ++n) {
    args.q.data = &memory[static_cast<size_t>(n)];
    last.keep(args, n);
    EXPECT_EQ(last.find(args), n);
  }
  int found = 0;
  for (float& element : memory) {
    args.q.data = &element;
    found += last.find(args).has_value();
  }
  EXPECT_GE(found, 20);
}

}  // namespace
}  // namespace sirdar
