#include "jit/headers.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

namespace sirdar::jit {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !text) return std::nullopt;
  return std::move(text).str();
}

// Public headers lie beside src/ in a checkout, under their own name elsewhere.
std::optional<std::string> read_from(const fs::path& dir, const std::string& name) {
  if (std::optional<std::string> text = read_file(dir / name)) return text;
  return read_file(dir / ".." / "include" / name);
}

std::optional<std::string> read_embedded(const std::string& name) {
  for (const EmbeddedHeader& header : embedded_headers())
    if (header.name == name) return std::string(header.text);
  return std::nullopt;
}

// "ptx/..." is the device's face of ptx/; the emulator has another under the same name.
std::optional<std::string> read_header(const fs::path& kernel_dir, const std::string& name) {
  for (const std::string& path : {name, "cuda/device/" + name}) {
    std::optional<std::string> text =
        kernel_dir.empty() ? read_embedded(path) : read_from(kernel_dir, path);
    if (text) return text;
  }
  return std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == text.npos ? std::string_view() : text.substr(first);
}

// The name in `#include "name"` or `#include <sirdar/name>`, or nothing. Other names in angle
// brackets are the standard library's, which the host's part of a shared header includes.
std::string_view included_name(std::string_view line) {
  line = trimmed(line);
  if (!line.starts_with('#')) return {};
  line = trimmed(line.substr(1));
  if (!line.starts_with("include")) return {};
  line = trimmed(line.substr(7));
  if (!line.starts_with('"') && !line.starts_with("<sirdar/")) return {};
  const size_t end = line.find(line[0] == '"' ? '"' : '>', 1);
  return end == line.npos ? std::string_view() : line.substr(1, end - 1);
}

std::vector<std::string> includes_of(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view name = included_name(text.substr(0, end));
    if (!name.empty()) names.emplace_back(name);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return names;
}

}  // namespace

Result<std::vector<Header>> reachable_headers(std::string_view source, const fs::path& kernel_dir) {
  std::map<std::string, std::string> found;
  // (name, who asks for it)
  std::vector<std::pair<std::string, std::string>> wanted;
  for (std::string& name : includes_of(source)) wanted.emplace_back(std::move(name), "the kernel");
  while (!wanted.empty()) {
    const auto [name, asker] = std::move(wanted.back());
    wanted.pop_back();
    if (found.contains(name)) continue;
    std::optional<std::string> text = read_header(kernel_dir, name);
    if (!text)
      return Status(
          StatusCode::compile_failed,
          kernel_dir.empty()
              ? fmt::format("kernel: {} includes '{}', which is not among the headers that this "
                            "library carries; device code may include only those.",
                            asker, name)
              : fmt::format("kernel_dir: {} (or SIRDAR_KERNEL_DIR) has no file '{}', which {} "
                            "includes; name the src/ of a checkout, or leave it unset.",
                            kernel_dir.string(), name, asker));
    for (std::string& next : includes_of(*text)) wanted.emplace_back(std::move(next), name);
    found.emplace(name, std::move(*text));
  }
  std::vector<Header> headers;
  for (auto& [name, text] : found) headers.push_back({name, std::move(text)});
  return headers;
}

}  // namespace sirdar::jit
