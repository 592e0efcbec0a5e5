// The text of a kernel, and the headers that it reaches.
#include <gtest/gtest.h>

#include "cuda/sm90/forward/config.h"
#include "jit/headers.h"
#include "jit/source.h"
#include "support/scratch.h"

namespace sirdar::jit {
namespace {

enum class Shade { light, dark };
struct PaintConfig {
  int size = 0;
  Shade shade = Shade::light;
  bool is_wet = false;
};
template <class C, class V>
void fields(C& c, V visit) {
  visit("size", c.size);
  visit("shade", c.shade);
  visit("is_wet", c.is_wet);
}

TEST(KernelText, OfAConfigIsItsDesignatedInitialiser) {
  EXPECT_EQ(config_text(PaintConfig{-3, Shade::dark, true}, "PaintConfig"),
            "{.size = -3, .shade = decltype(PaintConfig::shade)(1), .is_wet = true}");
}

TEST(KernelText, IsTheSameForTheSameKernel) {
  KernelSource source;
  source.header = "paint/paint.cuh";
  source.scope = "sirdar::paint";
  source.definitions = "inline int twice(int x) { return 2 * x; }";
  source.config_type = "PaintConfig";
  source.config_text = "{.size = 4}";
  source.function = "paint";
  source.params_type = "PaintParams";
  source.entry = "sirdar_paint_s4";
  source.threads = 384;
  source.min_blocks = 2;
  source.shared_bytes = 1024;
  EXPECT_EQ(emit(source), R"(#include "paint/paint.cuh"

namespace sirdar::paint {

inline int twice(int x) { return 2 * x; }

constexpr PaintConfig config = {.size = 4};
static_assert(shared_bytes(config) == 1024);
extern "C" __global__ __launch_bounds__(384, 2)
void sirdar_paint_s4(const __grid_constant__ PaintParams params) {
  paint<config>(params);
}

}  // namespace sirdar::paint
)");
}

TEST(KernelText, OfTheHopperForwardNamesEveryFieldOfItsConfig) {
  const std::string text = config_text(sm90::ForwardConfig{}, "ForwardConfig");
  int count = 0;
  sm90::ForwardConfig config;
  sm90::fields(config, [&](const char* name, auto&) {
    EXPECT_NE(text.find(fmt::format(".{} = ", name)), std::string::npos) << name;
    ++count;
  });
  EXPECT_GE(count, 15);
}

std::vector<std::string> names_of(const std::vector<Header>& headers) {
  std::vector<std::string> names;
  for (const Header& header : headers) names.push_back(header.name);
  return names;
}

TEST(KernelHeaders, AreFoundThroughOthers) {
  const auto headers = reachable_headers("#include \"cuda/sm90/forward/forward.cuh\"\n", {});
  ASSERT_TRUE(headers.ok()) << headers.status().message();
  const std::vector<std::string> names = names_of(headers.value());
  for (const char* name : {"cuda/sm90/forward/config.h", "cuda/sm90/forward/forward.cuh",
                           "ptx/base.cuh", "ptx/wgmma.cuh"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
}

TEST(KernelHeaders, InTheLibraryAreThoseOfTheCheckout) {
  const std::string source =
      "#include \"cuda/sm90/forward/forward.cuh\"\n# include <sirdar/types.h>\n"
      "#include \"shared/softmax_state.h\"\n#include <cstdint>\n";
  const auto carried = reachable_headers(source, {});
  const auto read = reachable_headers(source, std::string(SIRDAR_SOURCE_DIR) + "/src");
  ASSERT_TRUE(carried.ok()) << carried.status().message();
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(names_of(carried.value()), names_of(read.value()));
  for (size_t i = 0; i < read.value().size(); ++i)
    EXPECT_EQ(carried.value()[i].text, read.value()[i].text) << read.value()[i].name;
  const std::vector<std::string> names = names_of(read.value());
  for (const char* name : {"sirdar/types.h", "shared/math.h"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
}

TEST(KernelHeaders, ThatDoNotExistAreNamedWithWhoWantsThem) {
  const testing::Scratch dir;
  testing::write_text(dir / "a.cuh", "#pragma once\n  #include \"b.cuh\"\n");
  const auto headers = reachable_headers("#include \"a.cuh\"", dir.path());
  ASSERT_FALSE(headers.ok());
  EXPECT_EQ(headers.status().code(), StatusCode::compile_failed);
  for (const std::string& part :
       {std::string("has no file 'b.cuh', which a.cuh includes"), dir.path().string()})
    EXPECT_NE(headers.status().message().find(part), std::string::npos)
        << headers.status().message();
}

}  // namespace
}  // namespace sirdar::jit
