#include "cpu/tile_expressions.h"

#include <algorithm>

namespace sirdar::cpu {

using expression::Box;
using expression::Section;

TileExpressions::TileExpressions(const ForwardCall& call, const TileShape& shape,
                                 const Scratch& scratch)
    : call_(call),
      shape_(shape),
      code_(shape.expressions),
      scratch_(scratch.expressions),
      queries_(scratch.query) {
  if (code_ != nullptr) bindings_ = call.bound.bindings(*code_);
}

EvaluateArgs TileExpressions::evaluation(const Program& program, Section section,
                                         const RegisterFiles& files) const {
  const Program::Code& code = program.of(section);
  EvaluateArgs args{.instructions = code.instructions.data(),
                    .num_instructions = static_cast<int>(code.instructions.size()),
                    .section = section,
                    .distance_stride = -shape_.group,
                    .tensors = call_.bound.arrays,
                    .scalars = call_.bound.rounded_scalars};
  std::copy_n(files.at, expression::kNumSections, args.registers);
  std::copy_n(files.stride, expression::kNumSections, args.register_stride);
  return args;
}

void TileExpressions::load_lanes(const Program& program, const RegisterFiles& files,
                                 int num_lanes) const {
  EvaluateArgs args = evaluation(program, Section::lanes, files);
  const auto input = [&](expression::Place place) {
    return reinterpret_cast<int32_t*>(args.registers[0] + place.index * args.register_stride[0]);
  };
  int32_t* const b = input(expression::kSequenceInput);
  int32_t* const h = input(expression::kHeadInput);
  int32_t* const q = input(expression::kQueryInput);
  int32_t* const q_pos = input(expression::kQueryPositionInput);
  const int all_lanes = shape_.num_lanes();
  for (int lane = 0; lane < all_lanes; ++lane) {
    // A lane that stands for no query computes what another does.
    const LaneQuery& query = queries_[std::min(lane, num_lanes - 1)];
    b[lane] = static_cast<int32_t>(query.b);
    h[lane] = static_cast<int32_t>(query.h);
    q[lane] = static_cast<int32_t>(query.i);
    q_pos[lane] = static_cast<int32_t>(query.q_pos);
  }
  args.rows = all_lanes / call_.kernels.lanes;
  call_.kernels.evaluate[0](args);
}

void TileExpressions::load_lanes(int num_lanes, int first_head, const Box& rows) {
  rows_ = rows;
  first_head_ = first_head;
  if (has_score_mod()) load_lanes(*code_->score_mod, scratch_.score_mod, num_lanes);
  if (has_slope()) load_lanes(*code_->slope, scratch_.slope, num_lanes);
  if (code_ != nullptr && code_->element_slopes)
    load_lanes(*code_->element_slopes, scratch_.element_slopes, num_lanes);
  if (!has_mask_mod()) return;
  load_lanes(*code_->mask_mod, scratch_.mask_mod, num_lanes);
  bound(rows, Section::lanes, bounds_table(scratch_.tile_bounds, scratch_.key_bounds));
}

void TileExpressions::bound(const Box& box, Section section,
                            const expression::BoundsTable& table) const {
  expression::bound_section(code_->mask->tree(), bindings_, box,
                            code_->mask_nodes[static_cast<size_t>(section)], table);
}

expression::BoundsTable TileExpressions::bounds_table(expression::Bounds* lane_bounds,
                                                      expression::Bounds* key_bounds) const {
  return {code_->mask_sections, {lane_bounds, key_bounds, nullptr, scratch_.pair_bounds}};
}

void TileExpressions::set_panel(int panel, const Box& rows) {
  if (!has_mask_mod()) return;
  expression::Bounds* const lane_bounds = scratch_.panel_bounds + panel * code_->num_mask_nodes();
  bound(rows, Section::lanes, bounds_table(lane_bounds, scratch_.key_bounds));
  scratch_.is_alike[panel] =
      panel > 0 && is_alike(lane_bounds - code_->num_mask_nodes(), lane_bounds);
}

// Whether two panels look the same to every key, as far as bounds tell.
bool TileExpressions::is_alike(const expression::Bounds* a, const expression::Bounds* b) const {
  const std::vector<int32_t>& nodes = code_->mask_nodes[static_cast<size_t>(Section::lanes)];
  return std::ranges::all_of(nodes, [&](int32_t n) {
    const expression::Type type = code_->mask->tree().nodes[static_cast<size_t>(n)].type;
    return expression::is_same(type, a[n], b[n]);
  });
}

void TileExpressions::bound_keys(Range keys, expression::Bounds* key_bounds) const {
  Box box = rows_;
  box.k = keys;
  bound(box, Section::keys, bounds_table(scratch_.tile_bounds, key_bounds));
}

// What is known of queries and keys brought together; pairs read nothing else.
Cover TileExpressions::pair_cover(expression::Bounds* lane_bounds,
                                  expression::Bounds* key_bounds) const {
  const expression::BoundsTable table = bounds_table(lane_bounds, key_bounds);
  bound(rows_, Section::pairs, table);
  return expression::cover_of(table[code_->mask_sections.size() - 1].truth);
}

Position TileExpressions::shown_from(Position begin, Position end, Position block) const {
  if (!has_mask_mod()) return begin;
  for (Position leap = block; begin < end;) {
    bound_keys({begin, min_of(begin + leap, end)}, scratch_.key_bounds);
    if (pair_cover(scratch_.tile_bounds, scratch_.key_bounds) == Cover::none) {
      begin += leap;
      leap *= 2;
    } else if (leap == block) {
      return begin;
    } else {
      leap /= 2;
    }
  }
  return begin;
}

Cover TileExpressions::bound_block(int n, Range keys, int num_panels) {
  if (!has_mask_mod()) return Cover::all;
  keys_ = keys;
  has_grains_ = 0;
  const int64_t nodes = code_->num_mask_nodes();
  ShownKeys* const shown = scratch_.shown + int64_t{n} * shape_.num_panels;
  bound_keys(keys, scratch_.key_bounds);
  const Cover tile = pair_cover(scratch_.tile_bounds, scratch_.key_bounds);
  // Bounds over fewer queries are as narrow or narrower: what holds for the tile does for a panel.
  std::fill_n(shown, num_panels, ShownKeys{tile, keys, keys});
  if (tile != Cover::part) return tile;
  for (int64_t part = 0; part * kPartKeys < keys.size(); ++part) {
    const int64_t begin = keys.begin + part * kPartKeys;
    bound_keys({begin, min_of(begin + kPartKeys, keys.end)}, scratch_.part_bounds + part * nodes);
  }
  for (int panel = 0; panel < num_panels; ++panel) {
    if (scratch_.is_alike[panel]) {
      shown[panel] = shown[panel - 1];
      continue;
    }
    expression::Bounds* const lane_bounds = scratch_.panel_bounds + panel * nodes;
    shown[panel].cover = pair_cover(lane_bounds, scratch_.key_bounds);
    if (shown[panel].cover == Cover::part) shown[panel] = look_closer(lane_bounds);
  }
  return tile;
}

void TileExpressions::enter_block(int n, Range keys, Window lanes) {
  keys_ = keys;
  window_ = lanes;
  if (has_mask_mod()) shown_ = scratch_.shown + int64_t{n} * shape_.num_panels;
  has_score_block_ = has_mask_block_ = has_slope_block_ = has_element_block_ = false;
}

Cover TileExpressions::part_cover(expression::Bounds* lane_bounds, int64_t part) const {
  return pair_cover(lane_bounds, scratch_.part_bounds + part * code_->num_mask_nodes());
}

Cover TileExpressions::grain_cover(expression::Bounds* lane_bounds, int64_t grain) {
  const int64_t nodes = code_->num_mask_nodes();
  constexpr int64_t kGrains = kPartKeys / kGrainKeys;
  const int64_t part = grain / kGrains;
  if ((has_grains_ >> part & 1) == 0) {
    has_grains_ |= uint32_t{1} << part;
    for (int64_t at = part * kGrains; at < (part + 1) * kGrains; ++at) {
      const int64_t begin = keys_.begin + at * kGrainKeys;
      if (begin >= keys_.end) break;
      bound_keys({begin, min_of(begin + kGrainKeys, keys_.end)},
                 scratch_.grain_bounds + at * nodes);
    }
  }
  return pair_cover(lane_bounds, scratch_.grain_bounds + grain * nodes);
}

// Leaves out what is not seen at the ends of the block, and finds a run that is seen whole.
ShownKeys TileExpressions::look_closer(expression::Bounds* lane_bounds) {
  constexpr int64_t kGrains = kPartKeys / kGrainKeys;
  const int64_t parts = (keys_.size() + kPartKeys - 1) / kPartKeys;
  const int64_t grains = (keys_.size() + kGrainKeys - 1) / kGrainKeys;
  int64_t begin = parts, end = 0, whole_begin = parts, whole_end = parts;
  for (int64_t part = 0; part < parts; ++part) {
    const Cover cover = part_cover(lane_bounds, part);
    if (cover != Cover::none) {
      begin = min_of(begin, part);
      end = part + 1;
    }
    if (cover == Cover::all && whole_begin == parts) whole_begin = part;
    if (cover != Cover::all && whole_begin < part) whole_end = min_of(whole_end, part);
  }
  if (end == 0) return {Cover::none, {keys_.begin, keys_.begin}, {}};
  const bool has_whole = whole_begin < parts;
  // From parts to grains, where a part is neither seen whole nor hidden.
  const bool cuts_first = begin != whole_begin, cuts_last = !has_whole || end != whole_end;
  begin *= kGrains, whole_begin *= kGrains;
  end = min_of(end * kGrains, grains), whole_end = min_of(whole_end * kGrains, grains);
  while (cuts_first && begin < end && grain_cover(lane_bounds, begin) == Cover::none) ++begin;
  while (cuts_last && end > begin && grain_cover(lane_bounds, end - 1) == Cover::none) --end;
  if (has_whole) {
    while (whole_begin > begin && grain_cover(lane_bounds, whole_begin - 1) == Cover::all)
      --whole_begin;
    while (whole_end < end && grain_cover(lane_bounds, whole_end) == Cover::all) ++whole_end;
  }
  const int64_t step = shape_.key_step(), first = begin * kGrainKeys / step * step;
  const auto key_at = [&](int64_t grain) {
    return min_of(keys_.begin + grain * kGrainKeys, keys_.end);
  };
  ShownKeys shown{Cover::part, {keys_.begin + first, key_at(end)}, {}};
  if (begin == end) shown.cover = Cover::none;
  if (has_whole) shown.whole = {key_at(whole_begin), key_at(whole_end)};
  if (has_whole && shown.whole.begin == shown.keys.begin && shown.whole.end == shown.keys.end)
    shown.cover = Cover::all;
  return shown;
}

// What pairs of the block read of its keys and distances.
void TileExpressions::load_block(const Program& program, const RegisterFiles& files) const {
  EvaluateArgs args = evaluation(program, Section::keys, files);
  const int lanes = call_.kernels.lanes;
  args.rows = static_cast<int>((keys_.size() + lanes - 1) / lanes);
  int32_t* const k = reinterpret_cast<int32_t*>(args.registers[static_cast<size_t>(Section::keys)]);
  for (int j = 0; j < args.rows * lanes; ++j) k[j] = static_cast<int32_t>(keys_.begin + j);
  call_.kernels.evaluate[0](args);
  if (!program.of(Section::distances).instructions.empty()) load_distances(program, files);
}

// Distances of the window's first query from the block's last key to its first, then of the queries
// after it from the first key; all heads of the group at each.
void TileExpressions::load_distances(const Program& program, const RegisterFiles& files) const {
  EvaluateArgs args = evaluation(program, Section::distances, files);
  const int lanes = call_.kernels.lanes, group = shape_.group;
  const int64_t count = window_.count + (keys_.size() - 1) * group;
  args.rows = static_cast<int>((count + lanes - 1) / lanes);
  const auto input = [&](expression::Place place) {
    const size_t section = static_cast<size_t>(Section::distances);
    return reinterpret_cast<int32_t*>(args.registers[section] +
                                      place.index * args.register_stride[section]);
  };
  int32_t* const distance = input(expression::kDistanceInput);
  int32_t* const q = input(expression::kDistanceQueryInput);
  int32_t* const h = input(expression::kDistanceHeadInput);
  const int first = first_head_ + window_.first;
  int64_t query = rows_.q.begin + first / group - (keys_.end - 1);
  int head = first % group;
  for (int n = 0; n < args.rows * lanes; ++n) {
    q[n] = static_cast<int32_t>(query);
    distance[n] = static_cast<int32_t>(query + rows_.shift);
    h[n] = static_cast<int32_t>(rows_.h + head);
    if (++head < group) continue;
    head = 0;
    ++query;
  }
  call_.kernels.evaluate[0](args);
}

void TileExpressions::find_slopes(const Lanes& lanes, int64_t first_key, int num_keys,
                                  float* scores) {
  load_once(*code_->element_slopes, scratch_.element_slopes, has_element_block_);
  run_pairs(*code_->element_slopes, scratch_.element_slopes, lanes, first_key, num_keys, scores);
}

TileExpressions::Values TileExpressions::slopes_at(expression::Place place, const Lanes& lanes,
                                                   int64_t key, const float* scores) const {
  if (place == expression::kScore) return {scores, lanes.width};
  const float* const first = slopes_of(place) + place_in(place.section, lanes, key);
  const int64_t strides[expression::kNumSections] = {0, 1, -shape_.group, lanes.width};
  return {first, strides[static_cast<size_t>(place.section)]};
}

const float* TileExpressions::slopes_of(expression::Place place) const {
  const size_t section = static_cast<size_t>(place.section);
  const int64_t index = place.index - (place.section == Section::pairs ? 1 : 0);
  return scratch_.element_slopes.at[section] + index * scratch_.element_slopes.stride[section];
}

int64_t TileExpressions::place_in(Section section, const Lanes& lanes, int64_t key) const {
  return section == Section::lanes       ? lanes.first
         : section == Section::keys      ? key - keys_.begin
         : section == Section::distances ? distance_of(lanes, key)
                                         : 0;
}

int64_t TileExpressions::count_in(Section section) const {
  return section == Section::lanes       ? window_.count
         : section == Section::keys      ? keys_.size()
         : section == Section::distances ? window_.count + (keys_.size() - 1) * shape_.group
                                         : 0;
}

int64_t TileExpressions::distance_of(const Lanes& lanes, int64_t key) const {
  return lanes.first - window_.first + (keys_.end - 1 - key) * shape_.group;
}

void TileExpressions::run_pairs(const Program& program, const RegisterFiles& files,
                                const Lanes& lanes, int64_t first_key, int num_keys,
                                float* scores) const {
  EvaluateArgs args = evaluation(program, Section::pairs, files);
  args.rows = num_keys;
  args.registers[static_cast<size_t>(Section::lanes)] += lanes.first;
  args.registers[static_cast<size_t>(Section::keys)] += first_key - keys_.begin;
  args.registers[static_cast<size_t>(Section::distances)] += distance_of(lanes, first_key);
  args.scores = scores;
  call_.kernels.evaluate[lanes.vectors - 1](args);
}

void TileExpressions::load_once(const Program& program, const RegisterFiles& files,
                                bool& is_loaded) const {
  if (!is_loaded) load_block(program, files);
  is_loaded = true;
}

void TileExpressions::modify(const Lanes& lanes, Range keys, float* scores, float* slopes) {
  load_once(*code_->score_mod, scratch_.score_mod, has_score_block_);
  load_once(*code_->slope, scratch_.slope, has_slope_block_);
  const int num_keys = static_cast<int>(keys.size());
  for (int first = 0; first < num_keys; first += kStripKeys) {
    const int count = std::min(kStripKeys, num_keys - first);
    const int64_t at = int64_t{first} * lanes.width;
    std::copy_n(scores + at, int64_t{count} * lanes.width, slopes + at);
    run_pairs(*code_->slope, scratch_.slope, lanes, keys.begin + first, count, slopes + at);
    run_pairs(*code_->score_mod, scratch_.score_mod, lanes, keys.begin + first, count, scores + at);
  }
}

void TileExpressions::apply(const Lanes& lanes, Range keys, const MaskArgs& masks) {
  const bool is_masked = cover(lanes.panel) == Cover::part;
  if (has_score_mod()) load_once(*code_->score_mod, scratch_.score_mod, has_score_block_);
  MaskArgs strip = masks;
  const int num_keys = static_cast<int>(keys.size());
  for (int first = 0; first < num_keys; first += kStripKeys) {
    const int64_t at = int64_t{first} * lanes.width;
    strip.scores = masks.scores + at;
    strip.num_keys = std::min(kStripKeys, num_keys - first);
    strip.first_key = first;
    if (has_score_mod())
      run_pairs(*code_->score_mod, scratch_.score_mod, lanes, keys.begin + first, strip.num_keys,
                strip.scores);
    if (masks.document_k != nullptr) strip.document_k = masks.document_k + first;
    if (masks.bias != nullptr) strip.bias = masks.bias + at;
    if (is_masked) {
      const Visible rows = visible(lanes, keys.begin + first, strip.num_keys);
      strip.visible = rows.first;
      strip.visible_stride = rows.stride;
    }
    call_.kernels.mask[lanes.vectors - 1](strip);
    strip.max_in = strip.max_out;
  }
}

TileExpressions::Visible TileExpressions::visible(const Lanes& lanes, int64_t first_key,
                                                  int num_keys) {
  const Program& program = *code_->mask_mod;
  const RegisterFiles& files = scratch_.mask_mod;
  load_once(program, files, has_mask_block_);
  run_pairs(program, files, lanes, first_key, num_keys, nullptr);
  const size_t section = static_cast<size_t>(program.result.section);
  const bool by_distance = program.result.section == Section::distances;
  const float* file = files.at[section];
  file += (program.result.index - (by_distance ? 0 : 1)) * files.stride[section];
  if (by_distance) file += distance_of(lanes, first_key);
  return {reinterpret_cast<const int32_t*>(file), by_distance ? -shape_.group : lanes.width};
}

}  // namespace sirdar::cpu
