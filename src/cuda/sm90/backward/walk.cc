#include "cuda/sm90/backward/walk.h"

#include <algorithm>

#include "cuda/sm90/arguments.h"
#include "cuda/sm90/backward/choose.h"
#include "cuda/sm90/forward/config.h"
#include "cuda/sm90/forward/modified.h"
#include "jit/source.h"

namespace sirdar::sm90 {
namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int num_tiles(const Problem& problem, const BackwardConfig& config) {
  return static_cast<int>(divide_up(problem.seqlen_q, config.block_m));
}
int num_blocks_n(const Problem& problem, const BackwardConfig& config) {
  return static_cast<int>(divide_up(problem.seqlen_k, block_keys(config)));
}

// A forward with these tiles, as far as its cover depends on it. Halves of key blocks are looked
// at.
ForwardConfig cover_config(const BackwardConfig& config) {
  ForwardConfig cover;
  cover.element = config.element;
  cover.num_consumers = config.block_m / 64;
  cover.block_n = 64;
  cover.mask = config.mask;
  cover.has_lengths = config.has_lengths;
  cover.has_mask_mod = true;
  return cover;
}

// Tiles that 64 keys are seen in part by and whose pairs are looked at before the kernel runs.
constexpr int kMostTiles = 16;

size_t num_lists(const CoverView& cover) {
  return static_cast<size_t>(cover.num_batches) * static_cast<size_t>(cover.num_heads);
}
// Of all lists.
struct WalkBytes {
  size_t cover, walks, tiles;
};
WalkBytes bytes_of(const Problem& problem, const BackwardConfig& config, const WalkView& walk) {
  const size_t lists = num_lists(walk.cover);
  const size_t blocks = lists * static_cast<size_t>(num_blocks_n(problem, config));
  const size_t of_tile = sizeof(unsigned) * 64 * static_cast<size_t>(config.block_m) / 32;
  return {
      lists * static_cast<size_t>(num_tiles(problem, config)) *
          static_cast<size_t>(walk.cover.num_words) * sizeof(CoverWord),
      blocks * static_cast<size_t>(1 + walk.num_words) * sizeof(WalkWord),
      lists * static_cast<size_t>(walk.num_halves) * static_cast<size_t>(walk.num_tiles) * of_tile};
}

}  // namespace

WalkView walk_view(const Problem& problem, const BackwardConfig& config,
                   const expression::DeviceModification& modification, void* memory) {
  WalkView walk{};
  if (!config.has_mask_mod) return walk;
  const int tiles = num_tiles(problem, config);
  walk.cover = cover_view(problem, cover_config(config), modification, nullptr);
  walk.num_words = static_cast<int>(divide_up(tiles, 32));
  walk.num_halves = static_cast<int>(divide_up(problem.seqlen_k, 64));
  walk.num_tiles = walk.cover.is_by_key != 0 ? tiles : std::min(tiles, kMostTiles);
  walk.list_of_batch = walk.cover.stride_batch > 0 ? walk.cover.num_heads : 0;
  walk.list_of_head = walk.cover.stride_head > 0 ? 1 : 0;
  if (memory == nullptr) return walk;
  const WalkBytes bytes = bytes_of(problem, config, walk);
  auto* const begin = static_cast<std::byte*>(memory);
  walk.cover.words = reinterpret_cast<CoverWord*>(begin);
  walk.walks = reinterpret_cast<WalkWord*>(begin + bytes.cover);
  walk.tiles = reinterpret_cast<unsigned*>(begin + bytes.cover + bytes.walks);
  walk.cover.tiles = walk.tiles;
  return walk;
}

size_t walk_bytes(const Problem& problem, const BackwardConfig& config,
                  const expression::DeviceModification& modification) {
  if (!config.has_mask_mod) return 0;
  const WalkBytes bytes =
      bytes_of(problem, config, walk_view(problem, config, modification, nullptr));
  return bytes.cover + bytes.walks + bytes.tiles;
}

int64_t num_tile_cover_blocks(const WalkView& walk, int num_tiles) {
  const int64_t parts = (walk.cover.is_by_key != 0 ? int64_t{4} : 1) * walk.cover.num_words;
  return static_cast<int64_t>(num_lists(walk.cover)) * num_tiles * parts;
}
int64_t num_walk_blocks(const WalkView& walk, int num_blocks_n) {
  return static_cast<int64_t>(num_lists(walk.cover)) * num_blocks_n;
}

int64_t largest_walk_count(const Problem& problem, const BackwardConfig& config,
                           const expression::DeviceModification& modification) {
  if (!config.has_mask_mod) return 0;
  const WalkView walk = walk_view(problem, config, modification, nullptr);
  const int64_t tiles =
      static_cast<int64_t>(num_lists(walk.cover)) * walk.num_halves * walk.num_tiles;
  return std::max({num_tile_cover_blocks(walk, num_tiles(problem, config)),
                   num_walk_blocks(walk, num_blocks_n(problem, config)), tiles});
}

KernelSource tile_cover_source(const Problem& problem, const BackwardConfig& config,
                               const expression::DeviceModification& modification) {
  KernelSource source;
  source.header = "cuda/sm90/forward/cover.cuh";
  source.scope = "sirdar::sm90";
  source.definitions = modification.definition;
  source.config_text = jit::config_text(cover_config(config), "ForwardConfig");
  source.params_type = "ModifiedParams<Modification>";
  source.entry = entry_name(config);
  return cover_source(source, problem, true);
}

ForwardParams tile_cover_params(const Problem& problem, const BackwardConfig& config,
                                const Args& args, const WalkView& walk) {
  ForwardParams params{};
  const Extents query = query_extents(problem, args), key = key_extents(problem, args);
  params.cu_seqlens_q = int_view(query.cu_seqlens);
  params.cu_seqlens_k = int_view(key.cu_seqlens);
  params.seqused_q = int_view(query.seqused);
  params.seqused_k = int_view(key.seqused);
  params.seqlen_q = static_cast<int>(problem.seqlen_q);
  params.seqlen_k = static_cast<int>(problem.seqlen_k);
  add_mask(problem.mask, params);
  params.num_blocks_m = num_tiles(problem, config);
  params.cover = walk.cover;
  return params;
}

}  // namespace sirdar::sm90
