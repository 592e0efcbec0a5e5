#include "progress.h"

#include "commands.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace sirdar::cli {
namespace {

size_t terminal_columns() {
  constexpr size_t kUsual = 80;
  winsize size{};
  const bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : kUsual;
}

}  // namespace

Progress::Progress(std::string title)
    : title_(std::move(title)), is_terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { clear(); }

void Progress::show(int64_t done, int64_t total, std::string_view detail) {
  constexpr auto kPause = std::chrono::milliseconds(100);
  const auto now = std::chrono::steady_clock::now();
  if (!is_terminal_ || (is_shown_ && now - last_ < kPause)) return;
  last_ = now;
  is_shown_ = true;
  std::string line = fmt::format("{} {}/{}  {}", title_, done, total, detail);
  line.resize(std::min(line.size(), terminal_columns() - 1));
  say("\r\033[K" + line);
}

void Progress::clear() {
  if (!is_shown_) return;
  is_shown_ = false;
  say("\r\033[K");
}

}  // namespace sirdar::cli
