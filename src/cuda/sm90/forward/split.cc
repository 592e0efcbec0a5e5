#include "cuda/sm90/forward/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "core/geometry.h"
#include "cuda/sm90/forward/pack.h"

namespace sirdar::sm90 {
namespace {

// Of more items than this a multiprocessor the last round is an eighth of the time at most.
constexpr int64_t kMostRounds = 8;
// In the time of a key block: what an item takes besides its blocks, the second kernel, and that
// kernel's way through 16 splits (README.md has the measurements).
constexpr double kItemBlocks = 2, kCombineBlocks = 4, kCombineSplits = 16;
// So many multiprocessors that load key blocks without a pause have all of the memory's bandwidth:
// with one consumer, and with more, whose products take longer.
constexpr double kFewRowsReaders = 64, kManyRowsReaders = 96;
// Of a part; of fewer the rest is more than the keys.
constexpr int64_t kLeastKeys = 256;

// What parts wait for is memory; beyond this rings bring no more.
constexpr int kMostStages = 6;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What takes time, in that of a key block.
struct Work {
  struct Items {
    int64_t count, num_blocks;  // so many items see so many key blocks
  };
  std::vector<Items> items;  // longest first; empty: too many to be split
  double memory = 0;         // until all K and V have come from memory
  double part = 0;           // to store a part, and to read it again

  int64_t count() const {
    int64_t sum = 0;
    for (const Items& one : items) sum += one.count;
    return sum;
  }
};

int64_t average(Layout layout, int64_t seqlen, int64_t total, int64_t batch) {
  return layout != Layout::ragged || batch == 0 ? seqlen
                                                : std::min(seqlen, divide_up(total, batch));
}

// With average lengths where sequences have their own, of which ragged tensors tell.
Work work_of(const Problem& problem, const ForwardConfig& config) {
  const int64_t rows = average(problem.layout_q, problem.seqlen_q, problem.total_q, problem.batch),
                keys = average(problem.layout_kv, problem.seqlen_k, problem.total_k, problem.batch),
                heads = problem.batch * num_packs(problem, config), tile = block_rows(config);
  Work work;
  if (heads == 0 || divide_up(rows, tile) > kMostRounds * kMultiprocessors / heads) return work;
  const StructuredMask mask = structured_mask(problem.mask, rows, keys);
  const auto blocks_of = [&](Range seen) {
    return seen.empty() ? 1 : divide_up(seen.end, config.block_n) - seen.begin / config.block_n;
  };
  for (int64_t row = 0; row < rows; row += tile) {
    const Range seen = key_range(mask, Range{row, std::min(rows, row + tile)});
    work.items.push_back({heads, blocks_of(seen)});
  }
  std::ranges::sort(work.items, std::greater(), &Work::Items::num_blocks);
  const int64_t loaded =
      problem.batch * problem.num_heads_kv * blocks_of(key_range(mask, {0, rows}));
  work.memory = static_cast<double>(loaded) /
                (config.num_consumers == 1 ? kFewRowsReaders : kManyRowsReaders);
  // Bytes of a part's sums, twice, beside those of a block of K and V.
  const int64_t sums =
      std::min(rows, tile) * heads_per_pack(problem, config) * 4 * config.head_dim_v;
  work.part = 2 * static_cast<double>(sums) / (k_bytes(config) + v_bytes(config));
  return work;
}

// Until the busiest multiprocessor is done, where whoever is free takes the longest part that is
// left, and with splits until parts are added.
double busiest_blocks(const Work& work, int64_t num_splits) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at(
      {}, std::vector<double>(kMultiprocessors, 0.0));
  double last = work.memory;
  for (const Work::Items& one : work.items) {
    const int64_t blocks = divide_up(one.num_blocks, num_splits),
                  parts = one.count * divide_up(one.num_blocks, blocks);
    for (int64_t part = 0; part < parts; ++part) {
      const double end = free_at.top() + static_cast<double>(blocks) + kItemBlocks +
                         (num_splits > 1 ? work.part : 0);
      free_at.pop();
      free_at.push(end);
      last = std::max(last, end);
    }
  }
  if (num_splits == 1) return last;
  return last + kCombineBlocks + static_cast<double>(num_splits) / kCombineSplits;
}

// The number of splits with which that is least; of equals the least.
int best_splits(const Work& work, int block_n) {
  if (work.items.empty()) return 1;
  const int64_t most =
      std::min<int64_t>({kMostSplits, work.items.front().num_blocks * block_n / kLeastKeys,
                         kMostRounds * kMultiprocessors / work.count()});
  int best = 1;
  double least = busiest_blocks(work, 1);
  for (int splits = 2; splits <= most; ++splits) {
    const double blocks = busiest_blocks(work, splits);
    if (blocks < least) best = splits, least = blocks;
  }
  return best;
}

// Whether so much less is worth the second kernel and the memory.
bool pays(double split, double unsplit) { return 8 * split <= 7 * unsplit; }

}  // namespace

Status check_splitting(const Problem& problem, const ForwardConfig& config, int num_splits) {
  const auto refused = [](std::string reason) {
    return Status(StatusCode::unsupported, std::move(reason));
  };
  if (num_splits == 1) return {};
  if (num_splits < 1 || num_splits > kMostSplits)
    return refused(fmt::format("1 to {} may be", kMostSplits));
  if (config.has_mask_mod) return refused("a mask that reads data is walked as a whole");
  constexpr int64_t kMostItems = int64_t{1} << 23;  // parts, and rows of query tiles, in 32 bits
  const int64_t items = problem.batch * num_packs(problem, config) * num_blocks_m(problem, config);
  if (items > kMostItems / num_splits)
    return refused(fmt::format("up to {} parts may be, which {} query blocks make more of",
                               kMostItems, items));
  return {};
}

ForwardConfig split_config(const ForwardConfig& whole, int num_splits) {
  ForwardConfig config = whole;
  config.num_splits = num_splits;
  config.num_q_buffers = 1;
  for (int stages = 3; stages <= kMostStages; ++stages) {
    for (int ForwardConfig::*ring : {&ForwardConfig::num_stages_v, &ForwardConfig::num_stages_k}) {
      ForwardConfig deeper = config;
      deeper.*ring = std::max(deeper.*ring, stages);
      if (shared_bytes(deeper) <= kMostSharedBytes) config = deeper;
    }
  }
  return config;
}

int choose_splits(const Problem& problem, const ForwardConfig& config) {
  // What pays depends on the batch; a bias that TMA brings is worth more than most splits.
  if (problem.batch_invariant || config.num_stages_bias > 0 ||
      !check_splitting(problem, config, 2).ok())
    return 1;
  const Work work = work_of(problem, config);
  const int best = best_splits(work, config.block_n);
  return best > 1 && pays(busiest_blocks(work, best), busiest_blocks(work, 1)) ? best : 1;
}

double busiest_pairs(const Problem& problem, const ForwardConfig& config) {
  const int splits = choose_splits(problem, config);
  return busiest_blocks(work_of(problem, config), splits) * block_m(config) * config.block_n;
}

std::string splitting_note(const Problem& problem, const ForwardConfig& config) {
  constexpr const char* kWhole = "the keys of a query block are one item";
  if (Status status = check_splitting(problem, config, 2); !status.ok())
    return fmt::format("{}: {}", kWhole, status.message());
  if (!is_split(config) && problem.batch_invariant)
    return fmt::format("{}, whatever the batch", kWhole);
  if (config.num_stages_bias > 0) return fmt::format("{}, as TMA brings the bias", kWhole);
  const Work work = work_of(problem, config);
  if (work.items.empty()) return fmt::format("{}: there are enough of them", kWhole);
  constexpr const char* kWhat = "the busiest of 132 multiprocessors takes the time of";
  const double unsplit = busiest_blocks(work, 1);
  if (is_split(config)) {
    return fmt::format(
        "the keys of a query block are up to {} items: {} {:.0f} key blocks, whole {:.0f}",
        config.num_splits, kWhat, busiest_blocks(work, config.num_splits), unsplit);
  }
  const int best = best_splits(work, config.block_n);
  if (best == 1)
    return fmt::format("{}: {} {:.0f} key blocks, no less with more", kWhole, kWhat, unsplit);
  return fmt::format("{}: {} {:.0f} key blocks, with {} items {:.0f}", kWhole, kWhat, unsplit, best,
                     busiest_blocks(work, best));
}

PartsView parts_view(const Problem& problem, const ForwardConfig& config, void* memory) {
  PartsView parts{};
  const bool is_ragged = problem.layout_q == Layout::ragged;
  const int64_t rows = is_ragged ? problem.total_q : problem.batch * problem.seqlen_q;
  parts.stride_split = rows * problem.num_heads_q;
  parts.stride_batch = is_ragged ? 0 : problem.seqlen_q * problem.num_heads_q;
  parts.num_heads = static_cast<int>(problem.num_heads_q);
  parts.num_splits = config.num_splits;
  parts.by_splits = Divisor::of(config.num_splits);
  if (memory == nullptr) return parts;
  parts.results = static_cast<float*>(memory);
  parts.ends = parts.results + config.num_splits * parts.stride_split * problem.value_dim();
  return parts;
}

size_t parts_bytes(const Problem& problem, const ForwardConfig& config) {
  if (!is_split(config)) return 0;
  const PartsView parts = parts_view(problem, config, nullptr);
  const int64_t floats = config.num_splits * parts.stride_split * (problem.value_dim() + 2);
  return sizeof(float) * static_cast<size_t>(divide_up(floats, 16) * 16);  // 64 bytes
}

KernelSource combine_source(const KernelSource& forward) {
  KernelSource source;
  source.header = forward.header;
  source.scope = forward.scope;
  source.config_type = "CombineConfig";
  source.config_text = fmt::format("{{{}}}", forward.config_text);
  source.function = "combine";
  source.params_type = "ForwardParams";
  source.entry = forward.entry + "_combine";
  source.threads = 32 * kCombineRows;
  source.min_blocks = 4;
  return source;
}

int64_t num_combine_blocks(const ForwardConfig& config, const ForwardParams& params) {
  return int64_t{params.num_items} / config.num_splits * (block_m(config) / kCombineRows);
}

}  // namespace sirdar::sm90
