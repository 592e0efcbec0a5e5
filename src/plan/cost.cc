#include "plan/cost.h"

#include <algorithm>
#include <vector>

#include "core/geometry.h"
#include "plan/tiles.h"

namespace sirdar {
namespace {

// A bound of the visible interval, as a line in q: q * slope + offset, slope 0 or 1.
struct Line {
  int64_t slope, offset;
  int64_t at(int64_t q) const { return slope * q + offset; }
};

// Rows at which one of two lines overtakes the other: there a sum over rows may bend.
void add_bends(const std::vector<Line>& lines, std::vector<int64_t>& bends) {
  for (const Line& a : lines)
    for (const Line& b : lines)
      if (a.slope == 1 && b.slope == 0) {
        bends.push_back(b.offset - a.offset);
        bends.push_back(b.offset - a.offset + 1);
      }
}

// Sum over q in [begin, end) of max(0, min(his) - max(los)). Between bends every row's length lies
// on one line, so the sum is the mean of the ends times the rows; of whole steps, so it is whole.
Wide sum_rows(const std::vector<Line>& los, const std::vector<Line>& his, int64_t begin,
              int64_t end) {
  if (begin >= end) return 0;
  std::vector<Line> lines = los;
  lines.insert(lines.end(), his.begin(), his.end());
  std::vector<int64_t> bends{begin, end};
  add_bends(lines, bends);
  std::sort(bends.begin(), bends.end());
  const auto length = [&](int64_t q) {
    int64_t lo = INT64_MIN, hi = INT64_MAX;
    for (const Line& line : los) lo = std::max(lo, line.at(q));
    for (const Line& line : his) hi = std::min(hi, line.at(q));
    return std::max<int64_t>(0, hi - lo);
  };
  Wide sum = 0;
  for (size_t i = 0; i + 1 < bends.size(); ++i) {
    const int64_t first = std::clamp(bends[i], begin, end);
    const int64_t last = std::clamp(bends[i + 1], begin, end) - 1;
    if (first > last) continue;
    sum += (Wide{length(first)} + length(last)) * (last - first + 1) / 2;
  }
  return sum;
}

struct Bounds {
  std::vector<Line> los, his;
};

Bounds bounds_without_chunk(const StructuredMask& mask) {
  Bounds bounds{{{0, 0}}, {{0, mask.length.seqlen_k}}};
  if (mask.is_causal) bounds.his.push_back({1, mask.causal.shift + 1});
  if (mask.has_window && mask.window.left < kUnbounded)
    bounds.los.push_back({1, mask.window.shift - mask.window.left});
  if (mask.has_window && mask.window.right < kUnbounded)
    bounds.his.push_back({1, mask.window.shift + mask.window.right + 1});
  return bounds;
}

// Rows whose position falls into one chunk, and the keys of that chunk.
Wide pairs_of_chunk(const StructuredMask& mask, const Bounds& bounds, int64_t seqlen_q,
                    int64_t chunk) {
  const int64_t size = mask.chunk.size, shift = mask.chunk.shift;
  Bounds inside = bounds;
  inside.los.push_back({0, chunk * size});
  inside.his.push_back({0, (chunk + 1) * size});
  const int64_t begin = std::max<int64_t>(0, chunk * size - shift);
  const int64_t end = std::min(seqlen_q, (chunk + 1) * size - shift);
  return sum_rows(inside.los, inside.his, begin, end);
}

Wide pairs_with_chunk(const StructuredMask& mask, const Bounds& bounds, int64_t seqlen_q) {
  const int64_t size = mask.chunk.size, shift = mask.chunk.shift;
  const int64_t seqlen_k = mask.length.seqlen_k;
  if (seqlen_q == 0 || seqlen_k == 0) return 0;
  if (size >= kUnbounded)  // all positions from 0 on are in one chunk
    return sum_rows(bounds.los, bounds.his, std::max<int64_t>(0, -shift), seqlen_q);
  const int64_t first = std::max<int64_t>(0, floor_div(shift, size));
  const int64_t last = min_of(floor_div(seqlen_q - 1 + shift, size), (seqlen_k - 1) / size);
  if (first > last) return 0;
  // The first and the last chunk may be cut; between them all are alike.
  Wide sum = pairs_of_chunk(mask, bounds, seqlen_q, first);
  if (last > first) sum += pairs_of_chunk(mask, bounds, seqlen_q, last);
  if (last - first > 1)
    sum += pairs_of_chunk(mask, bounds, seqlen_q, first + 1) * (last - first - 1);
  return sum;
}

double bytes_of(double count, DType dtype) {
  return count * static_cast<double>(size_bytes(dtype));
}

double elements(const Axes& axes, const Problem& p) {
  const auto size = [](bool is_there, int64_t count) {
    return is_there ? static_cast<double>(count) : 1;
  };
  return size(axes.batch, p.batch) * size(axes.head, p.num_heads_q) * size(axes.query, p.seqlen_q) *
         size(axes.key, p.seqlen_k);
}

// Elements of a mask or bias that a visible pair has: of axes that are broadcast the mean, which is
// what all have where sequences and heads are alike, and less than what they share elsewhere.
double seen_elements(const Axes& axes, const Problem& p, const Work& work) {
  const auto heads_q = static_cast<double>(p.num_heads_q);
  const auto heads_kv = static_cast<double>(p.num_heads_kv);
  if (p.batch == 0 || p.num_heads_q == 0) return 0;
  const double of_a_head = axes.query && axes.key ? static_cast<double>(work.pairs) / heads_q
                           : axes.query           ? work.seen_q / heads_q
                           : axes.key             ? work.seen_k / heads_kv
                           : work.pairs > 0       ? static_cast<double>(p.batch)
                                                  : 0;
  return of_a_head * (axes.head ? heads_q : 1) / (axes.batch ? 1 : static_cast<double>(p.batch));
}

void add_bytes(const Problem& p, const Work& work, Cost& cost) {
  const auto d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.value_dim());
  const auto statistics = [](double rows) { return bytes_of(rows, DType::fp32); };
  cost.bytes_read = bytes_of(work.seen_q * d, p.dtype_q) + bytes_of(work.seen_k * d, p.dtype_kv) +
                    bytes_of(work.seen_k * dv, p.dtype_kv);
  if (p.has_bias) cost.bytes_read += bytes_of(seen_elements(p.bias_axes, p, work), p.dtype_bias);
  if (p.has_mask_tensor) cost.bytes_read += seen_elements(p.mask_axes, p, work);
  if (p.op == Op::forward) {
    const int num_statistics = (p.needs_lse ? 1 : 0) + (p.needs_max_logit ? 1 : 0);
    cost.bytes_written =
        bytes_of(work.rows_q * dv, p.output_dtype()) + num_statistics * statistics(work.rows_q);
    return;
  }
  cost.bytes_read += 2 * bytes_of(work.seen_q * dv, p.output_dtype()) +  // out, dout
                     (p.has_dlse ? 2 : 1) * statistics(work.seen_q);     // lse, dlse
  cost.bytes_written = bytes_of(work.rows_q * d, p.dtype_q) +
                       bytes_of(work.rows_k * d, p.dtype_kv) +
                       bytes_of(work.rows_k * dv, p.dtype_kv);
  if (p.needs_dbias) cost.bytes_written += statistics(elements(p.bias_axes, p));
}

// A side's rows without its lengths: `num_longer` sequences of `length` + 1 rows, then `length`
// ones.
struct Share {
  int64_t length = 0, num_longer = 0;
  int64_t of(int64_t sequence) const { return length + (sequence < num_longer ? 1 : 0); }
};
Share share_of(Layout layout, int64_t seqlen, int64_t total, int64_t batch) {
  if (layout != Layout::ragged) return {seqlen, 0};
  return {total / batch, total % batch};
}

// Of every sequence at full length: at most three different ones stand for all.
Work full_work(const Problem& p) {
  Work work;
  if (p.batch == 0) return work;
  const Share q = share_of(p.layout_q, p.seqlen_q, p.total_q, p.batch);
  const Share k = share_of(p.layout_kv, p.seqlen_k, p.total_k, p.batch);
  const auto [first, second] = std::minmax(q.num_longer, k.num_longer);
  int64_t begin = 0;
  for (const int64_t end : {first, second, p.batch}) {
    if (end == begin) continue;
    Work one;
    add_sequence(p, structured_mask(p.mask, q.of(begin), k.of(begin)), q.of(begin), one);
    const auto count = static_cast<double>(end - begin);
    work.pairs += one.pairs * (end - begin);
    work.rows_q += one.rows_q * count;
    work.rows_k += one.rows_k * count;
    work.seen_q += one.seen_q * count;
    work.seen_k += one.seen_k * count;
    begin = end;
  }
  return work;
}

// Do the sizes tell every sequence's length? A ragged side that is full has no shorter one.
bool tells_lengths(Layout layout, int64_t seqlen, int64_t total, int64_t batch) {
  return layout == Layout::dense ||
         (layout == Layout::ragged && Wide{batch} * seqlen == Wide{total});
}

}  // namespace

Wide visible_pairs(const StructuredMask& mask, int64_t seqlen_q) {
  const Bounds bounds = bounds_without_chunk(mask);
  if (mask.has_chunk) return pairs_with_chunk(mask, bounds, seqlen_q);
  return sum_rows(bounds.los, bounds.his, 0, seqlen_q);
}

void add_sequence(const Problem& p, const StructuredMask& mask, int64_t seqlen_q, Work& work) {
  // Neither end of a row's interval ever decreases, and no key between two intervals is left out.
  const Range keys = key_range(mask, Range{0, seqlen_q});
  Range rows;
  if (!keys.empty())
    rows = {query_range(mask, keys.begin, seqlen_q).begin,
            query_range(mask, keys.end - 1, seqlen_q).end};
  const auto heads_q = static_cast<double>(p.num_heads_q);
  const auto heads_kv = static_cast<double>(p.num_heads_kv);
  work.pairs += visible_pairs(mask, seqlen_q) * p.num_heads_q;
  work.rows_q += heads_q * static_cast<double>(seqlen_q);
  work.rows_k += heads_kv * static_cast<double>(mask.length.seqlen_k);
  work.seen_q += heads_q * static_cast<double>(rows.size());
  work.seen_k += heads_kv * static_cast<double>(keys.size());
}

Cost cost_of(const Problem& p, const Work& work) {
  const auto d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.value_dim());
  Cost cost;
  cost.visible_pairs = work.pairs;
  cost.flops =
      static_cast<double>(work.pairs) * (p.op == Op::forward ? 2 * d + 2 * dv : 6 * d + 4 * dv);
  add_bytes(p, work, cost);
  return cost;
}

Cost cost_of(const Problem& p, std::span<const SequenceLengths> lengths) {
  const bool varies = !tells_lengths(p.layout_q, p.seqlen_q, p.total_q, p.batch) ||
                      !tells_lengths(p.layout_kv, p.seqlen_k, p.total_k, p.batch) ||
                      p.has_seqused_q || p.has_seqused_k;
  const bool is_given = !lengths.empty();
  Work work = is_given ? Work() : full_work(p);
  for (const SequenceLengths& one : lengths)
    add_sequence(p, structured_mask(p.mask, one.q, one.k), one.q, work);
  Cost cost = cost_of(p, work);
  cost.is_upper_bound = is_given || !varies;
  cost.is_exact = cost.is_upper_bound && p.mask_mod.empty() && masks_of_data(p).empty();
  return cost;
}

std::optional<Peaks> recorded_peaks(const Device& device, DType dtype) {
  struct Row {
    std::string_view name;
    double bf16, fp8, fp32, bytes;  // dense tensor-core FLOP/s (fp32: without them), bytes/s
  };
  constexpr Row kRows[] = {{"NVIDIA H200", 989.4e12, 1978.9e12, 66.9e12, 4.8e12},
                           {"NVIDIA H100 80GB HBM3", 989.4e12, 1978.9e12, 66.9e12, 3.35e12},
                           {"NVIDIA A100-SXM4-80GB", 312e12, 312e12, 19.5e12, 2.039e12}};
  for (const Row& row : kRows) {
    if (row.name != device.name) continue;
    const bool is_fp8 = size_bytes(dtype) == 1;
    return Peaks{dtype == DType::fp32 ? row.fp32 : is_fp8 ? row.fp8 : row.bf16, row.bytes};
  }
  return std::nullopt;
}

double roofline_seconds(const Cost& cost, const Peaks& peaks) {
  return std::max(cost.flops / peaks.flops_per_s, cost.bytes() / peaks.bytes_per_s);
}

}  // namespace sirdar
