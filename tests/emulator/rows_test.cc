// The row-by-row forward on the emulated machine, held against float64 on hostile arguments: each
// at the least alignment of its elements, with gaps of NaN between rows and in all that is unused.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "check/inputs.h"
#include "check/run_check.h"
#include "core/elements.h"
#include "cuda/rows/forward/arguments.h"
#include "cuda/rows/forward/choose.h"
#include "cuda/rows/forward/forward.cuh"
#include "emulator/launch.h"
#include "expression/emit_cuda.h"

namespace sirdar {

// What expression/emit_cuda.cc makes of
//   score_mod:"score - slope[h] * abs(q_pos - k)" document
struct RowsModification {
  static constexpr bool kScores = true, kMasks = true;
  TensorOperand tensors[3];

  struct Row {
    int document;
    float slope;
    int q_pos;
  };
  Row begin_row(int b, int h, int q, int q_pos) const {
    return {language::read<int>(tensors[slot[0]], b, q), language::read<float>(tensors[slot[2]], h),
            q_pos};
  }
  struct Key {
    int document, k;
  };
  Key begin_key(int b, int, int k) const {
    return {language::read<int>(tensors[slot[1]], b, k), k};
  }
  float score(const Row& row, const Key& key, float score) const {
    const int distance = language::absolute(language::subtract(row.q_pos, key.k));
    return score - row.slope * language::to_real(distance);
  }
  bool visible(const Row& row, const Key& key) const { return row.document == key.document; }

  // Where document_q, document_k and the expression's tensor stand.
  static inline int slot[3] = {0, 1, 2};
};

namespace emulator_tests {
namespace {

using rows::Element;
using rows::ForwardConfig;

using Edit = std::function<void(Args&)>;

void put(const TensorView& view, std::initializer_list<int64_t> index, double value) {
  int64_t offset = 0;
  size_t axis = 0;
  for (const int64_t i : index) offset += i * view.stride[axis++];
  store_element(view, offset, value);
}

emulator::Launch launch_of(const ForwardConfig& config, const rows::ForwardParams& params,
                           uint64_t seed) {
  const int64_t rows_of_block = rows::kWarps / config.splits;
  emulator::Launch launch;
  // Too few blocks for all rows, so that each takes several.
  launch.grid.x = static_cast<unsigned>(
      std::max<int64_t>(1, (params.num_rows + rows_of_block - 1) / rows_of_block / 2));
  launch.threads = rows::kThreads;
  launch.shared_bytes = rows::shared_bytes(config);
  launch.seed = seed;
  return launch;
}

template <class Modification>
Modification operands(const Problem& problem, const Args& args) {
  Modification modification{};
  if constexpr (rows::kIsModified<Modification>) {
    const expression::DeviceModification emitted =
        expression::emit_cuda(problem, expression::parse(problem).value());
    EXPECT_EQ(emitted.num_bytes(), sizeof modification);
    for (int n = 0; n < static_cast<int>(emitted.tensors.size()); ++n) {
      using Source = expression::DeviceTensor::Source;
      const Source source = emitted.tensors[static_cast<size_t>(n)].source;
      Modification::slot[source == Source::document_q   ? 0
                         : source == Source::document_k ? 1
                                                        : 2] = n;
    }
    std::vector<std::byte> bytes(sizeof modification);
    EXPECT_TRUE(pack_operands(emitted, problem, args, bytes.data()).ok());
    std::memcpy(static_cast<void*>(&modification), bytes.data(), sizeof modification);
  }
  return modification;
}

// `alignment`: of rows; 16 makes the kernel read many columns at once.
template <ForwardConfig config, class Modification = language::NoModification>
void expect_right(const std::string& text, const Edit& edit = {}, int64_t alignment = 1) {
  SCOPED_TRACE(text);
  const Problem problem = Problem::parse(text).value();
  ASSERT_TRUE(problem.validate().ok()) << problem.validate().message();
  ForwardConfig chosen = rows::choose_config(problem, Device::named("h200").value());
  chosen.splits = config.splits;
  ASSERT_EQ(chosen, config);
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    check::Inputs inputs(problem, seed, check::Style::hostile, alignment);
    if (edit) edit(inputs.args());
    inputs.accept();
    inputs.reset_outputs();
    const check::Oracle oracle = check::make_oracle(problem, inputs.args());
    const rows::ForwardParams params = rows::make_params(problem, config, inputs.args());
    const auto modification = operands<Modification>(problem, inputs.args());
    const emulator::Report report = emulator::launch(
        launch_of(config, params, seed), [&] { rows::forward<config>(params, modification); });
    ASSERT_EQ(report.fault, "") << "seed " << seed;
    EXPECT_EQ(inputs.damage(), "") << "seed " << seed;
    for (const std::string& fault : check::judge(oracle).faults) {
      ADD_FAILURE() << fault << ", seed " << seed;
    }
  }
}

constexpr ForwardConfig kBf16{.columns = 64, .columns_v = 32};

TEST(EmulatedRows, StructuredMasks) {
  const std::string shape = "fwd b2 sq11 sk45 hq4 hkv2 d40 dv24 bf16 lse max_logit ";
  for (const char* mask : {"", "causal", "causal:top-left", "window:9,2", "window:30,3 top-left",
                           "chunk:16", "causal chunk:7 window:5,"}) {
    expect_right<kBf16>(shape + mask);
  }
  expect_right<kBf16>("fwd b2 sq40 sk9 h2 d40 dv24 bf16 lse causal window:4,");
}

TEST(EmulatedRows, TermsOfTheLogits) {
  const std::string shape = "fwd b2 sq9 sk70 hq4 hkv2 d40 dv24 bf16 lse max_logit ";
  for (const char* terms : {"softcap:2", "alibi causal", "sink causal:top-left", "scale:-0.5",
                            "scale:0", "softcap:5 alibi sink window:20,3"}) {
    expect_right<kBf16>(shape + terms);
  }
}

TEST(EmulatedRows, LengthsOfSequences) {
  for (const char* text : {
           "fwd b3 sq12 sk40 h2 d40 dv24 bf16 lse max_logit ragged:20,70 causal",
           "fwd b3 sq12 sk40 h2 d40 dv24 bf16 lse seqused_q seqused_k",
           "fwd b3 sq12 sk40 hq4 hkv2 d40 dv24 bf16 lse sink ragged_q:20 seqused_k window:6,0",
           "fwd b3 sq12 sk40 h2 d40 dv24 bf16 lse ragged_k:70 seqused_q seqused_k",
           "fwd b2 sq5 sk0 h2 d40 dv24 bf16 lse max_logit sink",
       }) {
    expect_right<kBf16>(text);
  }
}

TEST(EmulatedRows, RowsThatAreAlignedAreReadManyColumnsAtOnce) {
  expect_right<kBf16>("fwd b2 sq9 sk70 hq4 hkv2 d40 dv24 bf16 lse causal", {}, 16);
  constexpr ForwardConfig config{.element = Element::fp16, .element_out = Element::fp16};
  expect_right<config>("fwd b1 sq9 sk70 h2 d100 dv84 fp16 lse causal", {}, 16);
  expect_right<config>("fwd b1 sq9 sk70 h2 d101 dv83 fp16 lse causal", {}, 16);
}

// A NaN reaches exactly those rows that see it, through a mask that cuts a block of keys too.
TEST(EmulatedRows, MaskedKeysAreAsIfNeverRead) {
  const auto edit = [](Args& args) {
    for (int64_t b = 0; b < 2; ++b) {
      put(args.k, {b, 3, 0, 7}, std::numeric_limits<double>::quiet_NaN());
      put(args.v, {b, 29, 1, 5}, std::numeric_limits<double>::infinity());
      put(args.v, {b, 60, 0, 5}, std::numeric_limits<double>::quiet_NaN());
      put(args.q, {b, 4, 1, 1}, std::numeric_limits<double>::infinity());
    }
  };
  for (const char* mask : {"causal", "window:12,3", "chunk:16"}) {
    expect_right<kBf16>(std::string("fwd b2 sq64 sk64 h2 d40 dv24 bf16 lse max_logit ") + mask,
                        edit);
  }
}

TEST(EmulatedRows, AnyStrides) {
  const auto edit = [](Args& args) {
    args.k.stride[2] = 0;  // one head for all
    args.v.data = static_cast<uint16_t*>(args.v.data) + 69 * args.v.stride[1];
    args.v.stride[1] = -args.v.stride[1];
    args.q.data = static_cast<uint16_t*>(args.q.data) + args.q.stride[0];
    args.q.stride[0] = -args.q.stride[0];
  };
  expect_right<kBf16>("fwd b2 sq9 sk70 hq4 hkv2 d40 dv24 bf16 lse causal", edit);
  expect_right<kBf16>("fwd b2 sq9 sk70 hq4 hkv2 d40 dv24 bf16 lse causal", edit, 16);
}

TEST(EmulatedRows, PagedKeys) {
  constexpr ForwardConfig config{.element = Element::fp16,
                                 .element_out = Element::fp16,
                                 .columns = 32,
                                 .columns_v = 64,
                                 .is_paged = true};
  expect_right<config>("fwd b3 sq7 sk90 hq4 hkv2 d24 dv48 fp16 paged16 lse causal");
  expect_right<config>("fwd b3 sq7 sk90 hq4 hkv2 d24 dv48 fp16 paged7 lse", {}, 16);
}

// The dropped pairs of float64 are those of shared/philox.h: another bit moves an output by more
// than any rounding.
TEST(EmulatedRows, Dropout) {
  constexpr ForwardConfig config{.element = Element::fp32,
                                 .element_out = Element::fp32,
                                 .columns = 32,
                                 .columns_v = 32,
                                 .has_dropout = true};
  expect_right<config>("fwd b2 sq9 sk70 hq4 hkv2 d19 dv32 fp32 lse max_logit causal dropout:0.3");
  expect_right<config>("fwd b2 sq9 sk70 hq4 hkv2 d19 dv32 fp32 lse sink dropout:0.9", {}, 16);
}

TEST(EmulatedRows, WideHeadsAndAnOutputOfAnotherDtype) {
  constexpr ForwardConfig config{.element_out = Element::fp32, .columns = 512, .columns_v = 512};
  expect_right<config>("fwd b1 sq5 sk45 h2 d300 dv500 bf16 out:fp32 lse causal");
  expect_right<config>("fwd b1 sq5 sk45 h2 d512 bf16 out:fp32 lse", {}, 16);
  constexpr ForwardConfig fp32{
      .element = Element::fp32, .element_out = Element::fp32, .columns = 256, .columns_v = 256};
  expect_right<fp32>("fwd b1 sq5 sk45 h2 d256 dv250 fp32 lse causal", {}, 16);
}

TEST(EmulatedRows, WarpsShareARow) {
  constexpr ForwardConfig config{
      .bias = Element::fp16, .columns = 128, .columns_v = 128, .splits = rows::kWarps};
  const auto edit = [](Args& args) {
    put(args.v, {0, 280, 0, 5}, std::numeric_limits<double>::quiet_NaN());
  };
  for (const char* mask : {"sink", "causal", "window:60,3 alibi", "seqused_q seqused_k"}) {
    expect_right<config>(
        std::string("fwd b1 sq3 sk300 hq4 hkv2 d128 bf16 bias:hk:fp16 lse max_logit ") + mask,
        edit);
  }
}

// Among the entries are -inf, which hide pairs.
TEST(EmulatedRows, BiasOfEveryPair) {
  constexpr ForwardConfig config{.element = Element::fp32,
                                 .element_out = Element::fp32,
                                 .bias = Element::fp32,
                                 .columns = 32,
                                 .columns_v = 32};
  const auto edit = [](Args& args) {
    put(args.v, {0, 40, 0, 5}, std::numeric_limits<double>::quiet_NaN());
    for (int64_t row = 0; row < 9; row += 2) put(args.bias, {0, 0, row, 40}, -HUGE_VAL);
  };
  expect_right<config>("fwd b2 sq9 sk70 hq4 hkv2 d32 fp32 bias lse max_logit causal", edit);
}

TEST(EmulatedRows, ScoresAndMasksOfTheCaller) {
  constexpr ForwardConfig config{
      .element = Element::fp32, .element_out = Element::fp32, .columns = 32, .columns_v = 32};
  const auto edit = [](Args& args) {
    put(args.v, {0, 40, 0, 5}, std::numeric_limits<double>::quiet_NaN());
  };
  expect_right<config, RowsModification>(
      "fwd b2 sq20 sk70 h2 d32 fp32 lse max_logit document "
      "score_mod:\"score - slope[h] * abs(q_pos - k)\" tensor:slope:fp32:1",
      edit);
}

}  // namespace
}  // namespace emulator_tests
}  // namespace sirdar
