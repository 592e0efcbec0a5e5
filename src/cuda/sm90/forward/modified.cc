#include "cuda/sm90/forward/modified.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/sm90/forward/pack.h"

namespace sirdar::sm90 {
namespace {

// Key blocks of a query block whose pairs are looked at before the forward, where a mask could show
// part of any number of them: the memory of one query tile of 128 columns.
constexpr int64_t kMostTiles = 16;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A tensor with a value for each pair is larger than what is seen of them, a bit each; what is
// known of other masks must stay O(N).
bool looks_at_pairs(const Problem& problem) {
  return problem.has_mask_tensor && problem.mask_axes.query && problem.mask_axes.key;
}

int64_t num_query_blocks(const CoverView& cover, int num_blocks_m) {
  return int64_t{cover.num_batches} * cover.num_heads * num_blocks_m;
}

}  // namespace

void add_modification(const expression::DeviceModification& modification, KernelSource& source) {
  source.definitions = modification.definition;
  source.function = "modified_forward";
  source.params_type = "ModifiedParams<Modification>";
  source.entry += "_modified";
}

KernelSource cover_source(const KernelSource& forward, const Problem& problem, bool is_by_key) {
  KernelSource source = forward;
  source.config_type = "CoverConfig";
  source.config_text =
      fmt::format("{{{}, {}, {}}}", forward.config_text, looks_at_pairs(problem), is_by_key);
  source.function = "cover_keys";
  source.entry = forward.entry + "_cover";
  source.threads = 32 * cover_warps(looks_at_pairs(problem), is_by_key);
  source.min_blocks = source.threads <= 256 ? 2 : 1;
  source.shared_bytes = kCoverSharedBytes;
  source.spill_bytes_known = 0;
  return source;
}

CoverView cover_view(const Problem& problem, const ForwardConfig& config,
                     const expression::DeviceModification& modification, void* memory) {
  CoverView cover{};
  if (!config.has_mask_mod) return cover;
  const bool by_batch = modification.mask_reads_batch || config.has_lengths;
  const int64_t num_blocks_m = sm90::num_blocks_m(problem, config);
  cover.num_batches = by_batch ? static_cast<int>(problem.batch) : 1;
  cover.num_heads = modification.mask_reads_head ? static_cast<int>(problem.num_heads_q) : 1;
  // Without keys the one block that is walked has a word all the same.
  const int64_t num_blocks_n = std::max<int64_t>(divide_up(problem.seqlen_k, config.block_n), 1);
  cover.num_words = static_cast<int>(divide_up(num_blocks_n, 32));
  cover.is_by_key = looks_at_pairs(problem);
  cover.num_tiles =
      static_cast<int>(cover.is_by_key ? num_blocks_n : std::min(num_blocks_n, kMostTiles));
  cover.stride_head = modification.mask_reads_head ? num_blocks_m : 0;
  cover.stride_batch = by_batch ? num_blocks_m * cover.num_heads : 0;
  if (memory == nullptr) return cover;
  cover.words = static_cast<CoverWord*>(memory);
  const int64_t num_words =
      num_query_blocks(cover, static_cast<int>(num_blocks_m)) * cover.num_words;
  cover.tiles = reinterpret_cast<unsigned*>(cover.words + num_words);
  return cover;
}

size_t cover_bytes(const CoverView& cover, const ForwardConfig& config, int num_blocks_m) {
  const auto blocks = static_cast<size_t>(num_query_blocks(cover, num_blocks_m));
  const size_t tile_bytes = sizeof(unsigned) * static_cast<size_t>(seen_words(config));
  return blocks * (sizeof(CoverWord) * static_cast<size_t>(cover.num_words) +
                   tile_bytes * static_cast<size_t>(cover.num_tiles));
}

int64_t num_cover_blocks(const CoverView& cover, int num_blocks_m) {
  return num_query_blocks(cover, num_blocks_m) * (cover.is_by_key ? 4 * cover.num_words : 1);
}

int64_t largest_cover_count(const Problem& problem, const ForwardConfig& config,
                            const expression::DeviceModification& modification) {
  if (!config.has_mask_mod) return 0;
  const CoverView cover = cover_view(problem, config, modification, nullptr);
  const int blocks = num_blocks_m(problem, config);
  return std::max(num_cover_blocks(cover, blocks),
                  num_query_blocks(cover, blocks) * cover.num_tiles);
}

}  // namespace sirdar::sm90
