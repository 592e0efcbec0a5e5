#include "cuda/sm90/backward/walk.h"

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

// A forward with these tiles, as far as its cover depends on it.
ForwardConfig cover_config(const BackwardConfig& config) {
  ForwardConfig cover;
  cover.element = config.element;
  cover.num_consumers = config.block_m / 64;
  cover.block_n = block_keys(config);
  cover.mask = config.mask;
  cover.has_lengths = config.has_lengths;
  cover.has_mask_mod = true;
  return cover;
}

size_t num_lists(const CoverView& cover) {
  return static_cast<size_t>(cover.num_batches) * static_cast<size_t>(cover.num_heads);
}
size_t walks_bytes(const WalkView& walk, int blocks) {
  return num_lists(walk.cover) * static_cast<size_t>(blocks) * static_cast<size_t>(walk.num_words) *
         sizeof(WalkWord);
}
size_t adders_bytes(const WalkView& walk, int tiles) {
  return num_lists(walk.cover) * static_cast<size_t>(tiles) *
         static_cast<size_t>(walk.cover.num_words) * sizeof(unsigned);
}

}  // namespace

WalkView walk_view(const Problem& problem, const BackwardConfig& config,
                   const expression::DeviceModification& modification, void* memory) {
  WalkView walk{};
  if (!config.has_mask_mod) return walk;
  const int tiles = num_tiles(problem, config);
  walk.cover = cover_view(problem, cover_config(config), modification, memory);
  walk.num_words = static_cast<int>(divide_up(tiles, 32));
  walk.list_of_batch = walk.cover.stride_batch > 0 ? walk.cover.num_heads : 0;
  walk.list_of_head = walk.cover.stride_head > 0 ? 1 : 0;
  if (memory == nullptr) return walk;
  auto* const bytes =
      static_cast<std::byte*>(memory) + cover_bytes(walk.cover, cover_config(config), tiles);
  walk.walks = reinterpret_cast<WalkWord*>(bytes);
  walk.adders =
      reinterpret_cast<unsigned*>(bytes + walks_bytes(walk, num_blocks_n(problem, config)));
  return walk;
}

size_t walk_bytes(const Problem& problem, const BackwardConfig& config,
                  const expression::DeviceModification& modification) {
  if (!config.has_mask_mod) return 0;
  const WalkView walk = walk_view(problem, config, modification, nullptr);
  const int tiles = num_tiles(problem, config);
  return cover_bytes(walk.cover, cover_config(config), tiles) +
         walks_bytes(walk, num_blocks_n(problem, config)) + adders_bytes(walk, tiles);
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
  return cover_source(source, problem);
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
