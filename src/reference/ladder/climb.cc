#include "reference/ladder/climb.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <utility>

#include "reference/ladder/exact.h"
#include "reference/ladder/formulas.h"

namespace sirdar::ladder {
namespace {

std::vector<float> normal_values(int64_t count, std::mt19937_64& generator) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

// NaN anywhere in `got` counts as infinitely wrong.
double max_difference(const std::vector<float>& got, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(double{got[i]} - expected[i]);
    if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
  }
  return largest;
}

// The experiment: one set of inputs, the answers in float64, and the rows of the table so far.
class Experiment {
 public:
  explicit Experiment(const ClimbOptions& options)
      : options_(options), head_(options.head), elements_(options.fast_memory_bytes / 4) {
    std::mt19937_64 generator(options.seed);
    const int64_t size = head_.seqlen * head_.head_dim;
    q_ = normal_values(size, generator);
    k_ = normal_values(size, generator);
    v_ = normal_values(size, generator);
    dout_ = normal_values(size, generator);
  }

  Climb run() {
    announce("float64");
    exact_ = exact_attention(head_, q_, k_, v_, dout_, [](int64_t, int64_t) { return true; });
    overflow();
    softmaxes();
    standard();
    flash1();
    recompute();
    block_sparse();
    flash2();
    causal();
    flash2_backward_pass();
    for (const Rung& rung : climb_.rungs) {
      check(rung.system, rung.name + ": fast memory used <= M, bytes",
            static_cast<double>(rung.counts.peak_fast_bytes), Relation::at_most,
            static_cast<double>(options_.fast_memory_bytes));
    }
    return std::move(climb_);
  }

 private:
  void announce(std::string_view rung) const {
    if (options_.on_rung) options_.on_rung(rung);
  }

  Tensors tensors(Machine& machine) const {
    const int64_t size = head_.seqlen * head_.head_dim;
    return {machine.input(q_),    machine.input(k_),    machine.input(v_),    machine.output(size),
            machine.input(dout_), machine.output(size), machine.output(size), machine.output(size)};
  }

  void check(std::string system, std::string claim, double counted, Relation relation,
             double predicted, double upper = 0) {
    climb_.checks.push_back(
        {std::move(system), std::move(claim), counted, relation, predicted, upper});
  }

  void check_formula(const Rung& rung, const char* what, const Formula& formula, int64_t counted) {
    check(rung.system, fmt::format("{}: {} = {}", rung.name, what, formula.text),
          static_cast<double>(counted), Relation::equal, static_cast<double>(formula.value));
  }

  // Adds a row, and the comparison of everything it counted with the closed forms.
  const Rung& add(Rung rung, const Prediction& predicted) {
    const Counts& counts = rung.counts;
    check_formula(rung, "matmul FLOPs", predicted.matmul_flops, counts.matmul_flops);
    check_formula(rung, "other FLOPs", predicted.other_flops, counts.other_flops);
    check_formula(rung, "exps", predicted.exps, counts.exps);
    check_formula(rung, "elements read", predicted.read, counts.read_bytes / 4);
    check_formula(rung, "elements written", predicted.written, counts.written_bytes / 4);
    check_formula(rung, "extra elements", predicted.extra, counts.peak_extra_bytes / 4);
    return climb_.rungs.emplace_back(std::move(rung));
  }

  // Runs `program`, and says what it cost on top of what the machine had counted before.
  template <class Program>
  Rung measure(const char* system, const char* name, Blocks blocks, Machine& machine,
               Program program) {
    announce(name);
    const Counts before = machine.counts();
    const auto start = std::chrono::steady_clock::now();
    program();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    return {system, name, blocks, machine.counts() - before, time.count(), 0};
  }

  Blocks blocks_for(Tiling tiling) const { return fitting_blocks(tiling, head_, elements_); }

  double gradient_error(const Tensors& t) const {
    return std::max({max_difference(t.dq.values(), exact_.dq),
                     max_difference(t.dk.values(), exact_.dk),
                     max_difference(t.dv.values(), exact_.dv)});
  }

  void overflow() {
    check("S1", "naive softmax in fp16: first whole x that overflows, ln 65520 rounded up",
          static_cast<double>(first_overflow(Precision::fp16)), Relation::equal,
          std::ceil(std::log(65520.0)));
    check("S1", "naive softmax in fp32: first whole x that overflows, ln 2^128 rounded up",
          static_cast<double>(first_overflow(Precision::fp32)), Relation::equal,
          std::ceil(128 * std::log(2.0)));
  }

  void softmaxes() {
    const int64_t n = head_.seqlen;
    std::mt19937_64 generator(options_.seed + 1);
    const std::vector<float> scores = normal_values(n * n, generator);
    const std::vector<double> expected = exact_softmax(scores, n);
    const auto run = [&](const char* system, const char* name, auto softmax, Softmax kind,
                         double passes) {
      Machine machine(options_.fast_memory_bytes);
      const Slow from = machine.input(scores);
      Slow to = machine.output(n * n);
      Rung rung = measure(system, name, {}, machine, [&] {
        for (int64_t i = 0; i < n; ++i) softmax(machine, from, to, i * n, n);
      });
      rung.max_error = max_difference(to.values(), expected);
      add(std::move(rung), predict_softmax(kind, n, n));
      check(system, fmt::format("{}: times each score is read", name),
            static_cast<double>(from.elements_read()) / static_cast<double>(n * n), Relation::equal,
            passes);
    };
    run("S1", "naive softmax", naive_softmax, Softmax::naive, 2);
    run("S2", "safe softmax", safe_softmax, Softmax::safe, 3);
    run("S3", "online softmax", online_softmax, Softmax::online, 2);
  }

  void standard() {
    Machine machine(options_.fast_memory_bytes);
    Tensors t = tensors(machine);
    Slow weights;
    Rung forward = measure("S4", "standard forward", {}, machine,
                           [&] { weights = standard_forward(machine, head_, t); });
    forward.max_error = max_difference(t.out.values(), exact_.out);
    add(forward, predict_standard_forward(head_, elements_));
    Rung backward = measure("S4", "standard backward", {}, machine,
                            [&] { standard_backward(machine, head_, weights, t); });
    backward.max_error = gradient_error(t);
    add(backward, predict_standard_backward(head_, elements_));
    const double n = static_cast<double>(head_.seqlen), d = static_cast<double>(head_.head_dim);
    if (head_.head_dim * head_.head_dim <= elements_) {
      check("S4", "standard forward: traffic / (Nd + N^2) stays between constants",
            moved(forward) / (n * d + n * n), Relation::between, 2, 12);
    }
  }

  // Elements read and written.
  static double moved(const Rung& rung) {
    return static_cast<double>(rung.counts.read_bytes + rung.counts.written_bytes) / 4;
  }

  // Theta(N^2 d^2 / M) is claimed for d <= M <= Nd.
  void check_trend(const Rung& rung, double lower, double upper) {
    const double n = static_cast<double>(head_.seqlen), d = static_cast<double>(head_.head_dim);
    const double m = static_cast<double>(elements_);
    if (m < 8 * d || m > n * d) return;
    check(rung.system,
          fmt::format("{}: traffic / (N^2 d^2 / M) stays between constants", rung.name),
          moved(rung) * m / (n * n * d * d), Relation::between, lower, upper);
  }

  void flash1() {
    const Blocks blocks = blocks_for(Tiling::flash1);
    Machine machine(options_.fast_memory_bytes);
    Tensors t = tensors(machine);
    Rung rung = measure("S5", "flash1 forward", blocks, machine,
                        [&] { flash1_forward(machine, head_, blocks, t); });
    rung.max_error = max_difference(t.out.values(), exact_.out);
    add(rung, predict_flash1(head_, blocks));
    check("S5", "flash1 forward: times each element of out is written = Tn + 1",
          static_cast<double>(t.out.elements_written()) / static_cast<double>(t.out.size()),
          Relation::equal, static_cast<double>(ceil_div(head_.seqlen, blocks.block_n) + 1));
    check_trend(rung, 6, 30);
  }

  void recompute() {
    const Blocks blocks = blocks_for(Tiling::flash2);
    const Blocks backward_blocks = blocks_for(Tiling::recompute_backward);
    Machine machine(options_.fast_memory_bytes);
    Tensors t = tensors(machine);
    RowStatistics saved;
    Rung forward = measure("S6", "recompute forward", blocks, machine,
                           [&] { saved = recompute_forward(machine, head_, blocks, t); });
    forward.max_error = max_difference(t.out.values(), exact_.out);
    add(std::move(forward), predict_recompute_forward(head_, blocks));
    Rung backward = measure("S6", "recompute backward", backward_blocks, machine,
                            [&] { recompute_backward(machine, head_, backward_blocks, saved, t); });
    backward.max_error = gradient_error(t);
    add(std::move(backward), predict_recompute_backward(head_, backward_blocks));
  }

  void block_sparse() {
    const Blocks blocks = blocks_for(Tiling::flash1);
    const TilePattern pattern = example_pattern(head_, blocks);
    Machine machine(options_.fast_memory_bytes);
    Tensors t = tensors(machine);
    Rung rung = measure("S7", "block-sparse forward", blocks, machine,
                        [&] { block_sparse_forward(machine, head_, blocks, pattern, t); });
    const auto visible = [&](int64_t i, int64_t j) {
      return pattern.at(i / blocks.block_m, j / blocks.block_n);
    };
    rung.max_error =
        max_difference(t.out.values(), exact_attention(head_, q_, k_, v_, {}, visible).out);
    add(rung, predict_block_sparse(head_, blocks, pattern));
    const int64_t n = head_.seqlen;
    check(
        "S7", "block-sparse forward: matmul FLOPs over flash1's = visible share of the scores",
        static_cast<double>(rung.counts.matmul_flops) /
            static_cast<double>(4 * n * n * head_.head_dim),
        Relation::equal,
        static_cast<double>(pattern_elements(head_, blocks, pattern)) / static_cast<double>(n * n));
  }

  void flash2() {
    const Blocks blocks = blocks_for(Tiling::flash2);
    Machine machine(options_.fast_memory_bytes);
    Tensors t = tensors(machine);
    Rung forward = measure("S8", "flash2 forward", blocks, machine,
                           [&] { flash2_forward(machine, head_, blocks, false, t); });
    forward.max_error = max_difference(t.out.values(), exact_.out);
    add(forward, predict_flash2(head_, blocks));
    check("S8", "flash2 forward: other FLOPs, fewer than flash1's with the same tiles",
          static_cast<double>(forward.counts.other_flops), Relation::less,
          static_cast<double>(predict_flash1(head_, blocks).other_flops.value));
    check("S8", "flash2 forward: times each element of out is written",
          static_cast<double>(t.out.elements_written()) / static_cast<double>(t.out.size()),
          Relation::equal, 1);
    check_trend(forward, 4, 20);
    flash2_matmul_flops_ = forward.counts.matmul_flops;
  }

  void causal() {
    const Blocks blocks = blocks_for(Tiling::flash2);
    Machine machine(options_.fast_memory_bytes);
    Tensors t = tensors(machine);
    Rung rung = measure("S9", "flash2 causal", blocks, machine,
                        [&] { flash2_forward(machine, head_, blocks, true, t); });
    const auto visible = [](int64_t i, int64_t j) { return j <= i; };
    rung.max_error =
        max_difference(t.out.values(), exact_attention(head_, q_, k_, v_, {}, visible).out);
    add(rung, predict_flash2_causal(head_, blocks));
    const double share =
        static_cast<double>(rung.counts.matmul_flops) / static_cast<double>(flash2_matmul_flops_);
    const double n = static_cast<double>(head_.seqlen);
    check("S9", "flash2 causal: matmul FLOPs over flash2's = A / N^2", share, Relation::equal,
          static_cast<double>(causal_elements(head_, blocks)) / (n * n));
    // A row's last tile wastes fewer than block_n keys past its block, and the block less than
    // block_m / 2 on average past the row: the excess over one half.
    check("S9", "flash2 causal: that share lies between 1/2 and 1/2 + (block_m + 2 block_n) / 2N",
          share, Relation::between, 0.5,
          0.5 + static_cast<double>(blocks.block_m + 2 * blocks.block_n) / (2 * n));
    check("S9", "flash2 causal: tiles masked by element = tiles on the diagonal",
          static_cast<double>(rung.counts.masked_tiles), Relation::equal,
          static_cast<double>(causal_masked_tiles(head_, blocks)));
  }

  void flash2_backward_pass() {
    const Blocks blocks = blocks_for(Tiling::flash2);
    const Blocks backward_blocks = blocks_for(Tiling::flash2_backward);
    Machine machine(options_.fast_memory_bytes);
    Tensors t = tensors(machine);
    const Slow lse = flash2_forward(machine, head_, blocks, false, t);
    Rung backward = measure("S11", "flash2 backward", backward_blocks, machine,
                            [&] { flash2_backward(machine, head_, backward_blocks, lse, t); });
    backward.max_error = gradient_error(t);
    add(backward, predict_flash2_backward(head_, backward_blocks));
    check("S11", "flash2 forward and backward: matmul FLOPs over standard's = 14/12",
          static_cast<double>(flash2_matmul_flops_ + backward.counts.matmul_flops) /
              static_cast<double>(12 * head_.seqlen * head_.seqlen * head_.head_dim),
          Relation::equal, 14.0 / 12.0);
  }

  const ClimbOptions& options_;
  const Head& head_;
  int64_t elements_;  // M
  std::vector<float> q_, k_, v_, dout_;
  Exact exact_;
  Climb climb_;
  int64_t flash2_matmul_flops_ = 0;
};

}  // namespace

bool Check::passes() const {
  switch (relation) {
    case Relation::equal:
      return std::abs(counted - predicted) <= 1e-12 * std::abs(predicted);
    case Relation::at_most:
      return counted <= predicted;
    case Relation::less:
      return counted < predicted;
    case Relation::between:
      return predicted <= counted && counted <= upper;
  }
  return false;
}

int64_t first_overflow(Precision precision) {
  for (int64_t x = 0; x < 1000; ++x) {
    Machine machine(0, precision);
    const float row[] = {static_cast<float>(x)};
    const Slow scores = machine.input(row);
    Slow weights = machine.output(1);
    naive_softmax(machine, scores, weights, 0, 1);
    if (!std::isfinite(weights.values()[0])) return x;
  }
  return -1;
}

TilePattern example_pattern(const Head& head, const Blocks& blocks) {
  TilePattern pattern{
      ceil_div(head.seqlen, blocks.block_m), ceil_div(head.seqlen, blocks.block_n), {}};
  for (int64_t tile_m = 0; tile_m < pattern.tiles_m; ++tile_m) {
    // The key tile that holds the first row's own position.
    const int64_t own = tile_m * blocks.block_m / blocks.block_n;
    for (int64_t tile_n = 0; tile_n < pattern.tiles_n; ++tile_n) {
      const int64_t distance = tile_n - own;
      pattern.visible.push_back(tile_n == 0 || std::abs(distance) <= 1 || distance % 4 == 0);
    }
  }
  return pattern;
}

Result<Climb> climb(const ClimbOptions& options) {
  const auto refuse = [](std::string argument, std::string message) {
    return Status(StatusCode::invalid_argument, std::move(message), std::move(argument));
  };
  if (options.head.seqlen < 1 || options.head.seqlen > kMaxSeqlen) {
    return refuse("seqlen_q",
                  fmt::format("seqlen_q: {} was given; the ladder takes 1 to {}, since its "
                              "first rungs keep whole score matrices; choose one of these.",
                              options.head.seqlen, kMaxSeqlen));
  }
  if (options.head.head_dim < 1) {
    return refuse("head_dim", fmt::format("head_dim: {} was given; it must be at least 1.",
                                          options.head.head_dim));
  }
  // The widest rung's smallest tile, one row by one row.
  const int64_t least = 4 * footprint(Tiling::recompute_backward, {1, 1}, options.head.head_dim);
  if (options.fast_memory_bytes < least) {
    return refuse(
        "fast_memory",
        fmt::format("fast_memory: {} bytes were given; head_dim {} needs at least {} to hold "
                    "one row of each array; give more.",
                    options.fast_memory_bytes, options.head.head_dim, least));
  }
  try {
    return Experiment(options).run();
  } catch (const Error& error) {
    return error.status();
  }
}

}  // namespace sirdar::ladder
