#include "emulator/support/forward_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "emulator/support/emulated_driver.h"
#include "shared/float_bits.h"

namespace sirdar::emulator_tests {
namespace {

uint16_t narrow(float value, sm90::Element element) {
  return element == sm90::Element::bf16 ? float_to_bf16(value) : float_to_fp16(value);
}
float widen(uint16_t bits, sm90::Element element) {
  return element == sm90::Element::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

}  // namespace

void Tensor16::resize(int batch, int num_rows, int num_heads, int num_columns) {
  rows = num_rows, heads = num_heads, width = num_columns;
  data.assign(static_cast<size_t>(batch) * rows * heads * width + 8, 0x7fff);
}

float Tensor16::at(int b, int row, int head, int column, sm90::Element element) const {
  const size_t index = ((static_cast<size_t>(b) * rows + row) * heads + head) * width + column;
  return widen(data[index], element);
}

void Tensor16::make_map(TensorMap& map, int batch, int box_rows, sm90::Element element) {
  map = emulator_tests::make_map(
      {.base = data.data(),
       .dtype = element == sm90::Element::bf16 ? DType::bf16 : DType::fp16,
       .rank = 4,
       .dims = {width, rows, heads, batch},
       .stride_bytes = {2 * heads * width, 2 * width, 2 * rows * heads * width},
       .box = {64, box_rows, 1, 1},
       .swizzle = cuda::Swizzle::bytes_128});
}

ForwardRun::ForwardRun(const sm90::ForwardConfig& config, const ForwardProblem& problem)
    : config_(config), problem_(problem) {
  q_.resize(problem.batch, problem.seqlen_q, problem.num_heads, config.head_dim);
  k_.resize(problem.batch, problem.seqlen_k, problem.num_heads / problem.group_size,
            config.head_dim);
  v_.resize(problem.batch, problem.seqlen_k, problem.num_heads / problem.group_size,
            config.head_dim_v);
  out_.resize(problem.batch, problem.seqlen_q, problem.num_heads, config.head_dim_v);
  lse_.resize(static_cast<size_t>(problem.batch) * problem.num_heads * problem.seqlen_q);
  fill_inputs();
  fill_params();
  compute_expected();
}

void ForwardRun::fill_inputs() {
  std::mt19937 random(static_cast<unsigned>(problem_.data_seed));
  const auto fill = [&](Tensor16& tensor, float scale) {
    for (size_t i = 0; i + 8 < tensor.data.size(); ++i) {
      float value = static_cast<float>(static_cast<int>(random() % 257) - 128) / 64.0f;
      if (problem_.outliers > 0 && random() % problem_.outliers == 0) value *= 10;
      tensor.data[i] = narrow(value * scale, config_.element);
    }
  };
  fill(q_, problem_.input_scale);
  fill(k_, problem_.input_scale);
  fill(v_, 1.0f);
  for (const int key : problem_.lost_keys) {
    const size_t row = static_cast<size_t>(v_.heads) * static_cast<size_t>(v_.width);
    for (size_t i = 0; i < row; ++i) {
      const float value = i % 2 == 0 ? NAN : INFINITY;
      v_.data[static_cast<size_t>(key) * row + i] = narrow(value, config_.element);
    }
  }
  for (size_t b = 0; b < problem_.seqused_k.size(); ++b) {  // what nobody may see is NaN
    for (Tensor16* tensor : {&k_, &v_}) {
      const size_t row = static_cast<size_t>(tensor->heads) * tensor->width;
      const size_t begin = (b * tensor->rows + problem_.seqused_k[b]) * row;
      std::fill(tensor->data.begin() + static_cast<std::ptrdiff_t>(begin),
                tensor->data.begin() + static_cast<std::ptrdiff_t>((b + 1) * tensor->rows * row),
                uint16_t{0x7fff});
    }
  }
}

void ForwardRun::fill_params() {
  sm90::ForwardParams& p = params_;
  ForwardProblem& problem = problem_;
  q_.make_map(p.q, problem.batch, q_rows(config_), config_.element);
  const int key_rows = config_.block_n / config_.cluster_size;
  k_.make_map(p.k, problem.batch, key_rows, config_.element);
  v_.make_map(p.v, problem.batch, key_rows, config_.element);
  out_.make_map(p.out, problem.batch, 64, config_.element);
  const long long width = out_.width, heads = out_.heads;
  p.out_rows = {out_.data.data(), problem.seqlen_q * heads * width, heads * width, width};
  const auto rows_of = [](Tensor16& tensor) -> sm90::RowView {
    const long long row = static_cast<long long>(tensor.heads) * tensor.width;
    return {tensor.data.data(), tensor.rows * row, row, tensor.width};
  };
  p.q_rows = rows_of(q_);
  p.k_rows = rows_of(k_);
  p.v_rows = rows_of(v_);
  p.lse = {lse_.data(), heads * problem.seqlen_q, 1, problem.seqlen_q};
  if (config_.has_lengths) p.seqused_k = {problem.seqused_k.data(), 1};
  p.counter = counter_;
  p.num_heads = problem.num_heads;
  p.group_size = problem.group_size;
  p.seqlen_q = problem.seqlen_q;
  p.seqlen_k = problem.seqlen_k;
  const int rows = block_m(config_) * config_.cluster_size;
  p.num_blocks_m = (problem.seqlen_q + rows - 1) / rows;
  p.num_items = p.num_blocks_m * problem.batch * problem.num_heads;
  p.section_heads = problem.num_heads;
  p.num_sections = problem.batch - 1;
  p.short_blocks = ends_with_short_blocks(config_) ? (p.num_blocks_m + 2) / 4 : 0;
  add_divisors(p);
  p.window_left = problem.window_left < 0 ? sm90::kNoBound : problem.window_left;
  p.window_right = problem.is_causal || problem.window_left >= 0 ? 0 : sm90::kNoBound;
  p.chunk = sm90::kNoBound;
  p.scale_log2 =
      (config_.has_logits ? 1.0f : sm90::kLog2e) / std::sqrt(static_cast<float>(config_.head_dim));
}

void ForwardRun::make_cover() {
  sm90::CoverView& cover = params_.cover;
  const int blocks = (problem_.seqlen_k + config_.block_n - 1) / config_.block_n;
  cover.num_batches = problem_.batch;
  cover.num_heads = problem_.num_heads;
  cover.num_words = (blocks + 31) / 32;
  cover.num_tiles = 1;  // pairs of further blocks are looked at by the forward
  cover.stride_head = params_.num_blocks_m;
  cover.stride_batch = cover.stride_head * cover.num_heads;
  const auto query_blocks = static_cast<size_t>(cover.stride_batch * cover.num_batches);
  cover_.assign(query_blocks * static_cast<size_t>(cover.num_words), {~0u, ~0u, -1, -1});
  cover_tiles_.assign(query_blocks * static_cast<size_t>(seen_words(config_)), ~0u);
  cover.words = cover_.data();
  cover.tiles = cover_tiles_.data();
}

bool ForwardRun::sees(int b, int row, int key) const {
  const int length =
      problem_.seqused_k.empty() ? problem_.seqlen_k : problem_.seqused_k[static_cast<size_t>(b)];
  if (key >= length) return false;
  const int position = row + length - problem_.seqlen_q;
  if ((problem_.is_causal || problem_.window_left >= 0) && key > position) return false;
  return problem_.window_left < 0 || key >= position - problem_.window_left;
}

void ForwardRun::compute_expected() {
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  const int width = config_.head_dim_v;
  std::vector<double> weights(static_cast<size_t>(problem_.seqlen_k));
  for (int b = 0; b < problem_.batch; ++b) {
    for (int row = 0; row < problem_.seqlen_q; ++row) {
      for (int h = 0; h < problem_.num_heads; ++h) {
        const int kv = h / problem_.group_size;
        double top = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int key = 0; key < problem_.seqlen_k; ++key) {
          double score = 0;
          for (int d = 0; d < config_.head_dim; ++d)
            score += double{q_.at(b, row, h, d, config_.element)} *
                     double{k_.at(b, key, kv, d, config_.element)};
          double logit = sees(b, row, key) ? score * scale : -HUGE_VAL;
          if (problem_.modify) logit = problem_.modify(logit, b, h, row, key);
          weights[static_cast<size_t>(key)] = logit;
          top = std::max(top, weights[static_cast<size_t>(key)]);
        }
        for (double& weight : weights) {
          weight = top == -HUGE_VAL ? 0 : std::exp(weight - top);
          sum += weight;
        }
        for (int d = 0; d < width; ++d) {
          double value = 0;
          for (int key = 0; key < problem_.seqlen_k; ++key) {
            const double weight = weights[static_cast<size_t>(key)];
            if (weight > 0) value += weight * double{v_.at(b, key, kv, d, config_.element)};
          }
          expected_.push_back(sum == 0 ? 0 : value / sum);
        }
        expected_lse_.push_back(sum == 0 ? -HUGE_VAL : top + std::log(sum));
      }
    }
  }
}

emulator::Launch ForwardRun::launch_of(uint64_t seed) {
  std::fill(out_.data.begin(), out_.data.end(), uint16_t{0x7fff});
  std::fill(lse_.begin(), lse_.end(), std::numeric_limits<float>::quiet_NaN());
  counter_[0] = counter_[1] = 0;
  emulator::Launch launch;
  launch.resident = std::min(problem_.blocks, params_.num_items);
  launch.cluster = config_.cluster_size;
  launch.grid.x = static_cast<unsigned>(launch.resident * launch.cluster);
  launch.threads = num_threads(config_);
  launch.shared_bytes = shared_bytes(config_);
  launch.seed = seed;
  return launch;
}

std::string ForwardRun::name_of_barrier(int64_t offset) const {
  const int base = static_cast<int>(emulator::kReservedShared) + shared_map(config_).barriers;
  int index = (static_cast<int>(offset) - base) / 8;
  const std::pair<const char*, int> kinds[] = {{"q_full", num_q_barriers(config_)},
                                               {"q_empty", num_q_barriers(config_)},
                                               {"k_full", config_.num_stages_k},
                                               {"k_empty", config_.num_stages_k},
                                               {"v_full", config_.num_stages_v},
                                               {"v_empty", config_.num_stages_v},
                                               {"v_landed", 1}};
  for (const auto& [name, count] : kinds) {
    if (index < count) return fmt::format("{}[{}]", name, index);
    index -= count;
  }
  return "";
}

std::string ForwardRun::wrong() const {
  // The weights and the result are rounded to 16 bits.
  const double bound = (config_.element == sm90::Element::bf16 ? 0x1p-6 : 0x1p-9);
  size_t at = 0;
  for (int b = 0; b < problem_.batch; ++b) {
    for (int row = 0; row < problem_.seqlen_q; ++row) {
      for (int h = 0; h < problem_.num_heads; ++h) {
        for (int d = 0; d < config_.head_dim_v; ++d, ++at) {
          const double value = double{out_.at(b, row, h, d, config_.element)};
          const double expected = expected_[at];
          const bool is_same = value == expected || (std::isnan(value) && std::isnan(expected));
          if (!is_same && !(std::fabs(value - expected) <= bound))
            return fmt::format("out[{}, {}, {}, {}] is {}, not {}", b, row, h, d, value,
                               expected_[at]);
        }
        if (!config_.writes_lse) continue;
        const double expected = expected_lse_[at / static_cast<size_t>(config_.head_dim_v) - 1];
        const double lse = double{
            lse_[(static_cast<size_t>(b) * problem_.num_heads + h) * problem_.seqlen_q + row]};
        if (!(std::fabs(lse - expected) <= 1e-3 + 1e-5 * std::fabs(expected)) && lse != expected)
          return fmt::format("lse[{}, {}, {}] is {}, not {}", b, h, row, lse, expected);
      }
    }
  }
  for (size_t i = out_.data.size() - 8; i < out_.data.size(); ++i)
    if (out_.data[i] != 0x7fff) return "something was written behind the end of out";
  if (counter_[0] != 0 || counter_[1] != 0) return "the ticket counters are not zero again";
  return "";
}

double ForwardRun::error() const {
  double squares = 0, all = 0;
  for (size_t i = 0; i < expected_.size(); ++i) {
    const double off = double{widen(out_.data[i], config_.element)} - expected_[i];
    squares += off * off;
    all += expected_[i] * expected_[i];
  }
  return std::sqrt(squares / all);
}

}  // namespace sirdar::emulator_tests
