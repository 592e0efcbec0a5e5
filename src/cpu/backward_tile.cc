#include "cpu/backward_tile.h"

#include <algorithm>
#include <limits>

#include "core/geometry.h"

namespace sirdar::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

BackwardTile::BackwardTile(const BackwardCall& call, BackwardScratch& scratch, int64_t b)
    : call_(call),
      scratch_(scratch),
      terms_(call.forward, scratch.terms),
      expressions_(call.forward, call.shape.terms, scratch.terms),
      b_(b),
      q_(call.forward.query.sequence(b)),
      k_(call.forward.key.sequence(b)),
      mask_(structured_mask(call.problem.mask, q_.length, k_.length)) {}

void BackwardTile::start(int64_t h, int64_t first, const RowStates* states) {
  h_ = h;
  first_ = first;
  num_rows_ = static_cast<int>(
      std::clamp<int64_t>(q_.length - first, 0, static_cast<int64_t>(call_.shape.block_m)));
  has_weights_ = false;
  Scratch& lanes = scratch_.terms;
  for (int lane = 0; lane < num_panels() * call_.shape.width; ++lane) {
    lanes.from_rows[lane] = nullptr;
    lanes.lo[lane] = lanes.hi[lane] = 0;
    lanes.document_q[lane] = 0;
    scratch_.base[lane] = kInf;
    scratch_.weight[lane] = scratch_.delta[lane] = 0;
    if (lane >= num_rows_) continue;
    const int64_t i = first + lane;
    lanes.from_rows[lane] = row_at(call_.args.q, call_.forward.q, b_, q_, i, h);
    if (call_.shape.has_dropout) {
      lanes.dropout_i[lane] = static_cast<int32_t>(i);
      lanes.dropout_h[lane] = static_cast<int32_t>(h);
    }
    terms_.set_lane(lane, b_, h, i, i + k_.length - q_.length);
    if (states != nullptr) {
      const int64_t at = states->at(call_.problem, b_, q_, h, i);
      scratch_.base[lane] = states->base[at];
      scratch_.weight[lane] = states->weight[at];
      scratch_.delta[lane] = states->delta[at];
      if (states->base[at] == kInf) continue;
      has_weights_ |= scratch_.weight[lane] != 1;
    }
    lanes.lo[lane] = mask_.lo(i);
    lanes.hi[lane] = mask_.hi(i);
  }
  load_expressions();
  for (int p = 0; p < num_panels(); ++p) {
    const int64_t lane = int64_t{p} * call_.shape.width;
    call_.kernels.pack[call_.forward.input_format][kMaxVectors - 1](
        {.from_rows = lanes.from_rows + lane,
         .panel = scratch_.tile.q_transposed + lane * call_.shape.head_dim,
         .length = call_.shape.head_dim});
  }
}

void BackwardTile::load_expressions() {
  if (num_rows_ == 0) return;
  expression::Box rows{.b = b_,
                       .h = h_,
                       .q = {first_, first_ + num_rows_},
                       .shift = k_.length - q_.length,
                       .num_heads = 1};
  expressions_.load_lanes(num_rows_, 0, rows);
  for (int index = 0; index < num_panels(); ++index) {
    rows.q = panel(index).rows;
    expressions_.set_panel(index, rows);
  }
}

BackwardTile::Panel BackwardTile::panel(int index) const {
  Panel result{};
  result.index = index;
  result.first_lane = index * call_.shape.width;
  result.num_lanes = std::min(call_.shape.width, num_rows_ - result.first_lane);
  const Scratch& lanes = scratch_.terms;
  result.is_whole = result.num_lanes == call_.shape.width;
  for (int lane = result.first_lane; lane < result.first_lane + result.num_lanes; ++lane) {
    if (lanes.hi[lane] <= lanes.lo[lane]) result.is_whole = false;
  }
  const int64_t first_row = first_ + result.first_lane;
  result.rows = {first_row, first_row + result.num_lanes};
  if (call_.problem.has_document) {
    result.documents = document_range(lanes.document_q + result.first_lane, result.num_lanes);
  }
  return result;
}

bool BackwardTile::start_block(Range block) {
  block_ = block;
  if (call_.problem.has_document)
    block_documents_ = terms_.load_documents(b_, block, scratch_.terms.keys_now.document_k);
  if (expressions_.bound_block(0, block, num_panels()) == Cover::none) return false;
  expressions_.enter_block(0, block, {0, num_rows_});
  return true;
}

PanelPart BackwardTile::part(const Panel& panel) const {
  PanelPart result;
  const Range seen = key_range(mask_, panel.rows);
  const Range shown = expressions_.seen(panel.index);
  const Range common = {max_of(seen.begin, shown.begin), min_of(seen.end, shown.end)};
  if (common.empty()) return result;
  const int64_t width = call_.shape.width;
  const auto rounded = [&](int64_t key, int64_t up) {
    return block_.begin + (key - block_.begin + up) / width * width;
  };
  result.keys = {rounded(common.begin, 0), min_of(rounded(common.end, width - 1), block_.end)};
  result.cover = coverage(mask_, panel.rows, result.keys);
  if (call_.problem.has_document)
    result.cover = both(result.cover, coverage(panel.documents, block_documents_));
  result.cover = both(result.cover, expressions_.cover(panel.index));
  if (result.keys.begin < shown.begin || result.keys.end > shown.end)
    result.cover = both(result.cover, Cover::part);
  if (!panel.is_whole) result.cover = both(result.cover, Cover::part);
  if (result.cover != Cover::none && terms_.has_pair_tensors()) {
    result.cover =
        both(result.cover, terms_.pair_cover(panel.first_lane, panel.num_lanes, result.keys));
  }
  if (result.cover == Cover::none) result.keys = {};
  return result;
}

void BackwardTile::logits(const Panel& panel, const PanelPart& part, const float* k,
                          float* scores) {
  const BackwardShape& shape = call_.shape;
  const int num_keys = static_cast<int>(part.keys.size());
  call_.backward.scores(
      {.a = k,
       .a_stride = shape.key_stride(),
       .b = scratch_.tile.q_transposed + int64_t{panel.first_lane} * shape.head_dim,
       .c = scores,
       .num_rows = num_keys,
       .depth = shape.head_dim,
       .scale = call_.forward.scale});
  if (shape.has_softcap) {
    call_.backward.softcap({.scores = scores,
                            .slope = scratch_.slope,
                            .softcap = call_.problem.softcap,
                            .num_keys = num_keys});
  }
  if (call_.problem.has_alibi || terms_.has_pair_tensors()) add_terms(panel, part, scores);
  if (!shape.has_score_mod) return;
  const int64_t count = part.keys.size() * shape.width;
  if (shape.needs_dtensors) std::copy_n(scores, count, scratch_.mod_input);
  expressions_.modify(lanes(panel), part.keys, scores, scratch_.mod_slope);
}

void BackwardTile::add_terms(const Panel& panel, const PanelPart& part, float* scores) {
  LogitArgs args{.scores = scores,
                 .max_in = scratch_.terms.new_max,
                 .max_out = scratch_.terms.new_max,
                 .num_keys = static_cast<int>(part.keys.size())};
  std::fill_n(scratch_.terms.new_max, call_.shape.width, -kInf);
  terms_.fill(args, panel.first_lane, panel.num_lanes, call_.shape.width, part.keys);
  call_.kernels.logits[kMaxVectors - 1](args);
}

void BackwardTile::keep_factors(const Panel& panel, const PanelPart& part, float* keep) const {
  const Dropout& dropout = call_.forward.dropout;
  std::fill_n(keep, part.keys.size() * call_.shape.width, static_cast<float>(dropout.keep_scale));
  call_.kernels.drop[kMaxVectors - 1]({.p = keep,
                                       .i = scratch_.terms.dropout_i + panel.first_lane,
                                       .h = scratch_.terms.dropout_h + panel.first_lane,
                                       .b = static_cast<uint32_t>(b_),
                                       .first_key = static_cast<uint32_t>(part.keys.begin),
                                       .key = {dropout.key.x, dropout.key.y},
                                       .threshold = static_cast<uint32_t>(dropout.threshold),
                                       .num_keys = static_cast<int>(part.keys.size())});
}

void BackwardTile::add_dtensors(const Panel& panel, const PanelPart& part) {
  if (!expressions_.has_slopes()) {
    std::fill_n(scratch_.term_sums, call_.shape.num_reads * call_.shape.term_stride(), 0.0f);
  }
  const int num_keys = static_cast<int>(part.keys.size());
  for (int first = 0; first < num_keys; first += kStripKeys) {
    const int64_t at = int64_t{first} * call_.shape.width, key = part.keys.begin + first;
    const int count = std::min(kStripKeys, num_keys - first);
    expressions_.find_slopes(lanes(panel), key, count, scratch_.mod_input + at);
    add_strip(panel, key, count, scratch_.dvalue + at, scratch_.mod_input + at);
  }
}

// Where pairs read the same element as others of their query, key or distance, these are summed
// first.
void BackwardTile::add_strip(const Panel& panel, int64_t first_key, int num_keys,
                             const float* dvalue, const float* scores) {
  using expression::Section;
  const auto& reads = call_.shape.terms.expressions->element_slopes->reads;
  const auto sums = call_.dtensors.sums(h_ / call_.problem.group_size());
  for (size_t n = 0; n < reads.size(); ++n) {
    const expression::ElementRead& read = reads[n];
    double* const gradient = sums[static_cast<size_t>(read.tensor)];
    if (gradient == nullptr) continue;  // a tensor without elements
    const auto slopes = expressions_.slopes_at(read.slope, lanes(panel), first_key, scores);
    call_.backward.terms({.dvalue = dvalue,
                          .slope = slopes.first,
                          .slope_stride = slopes.stride,
                          .terms = scratch_.terms_of_strip,
                          .num_keys = num_keys});
    const Section section = read.place.section;
    if (section == Section::pairs) {
      scatter_terms(panel, read, num_keys, gradient);
      continue;
    }
    // Distances begin with the last key's.
    const int64_t key = first_key + (section == Section::distances ? num_keys - 1 : 0);
    float* const to = term_sums(n) + expressions_.place_in(section, lanes(panel), key);
    call_.backward.sum_terms[static_cast<size_t>(section)](
        {.terms = scratch_.terms_of_strip, .num_keys = num_keys, .sums = to});
  }
}

// Lane by lane: keys side by side often read elements side by side.
void BackwardTile::scatter_terms(const Panel& panel, const expression::ElementRead& read,
                                 int num_keys, double* sums) const {
  const int width = call_.shape.width;
  const int32_t* const places =
      reinterpret_cast<const int32_t*>(expressions_.slopes_of(read.place));
  for (int lane = 0; lane < panel.num_lanes; ++lane) {
    const float* term = scratch_.terms_of_strip + width + lane;
    const int32_t* place = places + lane;
    for (int j = 0; j < num_keys; ++j, term += 3 * width, place += width)
      sums[*place] += static_cast<double>(*term);
  }
}

void BackwardTile::end_block() {
  if (!expressions_.has_slopes()) return;
  const auto& reads = call_.shape.terms.expressions->element_slopes->reads;
  const auto sums = call_.dtensors.sums(h_ / call_.problem.group_size());
  for (size_t n = 0; n < reads.size(); ++n) {
    double* const gradient = sums[static_cast<size_t>(reads[n].tensor)];
    if (gradient == nullptr) continue;
    const int32_t* const places =
        reinterpret_cast<const int32_t*>(expressions_.slopes_of(reads[n].place));
    const float* const terms = term_sums(n);
    const int64_t count = expressions_.count_in(reads[n].place.section);
    for (int64_t at = 0; at < count; ++at) gradient[places[at]] += static_cast<double>(terms[at]);
  }
}

BackwardTile::Masks BackwardTile::masks(const Panel& panel, const PanelPart& part) {
  Scratch& lanes = scratch_.terms;
  const auto in_run = [&](int64_t key) {
    return static_cast<int32_t>(std::clamp<int64_t>(key - part.keys.begin, 0, part.keys.size()));
  };
  for (int lane = 0; lane < call_.shape.width; ++lane) {
    lanes.lo_in_block[lane] = in_run(lanes.lo[panel.first_lane + lane]);
    lanes.hi_in_block[lane] = in_run(lanes.hi[panel.first_lane + lane]);
  }
  Masks result{lanes.lo_in_block, lanes.hi_in_block, nullptr, nullptr, nullptr};
  if (call_.problem.has_document) {
    result.document_q = lanes.document_q + panel.first_lane;
    result.document_k = lanes.keys_now.document_k + (part.keys.begin - block_.begin);
  }
  if (terms_.has_pair_tensors()) result.bias = lanes.bias;
  return result;
}

}  // namespace sirdar::cpu
