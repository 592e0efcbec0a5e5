// What is planned for the recorded CPUs, which are not here.
#include <gtest/gtest.h>

#include <sirdar/sirdar.hpp>

#include "core/device.h"

namespace sirdar {
namespace {

constexpr X86Features kAvx2{.avx2 = true, .fma = true, .f16c = true};
constexpr X86Features kAvx512{.avx2 = true,
                              .fma = true,
                              .f16c = true,
                              .avx512f = true,
                              .avx512bw = true,
                              .avx512dq = true,
                              .avx512vl = true};

X86Features with_bf16() {
  X86Features features = kAvx512;
  features.avx512bf16 = true;
  return features;
}

const Device kCore2 = Device::named("scalar").value();
const Device kHaswell = Device::named("avx2").value();
const Device kSkylake = Device::named("skylake").value();
const Device kZen4 = Device::named("zen4").value();
const Device kSapphire = Device::named("sapphire_rapids").value();
const Device kNeoverse = Device::named("neon").value();

Result<Plan> planned(const Device& device, std::string_view text, const PlanOptions& options = {}) {
  return Plan::create(Problem::parse(text).value(), options, device);
}

// "block_m=256 " -> 256
int64_t field(const Plan& plan, const std::string& name) {
  const std::string config = plan.config();
  const size_t at = config.find(name + "=");
  return at == std::string::npos ? -1 : std::stoll(config.substr(at + name.size() + 1));
}

TEST(PlanElsewhere, TheBestInstructionsNeedEveryPartOfTheirSet) {
  EXPECT_EQ(best_isa({}), Isa::scalar);
  EXPECT_EQ(best_isa(kAvx2), Isa::avx2);
  EXPECT_EQ(best_isa(kAvx512), Isa::avx512);
  EXPECT_EQ(best_isa(with_bf16()), Isa::avx512_bf16);
  X86Features features = with_bf16();
  features.avx512dq = false;
  EXPECT_EQ(best_isa(features), Isa::avx2);
  features.fma = false;
  EXPECT_EQ(best_isa(features), Isa::scalar);
  features = kAvx2;
  features.avx512bf16 = true;
  EXPECT_EQ(best_isa(features), Isa::avx2);
}

#if defined(__x86_64__)
// By hand: a tile has at most 2048 rows (512 above a head_dim of 128); it is halved until there are
// 4 tiles a thread and the last round of tiles wastes no more than an eighth. The blocks of K and V
// that are packed together take at most L2, 4 block_n (head_dim + head_dim_v) bytes each.
TEST(PlanElsewhere, EveryMachineGetsItsOwnInstructionsAndTiles) {
  struct Case {
    const Device& device;
    std::string_view problem, isa;
    int64_t block_m, block_n, group_n;
  };
  const Case cases[] = {
      // 8 heads of 4096 rows; 128 KiB a block
      {kCore2, "s4096 h8 d64 causal", "scalar", 2048, 256, 16},   // 16 tiles of 8 wanted
      {kHaswell, "s4096 h8 d64 causal", "avx2", 1024, 256, 2},    // 32 of 32
      {kSkylake, "s4096 h8 d64 causal", "avx512", 128, 256, 8},   // 256 of 192
      {kZen4, "s4096 h8 d64 causal", "avx512", 256, 256, 8},      // 128 of 128
      {kSapphire, "s4096 h8 d64 causal", "avx512", 64, 256, 16},  // 512 in 5 rounds, 448 wanted
      // work enough for large tiles; 256 KiB a block
      {kHaswell, "b64 s4096 h8 d128", "avx2", 2048, 256, 1},
      {kZen4, "b64 s4096 h8 d128", "avx512", 2048, 256, 4},
      {kSapphire, "b64 s4096 h8 d128", "avx512", 2048, 256, 8},  // 1024 in 10 rounds of 112
      // 4 queries share a K/V head and a tile; tiles are no larger than their rows
      {kZen4, "b4 sq1 sk8192 hq32 hkv8 d128", "avx512", 32, 256, 1},
      {kHaswell, "b4 sq1 sk8192 hq32 hkv8 d128", "avx2", 16, 256, 1},
      {kZen4, "b64 s4096 h8 d512", "avx512", 512, 128, 2},  // 512 KiB a block
      // a mask that may be sparse: queries and states of a tile in 3/8 of L2, at 768 bytes a row
      {kHaswell, "b64 s8192 h8 d64 window:512,0", "avx2", 128, 256, 1},
      {kZen4, R"(b64 s8192 h8 d64 mask_mod:"q - k < 512")", "avx512", 512, 256, 1},
      {kSapphire, "b64 s8192 h8 d64 document", "avx512", 1024, 256, 1},
      // operands of 2 bytes: 64 KiB a block
      {kZen4, "s4096 h8 d64 causal bf16", "avx512_bf16", 256, 256, 16},
      {kSapphire, "s4096 h8 d64 causal bf16", "avx512", 64, 256, 16},
      {kSkylake, "s4096 h8 d64 causal bf16", "avx512", 128, 256, 8},
  };
  for (const Case& one : cases) {
    const Result<Plan> plan = planned(one.device, one.problem);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    SCOPED_TRACE(one.device.name + " " + std::string(one.problem) + " " + plan.value().config());
    EXPECT_EQ(plan.value().name(), "cpu.forward");
    EXPECT_NE(plan.value().config().find("isa=" + std::string(one.isa) + " "), std::string::npos);
    EXPECT_EQ(field(plan.value(), "block_m"), one.block_m);
    EXPECT_EQ(field(plan.value(), "block_n"), one.block_n);
    EXPECT_EQ(field(plan.value(), "group_n"), one.group_n);
    EXPECT_EQ(field(plan.value(), "num_threads"), one.device.num_threads);
  }
}

TEST(PlanElsewhere, ForcedInstructionsAreWeakerOnesOfTheSameFamily) {
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    PlanOptions options;
    options.isa = isa;
    const Result<Plan> plan = planned(kZen4, "s512 h4", options);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_NE(plan.value().config().find("isa=" + std::string(isa) + " "), std::string::npos);
  }
}
#endif

TEST(PlanElsewhere, AnArmIsServed) {
  const Result<Plan> plan = planned(kNeoverse, "s4096 h8 d64 causal");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan.value().name(), "cpu.forward");
  EXPECT_EQ(field(plan.value(), "block_m"), 128);  // 256 tiles for 64 threads
}

TEST(PlanElsewhere, WhatAMachineLacksIsRefusedInOneSentence) {
  struct Case {
    const Device& device;
    const char* isa;
    std::string_view message;
  };
  const Case cases[] = {
      {kHaswell, "avx512",
       "isa: 'avx512' does not run on Core i7-4770, whose best is avx2; leave "
       "isa empty for the best."},
      {kCore2, "avx2",
       "isa: 'avx2' does not run on Core 2 Duo E8400, whose best is scalar; leave "
       "isa empty for the best."},
      {kNeoverse, "avx2",
       "isa: 'avx2' does not run on Neoverse V1, whose best is neon; leave isa "
       "empty for the best."},
      {kSapphire, "neon",
       "isa: 'neon' does not run on Xeon Platinum 8480+, whose best is "
       "avx512_bf16; leave isa empty for the best."},
      {kSkylake, "avx512_bf16",
       "isa: 'avx512_bf16' does not run on Xeon Platinum 8175, whose best "
       "is avx512; leave isa empty for the best."},
      {kZen4, "amx",
       "isa: 'amx' is not an instruction set; use one of scalar, neon, avx2, avx512, "
       "avx512_bf16."}};
  for (const Case& one : cases) {
    PlanOptions options;
    options.isa = one.isa;
    const Result<Plan> plan = planned(one.device, "s512 h4", options);
    ASSERT_FALSE(plan.ok()) << one.isa;
    EXPECT_EQ(plan.status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(plan.status().message(), one.message);
  }
}

// Scratch is the memory map of src/cpu/README.md, once a slot.
TEST(PlanElsewhere, ScratchGrowsWithTheSlotsAndTheTiles) {
  for (const Device& device : {kCore2, kHaswell, kSkylake, kZen4, kSapphire, kNeoverse}) {
    for (const std::string_view text : {"b64 s4096 h8 d64", "b64 s4096 h8 d128 bf16 bias"}) {
      const Plan plan = planned(device, text).value();
      const int64_t d = plan.problem().head_dim, block_n = field(plan, "block_n");
      // Two accumulators of the rows of a chunk, of all where keys come in several groups; queries
      // of a chunk; packed blocks of K and of V.
      const int64_t chunk = device.isa == Isa::avx2                                ? 8 * 16
                            : device.isa == Isa::scalar || device.isa == Isa::neon ? 8 * 8
                                                                                   : 8 * 32;
      const int64_t keys = field(plan, "group_n") * block_n;
      const int64_t rows = keys < plan.problem().seqlen_k ? field(plan, "block_m") : chunk;
      const bool is_paired = plan.config().find("isa=avx512_bf16") != std::string::npos;
      const int64_t floats = rows * 2 * d + (chunk * d + keys * 2 * d) / (is_paired ? 2 : 1);
      const auto bytes = static_cast<int64_t>(plan.workspace_bytes());
      EXPECT_GE(bytes, device.num_threads * 4 * floats) << device.name << ' ' << text;
      EXPECT_LE(bytes, device.num_threads * 6 * floats) << device.name << ' ' << text;
    }
  }
}

TEST(PlanElsewhere, APlanForOtherVectorsDoesNotRunHere) {
  const bool is_x86 = isa_runs_on(Isa::avx2, Device::host().isa);
  const Plan plan = planned(is_x86 ? kNeoverse : kZen4, "s0").value();
  EXPECT_EQ(plan.run({}).code(), StatusCode::device_error);
}

}  // namespace
}  // namespace sirdar
