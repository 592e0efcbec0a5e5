// Rows far from zero beside others: a bias of -1e9 at all keys of a padded row, most of all. They
// weigh nothing in the products, nothing is made again because of them, and what they give is
// counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/elements.h"
#include "emulator/support/backward_run.h"
#include "emulator/support/extent.h"

namespace sirdar::emulator_tests {
namespace {

struct FarCase {
  const char* text;
  std::vector<int64_t> rows;
  double level;
};

bool is_among(const std::vector<int64_t>& rows, int64_t row) {
  return std::ranges::find(rows, row) != rows.end();
}

// Adds `level` to the logits of rows.
void move_rows(check::Inputs& inputs, const std::vector<int64_t>& rows, double level) {
  const TensorView& bias = inputs.args().bias;
  for_each_element(bias, [&](int64_t offset, int64_t index) {
    if (!is_among(rows, index / bias.shape[3] % bias.shape[2])) return;
    const double own = load_element(bias, offset);
    store_element(bias, offset, level + (own > -1e30 ? own : 0));
  });
}

// dO of rows of every sequence becomes 0; heads lie behind rows.
void clear_dout(check::Inputs& inputs, const std::vector<int64_t>& rows) {
  const TensorView& dout = inputs.args().dout;
  for_each_element(dout, [&](int64_t offset, int64_t index) {
    const int64_t row = index / dout.shape[3] / dout.shape[2] % dout.shape[1];
    if (is_among(rows, row)) store_element(dout, offset, row % 2 == 0 ? 0.0 : -0.0);
  });
}

// Those of all heads and sequences: more or less than so much.
int64_t count_far(const TensorView& lse, double far) {
  int64_t count = 0;
  for_each_element(lse, [&](int64_t offset, int64_t) {
    const double size = std::abs(load_element(lse, offset));
    count += size > far && std::isfinite(size) ? 1 : 0;
  });
  return count;
}

TEST(EmulatedFarRows, AreAddedPairByPair) {
  // Behind a key block that ends early, a share of convert has another.
  std::vector<int64_t> many(50);
  std::iota(many.begin(), many.end(), 0);
  const char* const shares = "bwd b3 sq60 sk300 h1 d64 bf16 bias:bhqk:bf16";
  std::vector<FarCase> cases = {
      {shares, many, -3e4},
      {shares, many, -2e5},
      {"bwd b1 sq200 sk300 h2 d64 bf16 bias:hqk:bf16 causal", {0, 31, 130}, -1e9},
      {"bwd b2 sq150 sk200 hq2 hkv1 d128 bf16 bias:bhqk:bf16 causal", {64, 149}, -1e9}};
  if (runs_everything()) {
    cases.insert(cases.end(),
                 {{"bwd b1 sq200 sk300 h1 d64 bf16 bias:qk:fp32", {3, 199}, 1e9},
                  {"bwd b1 sq140 sk200 hq2 hkv1 d256 bf16 document bias:hqk", {5, 100}, -1e9},
                  {"bwd b1 sq200 sk300 h2 d128 bf16 bias:hqk:bf16 nondeterministic", {1, 65}, -1e9},
                  {"bwd b1 sq200 sk300 h2 d128 bf16 bias:qk:fp16 window:60,20", {90, 150}, -3e4},
                  {"bwd b2 sq140 sk190 hq2 hkv1 d128 fp16 bias:hqk causal", {70, 139}, -1e9},
                  // A sink would hold all of what lies further down.
                  {"bwd b1 sq150 sk100 h1 d192 dv128 fp16 bias:qk:fp16 sink dsink", {2, 80}, 3e4},
                  {"bwd b2 sq140 sk190 hq2 hkv1 d64 bf16 bias:hqk softcap:3", {70, 139}, -1e9}});
  }
  for (const auto& [text, rows, level] : cases) {
    int64_t expected = 0;
    const auto result = expect_right(text, 3, 4, [&](check::Inputs& inputs) {
      move_rows(inputs, rows, level);
      inputs.refresh_saved();
      expected = count_far(inputs.args().lse, 16384);
    });
    EXPECT_GT(expected, 1) << text;
    EXPECT_EQ(result.far_rows, expected) << text;
  }
}

// As padding mostly is. A dlse is something to give.
TEST(EmulatedFarRows, ThatGiveNothingAreNotLookedAt) {
  const auto edit = [&](check::Inputs& inputs) {
    move_rows(inputs, {0, 31, 130}, -1e9);
    clear_dout(inputs, {31, 130});
    inputs.refresh_saved();
  };
  const std::string text = "bwd b1 sq200 sk300 h2 d64 bf16 bias:hqk:bf16 causal";
  EXPECT_EQ(expect_right(text, 3, 16, edit).far_rows, 2);
  EXPECT_EQ(expect_right(text + " dlse", 3, 16, edit).far_rows, 6);
}

// Keys whose gradients are made again have them in those; the others get them besides.
TEST(EmulatedFarRows, BesideWhatIsNotFinite) {
  const auto edit = [&](check::Inputs& inputs) {
    move_rows(inputs, {20, 131}, -1e9);
    clear_dout(inputs, {20});
    const TensorView &k = inputs.args().k, &dout = inputs.args().dout;
    for (int64_t head = 0; head < k.shape[2]; ++head) {  // key 270, that rows up to 170 do not see
      store_element(k, 270 * k.stride[1] + head * k.stride[2],
                    std::numeric_limits<double>::infinity());
      store_element(dout, 20 * dout.stride[1] + head * dout.stride[2],
                    std::numeric_limits<double>::quiet_NaN());
    }
    inputs.refresh_saved();
  };
  for (const uint64_t seed : {3, 4}) {
    expect_right("bwd b1 sq200 sk300 h2 d64 bf16 bias:hqk:bf16 causal", seed, 16, edit,
                 Lost::something);
  }
}

}  // namespace
}  // namespace sirdar::emulator_tests
