// The Hopper forward kernel on the emulated machine: a small problem, its launch, and what float64
// says about it.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda/sm90/forward/forward.cuh"
#include "emulator/launch.h"

namespace sirdar::emulator_tests {

struct ForwardProblem {
  int batch = 1, num_heads = 2, group_size = 1;
  int seqlen_q = 256, seqlen_k = 256;
  bool is_causal = false;
  int window_left = -1;          // < 0: none
  std::vector<int> seqused_k{};  // with has_lengths: keys of each batch
  // What becomes of a logit at b, h, q, k; -inf: hidden. Empty: nothing.
  std::function<double(double, int, int, int, int)> modify{};
  int document = 70;             // of tests that have documents: their length
  std::vector<int> lost_keys{};  // whose values are NaN in even columns, infinite in odd ones
  float input_scale = 1.0f;      // of Q and K: large ones leave the guarded range
  unsigned outliers = 0;         // one entry of so many is ten times as large; 0: none
  int blocks = 2;                // of the grid, at most one per item
  uint64_t data_seed = 1;
};

// dense [batch][row][head][column] of 16-bit elements
struct Tensor16 {
  std::vector<uint16_t> data;
  int rows = 0, heads = 0, width = 0;

  void resize(int batch, int num_rows, int num_heads, int num_columns);
  float at(int b, int row, int head, int column, sm90::Element element) const;
  // Box of 64 columns and `box_rows` rows.
  void make_map(TensorMap& map, int batch, int box_rows, sm90::Element element);
};

class ForwardRun {
 public:
  ForwardRun(const sm90::ForwardConfig& config, const ForwardProblem& problem);

  // For launch(); outputs are filled with NaN before.
  emulator::Launch launch_of(uint64_t seed);
  const sm90::ForwardParams& params() const { return params_; }
  // Makes room for what cover_keys() writes, apart for every sequence and head.
  void make_cover();
  // Names of mbarriers by their offset in shared memory: "k_full[1]".
  std::string name_of_barrier(int64_t offset) const;
  // What is wrong with the outputs, or "".
  std::string wrong() const;
  // Whether all values that somebody sees are.
  bool is_finite() const { return problem_.lost_keys.empty(); }
  // Relative root mean square error of the output.
  double error() const;

 private:
  void fill_inputs();
  void fill_params();
  void compute_expected();
  bool sees(int b, int row, int key) const;

  sm90::ForwardConfig config_;
  ForwardProblem problem_;
  sm90::ForwardParams params_{};
  Tensor16 q_, k_, v_, out_;
  std::vector<float> lse_;
  int counter_[2] = {0, 0};
  std::vector<sm90::CoverWord> cover_;
  std::vector<unsigned> cover_tiles_;
  std::vector<double> expected_, expected_lse_;
};

// The kernel that looks at blocks before the forward; what is wrong, or "".
template <sm90::ForwardConfig config, class Modification>
std::string run_cover(ForwardRun& run, const Modification& modification) {
  run.make_cover();
  const sm90::ModifiedParams<Modification> params{run.params(), modification};
  const sm90::CoverView& cover = params.forward.cover;
  emulator::Launch launch;
  launch.grid.x =
      static_cast<unsigned>(cover.num_batches * cover.num_heads * params.forward.num_blocks_m);
  launch.threads = 32 * sm90::cover_warps(false, false);
  launch.shared_bytes = sm90::kCoverSharedBytes;
  launch.resident = 1;
  static constexpr sm90::CoverConfig kConfig{config, false};
  return emulator::launch(launch, [&] { sm90::cover_keys<kConfig>(params); }).fault;
}

template <sm90::ForwardConfig config, class Modification = language::NoModification>
emulator::Report run_forward(ForwardRun& run, const emulator::Launch& launch,
                             const Modification& modification = {}) {
  emulator::Report report =
      emulator::launch(launch, [&] { sm90::forward<config>(run.params(), nullptr, modification); });
  if (report.ok()) report.fault = run.wrong();
  if (report.ok() && run.is_finite() && report.files.contains("exact.cuh"))
    report.fault = "rows of finite inputs were made again pair by pair";
  return report;
}

}  // namespace sirdar::emulator_tests
