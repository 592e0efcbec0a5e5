// sirdar: attention on files, and what there is to know about it, from a shell.
#include "commands.h"

#include "core/environment.h"
#include "core/suggest.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <fcntl.h>

#include <csignal>
#include <cstdio>
#include <new>
#include <span>
#include <system_error>

namespace sirdar::cli {
namespace {

// One row per verb, in the order of --help.
constexpr Verb kVerbs[] = {
    {"attend", "attention over tensors in files, forward and backward", declare_attend},
    {"check", "implementations against float64 on random data", declare_check},
    {"explain", "what would run, how, and why nothing else", declare_explain},
    {"bench", "how fast problems run here, beside the roofline and the naive method",
     declare_bench},
    {"ladder", "the algorithms from naive softmax to FlashAttention-2, counted", declare_ladder},
    {"doctor", "this machine, and what runs on it", declare_doctor},
    {"selftest", "the conformance corpus on this machine", declare_selftest},
    {"compile", "GPU kernels compiled without a GPU: registers, spills, time", declare_compile},
    {"cache", "compiled kernels on disk: list, verify, clear, pack", declare_cache},
};

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::vector<std::string> verb_names() {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) names.emplace_back(verb.name);
  return names;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::vector<std::string_view> views(candidates.begin(), candidates.end());
  const std::string_view best = nearest(word, views);
  return best.empty() ? "" : fmt::format("did you mean '{}'? ", best);
}

// Words that no option or positional of `app` took. A flag among them is the likelier mistake.
int fail_with_extras(const CLI::App& root, const CLI::App* verb) {
  const CLI::App& app = verb ? *verb : root;
  std::vector<std::string> extras = app.remaining();
  // What follows a bare "--" is left to the root, and no flags are among it.
  const bool has_flags = !extras.empty();
  if (!has_flags) extras = root.remaining(true);
  std::erase(extras, "--");
  std::string word = extras.empty() ? "" : extras.front();
  for (const std::string& extra : extras) {
    if (has_flags && extra.size() > 1 && extra[0] == '-') {
      word = extra.substr(0, extra.find('='));
      break;
    }
  }
  const std::string help =
      verb ? fmt::format("sirdar {} --help", verb->get_name()) : "sirdar --help";
  if (has_flags && !word.empty() && word[0] == '-') {
    return fail(fmt::format("{}{} is not a flag; {}'{}' lists them.",
                            verb ? verb->get_name() + ": " : "", word,
                            did_you_mean(word, flag_names(app)), help));
  }
  if (verb) {
    return fail(fmt::format("{}: the word '{}' is not expected here; '{}' shows the use.",
                            verb->get_name(), word, help));
  }
  return fail(fmt::format("'{}' is not a verb; {}'{}' lists them.", word,
                          did_you_mean(word, verb_names()), help));
}

// CLI11's other complaints name the flag before a colon.
int fail_with_parse_error(const CLI::ParseError& error, const CLI::App* verb) {
  const std::string text = error.what();
  const std::string name = verb ? verb->get_name() : "";
  const std::string prefix = verb ? name + ": " : "";
  if (text.find("At Most 1") != std::string::npos) {
    return fail(fmt::format("{}{} is given more than once; once is allowed.", prefix,
                            text.substr(0, text.find(':'))));
  }
  if (const size_t required = text.find(": 1 required "); required != text.npos) {
    const std::string value = text.substr(required + 13);
    return fail(fmt::format("{}{} needs a value, {}; '{}' shows the use.", prefix,
                            text.substr(0, required), value.substr(0, value.find(' ')),
                            verb ? fmt::format("sirdar {} --help", name) : "sirdar --help"));
  }
  if (text.find("flag override") != std::string::npos) {
    return fail(fmt::format("{}--{} takes no value; leave out the '=' and what follows.", prefix,
                            text.substr(0, text.find(' '))));
  }
  return fail(
      fmt::format("{}{}; 'sirdar {}{}--help' shows the use.", prefix, text, name, verb ? " " : ""));
}

// CLI11 reads "--flag=" as "--flag": for some flags the next word would become the value.
std::string_view empty_assignment(std::span<char*> words) {
  for (const std::string_view word : words) {
    const std::string_view name = word.substr(0, word.size() - (word.ends_with('=') ? 1 : 0));
    const bool is_flag = name.size() > 2 && name.starts_with("--") &&
                         name.find_first_not_of("-abcdefghijklmnopqrstuvwxyz") == name.npos;
    if (is_flag && name.size() < word.size()) return name;
  }
  return {};
}

int run(int argc, char** argv) {
  show_notices();
  const std::string_view empty = empty_assignment({argv, static_cast<size_t>(argc)});
  if (!empty.empty()) {
    return fail(
        fmt::format("{}= has nothing after the '='; give a value, or leave the '=' out.", empty));
  }
  CLI::App app("Exact attention, forward and backward.", "sirdar");
  app.set_version_flag("--version", "sirdar " SIRDAR_VERSION);
  app.require_subcommand(0, 1);
  app.footer(
      "'sirdar VERB --help' shows a verb's flags and examples.\n"
      "Exit codes: 0 done, 1 done and something was found wrong, 2 not done, which one sentence "
      "on\n"
      "standard error explains.");
  std::vector<std::pair<CLI::App*, Action>> actions;
  for (const Verb& verb : kVerbs) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.summary);
    actions.emplace_back(sub, verb.declare(*sub));
  }
  const auto chosen = [&]() -> CLI::App* {
    const auto parsed = app.get_subcommands();
    return parsed.empty() ? nullptr : parsed.front();
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ExtrasError&) {
    return fail_with_extras(app, chosen());
  } catch (const CLI::ParseError& error) {
    return fail_with_parse_error(error, chosen());
  }
  if (Status status = check_environment(); !status.ok()) return fail(status);
  for (const auto& [sub, action] : actions) {
    if (sub->parsed()) return action();
  }
  return fail("no verb was given; 'sirdar --help' lists them.");
}

// Where a standard stream is closed, the next file to be opened would take its place, and text for
// the stream would go into that file. These can be read, and writing to them is an error.
void keep_places_of_closed_streams() {
  for (int stream = 0; stream <= 2; ++stream)
    if (fcntl(stream, F_GETFD) == -1) open("/dev/null", O_RDONLY);
}

int run_safely(int argc, char** argv) {
  try {
    const int code = run(argc, argv);
    const Status status = flush_output();
    // An error is one sentence, and it may have been this one.
    return status.ok() || code == kExitBadInput ? code : fail(status);
  } catch (const std::bad_alloc&) {
    return fail("memory: there is not enough for this problem; use a smaller one.");
  } catch (const std::system_error& error) {
    // fmt's own words for a write that failed.
    if (!std::ferror(stdout)) return fail(error.what());
    return fail(unwritten_output(error.code().value()));
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

}  // namespace
}  // namespace sirdar::cli

int main(int argc, char** argv) {
  // A limit on the size of files is an error of the write that meets it, not the end; nor is a
  // reader that has gone, who would leave unfinished files behind.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  sirdar::cli::keep_places_of_closed_streams();
  const int code = sirdar::cli::run_safely(argc, argv);
  sirdar::cli::end_where_reader_is_gone();
  return code;
}
