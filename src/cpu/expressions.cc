#include "cpu/expressions.h"

#include <algorithm>
#include <limits>

#include "core/geometry.h"
#include "core/memory.h"
#include "cpu/scratch.h"
#include "expression/slope.h"
#include "expression/translation.h"

namespace sirdar::cpu {

ElementArray element_array(const TensorView& view) {
  ElementArray array{.data = view.data, .is_narrow = true};
  Wide reach = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    const int64_t size = view.shape[static_cast<size_t>(axis)];
    array.is_empty |= size < 1;
    // An index has 32 bits.
    array.last[axis] =
        static_cast<int32_t>(std::clamp<int64_t>(size - 1, 0, std::numeric_limits<int32_t>::max()));
    array.stride[axis] = stride_or_zero(view, axis);
    const Wide stride = array.stride[axis];
    reach += array.last[axis] * (stride < 0 ? -stride : stride);
  }
  array.is_narrow = reach <= std::numeric_limits<int32_t>::max();
  return array;
}

namespace {

// Distances are laid out with the heads of a group side by side: for large groups there are hardly
// fewer of them than pairs.
constexpr int64_t kMaxGroupOfDistances = 32;

bool has_distances(const Problem& problem) {
  return problem.group_size() <= kMaxGroupOfDistances &&
         std::max(problem.seqlen_q, problem.seqlen_k) <= expression::kMaxTranslated;
}

}  // namespace

std::shared_ptr<const Expressions> Expressions::of(const Problem& problem) {
  const Result<expression::Modifications> parsed = expression::parse(problem);
  if (!parsed.ok()) return nullptr;  // a valid problem's expressions can be parsed
  const auto& [score_mod, mask_mod] = parsed.value();
  if (!score_mod && !mask_mod) return nullptr;
  auto result = std::make_shared<Expressions>();
  result->num_tensors = static_cast<int64_t>(problem.tensors.size());
  result->num_scalars = static_cast<int64_t>(problem.scalars.size());
  if (score_mod) result->score_mod = expression::vectorise(*score_mod, has_distances(problem));
  if (score_mod && problem.op == Op::backward) {
    result->slope = expression::vectorise(expression::slope_of(*score_mod), has_distances(problem));
    std::vector<bool> wanted;
    for (const ExpressionTensor& tensor : problem.tensors) wanted.push_back(tensor.needs_grad);
    if (std::ranges::find(wanted, true) != wanted.end()) {
      result->element_slopes = expression::vectorise(
          expression::element_slopes_of(*score_mod, wanted), has_distances(problem));
    }
  }
  if (mask_mod) {
    result->mask_mod = expression::vectorise(*mask_mod, has_distances(problem));
    result->mask = mask_mod;
    result->mask_sections = expression::sections_of(mask_mod->tree());
    using expression::Section;
    for (const Section section : {Section::lanes, Section::keys, Section::pairs}) {
      result->mask_nodes[static_cast<size_t>(section)] =
          expression::nodes_of(result->mask_sections, section);
    }
  }
  return result;
}

BoundExpressions::BoundExpressions(Carver& carver, const Expressions& expressions)
    : views(carver.take<TensorView>(expressions.num_tensors)),
      scalars(carver.take<double>(expressions.num_scalars)),
      arrays(carver.take<ElementArray>(expressions.num_tensors)),
      rounded_scalars(carver.take<float>(expressions.num_scalars)) {}

void BoundExpressions::bind(const Problem& problem, const Args& args) {
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    const auto given = std::ranges::find(args.tensors, problem.tensors[t].name, &NamedTensor::name);
    views[t] = given->view;
    arrays[t] = element_array(given->view);
  }
  for (size_t s = 0; s < problem.scalars.size(); ++s) {
    const auto given =
        std::ranges::find(args.scalars, problem.scalars[s], [](const auto& x) { return x.first; });
    scalars[s] = given->second;
    rounded_scalars[s] = static_cast<float>(given->second);
  }
}

RegisterFiles::RegisterFiles(Carver& carver, const expression::VectorProgram& program,
                             const TileShape& shape) {
  using expression::Section;
  const auto take = [&](Section section, int64_t size) {
    const size_t s = static_cast<size_t>(section);
    // Register 0 of `pairs` is the scores.
    const int64_t registers = program.of(section).num_registers - (section == Section::pairs);
    stride[s] = (size + shape.width - 1) / shape.width * shape.width;
    at[s] = carver.take<float>(registers * stride[s]);
  };
  take(Section::lanes, shape.num_lanes());
  take(Section::keys, shape.block_n);
  take(Section::distances,
       shape.distance_panels * shape.width + int64_t{shape.block_n - 1} * shape.group);
  take(Section::pairs, int64_t{kStripKeys} * shape.width);
}

ExpressionScratch::ExpressionScratch(Carver& carver, const TileShape& shape,
                                     const Expressions& expressions) {
  if (expressions.score_mod) score_mod = RegisterFiles(carver, *expressions.score_mod, shape);
  if (expressions.slope) slope = RegisterFiles(carver, *expressions.slope, shape);
  if (expressions.element_slopes)
    element_slopes = RegisterFiles(carver, *expressions.element_slopes, shape);
  if (!expressions.mask_mod) return;
  mask_mod = RegisterFiles(carver, *expressions.mask_mod, shape);
  const int64_t nodes = expressions.num_mask_nodes();
  tile_bounds = carver.take<expression::Bounds>(nodes);
  panel_bounds = carver.take<expression::Bounds>(nodes * shape.num_panels);
  is_alike = carver.take<bool>(shape.num_panels);
  key_bounds = carver.take<expression::Bounds>(nodes);
  pair_bounds = carver.take<expression::Bounds>(nodes);
  const int64_t parts = (shape.block_n + kPartKeys - 1) / kPartKeys;
  part_bounds = carver.take<expression::Bounds>(nodes * parts);
  grain_bounds = carver.take<expression::Bounds>(nodes * parts * (kPartKeys / kGrainKeys));
  shown = carver.take<ShownKeys>(2 * int64_t{shape.group_blocks} * shape.num_panels);
}

}  // namespace sirdar::cpu
