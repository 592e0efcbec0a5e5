#include "cuda/sm90/backward/arguments.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <tuple>

#include "cuda/modified_params.h"
#include "cuda/rows/backward/arguments.h"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/backward/choose.h"
#include "cuda/sm90/backward/walk.h"
#include "cuda/sm90/forward/modified.h"

namespace sirdar::sm90 {
namespace {

// Bytes of Q, dO and sums of dQ that one section of heads may fill, so that they stay in L2.
constexpr int64_t kSectionBytes = int64_t{36} << 20;

// Positions in a ring times query tiles are 32-bit.
constexpr int kMaxRingBlocks = 256;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t num_tiles(const Problem& problem, const BackwardConfig& config) {
  return divide_up(problem.seqlen_q, config.block_m);
}

// Of all sequences: where queries are ragged, each may begin in the middle of a tile.
int64_t total_tiles(const Problem& problem, const BackwardConfig& config) {
  return problem.layout_q == Layout::ragged ? problem.total_q / config.block_m + problem.batch
                                            : problem.batch * num_tiles(problem, config);
}

int64_t num_key_blocks(const Problem& problem, const BackwardConfig& config) {
  const Problem walked = walked_problem(problem);
  return divide_up(walked.seqlen_k, cluster_keys(config)) * config.cluster_size * walked.batch *
         walked.num_heads_kv;
}

// q, k, v, dout, dk, dv.
std::array<MapRequest, 6> map_requests(const Problem& problem, const BackwardConfig& config,
                                       const Args& args) {
  const Layout q = problem.layout_q, kv = problem.layout_kv;
  return {{{args.q, q, config.block_m, "q"},
           {args.k, kv, block_keys(config), "k"},
           {args.v, kv, block_keys(config), "v"},
           {args.dout, q, config.block_m, "dout"},
           {args.dk, kv, 64, "dk"},
           {args.dv, kv, 64, "dv"}}};
}

// Read or written 16 bytes at a time besides.
std::array<MapRequest, 2> row_requests(const Problem& problem, const Args& args) {
  return {{{args.out, problem.layout_q, 64, "out"}, {args.dq, problem.layout_q, 64, "dq"}}};
}

// What is read and added to of all heads that share a K/V head, in bytes.
int64_t head_bytes(const Problem& problem, const BackwardConfig& config) {
  const int64_t row_bytes =
      (2 + 4 * config.num_sums) * columns(config.head_dim) + 2 * columns(config.head_dim_v);
  return problem.seqlen_q * problem.group_size() * row_bytes;
}

// Key blocks of a head that begin at query tiles apart and run at one time; rings of a head; heads
// whose rings run at one time.
struct Rings {
  int num_blocks, num_rings, num_heads;
};

// A tile is added to every tiles / blocks steps of a ring. Of the rings in which the work takes the
// fewest rounds those that stay within L2, and then the largest that leave `hop_steps` steps.
Rings rings_of(const Problem& problem, const BackwardConfig& config, int num_sms) {
  const int64_t blocks = divide_up(problem.seqlen_k, cluster_keys(config));
  // Where a ring's blocks begin decides in which order a tile's sum grows.
  const int64_t heads = (problem.batch_invariant ? 1 : problem.batch) * problem.num_heads_kv;
  const int64_t tiles = num_tiles(problem, config), bytes = head_bytes(problem, config);
  const int64_t most = std::min(num_sms, kMaxRingBlocks);
  const auto best_possible = std::tuple(divide_up(heads * blocks, num_sms), int64_t{0}, int64_t{0});
  Rings best{};
  auto best_rank = std::tuple(std::numeric_limits<int64_t>::max(), int64_t{0}, int64_t{0});
  int64_t last_size = 0;
  for (int64_t rings = divide_up(blocks, most); rings <= blocks && best_rank > best_possible;
       ++rings) {
    const int64_t size = divide_up(blocks, rings);
    if (size == last_size) continue;
    last_size = size;
    int64_t at_once = std::min(heads, num_sms / size);
    // No more than as many rounds want: who has no ring may convert.
    if (config.converts_early) at_once = divide_up(heads, divide_up(heads, at_once));
    const auto rank = std::tuple(divide_up(heads, at_once) * rings,
                                 std::max<int64_t>(at_once * bytes - kSectionBytes, 0),
                                 std::max<int64_t>(config.hop_steps * size - tiles, 0));
    if (rank >= best_rank) continue;
    best_rank = rank;
    best = {static_cast<int>(size), static_cast<int>(rings), static_cast<int>(at_once)};
  }
  return best;
}

Status add_maps(const Problem& problem, const BackwardConfig& config, const Args& args,
                BackwardParams& params) {
  TensorMap* const maps[] = {&params.q, &params.k, &params.v, &params.dout, &params.dk, &params.dv};
  size_t n = 0;
  for (const MapRequest& request : map_requests(problem, config, args)) {
    Status status = cuda::make_tensor_map(spec_of(request), request.name, *maps[n++]);
    if (!status.ok()) return status;
  }
  if (config.num_stages_bias == 0) return {};
  return cuda::make_tensor_map(bias_spec(args.bias, config.block_m), "bias", params.bias_map);
}

void add_rows(const Problem& problem, const Args& args, BackwardParams& params) {
  params.out_rows = row_view(args.out, row_map(args.out, problem.layout_q));
  params.dout_rows = row_view(args.dout, row_map(args.dout, problem.layout_q));
  params.dq_rows = row_view(args.dq, row_map(args.dq, problem.layout_q));
  params.dk_rows = row_view(args.dk, row_map(args.dk, problem.layout_kv));
  params.dv_rows = row_view(args.dv, row_map(args.dv, problem.layout_kv));
  params.q_rows = row_view(args.q, row_map(args.q, problem.layout_q));
  params.k_rows = row_view(args.k, row_map(args.k, problem.layout_kv));
  params.v_rows = row_view(args.v, row_map(args.v, problem.layout_kv));
  const Extents query = query_extents(problem, args), key = key_extents(problem, args);
  params.cu_seqlens_q = int_view(query.cu_seqlens);
  params.cu_seqlens_k = int_view(key.cu_seqlens);
  params.seqused_q = int_view(query.seqused);
  params.seqused_k = int_view(key.seqused);
  params.lse = row_view(args.lse, row_statistics_map(args.lse, problem.layout_q));
  if (problem.has_dlse) {
    params.dlse = row_view(args.dlse, row_statistics_map(args.dlse, problem.layout_q));
  }
}

// Thread blocks, or clusters, of the main kernel that may be there at one time.
int places_of(const BackwardConfig& config, int num_sms) {
  return std::max(1, (num_sms - config.num_spare) / config.cluster_size);
}

// Of those that stay and draw items. Few items leave multiprocessors idle anyway.
int staying_blocks(const BackwardConfig& config, int num_items, int num_sms) {
  constexpr int kLeastRounds = 8;
  const int all = std::max(1, num_sms / config.cluster_size);
  const int blocks = num_items < kLeastRounds * all ? all : places_of(config, num_sms);
  return std::min(num_items, blocks);
}

// Blocks of convert that look at key blocks alone, behind those of query tiles.
int64_t looking_blocks(const BackwardConfig& config, int64_t key_blocks) {
  constexpr int64_t kMostLooking = 1024;
  return config.converts_early && restores(config) ? std::min(key_blocks, kMostLooking) : 0;
}

void add_lengths(const Problem& problem, const BackwardConfig& config, BackwardParams& params) {
  params.batch = static_cast<int>(problem.batch);
  params.num_heads = static_cast<int>(problem.num_heads_q);
  params.num_heads_kv = static_cast<int>(problem.num_heads_kv);
  params.group_size = static_cast<int>(problem.group_size());
  params.seqlen_q = static_cast<int>(problem.seqlen_q);
  params.seqlen_k = static_cast<int>(problem.seqlen_k);
  params.num_tiles = static_cast<int>(num_tiles(problem, config));
  params.total_tiles = static_cast<int>(total_tiles(problem, config));
  const Problem walked = walked_problem(problem);
  params.num_walked = static_cast<int>(walked.batch);
  params.walked_tiles = static_cast<int>(num_tiles(walked, config));
  params.num_chunks = static_cast<int>(walked.batch / std::max<int64_t>(problem.batch, 1));
  params.chunk_rows = bounded(problem.mask.chunk_size);
}

// `problem`: the walked one.
void add_work(const Problem& problem, const BackwardConfig& config, int num_sms,
              BackwardParams& params) {
  params.num_blocks_n = static_cast<int>(divide_up(problem.seqlen_k, cluster_keys(config)));
  const int heads = static_cast<int>(problem.batch * problem.num_heads_kv);
  params.num_items = params.num_blocks_n * heads;
  if (config.is_deterministic && !is_masked(config)) {
    const Rings rings = rings_of(problem, config, places_of(config, num_sms));
    params.ring_blocks = rings.num_blocks;
    params.num_rings = rings.num_rings;
    params.section_heads = rings.num_heads;
    params.num_items = heads * rings.num_rings * rings.num_blocks;
  } else {
    params.section_heads = static_cast<int>(
        std::min<int64_t>(heads_within(kSectionBytes, head_bytes(problem, config), heads), heads));
    if (config.mirrors_tail) {
      // Few rounds of thread blocks have no steady state that a section could end.
      constexpr int kLeastRounds = 4;
      const bool has_tail = !problem.batch_invariant &&
                            params.num_items >= kLeastRounds * num_sms / config.cluster_size;
      const int64_t least = has_tail ? std::min(heads, kLeastRounds) : 1;
      const int64_t sections = std::max(divide_up(heads, params.section_heads), least);
      params.section_heads = static_cast<int>(divide_up(heads, sections));
      params.first_mirrored = has_tail ? heads / params.section_heads - 1 : heads;
    }
  }
  params.num_sections = heads / params.section_heads;
}

void add_scale(const Problem& problem, const BackwardConfig& config, BackwardParams& params) {
  const double scale = problem.scale();
  params.scale = static_cast<float>(scale);
  params.scale_log2 = static_cast<float>(scale * kLog2eDouble);
  // What a score, or the exponent of a weight, begins with is -lse times this.
  params.inverse_scale = static_cast<float>(has_slopes(config) ? kLog2eDouble : 1 / scale);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  params.hidden = has_slopes(config) || scale > 0 ? -kInfinity : kInfinity;
}

void add_logits(const Problem& problem, const Args& args, BackwardParams& params) {
  add_terms(problem, args, params);
  if (problem.softcap > 0) {
    const double cap = double{problem.softcap};
    params.softcap_factor = static_cast<float>(problem.scale() / cap);
    params.softcap_slope = static_cast<float>(-1 / (cap * cap));
  }
  if (problem.needs_dsink) {
    params.dsink = static_cast<float*>(args.dsink.data);
    params.stride_dsink = stride_or_zero(args.dsink, 0);
  }
}

// What makes dbias and gradients of tensors that expressions read; `first`: the place of its
// kernels.
Status add_companions(const Problem& problem, const expression::DeviceModification& modification,
                      const Args& args, size_t first, std::vector<cuda::Step>& steps) {
  const std::vector<rows::Pass> passes = rows::companions_of(problem);
  if (passes.empty()) return {};
  Result<std::vector<cuda::Step>> made = rows::make_steps(problem, modification, args, passes);
  if (!made.ok()) return made.status();
  for (cuda::Step& step : made.value()) {
    step.kernel += first;
    steps.push_back(std::move(step));
  }
  return {};
}

Result<BackwardParams> make_params(const Problem& problem, const BackwardConfig& config,
                                   const expression::DeviceModification& modification,
                                   const Args& args, int num_sms) {
  BackwardParams params{};
  if (Status status = check_reach(problem, config, args); !status.ok()) return status;
  if (Status status = add_maps(problem, config, args, params); !status.ok()) return status;
  add_rows(problem, args, params);
  add_lengths(problem, config, params);
  const Problem walked = walked_problem(problem);
  add_mask(walked.mask, params);
  add_work(walked, config, num_sms, params);
  add_scale(problem, config, params);
  add_logits(problem, args, params);
  const BackwardWorkspace workspace = workspace_of(problem, config, modification);
  auto* const bytes = static_cast<std::byte*>(args.workspace);
  params.start_lse = reinterpret_cast<float*>(bytes + workspace.start_lse);
  params.start_delta = reinterpret_cast<float*>(bytes + workspace.start_delta);
  params.dq_sum = reinterpret_cast<float*>(bytes + workspace.dq_sum);
  if (config.is_deterministic) params.turns = reinterpret_cast<int*>(bytes + workspace.turns);
  params.walk = walk_view(problem, config, modification, bytes + workspace.walk);
  if (restores(config)) params.lost = reinterpret_cast<unsigned*>(bytes + workspace.lost);
  if (draws_items(config)) {
    params.items_drawn = reinterpret_cast<int*>(bytes + workspace.items_drawn);
  }
  if (has_levels(config)) {
    params.levels = reinterpret_cast<RowLevel*>(bytes + workspace.levels);
    params.far_rows = reinterpret_cast<unsigned*>(bytes + workspace.far_rows);
  }
  if (is_scaled(config)) params.peaks = reinterpret_cast<int*>(bytes + workspace.peaks);
  return params;
}

}  // namespace

BackwardWorkspace workspace_of(const Problem& problem, const BackwardConfig& config,
                               const expression::DeviceModification& modification) {
  const auto tiles = static_cast<size_t>(problem.num_heads_q * total_tiles(problem, config));
  const size_t rows = tiles * static_cast<size_t>(config.block_m);
  const auto aligned = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  BackwardWorkspace workspace{};
  workspace.start_delta = workspace.start_lse + aligned(rows * sizeof(float));
  workspace.dq_sum = workspace.start_delta + aligned(rows * sizeof(float));
  const size_t sums = tiles * static_cast<size_t>(config.num_sums);
  workspace.turns = workspace.dq_sum + sums * static_cast<size_t>(tile_units(config)) * kUnitBytes;
  const size_t turns = config.is_deterministic ? sums * static_cast<size_t>(tile_parts(config)) : 0;
  workspace.walk = workspace.turns + aligned(turns * sizeof(int));
  workspace.lost = workspace.walk + aligned(walk_bytes(problem, config, modification));
  const auto blocks = static_cast<size_t>(num_key_blocks(problem, config));
  workspace.peaks =
      workspace.lost + (restores(config) ? aligned(blocks * kLostWords * 4) : size_t{0});
  const size_t pairs = is_scaled(config) ? rows / kPrepareTokens : 0;
  workspace.items_drawn = workspace.peaks + aligned(pairs * 2 * sizeof(int));
  workspace.levels = workspace.items_drawn + aligned(draws_items(config) ? sizeof(int) : 0);
  const size_t leveled = has_levels(config) ? rows : 0;
  workspace.far_rows = workspace.levels + aligned(leveled * sizeof(RowLevel));
  workspace.end = workspace.far_rows + aligned(leveled / kFarRows * sizeof(unsigned));
  if (!rows::companions_of(problem).empty()) {  // they come last, and take it all
    workspace.end = std::max(workspace.end, rows::backward_workspace_bytes(problem));
  }
  return workspace;
}

Status check_reach(const Problem& problem, const BackwardConfig& config, const Args& args) {
  const auto check = [](const MapRequest& request) {
    return cuda::check_tensor_map(spec_of(request), request.name);
  };
  for (const MapRequest& request : map_requests(problem, config, args)) {
    if (Status status = check(request); !status.ok()) return status;
  }
  for (const MapRequest& request : row_requests(problem, args)) {
    if (Status status = check(request); !status.ok()) return status;
  }
  return {};
}

std::vector<BackwardPass> passes_of(const Problem& problem) {
  std::vector<BackwardPass> passes = {BackwardPass::prepare, BackwardPass::backward,
                                      BackwardPass::convert};
  if (problem.needs_dsink) passes.push_back(BackwardPass::sink_gradient);
  if (choose_backward_config(problem).has_mask_mod) {
    passes.push_back(BackwardPass::cover);
    passes.push_back(BackwardPass::cover_walks);
  }
  return passes;
}

Result<std::vector<cuda::Step>> make_steps(const Problem& problem, const BackwardConfig& config,
                                           const expression::DeviceModification& modification,
                                           const Args& args, int num_sms) {
  const Result<BackwardParams> made = make_params(problem, config, modification, args, num_sms);
  if (!made.ok()) return made.status();
  const BackwardParams& params = made.value();
  const std::vector<BackwardPass> passes = passes_of(problem);
  const auto step_of = [&](BackwardPass pass, int64_t blocks) {
    cuda::Step step;
    step.kernel = static_cast<size_t>(std::ranges::find(passes, pass) - passes.begin());
    step.grid.x = static_cast<unsigned>(blocks);
    step.params.resize(sizeof params);
    std::memcpy(step.params.data(), &params, sizeof params);
    return step;
  };
  const int64_t row_blocks = divide_up(int64_t{params.num_tiles} * config.block_m, kPrepareTokens);
  const int64_t head_blocks = divide_up(params.num_heads, kPrepareHeads);
  const Result<std::vector<std::byte>> modified =
      cuda::modified_params(params, modification, problem, args);
  if (!modified.ok()) return modified.status();
  cuda::Step prepare = step_of(BackwardPass::prepare, params.batch * row_blocks * head_blocks);
  if (has_levels(config)) prepare.params = modified.value();
  // Blocks that wait for each other in a ring must all run at one time, and then walk the items.
  const int64_t at_once = params.ring_blocks > 0 ? params.section_heads * params.ring_blocks
                          : draws_items(config)  ? staying_blocks(config, params.num_items, num_sms)
                                                 : params.num_items;
  cuda::Step backward = step_of(BackwardPass::backward, at_once * config.cluster_size);
  backward.cluster.x = static_cast<unsigned>(config.cluster_size);
  backward.params = modified.value();
  if (params.ring_blocks > 0) {
    backward.is_cooperative = true;
  } else {
    backward.is_programmatic = true;
  }
  const int64_t query_tiles = int64_t{params.num_walked} * params.num_heads * params.walked_tiles;
  cuda::Step convert = step_of(
      BackwardPass::convert, query_tiles + looking_blocks(config, num_key_blocks(problem, config)));
  convert.is_programmatic = true;
  if (restores(config)) convert.params = modified.value();
  std::vector<cuda::Step> steps;
  if (config.has_mask_mod) {
    const WalkView& walk = params.walk;
    const Result<std::vector<std::byte>> looked = cuda::modified_params(
        tile_cover_params(problem, config, args, walk), modification, problem, args);
    if (!looked.ok()) return looked.status();
    steps.push_back(step_of(BackwardPass::cover, num_tile_cover_blocks(walk, params.num_tiles)));
    steps.back().params = looked.value();
    steps.push_back(step_of(BackwardPass::cover_walks, num_walk_blocks(walk, params.num_blocks_n)));
    steps.back().params = modified.value();
    // They read other memory than prepare, so that all three run at one time.
    steps.back().is_programmatic = prepare.is_programmatic = true;
  }
  steps.insert(steps.end(), {prepare, backward, convert});
  if (problem.needs_dsink) steps.push_back(step_of(BackwardPass::sink_gradient, params.num_heads));
  Status status = add_companions(problem, modification, args, passes.size(), steps);
  if (!status.ok()) return status;
  return steps;
}

}  // namespace sirdar::sm90
