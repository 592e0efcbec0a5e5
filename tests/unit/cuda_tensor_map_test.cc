// TMA descriptors: what is legal, what is said where it is not, what the driver is told.
#include <gtest/gtest.h>

#include "cuda/tensor_map.h"
#include "support/fake_driver.h"

namespace sirdar::cuda {
namespace {

alignas(64) char memory[64];

TensorMapSpec spec() {
  TensorMapSpec s;
  s.base = memory;
  s.dtype = DType::bf16;
  s.rank = 4;
  s.dims = {128, 4096, 16, 2};
  s.stride_bytes = {4096, 256, 16777216};
  s.box = {64, 128, 1, 1};
  s.swizzle = Swizzle::bytes_128;
  return s;
}

template <class Change>
void expect_refused(Change change, std::string_view part) {
  TensorMapSpec s = spec();
  change(s);
  const Status status = check_tensor_map(s, "k");
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << part;
  EXPECT_EQ(status.argument(), "k");
  EXPECT_NE(status.message().find(part), std::string::npos) << part << "\n" << status.message();
}

TEST(TensorMap, TakesWhatIsLegalAtItsEdges) {
  EXPECT_TRUE(check_tensor_map(spec(), "k").ok());
  const auto accepted = [](auto change) {
    TensorMapSpec s = spec();
    change(s);
    const Status status = check_tensor_map(s, "k");
    EXPECT_TRUE(status.ok()) << status.message();
  };
  accepted([](TensorMapSpec& s) { s.dims[0] = 1; });
  accepted([](TensorMapSpec& s) { s.dims[1] = int64_t{1} << 32; });
  accepted([](TensorMapSpec& s) { s.stride_bytes[0] = 0; });
  accepted([](TensorMapSpec& s) { s.stride_bytes[0] = (int64_t{1} << 40) - 16; });
  accepted([](TensorMapSpec& s) { s.box[1] = 256; });
  accepted([](TensorMapSpec& s) { s.base = memory + 16; });
  accepted([](TensorMapSpec& s) { s.rank = 1; });
  accepted([](TensorMapSpec& s) { s.swizzle = Swizzle::none, s.box[0] = 256; });
}

TEST(TensorMap, RefusesEachBrokenRule) {
  expect_refused([](TensorMapSpec& s) { s.rank = 0; }, "rank 0");
  expect_refused([](TensorMapSpec& s) { s.rank = 6; }, "rank 6");
  expect_refused([](TensorMapSpec& s) { s.base = nullptr; }, "address");
  expect_refused([](TensorMapSpec& s) { s.base = memory + 8; }, "multiple of 16");
  expect_refused([](TensorMapSpec& s) { s.dims[2] = 0; }, "axis 2 has 0 elements");
  expect_refused([](TensorMapSpec& s) { s.dims[1] = (int64_t{1} << 32) + 1; }, "axis 1");
  expect_refused([](TensorMapSpec& s) { s.stride_bytes[1] = 264; }, "stride of axis 2 is 264");
  expect_refused([](TensorMapSpec& s) { s.stride_bytes[1] = -256; }, "stride of axis 2 is -256");
  expect_refused([](TensorMapSpec& s) { s.stride_bytes[0] = int64_t{1} << 40; }, "2^40");
  expect_refused([](TensorMapSpec& s) { s.box[1] = 0; }, "0 elements along axis 1");
  expect_refused([](TensorMapSpec& s) { s.box[1] = 257; }, "257 elements along axis 1");
  expect_refused([](TensorMapSpec& s) { s.box[0] = 4; }, "a row of the box has 8 bytes");
  expect_refused([](TensorMapSpec& s) { s.box[0] = 72; }, "with swizzle 128");
  expect_refused([](TensorMapSpec& s) { s.swizzle = Swizzle::bytes_64; }, "with swizzle 64");
  expect_refused([](TensorMapSpec& s) { s.swizzle = Swizzle::bytes_32; }, "with swizzle 32");
}

TEST(TensorMap, IsEncodedByTheDriver) {
  sirdar::testing::FakeDriver fake;
  TensorMap map;
  ASSERT_TRUE(make_tensor_map(spec(), "k", map).ok());
  ASSERT_EQ(fake.tensor_maps.size(), 1u);
  const auto& seen = fake.tensor_maps[0];
  EXPECT_EQ(seen.dtype, 9);
  EXPECT_EQ(seen.base, memory);
  EXPECT_EQ(seen.dims, (std::vector<uint64_t>{128, 4096, 16, 2}));
  EXPECT_EQ(seen.stride_bytes, (std::vector<uint64_t>{4096, 256, 16777216}));
  EXPECT_EQ(seen.box, (std::vector<uint32_t>{64, 128, 1, 1}));
  EXPECT_EQ(seen.steps, (std::vector<uint32_t>{1, 1, 1, 1}));
  EXPECT_EQ(seen.interleave, 0);
  EXPECT_EQ(seen.swizzle, 3);
  EXPECT_EQ(seen.l2_promotion, 3);
  EXPECT_EQ(seen.fill, 0);
  EXPECT_EQ(map.opaque[15], 0x5a5a5a5a5a5a5a5au);
  static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 64);

  fake.errors["tensor_map_encode"] = 1;
  const Status status = make_tensor_map(spec(), "k", map);
  EXPECT_EQ(status.code(), StatusCode::device_error);
  for (const char* part : {"k: cuTensorMapEncodeTiled of bf16 [64 x 128 x 1 x 1] of [128 x 4096",
                           "strides [4096, 256, 16777216] bytes", "swizzle 128", "SOMETHING"})
    EXPECT_NE(status.message().find(part), std::string::npos) << part << "\n" << status.message();
}

}  // namespace
}  // namespace sirdar::cuda
