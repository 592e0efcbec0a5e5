#include "commands.h"
#include "core/environment.h"

#include <sirdar/sirdar.hpp>

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace sirdar::cli {
namespace {

bool reader_is_gone = false;  // of standard output

}  // namespace

CLI::Option* add_switch(CLI::App& app, const std::string& name, bool& target,
                        const std::string& text) {
  return app.add_flag(name, target, text)
      ->disable_flag_override()
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw);
}

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

void say(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

int fail(std::string_view sentence) {
  if (reader_is_gone) return kExitBadInput;
  say(fmt::format("sirdar: {}\n", one_line(sentence)));
  return kExitBadInput;
}

int fail(const Status& status) { return fail(status.message()); }

void notice(std::string_view sentence) { say(fmt::format("note: {}\n", one_line(sentence))); }

Status flush_output() {
  // The reason of a write that failed earlier is still there, or lost.
  const bool had_failed = std::ferror(stdout) != 0;
  const int earlier = had_failed ? errno : 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !had_failed) return {};
  return unwritten_output(errno != 0 ? errno : earlier);
}

Status unwritten_output(int error) {
  reader_is_gone = reader_is_gone || error == EPIPE;
  return Status(StatusCode::invalid_argument,
                fmt::format("standard output could not be written{}; send it elsewhere.",
                            error == 0 ? "" : fmt::format(" ({})", std::strerror(error))));
}

void end_where_reader_is_gone() {
  if (!reader_is_gone) return;
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
}

Silence::Silence() { set_log_sink({}); }

Silence::~Silence() { show_notices(); }

void show_notices() {
  if (is_log_on_stderr()) return;
  set_log_sink([](LogLevel, std::string_view text) { notice(text); });
}

HeldNotices::HeldNotices() {
  if (is_log_on_stderr()) return;
  set_log_sink([this](LogLevel, std::string_view text) { kept_.emplace_back(text); });
}

HeldNotices::~HeldNotices() { show_notices(); }

void HeldNotices::show() {
  show_notices();
  for (const std::string& text : kept_) notice(text);
  kept_.clear();
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
