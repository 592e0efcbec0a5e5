// What every verb of the command shares: how it is declared, and how it says that it failed.
#pragma once

#include <sirdar/status.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

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

// A flag without a value; a value, or the flag twice, is an error.
CLI::Option* add_switch(CLI::App& app, const std::string& name, bool& target,
                        const std::string& text);

// Text for one line, even when a file name or a library's words have control characters in them.
std::string one_line(std::string_view text);

// Text on stderr. Where it cannot be written there is nobody to tell, and the work goes on.
void say(std::string_view text);

// Says one sentence on stderr, whatever is in it, and returns kExitBadInput.
int fail(std::string_view sentence);
int fail(const Status& status);

// The same for something the user should know that is not an error.
void notice(std::string_view sentence);

// A full disk behind standard output shows only here; results that nobody got are not a success.
Status flush_output();
// The same for a write whose errno is known.
Status unwritten_output(int error);
// Where that was a pipe that nobody reads any more the process ends as pipes end processes, and
// fail() has said nothing.
void end_where_reader_is_gone();

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

// While it lives what the library says is kept: it is of interest only once the work is certain to
// begin, and dropped where the answer is an error.
class HeldNotices {
 public:
  HeldNotices();
  ~HeldNotices();
  HeldNotices(const HeldNotices&) = delete;
  HeldNotices& operator=(const HeldNotices&) = delete;
  // Says what was kept, and what comes from now on at once.
  void show();

 private:
  std::vector<std::string> kept_;
};

// Problems from the words of a command line. A problem may be one quoted argument or its bare
// words; among bare words a new problem starts at "fwd" or "bwd".
std::vector<std::string> problems_from_words(const std::vector<std::string>& words);

}  // namespace sirdar::cli
