#include "commands.h"

#include <sirdar/sirdar.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace sirdar::cli {
namespace {

// A message is one line, even when a file name or a library's text has control characters in it.
std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += line.empty() || line.back() == ' ' ? "" : " ";
    } else if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

}  // namespace

int fail(std::string_view sentence) {
  fmt::print(stderr, "sirdar: {}\n", one_line(sentence));
  return kExitBadInput;
}

int fail(const Status& status) { return fail(status.message()); }

void notice(std::string_view sentence) { fmt::print(stderr, "note: {}\n", one_line(sentence)); }

Silence::Silence() { set_log_sink({}); }

Silence::~Silence() { show_notices(); }

void show_notices() {
  const char* log = std::getenv("SIRDAR_LOG");
  if (log != nullptr && *log != '\0' && std::string_view(log) != "0") return;
  set_log_sink([](LogLevel, std::string_view text) { notice(text); });
}

std::vector<std::string> problems_from_words(const std::vector<std::string>& words) {
  std::vector<std::string> problems;
  bool is_open = false;  // may the next bare word join the last problem?
  for (const std::string& word : words) {
    const bool is_whole = word.find(' ') != std::string::npos;
    if (is_open && !is_whole && word != "fwd" && word != "bwd") {
      problems.back() += " " + word;
    } else {
      problems.push_back(word);
    }
    is_open = !is_whole;
  }
  return problems;
}

}  // namespace sirdar::cli
