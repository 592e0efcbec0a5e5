// Writes the kernels of problems.txt as C++ for the emulated machine: what NVRTC is given for a
// GPU, but for the entry.
//
// usage: write_emulated_kernels PROBLEMS OUTPUT
#include <fmt/format.h>

#include <exception>
#include <fstream>
#include <set>

#include "emulator/support/problem_list.h"

namespace sirdar::emulator_tests {
namespace {

std::string text_of(const KernelSource& source, size_t index) {
  return fmt::format(
      "namespace {0}::kernel{1} {{\n{2}\n"
      "constexpr {3} config = {4};\n"
      "static_assert(shared_bytes(config) == {5});\n"
      "void run(const void* params) {{ {6}<config>(*static_cast<const {7}*>(params)); }}\n"
      "}}\n\n",
      source.scope, index, source.definitions, source.config_type, source.config_text,
      source.shared_bytes, source.function, source.params_type);
}

std::string all_of(const std::string& path) {
  std::string kernels, table;
  std::set<std::string> seen;
  for (const ListedProblem& listed : listed_problems(path)) {
    const Result<ForwardKernels> found = forward_kernels(listed.text);
    if (!found.ok()) throw std::runtime_error(listed.text + ": " + found.status().message());
    for (const KernelSource& source : found.value().sources) {
      const std::string key = key_of(source);
      if (!seen.insert(key).second) continue;
      kernels += text_of(source, seen.size());
      table += fmt::format("    {{R\"key({})key\", {}::kernel{}::run}},\n", key, source.scope,
                           seen.size());
    }
  }
  return fmt::format(
      "#include \"cuda/sm90/forward/forward.cuh\"\n"
      "#include \"emulator/support/emulated_kernels.h\"\n\n{}"
      "namespace sirdar::emulator_tests {{\n"
      "const std::vector<EmulatedKernel> kEmulatedKernels = {{\n{}}};\n}}\n",
      kernels, table);
}

}  // namespace
}  // namespace sirdar::emulator_tests

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: write_emulated_kernels PROBLEMS OUTPUT");
  std::ofstream file(argv[2]);
  file << sirdar::emulator_tests::all_of(argv[1]);
  return file.flush() ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
