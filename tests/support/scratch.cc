#include "support/scratch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "jit/compiler.h"

namespace sirdar::testing {

namespace fs = std::filesystem;

Scratch::Scratch() {
  std::string pattern = fs::temp_directory_path() / "sirdar-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no scratch folder");
  path_ = pattern;
}

Scratch::~Scratch() {
  std::error_code error;
  fs::remove_all(path_, error);
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string nvrtc_folder() {
  const fs::path venv = fs::path(SIRDAR_SOURCE_DIR) / ".venv";
  return jit::find_compiler(venv).ok() ? venv.string() : std::string();
}

KernelSource tiny_kernel(const fs::path& kernel_dir, const std::string& body) {
  write_text(kernel_dir / "tiny.cuh", fmt::format(R"(#pragma once
#include "tiny_config.h"
#include "shared/mask.h"
namespace tiny {{
struct Params {{ float* out; int n; }};
template <Config config>
__device__ void run(const Params& params) {{ {} }}
}}
)",
                                                  body));
  write_text(kernel_dir / "tiny_config.h", R"(#pragma once
namespace tiny {
struct Config { int factor; bool is_on; };
constexpr int shared_bytes(const Config& c) { return 1024 * c.factor; }
}
)");
  std::error_code error;
  fs::create_directory_symlink(fs::path(SIRDAR_SOURCE_DIR) / "src/shared", kernel_dir / "shared",
                               error);
  KernelSource source;
  source.header = "tiny.cuh";
  source.scope = "tiny";
  source.config_type = "Config";
  source.config_text = "{.factor = 3, .is_on = true}";
  source.function = "run";
  source.params_type = "Params";
  source.entry = "sirdar_tiny";
  source.threads = 128;
  source.shared_bytes = 3072;
  return source;
}

}  // namespace sirdar::testing
