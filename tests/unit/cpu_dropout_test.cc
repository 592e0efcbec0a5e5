// The kernels drop exactly the pairs that shared/philox.h drops, on every instruction set of this
// machine.
#include <gtest/gtest.h>

#include <vector>

#include "cpu/dispatch.h"
#include "shared/philox.h"

namespace sirdar::cpu {
namespace {

struct Case {
  double dropout_p;
  uint64_t seed, offset;
  uint32_t b, first_key;
  int num_keys;
};

void expect_same_pairs(const MicroKernels& kernels, int vectors, const Case& one) {
  const int width = vectors * kernels.lanes;
  const Dropout dropout = Dropout::of(one.dropout_p, one.seed, one.offset);
  std::vector<int32_t> i, h;
  for (int lane = 0; lane < width; ++lane) {
    i.push_back(lane * 7919 % 1000003);
    h.push_back(lane % 3);
  }
  // One row more than the keys: it must not be touched.
  std::vector<float> p(static_cast<size_t>((one.num_keys + 1) * width), 0.5f);
  kernels.drop[vectors - 1]({.p = p.data(),
                             .i = i.data(),
                             .h = h.data(),
                             .b = one.b,
                             .first_key = one.first_key,
                             .key = {dropout.key.x, dropout.key.y},
                             .threshold = static_cast<uint32_t>(dropout.threshold),
                             .num_keys = one.num_keys});
  for (int j = 0; j <= one.num_keys; ++j) {
    for (int lane = 0; lane < width; ++lane) {
      const size_t at = static_cast<size_t>(lane);
      const bool keeps =
          j == one.num_keys || dropout.keeps(one.b, h[at], i[at], int64_t{one.first_key} + j);
      ASSERT_EQ(p[static_cast<size_t>(j * width + lane)], keeps ? 0.5f : 0.0f)
          << name_of(kernels.isa) << " key " << j << " lane " << lane;
    }
  }
}

TEST(CpuDropout, DropsThePairsOfTheDefinition) {
  const Case cases[] = {{0.5, 1, 0, 0, 0, 64},
                        {0.1, 0xfedcba9876543210, 0x123456789, 3, 4096, 37},
                        {0.999, 7, 11, 0xffffffff, 1u << 29, 129},
                        {1e-9, 7, 11, 2, 128, 1},
                        {0.75, 42, 1, 70000, 12, 6}};
  const Device host = Device::host();
  for (const char* isa : {"scalar", "neon", "avx2", "avx512"}) {
    const Result<Isa> usable = choose_isa(host, isa);
    if (!usable.ok()) continue;
    for (const Case& one : cases) {
      for (int vectors = 1; vectors <= kMaxVectors; ++vectors)
        expect_same_pairs(kernels_for(usable.value()), vectors, one);
    }
  }
}

}  // namespace
}  // namespace sirdar::cpu
