// bench: how fast problems run here, beside what the machine could do and beside the naive method.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <sirdar/sirdar.hpp>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench_measure.h"
#include "commands.h"
#include "implementations.h"
#include "parse.h"
#include "peak_memory.h"
#include "progress.h"

namespace sirdar::cli {
namespace {

struct BenchFlags {
  using Text = std::optional<std::string>;
  std::vector<std::string> words, knobs;
  bool json = false;
  Text against, isa, backend, threads, pages, layout, min_time, max_time;
};

nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

std::string or_unknown(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "?";
}

nlohmann::ordered_json to_json(const BenchResult& result, const BenchOptions& options) {
  nlohmann::ordered_json json{{"problem", result.problem},
                              {"implementation", result.implementation},
                              {"config", result.config},
                              {"median_ms", result.time.median_ms},
                              {"least_ms", result.time.least_ms},
                              {"spread", result.time.spread},
                              {"repetitions", result.repetitions},
                              {"buffers", result.num_buffers},
                              {"is_exact", result.is_exact},
                              {"tflops", or_null(result.tflops)},
                              {"gbytes_per_s", or_null(result.gbytes_per_s)},
                              {"roofline_percent", or_null(result.roofline_percent)},
                              {"peak_tflops", result.peak_tflops},
                              {"peak_gbytes_per_s", result.peak_gbytes_per_s},
                              {"extra_mib", result.extra_mib},
                              {"jit_ms", result.jit_ms},
                              {"device", result.device}};
  if (result.host_us) {
    json["host_us"] = *result.host_us;
  } else {
    json["isa"] = result.isa;
    json["threads"] = result.num_threads;
    json["pages"] = options.placement.pages == Pages::huge ? "huge" : "small";
  }
  json["layout"] = options.placement.heads_first ? "bhsd" : "bshd";
  json["version"] = std::string(version());
  json["commit"] = SIRDAR_COMMIT;
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
  fmt::print("{:<44} {:>9} {:>7} {:>4} {:>8} {:>7} {:>6} {:>8}", "problem", "median ms", "spread",
             "n", "TFLOP/s", "GB/s", "roof %", "extra MiB");
  if (flags.against) fmt::print(" {:>10} {:>10}", "naive exp", "naive vec");
  fmt::print("\n");
}

void print_row(const BenchResult& result) {
  fmt::print("{:<44} {:>9.3f} {:>6.1f}% {:>4} {:>8} {:>7} {:>6} {:>8.2f}", result.problem,
             result.time.median_ms, 100 * result.time.spread, result.repetitions,
             or_unknown(result.tflops, 4), or_unknown(result.gbytes_per_s, 2),
             or_unknown(result.roofline_percent, 1), result.extra_mib);
  if (result.naive_exp) {
    fmt::print(" {:>9.2f}x {:>9.2f}x", result.naive_exp->median_ms / result.time.median_ms,
               result.naive_vector->median_ms / result.time.median_ms);
  }
  fmt::print("\n  {} {}; peak {:.4f} TFLOP/s, {:.1f} GB/s", result.implementation, result.config,
             result.peak_tflops, result.peak_gbytes_per_s);
  if (result.host_us) {
    fmt::print(" of {}; {:.2f} us of the host a call; kernels ready in {:.0f} ms\n", result.device,
               *result.host_us, result.jit_ms);
  } else {
    fmt::print(" with {} threads{}{}\n", result.num_threads,
               result.naive_library.empty() ? "" : "; naive by ", result.naive_library);
  }
  if (!result.is_exact)
    fmt::print("  rates are not known: counting what the masks show takes too long\n");
  if (!result.naive_refusal.empty()) fmt::print("  not compared: {}\n", result.naive_refusal);
}

Status read_seconds(std::string_view flag, const std::optional<std::string>& text,
                    double& seconds) {
  if (!text) return {};
  const Result<double> value = parse_double(flag, *text);
  if (value.ok() && value.value() >= 0 && value.value() <= 3600) {
    seconds = value.value();
    return {};
  }
  return bad_flag(
      flag, fmt::format("'{}' is not allowed; give a number of seconds from 0 to 3600.", *text));
}

Status read_knobs(const std::vector<std::string>& texts, PlanOptions& options) {
  for (const std::string& text : texts) {
    const auto knob = parse_assignment("--knob", text, "VALUE");
    if (!knob.ok()) return knob.status();
    options.knobs.push_back(knob.value());
  }
  return {};
}

Status read_placement(const BenchFlags& flags, check::Placement& placement) {
  const auto choose = [](std::string_view flag, const BenchFlags::Text& text,
                         std::string_view first, std::string_view second, bool& is_second) {
    if (!text) return Status();
    is_second = *text == second;
    if (is_second || *text == first) return Status();
    return bad_flag(flag, fmt::format("'{}' is unknown; give {} or {}.", *text, first, second));
  };
  bool is_huge = true;
  Status status = choose("--pages", flags.pages, "small", "huge", is_huge);
  if (status.ok()) status = choose("--layout", flags.layout, "bshd", "bhsd", placement.heads_first);
  placement.pages = is_huge ? Pages::huge : Pages::small;
  return status;
}

// What a GPU gives no meaning to.
Status check_gpu_flags(const BenchFlags& flags) {
  const std::pair<const char*, const BenchFlags::Text*> of_cpus[] = {
      {"--isa", &flags.isa}, {"--threads", &flags.threads}, {"--pages", &flags.pages}};
  for (const auto& [name, text] : of_cpus) {
    if (*text) return bad_flag(name, "has no effect on a GPU; leave it out.");
  }
  if (flags.against) return bad_flag("--against", "compares on a CPU; leave it or --backend out.");
  return {};
}

Result<BenchOptions> bench_options(const BenchFlags& flags) {
  const Result<std::string> backend = parse_word("--backend", flags.backend, "");
  if (!backend.ok()) return backend.status();
  const Result<std::string> isa = parse_word("--isa", flags.isa, "");
  if (!isa.ok()) return isa.status();
  BenchOptions options;
  options.plan.implementation = backend.value();
  if (backend.value() == "cuda" || backend.value().starts_with("cuda.")) {
    options.where = backend.value();
    if (options.where == "cuda") options.plan.implementation.clear();  // whichever is best there
    if (Status status = check_gpu_flags(flags); !status.ok()) return status;
  }
  options.plan.isa = isa.value();
  if (flags.threads) {
    const Result<int64_t> threads = parse_integer("--threads", *flags.threads, 1, 4096);
    if (!threads.ok()) return threads.status();
    options.plan.num_threads = static_cast<int>(threads.value());
  }
  if (Status status = read_placement(flags, options.placement); !status.ok()) return status;
  Status status = read_seconds("--min-time", flags.min_time, options.min_seconds);
  if (status.ok()) status = read_seconds("--max-time", flags.max_time, options.max_seconds);
  if (status.ok()) status = read_knobs(flags.knobs, options.plan);
  if (!status.ok()) return status;
  options.max_seconds = std::max(options.min_seconds, options.max_seconds);
  options.against_naive = flags.against.has_value();
  if (flags.against && *flags.against != "naive") {
    return bad_flag("--against", fmt::format("'{}' is unknown; only 'naive' can be compared with.",
                                             *flags.against));
  }
  return options;
}

// "cpu" is the one of its pass.
PlanOptions plan_options(const Problem& problem, const BenchOptions& options) {
  PlanOptions plan = options.plan;
  if (plan.implementation == "cpu")
    plan.implementation = problem.op == Op::forward ? "cpu.forward" : "cpu.backward";
  return plan;
}

int run_bench(const BenchFlags& flags) {
  const Result<std::vector<Problem>> problems = read_problems(flags.words);
  if (!problems.ok()) return fail(problems.status());
  const Result<BenchOptions> options = bench_options(flags);
  if (!options.ok()) return fail(options.status());
  // The last problem of a suite must not be refused after an hour of the others.
  HeldNotices notices;
  const std::string where =
      options.value().where.empty() ? options.value().plan.implementation : options.value().where;
  std::vector<Plan> plans;
  for (const Problem& problem : problems.value()) {
    const Result<Plan> plan =
        plan_in_flag_terms(problem, plan_options(problem, options.value()), where);
    if (!plan.ok()) return fail(plan.status());
    const int copies =
        options.value().where.empty() ? num_buffers(problem, plan.value().device()) : 1;
    if (Status status = check_memory(problem, copies); !status.ok()) return fail(status);
    plans.push_back(plan.value());
  }
  notices.show();
  Progress progress("bench");
  int64_t done = 0;
  bool is_first = true;
  for (const Plan& plan : plans) {
    const Problem& problem = plan.problem();
    progress.show(done++, static_cast<int64_t>(plans.size()), problem.str());
    const Result<BenchResult> result = options.value().where.empty()
                                           ? measure(plan, options.value())
                                           : measure_on_gpu(plan, options.value());
    progress.clear();
    if (!result.ok()) return fail(result.status());
    if (flags.json) {
      fmt::print("{}\n", to_json(result.value(), options.value()).dump());
    } else {
      if (is_first) print_header(flags);
      is_first = false;
      print_row(result.value());
    }
    if (Status status = flush_output(); !status.ok()) return fail(status);
  }
  return kExitOk;
}

}  // namespace

Action declare_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  app.add_option("PROBLEM", flags->words, "problem strings, or suites of them (*.txt)")
      ->type_name("");
  add_switch(app, "--json", flags->json, "one JSON object a line instead of the table");
  app.add_option("--against", flags->against, "naive: the three steps by library sgemm, in turns")
      ->type_name("METHOD");
  app.add_option("--backend", flags->backend,
                 "this implementation, like cpu or reference; cuda: on a GPU")
      ->type_name("NAME");
  app.add_option("--isa", flags->isa, "these instructions: scalar, avx2 or avx512")
      ->type_name("NAME");
  app.add_option("--threads", flags->threads, "threads (default: all that may be used)")
      ->type_name("N");
  app.add_option("--knob", flags->knobs,
                 "a field of the config that explain prints, like block_m=128")
      ->type_name("NAME=VALUE");
  app.add_option("--pages", flags->pages,
                 "small, or huge: tensors on pages of 2 MiB where the system has them (default)")
      ->type_name("SIZE");
  app.add_option("--layout", flags->layout,
                 "bshd, or bhsd: the rows of a head are adjacent (default bshd)")
      ->type_name("ORDER");
  app.add_option("--min-time", flags->min_time, "seconds per problem at least (default 1)")
      ->type_name("S");
  app.add_option("--max-time", flags->max_time, "seconds per problem at most (default 10)")
      ->type_name("S");
  app.footer(
      "Examples:\n"
      "  sirdar bench 'fwd b1 s2048 h8 d64 fp32 causal' --against naive\n"
      "  sirdar bench bench/suites/cpu_forward.txt --threads 1 --json\n"
      "  sirdar bench 'fwd b2 s8192 h16 d128 bf16 causal' --backend cuda");
  return [flags] { return run_bench(*flags); };
}

}  // namespace sirdar::cli
