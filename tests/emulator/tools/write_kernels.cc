// Writes the kernels of lists of problems as C++ for the emulated machine: what NVRTC is given for
// a GPU, but for the entry.
//
// usage: write_emulated_kernels OUTPUT IMPLEMENTATION PROBLEMS [IMPLEMENTATION PROBLEMS]...
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

class Writer {
 public:
  void add_all(const std::string& implementation, const std::string& path) {
    for (const ListedProblem& listed : listed_problems(path)) {
      const Result<ListedKernels> found = listed_kernels(listed.text, implementation);
      if (!found.ok()) throw std::runtime_error(listed.text + ": " + found.status().message());
      for (const KernelSource& source : found.value().sources) add(source);
    }
  }

  std::string text() const {
    std::string includes;
    for (const std::string& header : headers_) includes += fmt::format("#include \"{}\"\n", header);
    return fmt::format(
        "{}#include \"emulator/support/emulated_kernels.h\"\n\n{}"
        "namespace sirdar::emulator_tests {{\n"
        "const std::vector<EmulatedKernel> kEmulatedKernels = {{\n{}}};\n}}\n",
        includes, kernels_, table_);
  }

 private:
  void add(const KernelSource& source) {
    const std::string key = key_of(source);
    if (!seen_.insert(key).second) return;
    headers_.insert(source.header);
    kernels_ += text_of(source, seen_.size());
    table_ += fmt::format("    {{R\"key({})key\", {}::kernel{}::run}},\n", key, source.scope,
                          seen_.size());
  }

  std::string kernels_, table_;
  std::set<std::string> seen_, headers_;
};

}  // namespace
}  // namespace sirdar::emulator_tests

int main(int argc, char** argv) try {
  if (argc < 4 || argc % 2 != 0)
    throw std::runtime_error("usage: write_emulated_kernels OUTPUT IMPLEMENTATION PROBLEMS ...");
  sirdar::emulator_tests::Writer writer;
  for (int n = 2; n < argc; n += 2) writer.add_all(argv[n], argv[n + 1]);
  std::ofstream file(argv[1]);
  file << writer.text();
  return file.flush() ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
