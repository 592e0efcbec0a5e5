#include "cuda/sm90/forward/last_round.h"

#include <algorithm>

#include "cuda/sm90/forward/pack.h"

namespace sirdar::sm90 {
namespace {

// In clock cycles, for a tile of so many rows by so many keys (README.md): what the tensor core
// multiplies and the multiprocessor takes exponentials of in one, and what shares cost besides.
constexpr int64_t kPairsOfColumns = 2048, kPairs = 9, kShareCycles = 13000;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

bool shares_last_round(const Problem& problem, const ForwardConfig& config) {
  ForwardConfig sharing = config;
  sharing.shares_last_round = true;
  if (problem.batch_invariant || !is_valid(sharing)) return false;
  // Others are not measured; those of four consumers spill beside lse.
  if (config.has_logits || config.softmax != Softmax::guarded || config.num_consumers == 3)
    return false;
  if (config.num_consumers > 2 && config.writes_lse) return false;
  const int64_t items = problem.batch * num_packs(problem, config) * num_blocks_m(problem, config);
  const int64_t rounds = items / kMultiprocessors, rest = items % kMultiprocessors;
  if (rounds == 0 || rest == 0) return false;
  const int64_t blocks = divide_up(problem.seqlen_k, config.block_n),
                share = divide_up(rest * blocks, kMultiprocessors);
  const int64_t pairs = int64_t{block_m(config)} * config.block_n,
                columns = config.head_dim + config.head_dim_v,
                block_cycles = std::max(pairs * columns / kPairsOfColumns, pairs / kPairs);
  const int64_t saved = (blocks - share) * block_cycles - kShareCycles;
  return 200 * saved >= (rounds + 1) * blocks * block_cycles;  // half a percent
}

size_t slot_bytes(const ForwardConfig& config) {
  return config.shares_last_round ? sizeof(float) * size_t{kMostSlots} * slot_floats(config) : 0;
}

void share_last_round(const ForwardConfig& config, int grid, void* slots, ForwardParams& params) {
  LastRound& last = params.last;
  const int rounds = params.num_items / grid;
  last.sums = static_cast<float*>(slots);
  last.grid = grid;
  last.first_item = rounds * grid;
  last.num_items = params.num_items - last.first_item;
  last.num_blocks = static_cast<int>(divide_up(params.seqlen_k, config.block_n));
  last.share = static_cast<int>(divide_up(int64_t{last.num_items} * last.num_blocks, grid));
  last.by_blocks = Divisor::of(last.num_blocks);
  if (last.num_items > 0) params.num_items = last.first_item + 2 * grid;
}

}  // namespace sirdar::sm90
