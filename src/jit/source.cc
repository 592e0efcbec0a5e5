#include "jit/source.h"

namespace sirdar::jit {

// The config is a static object rather than a bare template argument so that a debugger and an
// error message can name it; the assertion makes host and device agree about shared memory, or
// nothing compiles.
std::string emit(const KernelSource& source) {
  std::string text =
      fmt::format("#include \"{}\"\n\nnamespace {} {{\n", source.header, source.scope);
  if (!source.definitions.empty()) text += "\n" + source.definitions + "\n\n";
  const bool has_counters = source.num_workspaces > 0;
  if (has_counters)
    text += fmt::format("__device__ Counters sirdar_counters[{}];\n",
                        source.num_workspaces * source.counters_per_workspace);
  text += fmt::format(
      "constexpr {0} config = {1};\n"
      "static_assert(shared_bytes(config) == {2});\n"
      "extern \"C\" __global__ __launch_bounds__({3}, {4})\n"
      "void {5}(const __grid_constant__ {6} params) {{\n"
      "  {7}<config>(params{9});\n"
      "}}\n\n"
      "}}  // namespace {8}\n",
      source.config_type, source.config_text, source.shared_bytes, source.threads,
      source.min_blocks, source.entry, source.params_type, source.function, source.scope,
      has_counters ? ", sirdar_counters" : "");
  return text;
}

}  // namespace sirdar::jit
