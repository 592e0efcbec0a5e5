// Any bytes as a small problem and its data: every implementation that accepts it, on every
// instruction set of this machine, agrees with float64 and writes nothing else.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "check/run_check.h"
#include "core/elements.h"
#include "plan/implementation.h"

namespace sirdar {
namespace {

// Reads choices from the input; zeros when it has run out.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t next() { return size_ == 0 ? uint8_t{0} : (--size_, *data_++); }
  bool flag() { return next() % 2 != 0; }
  bool rarely() { return next() % 8 == 7; }
  int64_t between(int64_t low, int64_t high) { return low + next() % (high - low + 1); }
  bool empty() const { return size_ == 0; }

 private:
  const uint8_t* data_;
  size_t size_;
};

Axes any_axes(Bytes& bytes) {
  const uint8_t bits = bytes.next();
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
}

void choose_sizes(Problem& p, Bytes& bytes) {
  p.op = bytes.flag() ? Op::backward : Op::forward;
  p.batch = bytes.between(0, 3);
  p.seqlen_q = bytes.between(0, 40);
  p.seqlen_k = bytes.between(0, 70);
  p.num_heads_kv = bytes.between(1, 3);
  p.num_heads_q = p.num_heads_kv * bytes.between(1, 3);
  p.head_dim = bytes.between(1, 40);
  p.head_dim_v = bytes.flag() ? bytes.between(1, 40) : 0;
  constexpr std::array kDtypes{DType::fp32, DType::fp32, DType::bf16, DType::fp16, DType::fp8_e4m3};
  p.dtype_q = p.dtype_kv = kDtypes[static_cast<size_t>(bytes.between(0, 4))];
  if (bytes.rarely()) p.dtype_out = DType::fp32;
  p.layout_q = static_cast<Layout>(bytes.between(0, 1));
  p.layout_kv = static_cast<Layout>(bytes.between(0, 2));
  if (p.layout_q == Layout::ragged) p.total_q = p.batch * p.seqlen_q * bytes.between(0, 4) / 4;
  if (p.layout_kv == Layout::ragged) p.total_k = p.batch * p.seqlen_k * bytes.between(0, 4) / 4;
  if (p.layout_kv == Layout::paged) p.page_size = bytes.between(1, 20);
  p.has_seqused_q = bytes.rarely();
  p.has_seqused_k = bytes.rarely() || p.layout_kv == Layout::paged;
}

void choose_masks(Problem& p, Bytes& bytes) {
  p.mask.is_causal = bytes.flag();
  if (bytes.rarely()) p.mask.window_left = bytes.between(0, 70);
  if (bytes.rarely()) p.mask.window_right = bytes.between(0, 70);
  if (bytes.rarely()) p.mask.chunk_size = bytes.between(1, 40);
  if (bytes.rarely()) p.mask.alignment = Alignment::top_left;
  p.has_document = bytes.rarely();
  p.has_mask_tensor = bytes.rarely();
  if (p.has_mask_tensor) p.mask_axes = any_axes(bytes);
}

void choose_scores(Problem& p, Bytes& bytes) {
  constexpr std::array kScales{0.0f, 1.0f, -0.5f, 4.0f};
  if (bytes.rarely()) p.softmax_scale = kScales[static_cast<size_t>(bytes.between(0, 3))];
  if (bytes.rarely()) p.softcap = static_cast<float>(bytes.between(1, 60));
  p.has_bias = bytes.rarely();
  if (p.has_bias) p.bias_axes = any_axes(bytes);
  p.has_alibi = bytes.rarely();
  p.has_sink = bytes.rarely();
  if (bytes.rarely()) p.dropout_p = static_cast<float>(bytes.between(1, 15)) / 16;
  const bool is_backward = p.op == Op::backward;
  p.needs_lse = !is_backward && bytes.flag();
  p.needs_max_logit = !is_backward && bytes.rarely();
  p.has_dlse = is_backward && bytes.rarely();
  p.needs_dbias = is_backward && p.has_bias && bytes.flag();
  p.needs_dsink = is_backward && p.has_sink && bytes.flag();
}

// Overwrites elements with numbers that have broken softmaxes before. Their products and sums stay
// within fp32, so that fp32 and float64 overflow nowhere or at the same infinities.
void plant_values(check::Inputs& inputs, Bytes& bytes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::array kValues{0.0f,      1.0f,       -1.0f,
                               1e3f,      -1e3f,      1e-30f,
                               kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
  Args& args = inputs.args();
  const std::array views{&args.q, &args.k, &args.v, &args.bias};
  while (!bytes.empty()) {
    const TensorView& view = *views[bytes.next() % views.size()];
    const int64_t count = view.present() ? element_count(view) : 0;
    const int64_t target = (bytes.next() << 8 | bytes.next()) % std::max<int64_t>(count, 1);
    const float value = kValues[bytes.next() % kValues.size()];
    // An infinite value times a weight that underflows in fp32 only is NaN there and infinite here.
    const bool is_infinite_value = std::isinf(value) && &view == &args.v;
    if (count == 0 || is_infinite_value) continue;
    for_each_element(view, [&](int64_t offset, int64_t n) {
      if (n == target) store_element(view, offset, value);
    });
  }
}

void check_one(check::Inputs& inputs, const PlanOptions& options, uint64_t seed) {
  const Result<Plan> plan = Plan::create(inputs.problem(), options);
  if (!plan.ok()) {
    if (plan.status().message().empty()) std::abort();
    return;
  }
  const check::Report report = check::check(inputs, options, seed);
  if (report.ok) return;
  std::fprintf(stderr, "isa '%s': %s\n", options.isa.c_str(), report.text.c_str());
  std::abort();
}

void run(Bytes& bytes) {
  Problem problem;
  choose_sizes(problem, bytes);
  choose_masks(problem, bytes);
  choose_scores(problem, bytes);
  if (const Status status = problem.validate(); !status.ok()) {
    if (status.message().empty() || status.rule().empty()) std::abort();
    return;
  }
  const uint64_t seed = bytes.next();
  check::Inputs inputs(problem, seed);
  plant_values(inputs, bytes);
  if (problem.op == Op::backward) inputs.refresh_saved();
  inputs.accept();
  for (const Implementation* one : implementations()) {
    PlanOptions options;
    options.implementation = one->name;
    if (one->is_reference) {
      check_one(inputs, options, seed);
      continue;
    }
    for (const char* isa : {"scalar", "neon", "avx2", "avx512", "avx512_bf16"}) {
      options.isa = isa;
      check_one(inputs, options, seed);
    }
  }
}

}  // namespace
}  // namespace sirdar

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sirdar::Bytes bytes(data, size);
  sirdar::run(bytes);
  return 0;
}
