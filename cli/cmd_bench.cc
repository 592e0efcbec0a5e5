// bench: how fast problems run here, beside what the machine could do and beside the naive method.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <sirdar/sirdar.hpp>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_measure.h"
#include "commands.h"
#include "progress.h"

namespace sirdar::cli {
namespace {

struct BenchFlags {
  std::vector<std::string> words, knobs;
  bool json = false;
  std::string against, isa, backend;
  int threads = 0;
  double min_time = 1, max_time = 10;
};

// Words that name a readable suite file stand for its lines; # starts a comment.
Result<std::vector<Problem>> read_problems(const std::vector<std::string>& words) {
  std::vector<std::string> texts, plain;
  for (const std::string& word : words) {
    if (word.size() < 4 || word.substr(word.size() - 4) != ".txt") {
      plain.push_back(word);
      continue;
    }
    std::ifstream file(word);
    if (!file) {
      return Status(
          StatusCode::invalid_argument,
          fmt::format("suite: '{}' cannot be read; give a file of problem strings.", word));
    }
    for (std::string line; std::getline(file, line);) {
      line = line.substr(0, line.find('#'));
      if (line.find_first_not_of(" \t\r") != std::string::npos) texts.push_back(line);
    }
  }
  if (!plain.empty()) {
    for (std::string& text : problems_from_words(plain)) texts.push_back(std::move(text));
  }
  std::vector<Problem> problems;
  for (const std::string& text : texts) {
    const Result<Problem> problem = Problem::parse(text);
    if (!problem.ok()) return problem.status();
    problems.push_back(problem.value());
  }
  return problems;
}

nlohmann::ordered_json to_json(const BenchResult& result) {
  nlohmann::ordered_json json{{"problem", result.problem},
                              {"implementation", result.implementation},
                              {"config", result.config},
                              {"median_ms", result.time.median_ms},
                              {"least_ms", result.time.least_ms},
                              {"spread", result.time.spread},
                              {"repetitions", result.repetitions},
                              {"buffers", result.num_buffers},
                              {"tflops", result.tflops},
                              {"gbytes_per_s", result.gbytes_per_s},
                              {"roofline_percent", result.roofline_percent},
                              {"peak_tflops", result.peak_tflops},
                              {"peak_gbytes_per_s", result.peak_gbytes_per_s},
                              {"extra_mib", result.extra_mib},
                              {"jit_ms", result.jit_ms},
                              {"device", result.device},
                              {"isa", result.isa},
                              {"threads", result.num_threads},
                              {"version", std::string(version())},
                              {"commit", SIRDAR_COMMIT}};
  if (result.naive_exp) {
    json["naive_library"] = result.naive_library;
    json["naive_exp_ms"] = result.naive_exp->median_ms;
    json["naive_vector_ms"] = result.naive_vector->median_ms;
    json["faster_than_naive_exp"] = result.naive_exp->median_ms / result.time.median_ms;
    json["faster_than_naive_vector"] = result.naive_vector->median_ms / result.time.median_ms;
  } else if (!result.naive_refusal.empty()) {
    json["naive_refusal"] = result.naive_refusal;
  }
  return json;
}

void print_header(const BenchFlags& flags) {
  fmt::print("{:<44} {:>9} {:>7} {:>4} {:>7} {:>7} {:>6} {:>8}", "problem", "median ms", "spread",
             "n", "TFLOP/s", "GB/s", "roof %", "extra MiB");
  if (!flags.against.empty()) fmt::print(" {:>10} {:>10}", "naive exp", "naive vec");
  fmt::print("\n");
}

void print_row(const BenchResult& result) {
  fmt::print("{:<44} {:>9.3f} {:>6.1f}% {:>4} {:>7.4f} {:>7.2f} {:>6.1f} {:>8.2f}", result.problem,
             result.time.median_ms, 100 * result.time.spread, result.repetitions, result.tflops,
             result.gbytes_per_s, result.roofline_percent, result.extra_mib);
  if (result.naive_exp) {
    fmt::print(" {:>9.2f}x {:>9.2f}x", result.naive_exp->median_ms / result.time.median_ms,
               result.naive_vector->median_ms / result.time.median_ms);
  }
  fmt::print("\n  {} {}; peak {:.4f} TFLOP/s, {:.1f} GB/s with {} threads{}{}\n",
             result.implementation, result.config, result.peak_tflops, result.peak_gbytes_per_s,
             result.num_threads, result.naive_library.empty() ? "" : "; naive by ",
             result.naive_library);
  if (!result.naive_refusal.empty()) fmt::print("  not compared: {}\n", result.naive_refusal);
  std::fflush(stdout);
}

Result<BenchOptions> bench_options(const BenchFlags& flags) {
  const auto invalid = [](std::string message, std::string argument) {
    return Status(StatusCode::invalid_argument, std::move(message), std::move(argument));
  };
  BenchOptions options;
  options.plan.implementation = flags.backend == "cpu" ? "cpu.forward" : flags.backend;
  options.plan.isa = flags.isa;
  options.plan.num_threads = flags.threads;
  options.min_seconds = flags.min_time;
  options.max_seconds = std::max(flags.min_time, flags.max_time);
  options.against_naive = !flags.against.empty();
  if (!flags.against.empty() && flags.against != "naive")
    return invalid(fmt::format("--against: '{}' is unknown; only 'naive' can be compared with.",
                               flags.against),
                   "--against");
  if (!(flags.min_time >= 0 && flags.min_time <= 3600 && flags.max_time <= 3600))
    return invalid("--min-time: give a number of seconds from 0 to 3600.", "--min-time");
  for (const std::string& knob : flags.knobs) {
    const size_t equals = knob.find('=');
    if (equals == std::string::npos)
      return invalid(fmt::format("--knob: '{}' is not NAME=VALUE, like block_m=128.", knob),
                     "--knob");
    options.plan.knobs.emplace_back(knob.substr(0, equals), knob.substr(equals + 1));
  }
  return options;
}

int run_bench(const BenchFlags& flags) {
  const Result<std::vector<Problem>> problems = read_problems(flags.words);
  if (!problems.ok()) return fail(problems.status());
  if (problems.value().empty())
    return fail(
        "bench: no problem was given; name one, or a suite like bench/suites/cpu_forward.txt.");
  const Result<BenchOptions> options = bench_options(flags);
  if (!options.ok()) return fail(options.status());
  Progress progress("bench");
  int64_t done = 0;
  bool is_first = true;
  for (const Problem& problem : problems.value()) {
    progress.show(done++, static_cast<int64_t>(problems.value().size()), problem.str());
    const Result<BenchResult> result = measure(problem, options.value());
    progress.clear();
    if (!result.ok()) return fail(result.status());
    if (flags.json) {
      fmt::print("{}\n", to_json(result.value()).dump());
      std::fflush(stdout);
    } else {
      if (is_first) print_header(flags);
      is_first = false;
      print_row(result.value());
    }
  }
  return kExitOk;
}

}  // namespace

Action declare_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  app.add_option("PROBLEM", flags->words, "problem strings, or suites of them (*.txt)")
      ->type_name("");
  app.add_flag("--json", flags->json, "one JSON object a line instead of the table");
  app.add_option("--against", flags->against, "naive: the three steps by library sgemm, in turns")
      ->type_name("METHOD");
  app.add_option("--backend", flags->backend, "this implementation, like cpu or reference")
      ->type_name("NAME");
  app.add_option("--isa", flags->isa, "these instructions: scalar, avx2 or avx512")
      ->type_name("NAME");
  app.add_option("--threads", flags->threads, "threads (default: all that may be used)")
      ->type_name("N");
  app.add_option("--knob", flags->knobs, "a field of the config, like block_m=128")
      ->type_name("NAME=VALUE");
  app.add_option("--min-time", flags->min_time, "seconds per problem at least (default 1)")
      ->type_name("S");
  app.add_option("--max-time", flags->max_time, "seconds per problem at most (default 10)")
      ->type_name("S");
  app.footer(
      "Examples:\n"
      "  sirdar bench 'fwd b1 s2048 h8 d64 fp32 causal' --against naive\n"
      "  sirdar bench bench/suites/cpu_forward.txt --threads 1 --json");
  return [flags] { return run_bench(*flags); };
}

}  // namespace sirdar::cli
