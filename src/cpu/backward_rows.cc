#include "cpu/backward_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/geometry.h"

namespace sirdar::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// From here on the rounding of an fp32 lse, which exp would turn into a relative error of 4e-6 and
// more of every weight, is not taken to mean anything: the row's own softmax is made again.
constexpr float kLargeLse = 128;

// The part of the saved softmax that these keys hold; 1 if the saved lse is this row's own,
// rounded.
double share_of(double own_lse, double saved_lse) {
  const double difference = own_lse - saved_lse;
  if (std::abs(difference) <= std::ldexp(std::abs(own_lse), -23)) return 1;
  return std::exp(difference);
}

class RowPass {
 public:
  RowPass(const BackwardCall& call, BackwardScratch& scratch, int64_t b, int64_t h, int64_t tile)
      : call_(call), scratch_(scratch), tile_(call, scratch, b), b_(b), h_(h), index_(tile) {}

  void run() {
    const int64_t begin = index_ * call_.shape.block_m;
    const int64_t live_end = std::min<int64_t>(begin + call_.shape.block_m, tile_.queries().length);
    if (begin < live_end) dot_rows(begin, static_cast<int>(live_end - begin));
    bool has_large = false;
    for (int64_t i = begin; i < live_end; ++i) has_large |= set_row(i);
    if (has_large) {
      soften(begin);
      for (int64_t i = begin; i < live_end; ++i) set_large_row(i, static_cast<int>(i - begin));
    }
    if (call_.problem.needs_dsink) {
      const int64_t at = (b_ * call_.problem.num_heads_q + h_) * call_.query_tiles() + index_;
      call_.rows.dsink[at] = dsink_;
    }
  }

 private:
  int64_t at(int64_t i) const { return call_.rows.at(call_.problem, b_, tile_.queries(), h_, i); }
  float saved_lse(int64_t i) const {
    return statistic_at(call_.args.lse, call_.lse, b_, tile_.queries(), i, h_);
  }
  double sink() const {
    const TensorView& view = call_.args.sink;
    if (!call_.problem.has_sink) return -kInf;
    return static_cast<const float*>(view.data)[h_ * stride_or_zero(view, 0)];
  }
  void set(int64_t i, float base, float weight, float delta, double sink_weight) {
    const int64_t row = at(i);
    call_.rows.base[row] = base;
    call_.rows.weight[row] = weight;
    call_.rows.delta[row] = delta;
    if (call_.problem.needs_dsink && base != kInf) dsink_ -= sink_weight * delta;
  }
  void set_empty(int64_t i) { set(i, kInf, 0, 0, 0); }

  // Rows of dout with those of out, into scratch.
  void dot_rows(int64_t begin, int num_rows) {
    const int width = call_.shape.width, columns = call_.shape.head_dim_v;
    const auto& pack = call_.kernels.pack[call_.forward.output_format][kMaxVectors - 1];
    for (int first = 0; first < num_rows; first += width) {
      for (int lane = first; lane < first + width; ++lane) {
        scratch_.dout_rows[lane] = scratch_.out_rows[lane] = nullptr;
        if (lane >= num_rows) continue;
        const Sequence& q = tile_.queries();
        const int64_t i = begin + lane;
        scratch_.dout_rows[lane] = row_at(call_.args.dout, call_.dout, b_, q, i, h_);
        scratch_.out_rows[lane] = row_at(call_.args.out, call_.out, b_, q, i, h_);
      }
      pack({.from_rows = scratch_.dout_rows + first,
            .panel = scratch_.tile.dout_transposed,
            .length = columns});
      pack(
          {.from_rows = scratch_.out_rows + first, .panel = scratch_.tile.dout, .length = columns});
      call_.backward.dot({.a = scratch_.tile.dout_transposed,
                          .b = scratch_.tile.dout,
                          .sums = scratch_.delta + first,
                          .depth = columns});
    }
  }

  // False, or true if the row is left to set_large_row().
  bool set_row(int64_t i) {
    const float lse = saved_lse(i);
    if (std::isinf(lse)) {
      set_empty(i);
      return false;
    }
    const Sequence& q = tile_.queries();
    float delta = scratch_.delta[i - index_ * call_.shape.block_m];
    if (call_.problem.has_dlse) delta -= statistic_at(call_.args.dlse, call_.dlse, b_, q, i, h_);
    if (is_large(lse)) {
      call_.rows.delta[at(i)] = delta;
      return true;
    }
    set(i, lse, 1, delta, call_.problem.needs_dsink ? std::exp(sink() - lse) : 0);
    return false;
  }

  static bool is_large(float lse) { return std::abs(lse) > kLargeLse && !std::isinf(lse); }

  void set_large_row(int64_t i, int lane) {
    const float lse = saved_lse(i);
    if (!is_large(lse)) return;
    const float row_max = scratch_.terms.total.row_max[lane];
    const double row_sum = scratch_.terms.total.row_sum[lane];
    const double level = std::max<double>(row_max, sink());
    if (level == -kInf) return set_empty(i);
    const double own_weight = row_sum == 0 ? 0 : std::exp(row_max - level);
    const double sum = row_sum * own_weight + std::exp(sink() - level);
    const double share = share_of(level + std::log(sum), lse);
    // A row whose keys weigh nothing still gives the sink its gradient; one with a score of +inf is
    // NaN.
    const float base = row_max == -kInf  ? 0
                       : row_max == kInf ? std::numeric_limits<float>::quiet_NaN()
                                         : row_max;
    set(i, base, static_cast<float>(own_weight / sum * share), call_.rows.delta[at(i)],
        std::exp(sink() - level) / sum * share);
  }

  // Maximum and sum of every row of the tile, as the forward makes them, into scratch.terms.total.
  void soften(int64_t begin) {
    tile_.start(h_, begin, nullptr);
    const AccumulatorState& state = scratch_.terms.total;
    std::fill_n(state.row_max, call_.shape.block_m, -kInf);
    std::fill_n(state.row_sum, call_.shape.block_m, 0.0f);
    const Range seen = tile_.seen();
    const int64_t block_n = call_.shape.block_n;
    const Sequence& k = tile_.keys();
    for (Position key = seen.begin / block_n * block_n; key < min_of(seen.end, k.length);
         key += block_n) {
      const Range block{key, min_of(key + block_n, k.length)};
      if (!tile_.start_block(block)) continue;
      const int64_t head_kv = h_ / call_.problem.group_size();
      call_.backward.load_rows[call_.forward.input_format](
          {.rows = row_at(call_.args.k, call_.forward.k, b_, k, key, head_kv),
           .row_stride = call_.forward.k.stride_row,
           .panels = scratch_.k,
           .panel_stride = call_.shape.key_stride(),
           .num_rows = static_cast<int>(block.size()),
           .columns = call_.shape.head_dim});
      for (int p = 0; p < tile_.num_panels(); ++p) soften_panel(tile_.panel(p), block);
    }
  }

  void soften_panel(const BackwardTile::Panel& panel, Range block) {
    const PanelPart part = tile_.part(panel);
    if (part.cover == Cover::none) return;
    const int num_keys = static_cast<int>(part.keys.size());
    tile_.logits(panel, part, scratch_.k + (part.keys.begin - block.begin) * call_.shape.width,
                 scratch_.weights);
    const AccumulatorState& state = scratch_.terms.total;
    float* row_max = state.row_max + panel.first_lane;
    LogitArgs args{.scores = scratch_.weights,
                   .max_in = row_max,
                   .max_out = scratch_.terms.new_max,
                   .num_keys = num_keys};
    if (part.cover == Cover::part) {
      mask_panel(panel, part, args);
    } else {
      call_.kernels.logits[kMaxVectors - 1](args);
    }
    call_.kernels.softmax[kMaxVectors - 1]({.scores = scratch_.weights,
                                            .max_in = row_max,
                                            .max_out = scratch_.terms.new_max,
                                            .row_sum = state.row_sum + panel.first_lane,
                                            .alpha = scratch_.terms.alpha,
                                            .num_keys = num_keys});
    std::copy_n(scratch_.terms.new_max, call_.shape.width, row_max);
  }

  // In strips, as a mask_mod is looked at.
  void mask_panel(const BackwardTile::Panel& panel, const PanelPart& part,
                  const LogitArgs& scores) {
    const BackwardTile::Masks masks = tile_.masks(panel, part);
    MaskArgs args{.max_in = scores.max_in,
                  .max_out = scores.max_out,
                  .lo = masks.lo,
                  .hi = masks.hi,
                  .document_q = masks.document_q};
    for (int first = 0; first < scores.num_keys; first += kStripKeys) {
      const int64_t at = int64_t{first} * call_.shape.width;
      args.num_keys = std::min(kStripKeys, scores.num_keys - first);
      args.first_key = first;
      args.scores = scores.scores + at;
      if (masks.bias != nullptr) args.bias = masks.bias + at;
      if (masks.document_k != nullptr) args.document_k = masks.document_k + first;
      if (tile_.is_cut(panel, part)) {
        const auto rows = tile_.visible(panel, part.keys.begin + first, args.num_keys);
        args.visible = rows.first;
        args.visible_stride = rows.stride;
      }
      call_.kernels.mask[kMaxVectors - 1](args);
      args.max_in = args.max_out;
    }
  }

  const BackwardCall& call_;
  BackwardScratch& scratch_;
  BackwardTile tile_;
  int64_t b_, h_, index_;
  double dsink_ = 0;
};

}  // namespace

void prepare_rows(const BackwardCall& call, BackwardScratch& scratch, int64_t b, int64_t h,
                  int64_t tile) {
  RowPass(call, scratch, b, h, tile).run();
}

}  // namespace sirdar::cpu
