#include "cuda/sm90/forward/modified.h"

#include <fmt/format.h>

#include <algorithm>

namespace sirdar::sm90 {
namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

void add_modification(const expression::DeviceModification& modification, KernelSource& source) {
  source.definitions = modification.definition;
  source.function = "modified_forward";
  source.params_type = "ModifiedParams<Modification>";
  source.entry += "_modified";
}

KernelSource cover_source(const KernelSource& forward) {
  KernelSource source = forward;
  source.config_type = "CoverConfig";
  source.config_text = fmt::format("{{{}}}", forward.config_text);
  source.function = "cover_keys";
  source.entry = forward.entry + "_cover";
  source.threads = 32 * kCoverWarps;
  source.min_blocks = 4;
  source.shared_bytes = 0;
  source.spill_bytes_known = 0;
  return source;
}

CoverView cover_view(const Problem& problem, const ForwardConfig& config,
                     const expression::DeviceModification& modification,
                     unsigned long long* words) {
  CoverView cover{};
  if (!config.has_mask_mod) return cover;
  const bool by_batch = modification.mask_reads_batch || config.has_lengths;
  const int64_t num_blocks_m = divide_up(problem.seqlen_q, block_m(config));
  cover.words = words;
  cover.num_batches = by_batch ? static_cast<int>(problem.batch) : 1;
  cover.num_heads = modification.mask_reads_head ? static_cast<int>(problem.num_heads_q) : 1;
  // Without keys the one block that is walked has a word all the same.
  const int64_t num_blocks_n = std::max<int64_t>(divide_up(problem.seqlen_k, config.block_n), 1);
  cover.num_words = static_cast<int>(divide_up(num_blocks_n, 32));
  const int64_t words_of_head = num_blocks_m * cover.num_words;
  cover.stride_head = modification.mask_reads_head ? words_of_head : 0;
  cover.stride_batch = by_batch ? words_of_head * cover.num_heads : 0;
  return cover;
}

size_t cover_bytes(const CoverView& cover, int num_blocks_m) {
  return sizeof(unsigned long long) * static_cast<size_t>(cover.num_batches) *
         static_cast<size_t>(cover.num_heads) * static_cast<size_t>(num_blocks_m) *
         static_cast<size_t>(cover.num_words);
}

int64_t num_cover_blocks(const CoverView& cover, int num_blocks_m) {
  return divide_up(int64_t{cover.num_batches} * cover.num_heads * num_blocks_m * cover.num_words,
                   kCoverWarps);
}

}  // namespace sirdar::sm90
