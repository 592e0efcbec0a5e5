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

int64_t elements(const Axes& axes, const Problem& p) {
  return (axes.batch ? p.batch : 1) * (axes.head ? p.num_heads_q : 1) *
         (axes.query ? p.seqlen_q : 1) * (axes.key ? p.seqlen_k : 1);
}

double bytes_of(double count, DType dtype) {
  return count * static_cast<double>(size_bytes(dtype));
}

void add_bytes(const Problem& p, double rows_q, double rows_k, Cost& cost) {
  const auto heads_q = static_cast<double>(p.num_heads_q);
  const auto heads_kv = static_cast<double>(p.num_heads_kv);
  const auto d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.value_dim());
  const double q = bytes_of(rows_q * heads_q * d, p.dtype_q);
  const double k = bytes_of(rows_k * heads_kv * d, p.dtype_kv);
  const double v = bytes_of(rows_k * heads_kv * dv, p.dtype_kv);
  const double out = bytes_of(rows_q * heads_q * dv, p.output_dtype());
  const double statistics = bytes_of(rows_q * heads_q, DType::fp32);
  const double bias =
      p.has_bias ? bytes_of(static_cast<double>(elements(p.bias_axes, p)), p.dtype_bias) : 0;
  const double mask = p.has_mask_tensor ? static_cast<double>(elements(p.mask_axes, p)) : 0;
  cost.bytes_read = q + k + v + bias + mask;
  if (p.op == Op::forward) {
    cost.bytes_written =
        out + (p.needs_lse ? statistics : 0) + (p.needs_max_logit ? statistics : 0);
    return;
  }
  cost.bytes_read += 2 * out + statistics + (p.has_dlse ? statistics : 0);  // out, dout, lse, dlse
  cost.bytes_written = q + k + v;
  if (p.needs_dbias)
    cost.bytes_written += bytes_of(static_cast<double>(elements(p.bias_axes, p)), DType::fp32);
}

std::vector<SequenceLengths> full_lengths(const Problem& p) {
  const SequenceLengths longest{p.seqlen_q, p.seqlen_k};
  std::vector<SequenceLengths> lengths(static_cast<size_t>(std::min<int64_t>(p.batch, 1)), longest);
  for (SequenceLengths& one : lengths) {
    if (p.layout_q == Layout::ragged) one.q = p.total_q / p.batch;
    if (p.layout_kv == Layout::ragged) one.k = p.total_k / p.batch;
  }
  return lengths;
}

}  // namespace

Wide visible_pairs(const StructuredMask& mask, int64_t seqlen_q) {
  const Bounds bounds = bounds_without_chunk(mask);
  if (mask.has_chunk) return pairs_with_chunk(mask, bounds, seqlen_q);
  return sum_rows(bounds.los, bounds.his, 0, seqlen_q);
}

Cost cost_of(const Problem& p, std::span<const SequenceLengths> lengths) {
  const bool varies = p.layout_q != Layout::dense || p.layout_kv != Layout::dense ||
                      p.has_seqused_q || p.has_seqused_k;
  const bool is_given = !lengths.empty();
  const std::vector<SequenceLengths> assumed =
      is_given ? std::vector<SequenceLengths>() : full_lengths(p);
  if (!is_given) lengths = assumed;
  // Without lengths one sequence stands for all.
  const int64_t repeats = is_given ? 1 : p.batch;
  Cost cost;
  double rows_q = 0, rows_k = 0;
  Wide pairs = 0;
  for (const SequenceLengths& one : lengths) {
    pairs += visible_pairs(structured_mask(p.mask, one.q, one.k), one.q);
    rows_q += static_cast<double>(one.q);
    rows_k += static_cast<double>(one.k);
  }
  cost.visible_pairs = pairs * repeats * p.num_heads_q;
  const auto d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.value_dim());
  cost.flops = static_cast<double>(cost.visible_pairs) *
               (p.op == Op::forward ? 2 * d + 2 * dv : 6 * d + 4 * dv);
  const auto times = static_cast<double>(repeats);
  add_bytes(p, rows_q * times, rows_k * times, cost);
  cost.is_exact = (is_given || !varies) && p.mask_mod.empty() && masks_of_data(p).empty();
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
