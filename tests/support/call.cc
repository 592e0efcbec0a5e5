#include "support/call.h"

#include "check/compare.h"
#include "plan/implementation.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace sirdar::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Gaps after every row and every head, so that no two axes can be merged and nothing is aligned.
Tensor padded(DType dtype, const Shape& shape) {
  Shape stride(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) {
    stride[axis - 1] = stride[axis] * std::max<int64_t>(shape[axis], 1) + (axis % 2 ? 1 : 3);
  }
  return Tensor(dtype, shape, stride);
}

Shape broadcast_shape(const Problem& p, const Axes& axes) {
  return {axes.batch ? p.batch : 1, axes.head ? p.num_heads_q : 1, axes.query ? p.seqlen_q : 1,
          axes.key ? p.seqlen_k : 1};
}

// Fills a total greedily, so that the first sequences have the largest length allowed.
std::vector<int32_t> spread(int64_t total, int64_t longest, int64_t batch) {
  std::vector<int32_t> lengths;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = std::min(total, longest);
    lengths.push_back(static_cast<int32_t>(length));
    total -= length;
  }
  return lengths;
}

Tensor prefix_sums(const std::vector<int32_t>& lengths) {
  Tensor sums(DType::int32, {static_cast<int64_t>(lengths.size()) + 1});
  sums.set({0}, 0);
  for (size_t b = 0; b < lengths.size(); ++b) {
    const auto n = static_cast<int64_t>(b);
    sums.set({n + 1}, sums.at({n}) + lengths[b]);
  }
  return sums;
}

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

std::string Variant::str() const {
  return implementation + (isa.empty() ? "" : " isa=" + isa) +
         " threads=" + std::to_string(num_threads);
}

PlanOptions Variant::options() const {
  PlanOptions options;
  options.implementation = implementation;
  options.isa = isa;
  options.num_threads = num_threads;
  return options;
}

std::vector<Variant> variants(const Problem& problem) {
  std::vector<Variant> accepted;
  for (const Implementation* implementation : implementations()) {
    const std::string name(implementation->name);
    if (implementation->is_reference) {
      if (Plan::create(problem, Variant{name, "", 1}.options()).ok())
        accepted.push_back({name, "", 1});
      continue;
    }
    for (const char* isa : {"scalar", "neon", "avx2", "avx512", "avx512_bf16"}) {
      // The others are computed by the kernels of avx512.
      const bool is_paired = problem.op == Op::forward && problem.dtype_q == DType::bf16;
      if (!is_paired && std::string_view(isa) == "avx512_bf16") continue;
      for (const int threads : {1, 2}) {
        const Variant variant{name, isa, threads};
        if (Plan::create(problem, variant.options()).ok()) accepted.push_back(variant);
      }
    }
  }
  return accepted;
}

std::vector<Variant> few_variants(const Problem& problem) {
  std::vector<Variant> all = variants(problem), few;
  for (const Variant& variant : all) {
    if (variant.num_threads != 1) continue;
    const bool known =
        few.size() >= 2 && few[few.size() - 2].implementation == variant.implementation;
    if (known) few.pop_back();
    few.push_back(variant);
  }
  return few;
}

Problem forward_of(const Problem& problem) {
  Problem forward = problem;
  forward.op = Op::forward;
  forward.needs_lse = true;
  forward.has_dlse = forward.needs_dbias = forward.needs_dsink = false;
  for (ExpressionTensor& tensor : forward.tensors) tensor.needs_grad = false;
  return forward;
}

Call::Call(const Problem& given, const Lengths& lengths, uint64_t seed) : problem(given) {
  make_lengths(lengths);
  make_inputs(seed);
  make_outputs();
}

Call::Call(const std::string& text, const Lengths& lengths, uint64_t seed)
    : Call(Problem::parse(text).value(), lengths, seed) {}

void Call::make_lengths(const Lengths& given) {
  const Problem& p = problem;
  lengths_ = given;
  if (lengths_.q.empty()) {
    lengths_.q = p.layout_q == Layout::ragged ? spread(p.total_q, p.seqlen_q, p.batch)
                                              : spread(p.seqlen_q * p.batch, p.seqlen_q, p.batch);
  }
  if (lengths_.k.empty()) {
    lengths_.k = p.layout_kv == Layout::ragged ? spread(p.total_k, p.seqlen_k, p.batch)
                                               : spread(p.seqlen_k * p.batch, p.seqlen_k, p.batch);
  }
  const auto shorten = [](std::vector<int32_t>* used, const std::vector<int32_t>& full, bool has) {
    if (!used->empty()) return;
    *used = full;
    for (size_t b = 0; has && b < used->size(); ++b) {
      (*used)[b] -= std::min<int32_t>((*used)[b], static_cast<int32_t>(3 * b + 1));
    }
  };
  shorten(&lengths_.used_q, lengths_.q, p.has_seqused_q);
  shorten(&lengths_.used_k, lengths_.k, p.has_seqused_k);
  if (p.layout_q == Layout::ragged) cu_seqlens_q = prefix_sums(lengths_.q);
  if (p.layout_kv == Layout::ragged) cu_seqlens_k = prefix_sums(lengths_.k);
  const std::vector<double> used_q(lengths_.used_q.begin(), lengths_.used_q.end());
  const std::vector<double> used_k(lengths_.used_k.begin(), lengths_.used_k.end());
  if (p.has_seqused_q) seqused_q = Tensor(DType::int32, {p.batch}).fill(used_q);
  if (p.has_seqused_k) seqused_k = Tensor(DType::int32, {p.batch}).fill(used_k);
  if (p.layout_kv != Layout::paged) return;
  const int64_t pages = (p.seqlen_k + p.page_size - 1) / p.page_size;
  page_table = Tensor(DType::int32, {p.batch, pages});
  // Backwards through the pool, leaving two pages that no sequence owns.
  page_table.fill_by([&](const int64_t* c) {
    return static_cast<double>(p.batch * pages - 1 - (c[0] * pages + c[1]));
  });
}

Shape Call::query_shape(int64_t columns) const {
  if (problem.layout_q == Layout::ragged) return {problem.total_q, problem.num_heads_q, columns};
  return {problem.batch, problem.seqlen_q, problem.num_heads_q, columns};
}

Shape Call::key_shape(int64_t columns) const {
  const Problem& p = problem;
  if (p.layout_kv == Layout::ragged) return {p.total_k, p.num_heads_kv, columns};
  if (p.layout_kv == Layout::dense) return {p.batch, p.seqlen_k, p.num_heads_kv, columns};
  return {page_table.size() + 2, p.page_size, p.num_heads_kv, columns};
}

Shape Call::statistic_shape() const {
  const Problem& p = problem;
  if (p.layout_q == Layout::ragged) return {p.num_heads_q, p.total_q};
  return {p.batch, p.num_heads_q, p.seqlen_q};
}

int64_t Call::query_row(int64_t b, int64_t i) const {
  if (problem.layout_q == Layout::ragged) return static_cast<int64_t>(cu_seqlens_q.at({b})) + i;
  return b * problem.seqlen_q + i;
}

int64_t Call::key_row(int64_t b, int64_t j) const {
  if (problem.layout_kv == Layout::ragged) return static_cast<int64_t>(cu_seqlens_k.at({b})) + j;
  if (problem.layout_kv == Layout::dense) return b * problem.seqlen_k + j;
  const auto page = static_cast<int64_t>(page_table.at({b, j / problem.page_size}));
  return page * problem.page_size + j % problem.page_size;
}

int64_t Call::statistic(int64_t b, int64_t h, int64_t i) const {
  if (problem.layout_q == Layout::ragged) return h * problem.total_q + query_row(b, i);
  return (b * problem.num_heads_q + h) * problem.seqlen_q + i;
}

void Call::fill_rows(Tensor* tensor, bool is_query, uint64_t seed) {
  const std::vector<int32_t>& used = is_query ? lengths_.used_q : lengths_.used_k;
  const int64_t columns = tensor->shape().back() * tensor->shape()[tensor->shape().size() - 2];
  tensor->fill(kNan);
  for (int64_t b = 0; b < problem.batch; ++b) {
    Random random(seed + static_cast<uint64_t>(b) * 1000);
    for (int64_t i = 0; i < used[static_cast<size_t>(b)]; ++i) {
      const int64_t row = is_query ? query_row(b, i) : key_row(b, i);
      for (int64_t c = 0; c < columns; ++c) {
        const bool is_outlier = columns >= 8 && c % 64 == 5;
        tensor->set_flat(row * columns + c, random.normal() * (is_outlier ? 4 : 1));
      }
    }
  }
}

void Call::make_inputs(uint64_t seed) {
  const Problem& p = problem;
  q = padded(p.dtype_q, query_shape(p.head_dim));
  k = padded(p.dtype_kv, key_shape(p.head_dim));
  v = padded(p.dtype_kv, key_shape(p.value_dim()));
  fill_rows(&q, true, seed + 1);
  fill_rows(&k, false, seed + 2);
  fill_rows(&v, false, seed + 3);
  Random random(seed + 4);
  if (p.has_document) {
    const auto id = [](int64_t position, int64_t length) {
      return static_cast<double>(position * 3 / std::max<int64_t>(length, 1));
    };
    document_q = Tensor(DType::int32, {p.batch, p.seqlen_q});
    document_k = Tensor(DType::int32, {p.batch, p.seqlen_k});
    document_q.fill_by([&](const int64_t* c) { return id(c[1], p.seqlen_q); });
    document_k.fill_by([&](const int64_t* c) { return id(c[1], p.seqlen_k); });
  }
  if (p.has_mask_tensor) {
    mask = padded(DType::boolean, broadcast_shape(p, p.mask_axes));
    mask.fill_by([&](const int64_t*) { return random.uniform() < 0.7 ? 1.0 : 0.0; });
  }
  if (p.has_bias) {
    bias = padded(p.dtype_bias, broadcast_shape(p, p.bias_axes));
    bias.fill_by([&](const int64_t*) { return random.normal(); });
  }
  if (p.has_alibi) {
    alibi = Tensor(DType::fp32, {p.num_heads_q});
    alibi.fill_by([](const int64_t* c) { return std::exp2(-0.5 * static_cast<double>(c[0] + 1)); });
  }
  if (p.has_sink) sink = Tensor(DType::fp32, {p.num_heads_q}).fill_random(seed + 5);
  const int64_t extent = std::max({p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_k});
  for (const ExpressionTensor& tensor : p.tensors) {
    const Shape shape(static_cast<size_t>(tensor.rank), extent);
    tensors.push_back(Tensor(tensor.dtype, shape).fill_random(seed + 6, 0.5));
  }
  for (size_t i = 0; i < p.scalars.size(); ++i) scalars.push_back(0.5 + static_cast<double>(i));
}

void Call::make_outputs() {
  const Problem& p = problem;
  out = padded(p.output_dtype(), query_shape(p.value_dim()));
  const bool is_backward = p.op == Op::backward;
  if (p.needs_lse || is_backward) lse = padded(DType::fp32, statistic_shape());
  if (p.needs_max_logit) max_logit = padded(DType::fp32, statistic_shape());
  if (!is_backward) return;
  dout = padded(p.output_dtype(), query_shape(p.value_dim()));
  fill_rows(&dout, true, 77);
  if (p.has_dlse) dlse = padded(DType::fp32, statistic_shape()).fill_random(78);
  dq = padded(p.dtype_q, query_shape(p.head_dim));
  dk = padded(p.dtype_kv, key_shape(p.head_dim));
  dv = padded(p.dtype_kv, key_shape(p.value_dim()));
  if (p.needs_dbias) dbias = padded(DType::fp32, broadcast_shape(p, p.bias_axes));
  if (p.needs_dsink) dsink = Tensor(DType::fp32, {p.num_heads_q});
  for (size_t t = 0; t < p.tensors.size(); ++t) {
    const bool wanted = p.tensors[t].needs_grad;
    dtensors.push_back(wanted ? Tensor(DType::fp32, tensors[t].shape()) : Tensor());
  }
}

Args Call::args() const {
  Args a;
  a.q = q, a.k = k, a.v = v, a.out = out, a.lse = lse, a.max_logit = max_logit;
  a.cu_seqlens_q = cu_seqlens_q, a.cu_seqlens_k = cu_seqlens_k;
  a.seqused_q = seqused_q, a.seqused_k = seqused_k, a.page_table = page_table;
  a.document_q = document_q, a.document_k = document_k;
  a.mask = mask, a.bias = bias, a.alibi = alibi, a.sink = sink;
  for (size_t t = 0; t < tensors.size(); ++t) {
    a.tensors.push_back({problem.tensors[t].name, tensors[t]});
  }
  for (size_t s = 0; s < scalars.size(); ++s)
    a.scalars.emplace_back(problem.scalars[s], scalars[s]);
  a.dropout_seed = problem.dropout_p > 0 ? dropout_seed : 0;
  a.dropout_offset = problem.dropout_p > 0 ? dropout_offset : 0;
  a.dout = dout, a.dlse = dlse, a.dq = dq, a.dk = dk, a.dv = dv, a.dbias = dbias, a.dsink = dsink;
  for (size_t t = 0; t < dtensors.size(); ++t) {
    if (dtensors[t].present()) a.dtensors.push_back({problem.tensors[t].name, dtensors[t]});
  }
  return a;
}

std::vector<Tensor> Call::outputs() const {
  if (problem.op == Op::forward) return {out, lse, max_logit};
  std::vector<Tensor> all{dq, dk, dv, dbias, dsink};
  all.insert(all.end(), dtensors.begin(), dtensors.end());
  return all;
}

Status Call::run(const Variant& variant) { return run(variant.options()); }

Status Call::run(const PlanOptions& options) {
  const Result<Plan> plan = Plan::create(problem, options);
  if (!plan.ok()) return plan.status();
  for (Tensor tensor : outputs()) tensor.fill(kNan);
  Args a = args();
  a.workspace_bytes = plan.value().workspace_bytes();
  const std::unique_ptr<void, FreeDeleter> workspace(
      std::aligned_alloc(64, a.workspace_bytes + 64));
  a.workspace = workspace.get();
  std::memset(a.workspace, 0xff, a.workspace_bytes + 64);
  const Status status = plan.value().run(a);
  const auto* guard = static_cast<const uint8_t*>(a.workspace) + a.workspace_bytes;
  EXPECT_TRUE(std::all_of(guard, guard + 64, [](uint8_t byte) { return byte == 0xff; }))
      << "wrote past the workspace: " << problem.str();
  for (const Tensor& tensor : outputs()) {
    EXPECT_TRUE(tensor.gaps_intact()) << "wrote between or beyond the rows: " << problem.str();
  }
  return status;
}

void Call::run_forward_first() {
  Call forward = *this;  // shares memory: out and lse become this call's
  forward.problem = forward_of(problem);
  forward.dout = forward.dlse = forward.dq = forward.dk = forward.dv = forward.dbias =
      forward.dsink = Tensor();
  forward.dtensors.clear();
  const Status status = forward.run_reference();
  ASSERT_TRUE(status.ok()) << status.message();
}

std::vector<uint8_t> Call::output_bits() const {
  std::vector<uint8_t> all;
  for (const Tensor& tensor : outputs()) {
    const std::vector<uint8_t> bits = tensor.bits();
    all.insert(all.end(), bits.begin(), bits.end());
  }
  return all;
}

::testing::AssertionResult near(const std::vector<double>& actual,
                                const std::vector<double>& expected, double tolerance) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << actual.size() << " values, not " << expected.size();
  }
  size_t worst = 0;
  double worst_error = 0;
  for (size_t n = 0; n < actual.size(); ++n) {
    const bool same =
        actual[n] == expected[n] || (std::isnan(actual[n]) && std::isnan(expected[n]));
    double error = same ? 0 : std::fabs(actual[n] - expected[n]);
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (error > worst_error) worst_error = error, worst = n;
  }
  if (worst_error <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "element " << worst << " is " << actual[worst] << ", expected " << expected[worst]
         << " within " << tolerance;
}

::testing::AssertionResult close(const std::vector<double>& actual,
                                 const std::vector<double>& expected, DType dtype) {
  const double epsilon = dtype == DType::fp32 ? 0x1p-23 : dtype == DType::fp16 ? 0x1p-10 : 0x1p-7;
  double largest = 0;
  for (const double value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  return near(actual, expected, (dtype == DType::fp32 ? 32 : 2) * epsilon * largest);
}

::testing::AssertionResult all_finite(const std::vector<double>& values) {
  for (size_t n = 0; n < values.size(); ++n) {
    if (!std::isfinite(values[n])) {
      return ::testing::AssertionFailure() << "element " << n << " is " << values[n];
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult all_equal(const std::vector<double>& values, double expected) {
  return near(values, std::vector<double>(values.size(), expected), 0);
}

void expect_matches_float64(Call& call, const Variant& variant) {
  SCOPED_TRACE(call.problem.str() + " " + variant.str());
  const Status status = call.run(variant);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const check::Expected& expected : check::expected_outputs(call.problem, call.args())) {
    const check::Deviation deviation = check::compare(expected);
    EXPECT_TRUE(deviation.ok) << deviation.where << " is " << deviation.actual << ", expected "
                              << deviation.expected << " (error " << deviation.ratio
                              << " times what is allowed)";
  }
}

void expect_all_match_float64(Call& call) {
  if (call.problem.op == Op::backward) call.run_forward_first();
  const std::vector<Variant> all = variants(call.problem);
  ASSERT_FALSE(all.empty()) << "nothing serves " << call.problem.str();
  for (const Variant& variant : all) expect_matches_float64(call, variant);
}

std::string named_after(const std::string& text, size_t index) {
  std::string name = std::to_string(index) + "_";
  for (const char c : text) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_plain || name.back() != '_') name += is_plain ? c : '_';
  }
  return name;
}

void copy_row(const Tensor& to, int64_t to_row, const Tensor& from, int64_t from_row) {
  const Shape& shape = from.shape();
  const int64_t columns = shape.back() * shape[shape.size() - 2];
  Tensor target = to;  // the same memory
  for (int64_t c = 0; c < columns; ++c) {
    target.set_flat(to_row * columns + c, from.flat(from_row * columns + c));
  }
}

}  // namespace sirdar::test
