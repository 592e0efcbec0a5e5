// Which problems the Hopper backward serves, and what it launches, without a GPU.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include <cstring>
#include <functional>

#include "check/inputs.h"
#include "cuda/sm90/backward/arguments.h"
#include "cuda/sm90/backward/choose.h"
#include "support/fake_driver.h"
#include "support/scratch.h"

namespace sirdar::sm90 {
namespace {

Result<Plan> planned(std::string_view text, const PlanOptions& options = {}) {
  return Plan::create(Problem::parse(text).value(), options, Device::named("h200").value());
}

TEST(CudaBackward, ServesWhatItsTilesFit) {
  for (const char* text :
       {"bwd s64 d64 bf16", "bwd sq1 sk1 d8 dv128 bf16", "bwd s64 hq8 hkv2 d128 bf16 causal dlse",
        "bwd s64 d96 bf16 window:9,3 nondeterministic", "bwd s64 d64 bf16 causal:top-left chunk:9",
        "bwd s64 d64 bf16 scale:-2", "bwd s64 d256 bf16", "bwd s64 d192 dv128 bf16 causal",
        "bwd b2 s64 d64 bf16 ragged:80,90", "bwd b2 s64 d64 bf16 seqused_k", "bwd s64 d64 fp16",
        "bwd s64 d64 bf16 softcap:9 alibi causal:top-left", "bwd s64 d64 bf16 sink dsink",
        "bwd s64 d64 bf16 document mask:qk", "bwd s64 d64 bf16 bias:hk:fp32 mask_mod:\"k > 3\"",
        "bwd s64 d64 bf16 score_mod:\"score * 2.0\"", "bwd s64 d64 fp16 softcap:9 document bias",
        "bwd s64 d64 fp16 score_mod:\"score * 2.0\""}) {
    const Result<Plan> plan = planned(text);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan.value().name(), "cuda.sm90.backward") << text;
  }
  for (const char* text :
       {"bwd s64 d264 bf16", "bwd s64 d100 bf16", "bwd s64 d64 fp32", "bwd s64 d64 bf16 scale:0",
        "bwd s64 d64 bf16 softcap:9 dropout:0.1", "bwd sq0 sk64 d64 bf16", "bwd sq64 sk0 d64 bf16",
        "bwd b2 s64 d64 bf16 ragged:0,0"}) {
    const Result<Plan> plan = planned(text);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan.value().name(), "cuda.rows.backward") << text;
  }
}

// Tiles of a mask and thread blocks are counted in 32 bits; other kernels count in rounds.
TEST(CudaBackward, MasksOfMoreTilesThanAGridHasAreServedByOthers) {
  for (const auto& [text, name] :
       {std::pair{"bwd b64 s32768 h64 d128 bf16 mask:bhqk", "cuda.sm90.backward"},
        {"bwd b64 s65536 h64 d128 bf16 mask:bhqk", "cuda.rows.backward"},
        {"bwd b2 s268435456 h1 d128 bf16 document window:99,", "cuda.rows.backward"},
        {"bwd b1073741824 sq1 sk1 h1 d8 bf16", "cuda.rows.backward"},
        {"bwd b80000 sq16 sk16 ragged:1280000,1280000 h1 d64 fp16", "cuda.sm90.backward"},
        {"bwd b12288 sq128 sk128 h16 d128 fp16", "cuda.sm90.backward"},
        {"fwd b64 s65536 h64 d128 bf16 mask:bhqk", "cuda.sm90.forward"},
        {"fwd b128 s131072 h128 d128 bf16 mask:bhqk", "cuda.rows.forward"}}) {
    const Result<Plan> plan = planned(text);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan.value().name(), name) << text;
  }
}

TEST(CudaBackward, KnobsThatWouldBeAnotherProblemAreRefused) {
  PlanOptions options;
  options.knobs = {{"packs_products", "true"}, {"num_slots", "1"}, {"num_sums", "4"}};
  EXPECT_TRUE(planned("bwd s64 d128 bf16", options).ok());
  for (const auto& [name, value] :
       {std::pair{"is_deterministic", "false"}, std::pair{"mask", "upper"},
        std::pair{"element", "fp16"}, std::pair{"block_m", "128"}, std::pair{"num_slots", "9"},
        std::pair{"num_sums", "3"}, std::pair{"has_softcap", "true"}}) {
    options.knobs = {{name, value}};
    const Result<Plan> plan = planned("bwd s64 d128 bf16", options);
    EXPECT_EQ(plan.status().code(), StatusCode::invalid_argument) << name;
    EXPECT_NE(plan.status().message().find(std::string(name) + "=" + value), std::string::npos)
        << plan.status().message();
  }
}

// Before a kernel is compiled or a GPU asked.
TEST(CudaBackward, CallsThatAreWrongLaunchNothing) {
  testing::FakeDriver fake;
  check::Inputs inputs(Problem::parse("bwd b2 s64 h2 d64 bf16 causal").value(), 1,
                       check::Style::plain);
  const Plan plan = Plan::create(inputs.problem(), {}, Device::cuda(0).value()).value();
  ASSERT_EQ(plan.name(), "cuda.sm90.backward");
  inputs.set_workspace(plan.workspace_bytes());
  const auto expect_refused = [&](const std::function<void(Args&)>& edit, const char* what) {
    Args args = inputs.args();
    edit(args);
    const Status status = plan.run(args);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  expect_refused([](Args& args) { args.lse.shape[2] = 63; }, "lse");
  expect_refused([](Args& args) { args.lse.dtype = DType::bf16; }, "lse");
  expect_refused([](Args& args) { args.out.shape[3] = 32; }, "out");
  expect_refused([](Args& args) { args.out.dtype = DType::fp16; }, "out");
  expect_refused([](Args& args) { args.dout.dtype = DType::fp32; }, "dout");
  expect_refused([](Args& args) { args.dout.stride[3] = 2; }, "dout");
  expect_refused([](Args& args) { args.dv.stride[3] = 2; }, "dv");
  expect_refused([](Args& args) { args.lse.data = nullptr; }, "lse");
  expect_refused([](Args& args) { args.dq = args.q; }, "dq");
  expect_refused([](Args& args) { args.dq = args.dout; }, "dq");
  expect_refused([](Args& args) { args.dv.data = static_cast<std::byte*>(args.out.data) + 128; },
                 "dv");
  expect_refused([](Args& args) { args.dk = args.dv; }, "dk");
  expect_refused([](Args& args) { --args.workspace_bytes; }, "workspace");
  expect_refused([](Args& args) { args.workspace = static_cast<std::byte*>(args.workspace) + 16; },
                 "workspace");
  expect_refused([](Args& args) { args.workspace = args.k.data; }, "workspace");
  EXPECT_TRUE(fake.launches.empty());
}

// A float for each of lse and delta, sums of dQ in units of 64 rows and columns, a turn a tile.
TEST(CudaBackward, Workspace) {
  const Problem problem = Problem::parse("bwd b2 s4096 hq16 hkv4 d128 bf16").value();
  const BackwardConfig config = choose_backward_config(problem);
  const size_t rows = size_t{2} * 16 * 4096;
  EXPECT_EQ(workspace_of(problem, config, {}).end, rows * 8 + rows * 128 * 4 + rows / 64 * 4);
  EXPECT_EQ(planned(problem.str()).value().workspace_bytes(),
            workspace_of(problem, config, {}).end);
  PlanOptions options;
  options.knobs = {{"num_sums", "2"}};
  EXPECT_EQ(planned(problem.str(), options).value().workspace_bytes(),
            rows * 8 + 2 * (rows * 128 * 4 + rows / 64 * 4));
}

TEST(CudaBackward, ABiasComesByTmaWhereEveryPairHasAnEntry) {
  const auto stages = [](const std::string& terms) {
    const Problem problem = Problem::parse("bwd b2 s256 h2 bf16 " + terms).value();
    return choose_backward_config(problem).num_stages_bias;
  };
  EXPECT_EQ(stages("d128 bias:bhqk:bf16"), 1);
  EXPECT_EQ(stages("d128 bias:qk:fp32 causal"), 1);
  EXPECT_EQ(stages("d64 bias:hqk:fp16 nondeterministic"), 1);
  EXPECT_EQ(stages("d64 bias:hqk:fp32"), 2);
  EXPECT_EQ(stages("d128 bias:hk:bf16"), 0);
  EXPECT_EQ(stages("d256 bias:bhqk:bf16"), 0);
}

TEST(CudaBackward, BlocksStayBesideABiasOfFp32WhereThatIsTimed) {
  const auto stays = [](const std::string& terms) {
    const BackwardConfig config =
        choose_backward_config(Problem::parse("bwd b2 h2 " + terms).value());
    EXPECT_EQ(config.num_ds, config.is_persistent ? 2 : 1) << terms;
    return config.is_persistent;
  };
  EXPECT_TRUE(stays("s2048 d128 bf16 bias:bhqk:fp32"));
  EXPECT_TRUE(stays("s8192 d128 bf16 bias:qk:fp32"));
  EXPECT_FALSE(stays("s1024 d128 bf16 bias:bhqk:fp32"));
  EXPECT_FALSE(stays("s8192 d128 bf16 bias:bhqk:bf16"));
  EXPECT_FALSE(stays("s8192 d128 fp16 bias:bhqk:fp32"));
  EXPECT_FALSE(stays("s8192 d128 bf16 bias:bhqk:fp32 causal"));
  EXPECT_FALSE(stays("s8192 d128 bf16 bias:bhqk:fp32 softcap:9"));
  EXPECT_FALSE(stays("s8192 d128 bf16 bias:bhqk:fp32 nondeterministic"));
  EXPECT_FALSE(stays("s8192 d128 bf16 bias:bhqk:fp32 seqused_k"));
}

// The config, the thread blocks of each kernel and what key blocks are dealt out by.
struct Layout {
  BackwardConfig config;
  std::vector<unsigned> grids;
  std::vector<int> numbers;

  explicit Layout(const std::string& text) {
    testing::FakeDriver fake;
    check::Inputs inputs(Problem::parse(text).value(), 1, check::Style::plain);
    config = choose_backward_config(inputs.problem());
    inputs.set_workspace(workspace_of(inputs.problem(), config, {}).end);
    const auto steps = make_steps(inputs.problem(), config, {}, inputs.args(), 3).value();
    for (const cuda::Step& step : steps) grids.push_back(step.grid.x);
    BackwardParams params;
    std::memcpy(&params, steps.front().params.data(), sizeof params);
    numbers = {params.num_blocks_n,   params.num_items,    params.section_heads,
               params.num_sections,   params.ring_blocks,  params.num_rings,
               params.first_mirrored, params.walked_tiles, params.num_walked};
  }
};

// Chunks of whole tiles and key blocks cost what as many sequences do.
TEST(CudaBackward, WalksChunksAsSequences) {
  for (const char* terms : {"d64 bf16", "d128 bf16 causal", "d128 fp16 softcap:9", "d256 bf16"}) {
    const Layout chunks(std::string("bwd b2 s1024 hq2 hkv1 chunk:256 ") + terms);
    const Layout sequences(std::string("bwd b8 s256 hq2 hkv1 ") + terms);
    EXPECT_TRUE(chunks.config.has_chunks);
    BackwardConfig config = sequences.config;
    config.has_chunks = true;
    EXPECT_EQ(chunks.config, config) << terms;
    EXPECT_EQ(chunks.grids, sequences.grids) << terms;
    EXPECT_EQ(chunks.numbers, sequences.numbers) << terms;
  }
  for (const char* text :
       {"bwd s1024 d64 bf16 chunk:200", "bwd sq1024 sk512 d64 bf16 chunk:256 causal",
        "bwd s1024 d64 bf16 chunk:1024", "bwd b2 s512 d64 bf16 chunk:256 ragged:800,900",
        "bwd s512 d64 bf16 chunk:256 bias:qk", "bwd s512 d64 bf16 chunk:256 document",
        "bwd s512 d64 bf16 chunk:256 score_mod:\"score * 2.0\"", "bwd s512 d64 bf16"}) {
    EXPECT_FALSE(choose_backward_config(Problem::parse(text).value()).has_chunks) << text;
  }
  EXPECT_TRUE(
      choose_backward_config(Problem::parse("bwd sq512 sk700 d64 bf16 chunk:256 top-left").value())
          .has_chunks);
}

// Where it is measured, by the keys that a row sees. `spare`: -1 where convert comes behind.
TEST(CudaBackward, ConvertsShortWalksEarly) {
  for (const auto& [text, spare] : {std::pair{"bwd s4096 d64 bf16", 0},
                                    {"bwd s4096 d256 bf16", 0},
                                    {"bwd s8192 d128 bf16", -1},
                                    {"bwd s1024 d64 bf16 causal", 8},
                                    {"bwd s2048 d64 bf16 causal", 5},
                                    {"bwd s2048 d128 bf16 causal", 7},
                                    {"bwd s2049 d128 bf16 causal", -1},
                                    {"bwd s1024 d256 bf16 causal", -1},
                                    {"bwd s1024 d128 bf16 causal nondeterministic", -1},
                                    {"bwd b2 s1024 d128 bf16 causal ragged:2000,2000", -1},
                                    {"bwd s8192 d128 bf16 causal window:1023,", 4},
                                    {"bwd s8192 d128 bf16 window:1024,1023", 4},
                                    {"bwd s8192 d128 bf16 window:1024,1024", -1},
                                    {"bwd s8192 d128 bf16 window:1000,", -1},
                                    {"bwd s8192 d64 bf16 causal window:1023,", -1},
                                    {"bwd s8192 d128 bf16 causal chunk:1000", 7},
                                    {"bwd s2048 d128 bf16 softcap:9", 0},
                                    {"bwd s2048 d128 bf16 softcap:9 causal", -1},
                                    {"bwd s2048 d128 bf16 alibi causal", 7},
                                    {"bwd s2048 d128 bf16 alibi", -1},
                                    {"bwd s2048 d128 fp16", 0},
                                    {"bwd s4096 d128 fp16", -1},
                                    {"bwd s2048 d128 fp16 causal", 7},
                                    {"bwd s2048 d64 fp16 causal", -1},
                                    {"bwd s2048 d128 bf16 bias:bhqk:bf16", -1},
                                    {"bwd s8192 d128 bf16 causal document", 6},
                                    {"bwd s8192 d64 bf16 document", -1},
                                    {"bwd s8192 d128 bf16 mask:qk", -1}}) {
    const BackwardConfig config = choose_backward_config(Problem::parse(text).value());
    EXPECT_EQ(config.converts_early, spare >= 0) << text;
    EXPECT_EQ(config.num_spare, std::max(spare, 0)) << text;
  }
}

// How key blocks are laid out in rings, and whether a last section is walked backwards, decides in
// which order a tile's sum grows.
TEST(CudaBackward, LaysOutBatchInvariantWorkByOneSequence) {
  testing::FakeDriver fake;
  const auto layout = [](const std::string& text) {
    check::Inputs inputs(Problem::parse("bwd sq64 sk512 h1 d64 bf16 " + text).value(), 1,
                         check::Style::plain);
    const BackwardConfig config = choose_backward_config(inputs.problem());
    inputs.set_workspace(workspace_of(inputs.problem(), config, {}).end);
    const auto steps = make_steps(inputs.problem(), config, {}, inputs.args(), 3).value();
    BackwardParams params;
    std::memcpy(&params, steps.front().params.data(), sizeof params);
    return std::pair(params.ring_blocks, params.first_mirrored < params.num_sections);
  };
  EXPECT_EQ(layout("b1 batch_invariant"), layout("b6 batch_invariant"));
  EXPECT_EQ(layout("b1 causal batch_invariant"), layout("b6 causal batch_invariant"));
  EXPECT_NE(layout("b1 causal"), layout("b6 causal"));
  EXPECT_NE(layout("b1").first, layout("b6").first);
}

class CudaBackwardRun : public ::testing::Test {
 protected:
  void SetUp() override {
    JitOptions options;
    options.nvrtc = testing::nvrtc_folder();
    if (options.nvrtc.empty()) {
      GTEST_SKIP() << "NOT TESTED: no NVRTC in .venv; ./dev setup installs it";
    }
    options.cache_dir = dir_ / "cache";
    set_jit_options(options);
  }
  void TearDown() override { set_jit_options({}); }

  // `edit` changes the arguments of the call.
  std::vector<testing::FakeLaunch> launches_of(const std::string& problem,
                                               const std::function<void(Args&)>& edit = {}) {
    check::Inputs inputs(Problem::parse(problem).value(), 1, check::Style::plain);
    const Result<Plan> plan = Plan::create(inputs.problem(), {}, Device::cuda(0).value());
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    inputs.set_workspace(plan.value().workspace_bytes());
    if (edit) edit(inputs.args());
    fake_.launches.clear();
    const Status status = plan.value().run(inputs.args());
    EXPECT_TRUE(status.ok()) << status.message();
    return fake_.launches;
  }

  testing::Scratch dir_;
  testing::FakeDriver fake_;
};

TEST_F(CudaBackwardRun, BlocksThatWaitForEachOtherInARingRunTogether) {
  const auto launches = launches_of("bwd b1 sq200 sk300 hq4 hkv2 d128 bf16");
  ASSERT_EQ(launches.size(), 3u);
  EXPECT_EQ(launches[0].record.grid_x, 8u);  // 256 rows by 32
  EXPECT_EQ(launches[1].record.grid_x, 6u);  // 3 key blocks of 2 heads
  EXPECT_EQ(launches[1].record.block_x, 512u);
  ASSERT_EQ(launches[1].attributes.size(), 1u);
  EXPECT_EQ(launches[1].attributes[0].id, cuda::attribute::kCooperative);
  EXPECT_EQ(launches[1].attributes[0].value.is_cooperative, 1);
  EXPECT_EQ(launches[2].record.grid_x, 16u);  // 4 tiles of 4 heads
}

TEST_F(CudaBackwardRun, OthersFollowTheKernelBefore) {
  // Those of masks begin before prepare ends.
  const std::vector<std::pair<const char*, size_t>> cases = {
      {"bwd b1 sq200 sk300 h2 d128 bf16 causal", 3},
      {"bwd b1 sq200 sk300 h2 d128 bf16 nondeterministic", 3},
      {"bwd b1 sq200 sk300 h2 d128 bf16 document", 5}};
  for (const auto& [text, count] : cases) {
    const auto launches = launches_of(text);
    ASSERT_EQ(launches.size(), count);
    EXPECT_TRUE(launches[0].attributes.empty());
    for (size_t n = 1; n < count; ++n) {
      ASSERT_EQ(launches[n].attributes.size(), 1u);
      EXPECT_EQ(launches[n].attributes[0].id, cuda::attribute::kProgrammatic);
    }
  }
}

// Tensors are described to TMA once, and again where one lies elsewhere.
TEST_F(CudaBackwardRun, ACallThatRepeatsIsRemembered) {
  check::Inputs inputs(Problem::parse("bwd b2 s64 h2 d64 bf16 causal").value(), 1,
                       check::Style::plain);
  const Plan plan = Plan::create(inputs.problem(), {}, Device::cuda(0).value()).value();
  inputs.set_workspace(plan.workspace_bytes());
  fake_.param_bytes = sizeof(BackwardParams);
  const auto params_of_run = [&](const Args& args) {
    fake_.launches.clear();
    EXPECT_TRUE(plan.run(args).ok());
    EXPECT_EQ(fake_.launches.size(), 3u);
    return fake_.launches[1].params;
  };
  const auto first = params_of_run(inputs.args());
  const size_t described = fake_.tensor_maps.size();
  EXPECT_EQ(described, 6u);
  EXPECT_EQ(params_of_run(inputs.args()), first);
  EXPECT_EQ(fake_.tensor_maps.size(), described);
  std::vector<uint16_t> elsewhere(2 * 64 * 2 * 64 + 64);
  Args other = inputs.args();
  void* data = elsewhere.data();
  size_t space = 2 * elsewhere.size();
  other.dk.data = std::align(128, 2 * 2 * 64 * 2 * 64, data, space);
  EXPECT_NE(params_of_run(other), first);
  EXPECT_EQ(fake_.tensor_maps.size(), 2 * described);
}

TEST_F(CudaBackwardRun, TheGradientOfSinksIsAKernelBehind) {
  const auto launches = launches_of("bwd b1 s64 h3 d64 bf16 causal sink dsink");
  ASSERT_EQ(launches.size(), 4u);
  EXPECT_EQ(launches[3].record.grid_x, 3u);
  EXPECT_EQ(launches[3].record.block_x, 1024u);
  EXPECT_TRUE(launches[3].attributes.empty());
}

// Behind dq, dk and dv: the rows' states, keys' terms, and their sums.
TEST_F(CudaBackwardRun, TheGradientOfABiasIsMadeByCompanions) {
  const auto launches = launches_of("bwd b1 s64 h2 d64 bf16 bias:hk dbias");
  ASSERT_EQ(launches.size(), 6u);
  EXPECT_EQ(launches[1].record.block_x, 512u);
  EXPECT_EQ(launches[5].record.grid_x, 128u);  // a block an element
}

// Where it does not reach, a kernel with one map less reads it.
TEST_F(CudaBackwardRun, ABiasOfAnyStrides) {
  for (const int64_t stride : {72, 67}) {
    fake_.tensor_maps.clear();
    std::vector<uint16_t> bias(64 * 72 + 8);
    const auto launches = launches_of("bwd b1 s64 h2 d64 bf16 bias:qk:bf16", [&](Args& args) {
      args.bias.data = bias.data() + 8 - reinterpret_cast<uintptr_t>(bias.data()) / 2 % 8;
      args.bias.stride[2] = stride;
    });
    EXPECT_EQ(launches.size(), 3u);
    EXPECT_EQ(fake_.tensor_maps.size(), stride == 72 ? 7u : 6u);
  }
}

// A call whose strides TMA cannot take is computed all the same, and that is said.
TEST_F(CudaBackwardRun, TakesWhatTmaCannotReach) {
  std::string said;
  set_log_sink([&](LogLevel, std::string_view text) { said += text; });
  const auto launches = launches_of("bwd b1 s64 h2 d64 bf16", [](Args& args) {
    args.k.data = static_cast<uint16_t*>(args.k.data) + 63 * args.k.stride[1];
    args.k.stride[1] = -args.k.stride[1];
  });
  set_log_sink({});
  EXPECT_EQ(launches.size(), 2u);
  EXPECT_NE(said.find("computed by cuda.rows.backward"), std::string::npos) << said;
}

}  // namespace
}  // namespace sirdar::sm90
