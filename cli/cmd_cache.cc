// cache: compiled kernels on disk, listed, checked, removed, copied.
#include "commands.h"
#include "jit/cache.h"
#include "jit/report.h"
#include "jit/settings.h"
#include "parse.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>

namespace sirdar::cli {
namespace {

namespace fs = std::filesystem;

struct CacheFlags {
  std::vector<std::string> words;
  std::optional<std::string> output;
  bool is_json = false;
};

// One directory's entry; no report where it is damaged.
struct Found {
  fs::path dir;
  std::string name;
  std::optional<jit::Entry> entry;
  std::optional<jit::CompileReport> report;
};

std::string counted(int64_t count, std::string_view what = "kernel") {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return a.lexically_normal() == b.lexically_normal() || fs::equivalent(a, b, error);
}

// The cache and the packs, in the order in which they are searched, each once.
std::vector<fs::path> directories(const jit::Settings& settings) {
  std::vector<fs::path> dirs, all = settings.packs;
  if (!settings.cache_dir.empty()) all.push_back(settings.cache_dir);
  for (const fs::path& dir : all)
    if (std::ranges::none_of(dirs, [&](const fs::path& one) { return is_same(one, dir); }))
      dirs.push_back(dir);
  return dirs;
}

bool is_missing(const fs::path& dir) {
  std::error_code error;
  return !fs::exists(dir, error);
}

// Names of files and what is in them may have any characters.
void print_line(std::string_view text) { fmt::print("{}\n", one_line(text)); }

std::vector<Found> find_all(const jit::Settings& settings) {
  std::vector<Found> all;
  for (const fs::path& dir : directories(settings)) {
    for (const std::string& name : jit::entry_names(dir)) {
      Found found{dir, name, jit::read_entry(dir, name), std::nullopt};
      if (found.entry) found.report = jit::parse_report(found.entry->report);
      all.push_back(std::move(found));
    }
  }
  return all;
}

std::string dumped(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void print_json(const Found& found) {
  nlohmann::ordered_json json{{"directory", found.dir.string()},
                              {"entry", found.name},
                              {"is_valid", found.report.has_value()}};
  if (found.report) {
    const jit::CompileReport& r = *found.report;
    json.update({{"kernel", r.entry},
                 {"arch", r.arch},
                 {"nvrtc", r.nvrtc},
                 {"registers", r.registers},
                 {"spill_store_bytes", r.spill_store_bytes},
                 {"spill_load_bytes", r.spill_load_bytes},
                 {"shared_bytes", r.shared_bytes},
                 {"compile_ms", r.compile_ms},
                 {"cubin_bytes", r.cubin_bytes},
                 {"problem", r.problem}});
  }
  fmt::print("{}\n", dumped(json));
}

int list(const jit::Settings& settings, bool is_json) {
  const std::vector<Found> all = find_all(settings);
  for (const Found& found : all) {
    if (is_json) {
      print_json(found);
    } else if (found.report) {
      print_line(fmt::format("{:.12}  {}  {}, NVRTC {}, {} registers, {} B; for '{}'", found.name,
                             found.report->entry, found.report->arch, found.report->nvrtc,
                             found.report->registers, found.report->cubin_bytes,
                             found.report->problem));
    } else {
      fmt::print("{:.12}  damaged\n", found.name);
    }
  }
  for (const fs::path& dir : directories(settings)) {
    const std::vector<std::string> foreign = jit::foreign_names(dir);
    if (is_json) {
      for (const std::string& name : foreign)
        fmt::print("{}\n", dumped({{"directory", dir.string()}, {"foreign", name}}));
      continue;
    }
    const auto count =
        std::count_if(all.begin(), all.end(), [&](const Found& found) { return found.dir == dir; });
    std::string line = fmt::format("{} in {}", counted(count), dir.string());
    if (dir != settings.cache_dir && is_missing(dir)) line += ", which does not exist";
    if (!foreign.empty())
      line += fmt::format("; {}, not of the cache: {}", counted(std::ssize(foreign), "other name"),
                          fmt::join(foreign, ", "));
    print_line(line);
  }
  return kExitOk;
}

int verify(const jit::Settings& settings) {
  int damaged = 0, count = 0;
  for (const Found& found : find_all(settings)) {
    ++count;
    if (found.report) continue;
    ++damaged;
    print_line(fmt::format("damaged: {}", (found.dir / found.name).string()));
  }
  bool is_any_missing = false;
  for (const fs::path& dir : directories(settings)) {
    for (const std::string& name : jit::foreign_names(dir))
      print_line(fmt::format("not of the cache: {}", (dir / name).string()));
    if (!is_missing(dir)) continue;
    is_any_missing = true;
    print_line(fmt::format("does not exist: {}", dir.string()));
  }
  fmt::print("{} of {} kernels are as they were written{}\n", count - damaged, count,
             damaged > 0 ? "; damaged ones are compiled again when they are needed" : "");
  return damaged == 0 && !is_any_missing ? kExitOk : kExitCheckFailed;
}

int clear(const jit::Settings& settings) {
  const Result<int> removed = jit::clear_entries(settings.cache_dir);
  if (!removed.ok()) return fail(removed.status());
  print_line(
      fmt::format("{} removed from {}", counted(removed.value()), settings.cache_dir.string()));
  return kExitOk;
}

int pack(const jit::Settings& settings, const fs::path& output) {
  std::error_code error;
  for (const fs::path& dir : directories(settings))
    if (fs::equivalent(dir, output, error))
      return fail(
          fmt::format("-o: {} is a cache itself; name another directory.", output.string()));
  const std::vector<Found> all = find_all(settings);
  const auto count = std::count_if(all.begin(), all.end(),
                                   [](const Found& found) { return found.report.has_value(); });
  if (count == 0)
    return fail(fmt::format("cache: no whole kernel is in {}; 'sirdar compile' makes some to pack.",
                            settings.cache_dir.string()));
  for (const Found& found : all) {
    if (!found.report) continue;
    error = jit::write_entry(output, found.name, *found.entry);
    if (error)
      return fail(fmt::format("-o: {} cannot be written ({}); name a directory that can.",
                              output.string(), error.message()));
  }
  print_line(fmt::format("{} packed into {}; SIRDAR_CACHE_DIR={}:{} reads them", counted(count),
                         output.string(), settings.cache_dir.string(),
                         fs::absolute(output).string()));
  if (count < std::ssize(all))
    fmt::print("{} left out: 'sirdar cache verify' names what is damaged\n",
               counted(std::ssize(all) - count));
  return kExitOk;
}

int cache(const CacheFlags& flags) {
  const std::string word = flags.words.empty() ? "" : flags.words.front();
  const bool is_known = word == "list" || word == "verify" || word == "clear" || word == "pack";
  if (!is_known || flags.words.size() != 1)
    return fail(fmt::format("cache: '{}' is not allowed; give one of list, verify, clear, pack.",
                            fmt::join(flags.words, " ")));
  if (flags.output.has_value() != (word == "pack") || (flags.output && flags.output->empty()))
    return fail("-o: is for 'cache pack' and needed there; name the directory of the pack.");
  if (flags.is_json && word != "list") return fail("--json: is for 'cache list' alone.");
  const jit::Settings settings = jit::settings();
  if (settings.cache_dir.empty())
    return fail(fmt::format("cache: {}; set one of them.", settings.no_cache_reason));
  for (const fs::path& dir : directories(settings)) {
    if (const std::error_code error = jit::check_readable(dir))
      return fail(
          fmt::format("cache: {} cannot be read ({}); let SIRDAR_CACHE_DIR name directories.",
                      dir.string(), error.message()));
  }
  const int code = word == "list"     ? list(settings, flags.is_json)
                   : word == "verify" ? verify(settings)
                   : word == "clear"  ? clear(settings)
                                      : pack(settings, *flags.output);
  const Status status = flush_output();
  return status.ok() ? code : fail(status);
}

}  // namespace

Action declare_cache(CLI::App& app) {
  auto flags = std::make_shared<CacheFlags>();
  app.add_option("WHAT", flags->words, "list, verify, clear or pack")->type_name("");
  app.add_option("-o", flags->output, "the directory that 'pack' fills")->type_name("DIR");
  add_switch(app, "--json", flags->is_json, "'list' as one JSON object a line");
  app.footer(
      "The cache is SIRDAR_CACHE_DIR, or sirdar/ in $XDG_CACHE_HOME or ~/.cache. Directories after "
      "a "
      "colon\nare packs: read, never written.\n"
      "Examples:\n"
      "  sirdar cache list\n"
      "  sirdar cache pack -o /opt/kernels");
  return [flags] { return cache(*flags); };
}

}  // namespace sirdar::cli
