// A line on stderr that says how far long work is. Only on a terminal; gone when the work is done.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace sirdar::cli {

class Progress {
 public:
  explicit Progress(std::string title);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `detail` is what is at work now. Costs nothing when called often.
  void show(int64_t done, int64_t total, std::string_view detail);
  // Before anything else is printed.
  void clear();

 private:
  std::string title_;
  bool is_terminal_;
  bool is_shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace sirdar::cli
