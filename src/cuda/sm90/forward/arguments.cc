#include "cuda/sm90/forward/arguments.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cuda/sm90/arguments.h"
#include "cuda/sm90/forward/pack.h"

namespace sirdar::sm90 {
namespace {

// Bytes of K and V that one section of heads may fill: small sections keep blocks at work on the
// same keys, and a large last one levels the end (README.md, order of work). Of wide heads of many
// keys a small one would be a single head, with fewer query blocks than there are multiprocessors.
constexpr int64_t kSectionBytes = int64_t{4} << 20, kLargeSectionBytes = int64_t{16} << 20,
                  kLastSectionBytes = int64_t{32} << 20;
// Query blocks of a sequence from which on the shortest eighth comes last.
constexpr int kLeastBlocksWithShort = 16;

struct NamedSpec {
  const char* name;  // the argument's, for messages
  cuda::TensorMapSpec spec;
};

// Rows and heads become rows, the heads of a pack, and packs (params.h).
cuda::TensorMapSpec packed_spec(const Problem& problem, const ForwardConfig& config,
                                const MapRequest& request) {
  cuda::TensorMapSpec spec = spec_of(request);
  if (config.num_packed_heads == 1) return spec;
  const int64_t heads = heads_per_pack(problem, config);
  const int box_heads = std::min(config.num_packed_heads, request.box_rows);
  const auto [stride_row, stride_head, stride_batch, unused] = spec.stride_bytes;
  spec.rank = 5;
  spec.dims = {spec.dims[0], heads, spec.dims[1], spec.dims[2] / heads, spec.dims[3]};
  spec.stride_bytes = {stride_head, stride_row, heads * stride_head, stride_batch};
  spec.box = {64, box_heads, request.box_rows / box_heads, 1, 1};
  return spec;
}

// q, k, v, out.
std::array<NamedSpec, 4> map_specs(const Problem& problem, const ForwardConfig& config,
                                   const Args& args) {
  // Without keys the loads still happen, masked and cleared: any memory of the caller's will do.
  const bool has_keys = args.k.present() && args.k.shape[0] > 0 && problem.seqlen_k > 0 &&
                        (problem.layout_kv != Layout::ragged || problem.total_k > 0);
  const TensorView& k = has_keys ? args.k : args.q;
  const TensorView& v = has_keys ? args.v : args.q;
  const int key_rows = config.block_n / config.cluster_size;  // of one load
  const Layout layout_kv = has_keys ? problem.layout_kv : problem.layout_q;
  const auto packed = [&](const TensorView& view, int box_rows) {
    return packed_spec(problem, config, {view, problem.layout_q, box_rows, ""});
  };
  const auto keys = [&](const TensorView& view) {
    return spec_of({view, layout_kv, key_rows, ""});
  };
  return {{{"q", packed(args.q, q_rows(config))},
           {"k", keys(k)},
           {"v", keys(v)},
           {"out", packed(args.out, 64)}}};
}

Status add_maps(const Problem& problem, const ForwardConfig& config, const Args& args,
                ForwardParams& params) {
  TensorMap* const maps[] = {&params.q, &params.k, &params.v, &params.out};
  size_t n = 0;
  for (const auto& [name, spec] : map_specs(problem, config, args)) {
    Status status = cuda::make_tensor_map(spec, name, *maps[n++]);
    if (!status.ok()) return status;
  }
  if (config.num_stages_bias == 0) return {};
  return cuda::make_tensor_map(bias_spec(args.bias, 64), "bias", params.bias_map);
}

// Of each head: the first ones, which are the shortest, where they see few of its keys.
int num_short_blocks(const Problem& problem, const ForwardConfig& config, int num_blocks_m) {
  const bool is_top_left = problem.mask.alignment == Alignment::top_left;
  const int64_t first_keys = is_top_left ? 0 : problem.seqlen_k - problem.seqlen_q;
  const bool is_enough = num_blocks_m >= kLeastBlocksWithShort;
  if (!ends_with_short_blocks(config) || !is_enough || 8 * first_keys > problem.seqlen_k) return 0;
  return num_blocks_m / 8;
}

}  // namespace

void add_work(const Problem& problem, const ForwardConfig& config, ForwardParams& params) {
  params.num_heads = num_packs(problem, config);
  params.heads_per_pack = heads_per_pack(problem, config);
  params.group_size = static_cast<int>(problem.group_size()) / params.heads_per_pack;
  params.seqlen_q = static_cast<int>(problem.seqlen_q);
  params.seqlen_k = static_cast<int>(problem.seqlen_k);
  params.num_blocks_m =
      (num_blocks_m(problem, config) + config.cluster_size - 1) / config.cluster_size;
  const int64_t heads = problem.batch * params.num_heads;
  params.num_items = static_cast<int>(params.num_blocks_m * heads);
  // Of a head as many keys as a query sees at most: blocks at work at one time see few others.
  const int64_t span = int64_t{params.window_left} + params.window_right + 1;
  const int64_t keys = std::min({problem.seqlen_k, span, int64_t{params.chunk}});
  const int64_t bytes = 2 * std::max<int64_t>(keys, 1) * (problem.head_dim + problem.value_dim());
  const bool is_wide = std::max(problem.head_dim, problem.value_dim()) > 128;
  const int64_t section_bytes =
      is_wide && bytes >= kSectionBytes ? kLargeSectionBytes : kSectionBytes;
  const int64_t section = heads_within(section_bytes, bytes, heads) * params.group_size;
  const int64_t last = heads_within(kLastSectionBytes, bytes, heads) * params.group_size;
  const bool has_sections = config.order == Order::in_sections;
  params.section_heads = static_cast<int>(has_sections ? std::min(section, heads) : heads);
  params.num_sections =
      has_sections && heads > last ? static_cast<int>((heads - last) / params.section_heads) : 0;
  params.short_blocks = num_short_blocks(problem, config, params.num_blocks_m);
  add_divisors(params);
  params.num_items *= config.num_splits;
}

namespace {

void add_rows(const Problem& problem, const Args& args, ForwardParams& params) {
  const Extents query = query_extents(problem, args), key = key_extents(problem, args);
  params.cu_seqlens_q = int_view(query.cu_seqlens);
  params.cu_seqlens_k = int_view(key.cu_seqlens);
  params.seqused_q = int_view(query.seqused);
  params.seqused_k = int_view(key.seqused);
  params.out_rows = row_view(args.out, row_map(args.out, problem.layout_q));
  params.q_rows = row_view(args.q, row_map(args.q, problem.layout_q));
  params.k_rows = row_view(args.k, row_map(args.k, problem.layout_kv));
  params.v_rows = row_view(args.v, row_map(args.v, problem.layout_kv));
  params.lse = row_view(args.lse, row_statistics_map(args.lse, problem.layout_q));
  params.max_logit = row_view(args.max_logit, row_statistics_map(args.max_logit, problem.layout_q));
}

// In double precision, since the center is taken out of the coefficients again.
CapTerms cap_terms(double scale, double softcap, bool is_exact) {
  const CapPolynomial& polynomial = is_exact ? kCapExact : kCapNear;
  constexpr double kMost = 0x1p60;
  const double factor = scale / softcap, square_factor = factor * factor;
  const double limit =
      std::min(polynomial.limit * double{polynomial.limit} / square_factor, kMost);  // of s^2
  if (!(limit > 1 / kMost)) return {1, 0, 0, 0, ~0u};  // no score is small enough
  int exponent = 0;
  std::frexp(limit, &exponent);  // limit <= 2^exponent
  const double center = std::ldexp(1.0, exponent + 1) - limit;
  const double unit = scale * kLog2eDouble, c1 = polynomial.c1 * square_factor,
               c2 = polynomial.c2 * square_factor * square_factor;
  return {static_cast<float>(center),
          static_cast<float>((polynomial.c0 - c1 * center + c2 * center * center) * unit),
          static_cast<float>((c1 - 2 * c2 * center) * unit), static_cast<float>(c2 * unit),
          static_cast<unsigned>(exponent + 127)};
}

CapFactors cap_factors(double scale, double softcap, bool is_exact) {
  const CapPolynomial& polynomial = is_exact ? kCapExact : kCapFar;
  const double factor = scale / softcap, square_factor = factor * factor;
  return {static_cast<float>(factor), static_cast<float>(polynomial.limit / std::abs(factor)),
          static_cast<float>(polynomial.c0 * scale),
          static_cast<float>(polynomial.c1 * square_factor * scale),
          static_cast<float>(polynomial.c2 * square_factor * square_factor * scale)};
}

void add_scale(const Problem& problem, const ForwardConfig& config, ForwardParams& params) {
  const double scale = problem.scale();
  params.scale_log2 = static_cast<float>(config.has_logits ? scale : scale * kLog2eDouble);
  if (!config.has_softcap) return;
  params.cap_factors = cap_factors(scale, problem.softcap, config.writes_lse);
  params.cap = cap_terms(scale, problem.softcap, config.writes_lse);
}

}  // namespace

bool draws_tickets(const ForwardConfig& config) {
  return config.is_persistent && config.draws_items && config.cluster_size == 1 &&
         (config.mask != MaskForm::full || config.has_lengths || config.has_mask_mod);
}

Status check_reach(const Problem& problem, const ForwardConfig& config, const Args& args) {
  for (const auto& [name, spec] : map_specs(problem, config, args)) {
    Status status = cuda::check_tensor_map(spec, name);
    if (!status.ok()) return status;
  }
  return {};
}

Result<ForwardParams> make_params(const Problem& problem, const ForwardConfig& config,
                                  const Args& args, int* counter) {
  ForwardParams params{};
  if (Status status = add_maps(problem, config, args, params); !status.ok()) return status;
  params.counter = counter;
  params.counters = -1;
  add_rows(problem, args, params);
  add_mask(problem.mask, params);
  add_work(problem, config, params);
  add_scale(problem, config, params);
  add_terms(problem, args, params);
  return params;
}

}  // namespace sirdar::sm90
