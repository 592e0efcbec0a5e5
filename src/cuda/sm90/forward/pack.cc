#include "cuda/sm90/forward/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "expression/emit_cuda.h"

namespace sirdar::sm90 {
namespace {

constexpr int64_t kMaxTileRows = int64_t{1} << 30;  // 32-bit positions

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t average_rows(const Problem& problem) {
  if (problem.layout_q != Layout::ragged || problem.batch == 0) return problem.seqlen_q;
  return std::min(problem.seqlen_q, divide_up(problem.total_q, problem.batch));
}

}  // namespace

Status check_packing(const Problem& problem, int num_packed_heads) {
  const auto refused = [](std::string reason) {
    return Status(StatusCode::unsupported, std::move(reason));
  };
  if (num_packed_heads == 1) return {};
  if (num_packed_heads < 1 || num_packed_heads > 128 ||
      !std::has_single_bit(static_cast<unsigned>(num_packed_heads)))
    return refused(fmt::format("{} heads are no power of two up to 128", num_packed_heads));
  const int64_t group = problem.group_size();
  if (group > num_packed_heads ? group % num_packed_heads != 0
                               : num_packed_heads >= 2 * std::max<int64_t>(group, 1))
    return refused(fmt::format("{} heads neither divide a group of {} nor hold it closely",
                               num_packed_heads, group));
  if (problem.seqlen_q * num_packed_heads > kMaxTileRows)
    return refused(fmt::format("{} heads of {} rows are more than {} rows", num_packed_heads,
                               problem.seqlen_q, kMaxTileRows));
  if (expression::modification_of(problem).mask_reads_head)
    return refused("the mask differs between heads");
  return {};
}

int heads_per_pack(const Problem& problem, const ForwardConfig& config) {
  const int64_t group = std::max<int64_t>(problem.group_size(), 1);
  return static_cast<int>(std::min<int64_t>(config.num_packed_heads, group));
}

int num_packs(const Problem& problem, const ForwardConfig& config) {
  return static_cast<int>(problem.num_heads_q) / heads_per_pack(problem, config);
}

int num_blocks_m(const Problem& problem, const ForwardConfig& config) {
  return static_cast<int>(divide_up(problem.seqlen_q, block_rows(config)));
}

int64_t busiest_rows(const Problem& problem, const ForwardConfig& config) {
  const int64_t items = problem.batch * num_packs(problem, config) *
                        divide_up(average_rows(problem), block_rows(config));
  return divide_up(items, kMultiprocessors) * block_m(config);
}

}  // namespace sirdar::sm90
