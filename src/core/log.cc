#include "core/log.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "core/environment.h"

namespace sirdar {
namespace {

using Sink = std::function<void(LogLevel, std::string_view)>;

// A process that plans thousands of different shapes must not remember each of them for ever.
constexpr size_t kMaxKeys = 1024;

struct State {
  std::mutex mutex;
  std::shared_ptr<const Sink> sink;
  std::unordered_set<std::string> said;
};

// Never destroyed: other threads may log while static objects go away.
State& state() {
  static State* const instance = new State;
  return *instance;
}

}  // namespace

void set_log_sink(std::function<void(LogLevel, std::string_view)> sink) {
  auto shared = sink ? std::make_shared<const Sink>(std::move(sink)) : nullptr;
  const std::lock_guard lock(state().mutex);
  state().sink = std::move(shared);
}

void log(LogLevel level, std::string_view text) {
  std::shared_ptr<const Sink> sink;
  {
    const std::lock_guard lock(state().mutex);
    sink = state().sink;
  }
  if (sink) (*sink)(level, text);
  if (is_log_on_stderr()) {
    const char* label = level == LogLevel::warning ? "warning" : "notice";
    std::fprintf(stderr, "sirdar: %s: %.*s\n", label, static_cast<int>(text.size()), text.data());
  }
}

void log_once(LogLevel level, std::string_view key, std::string_view text) {
  {
    const std::lock_guard lock(state().mutex);
    auto& said = state().said;
    if (said.size() >= kMaxKeys || !said.emplace(key).second) return;
  }
  log(level, text);
}

}  // namespace sirdar
