// Host tensors with copies on a device: what goes there, and what comes back.
#include "cuda/mirror.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "support/call.h"
#include "support/fake_driver.h"

namespace sirdar::cuda {
namespace {

using sirdar::testing::FakeDriver;

// Views of a call that are there, in one order for both sides.
std::vector<TensorView> views_of(const Args& args) {
  std::vector<TensorView> views = {args.q,    args.k,     args.v,    args.out,  args.lse,
                                   args.dout, args.dlse,  args.dq,   args.dk,   args.dv,
                                   args.bias, args.dbias, args.sink, args.dsink};
  for (const NamedTensor& one : args.tensors) views.push_back(one.view);
  for (const NamedTensor& one : args.dtensors) views.push_back(one.view);
  return views;
}

// What a run would write there: the element of index (n, 0, ..).
float& first_of(const TensorView& view) { return *static_cast<float*>(view.data); }

TEST(CudaMirror, GradientsComeBackAndNothingElse) {
  FakeDriver fake;
  test::Call call(
      "bwd b2 sq5 sk7 h2 d8 fp32 bias:hk dbias sink dsink dlse score_mod:\"score * t[h]\" "
      "tensor:t:fp32:1:grad");
  call.run_forward_first();
  const Args args = call.args();
  const std::vector<TensorView> host = views_of(args);
  std::vector<float> before;
  for (const TensorView& view : host) before.push_back(first_of(view));
  {
    const auto mirror = Mirror::of(call.problem, args, 512, 0);
    ASSERT_TRUE(mirror.ok()) << mirror.status().message();
    const std::vector<TensorView> device = views_of(mirror.value()->args());
    ASSERT_EQ(device.size(), host.size());
    for (size_t n = 0; n < host.size(); ++n) {
      ASSERT_TRUE(host[n].present()) << n;
      EXPECT_NE(device[n].data, host[n].data) << n;
      EXPECT_EQ(device[n].stride, host[n].stride) << n;
      EXPECT_EQ(std::memcmp(device[n].data, host[n].data, sizeof(float)), 0) << n;
      first_of(device[n]) = 1000.0f + static_cast<float>(n);
    }
    const auto* workspace = static_cast<const unsigned*>(mirror.value()->args().workspace);
    EXPECT_EQ(workspace[0], ~0u);
    EXPECT_EQ(workspace[127], ~0u);
    ASSERT_TRUE(mirror.value()->copy_back().ok());
  }
  const std::vector<size_t> outputs = {7, 8, 9, 11, 13, 15};  // dq, dk, dv, dbias, dsink, dt
  for (size_t n = 0; n < host.size(); ++n) {
    const bool is_output = std::find(outputs.begin(), outputs.end(), n) != outputs.end();
    if (is_output) {
      EXPECT_EQ(first_of(host[n]), 1000.0f + static_cast<float>(n)) << n;
    } else {
      EXPECT_EQ(first_of(host[n]), before[n]) << n;
    }
  }
  EXPECT_EQ(fake.num_allocations, 0);
  EXPECT_EQ(fake.num_retained, 0);
  EXPECT_TRUE(fake.stack.empty());
}

TEST(CudaMirror, LackOfMemoryIsSaidAndNothingStays) {
  FakeDriver fake;
  fake.errors["memory_allocate"] = 2;
  test::Call call("bwd b1 s4 h1 d8 fp32");
  const auto mirror = Mirror::of(call.problem, call.args(), 0, 0);
  ASSERT_FALSE(mirror.ok());
  EXPECT_EQ(mirror.status().code(), StatusCode::out_of_memory);
  EXPECT_NE(mirror.status().message().find("allocating"), std::string::npos);
  EXPECT_EQ(fake.num_allocations, 0);
  EXPECT_EQ(fake.num_retained, 0);
}

}  // namespace
}  // namespace sirdar::cuda
