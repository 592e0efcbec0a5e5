// What every verb of the command shares: how it is declared, and how it says that it failed.
#pragma once

#include <sirdar/status.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace sirdar::cli {

// Exit codes of every verb.
inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;  // the work was done and something was found wrong
inline constexpr int kExitBadInput = 2;     // usage or input; nothing was written

// Runs a verb whose flags have been parsed; returns the exit code.
using Action = std::function<int()>;

// A verb declares its flags on its own CLI::App and returns what to run. Leave out ->required():
// an unknown flag is the better message, so actions look for what is missing themselves.
struct Verb {
  const char* name;
  const char* summary;
  Action (*declare)(CLI::App& app);
};

Action declare_attend(CLI::App& app);
Action declare_check(CLI::App& app);
Action declare_explain(CLI::App& app);
Action declare_bench(CLI::App& app);
Action declare_ladder(CLI::App& app);
Action declare_doctor(CLI::App& app);
Action declare_selftest(CLI::App& app);
Action declare_compile(CLI::App& app);
Action declare_cache(CLI::App& app);

// Says one sentence on stderr, whatever is in it, and returns kExitBadInput.
int fail(std::string_view sentence);
int fail(const Status& status);

// The same for something the user should know that is not an error.
void notice(std::string_view sentence);

// While it lives the library says nothing: for verbs that plan what they will not run.
class Silence {
 public:
  Silence();
  ~Silence();
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;
};
// What the library has to say goes to stderr, unless SIRDAR_LOG already sends it there.
void show_notices();

// Problems from the words of a command line. A problem may be one quoted argument or its bare
// words; among bare words a new problem starts at "fwd" or "bwd".
std::vector<std::string> problems_from_words(const std::vector<std::string>& words);

}  // namespace sirdar::cli
