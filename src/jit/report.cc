#include "jit/report.h"

#include <fmt/format.h>

#include <charconv>

namespace sirdar::jit {
namespace {

std::string_view next_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + 1);
  return line;
}

// The whole number right before `word`, or -1.
int number_before(std::string_view line, std::string_view word) {
  const size_t end = line.find(word);
  if (end == line.npos || end == 0) return -1;
  size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = -1;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

int at_least_0(int value) { return value < 0 ? 0 : value; }

// "C7510" to "C7519" say that wgmma instructions run one after the other.
bool is_serialisation(std::string_view line) {
  const size_t at = line.find("C751");
  return at != line.npos && at + 4 < line.size() && line[at + 4] >= '0' && line[at + 4] <= '9';
}

// The fields of a report, once, for both directions.
template <class R, class V>
bool visit(R& r, V&& v) {
  return v("entry", r.entry) && v("arch", r.arch) && v("nvrtc", r.nvrtc) &&
         v("problem", r.problem) && v("options", r.options) && v("threads", r.threads) &&
         v("registers", r.registers) && v("spill_store_bytes", r.spill_store_bytes) &&
         v("spill_load_bytes", r.spill_load_bytes) && v("stack_bytes", r.stack_bytes) &&
         v("static_shared_bytes", r.static_shared_bytes) && v("shared_bytes", r.shared_bytes) &&
         v("compile_ms", r.compile_ms) && v("cpu_ms", r.cpu_ms) && v("cubin_bytes", r.cubin_bytes);
}

bool read_value(std::string_view text, std::string& value) {
  value = text;
  return true;
}
template <class T>
bool read_value(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace

bool read_log(std::string_view log, CompileReport& report) {
  const std::string heading = fmt::format("entry function '{}'", report.entry);
  bool is_ours = false, is_known = false;
  while (!log.empty()) {
    const std::string_view line = next_line(log);
    if (is_serialisation(line)) report.remarks.emplace_back(line);
    if (line.find("entry function '") != line.npos) is_ours = line.find(heading) != line.npos;
    if (!is_ours) continue;
    if (const int bytes = number_before(line, " bytes stack frame"); bytes >= 0) {
      report.stack_bytes = bytes;
      report.spill_store_bytes = at_least_0(number_before(line, " bytes spill stores"));
      report.spill_load_bytes = at_least_0(number_before(line, " bytes spill loads"));
    }
    if (const int registers = number_before(line, " registers"); registers >= 0) {
      report.registers = registers;
      report.static_shared_bytes = at_least_0(number_before(line, " bytes smem"));
      is_known = true;
    }
  }
  return is_known;
}

std::string print(const CompileReport& report) {
  std::string text;
  visit(report, [&](std::string_view name, const auto& value) {
    text += fmt::format("{} {}\n", name, value);
    return true;
  });
  for (const std::string& remark : report.remarks) text += fmt::format("remark {}\n", remark);
  return text;
}

std::optional<CompileReport> parse_report(std::string_view text) {
  CompileReport report;
  const bool is_complete = visit(report, [&](std::string_view name, auto& value) {
    const std::string_view line = next_line(text);
    return line.size() > name.size() && line.starts_with(name) && line[name.size()] == ' ' &&
           read_value(line.substr(name.size() + 1), value);
  });
  if (!is_complete) return std::nullopt;
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    if (!line.starts_with("remark ")) return std::nullopt;
    report.remarks.emplace_back(line.substr(7));
  }
  return report;
}

}  // namespace sirdar::jit
