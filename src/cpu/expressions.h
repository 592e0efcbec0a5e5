// The expressions of a problem as the forward pass runs them, and what they read in one call.
#pragma once

#include <sirdar/plan.hpp>

#include <array>
#include <memory>
#include <optional>

#include "cpu/microkernel.h"
#include "expression/bounds.h"
#include "expression/vector_program.h"

namespace sirdar::cpu {

class Carver;
struct TileShape;

// Keys that a vector program is run over at a time: its registers stay in the first cache.
inline constexpr int kStripKeys = 32;
// Keys of a block that a panel sees in part are looked at by parts, and the parts at the ends of
// what it sees by grains.
inline constexpr int kPartKeys = 64, kGrainKeys = 16;

// Made once per plan.
struct Expressions {
  std::optional<expression::VectorProgram> score_mod, mask_mod;
  std::optional<expression::VectorProgram> slope;  // of the score_mod, for the backward pass
  std::optional<expression::VectorProgram> element_slopes;  // by the tensors it reads
  std::optional<expression::Program> mask;                  // for its bounds
  std::vector<expression::Section> mask_sections;
  std::array<std::vector<int32_t>, expression::kNumSections> mask_nodes;  // of each section
  int64_t num_tensors = 0, num_scalars = 0;

  // Null where the problem has none.
  static std::shared_ptr<const Expressions> of(const Problem& problem);
  int64_t num_reads() const {
    return element_slopes ? static_cast<int64_t>(element_slopes->reads.size()) : 0;
  }
  int64_t num_mask_nodes() const { return static_cast<int64_t>(mask_sections.size()); }
};

ElementArray element_array(const TensorView& view);

// Tensors and scalars by place instead of by name.
struct BoundExpressions {
  TensorView* views = nullptr;  // [num_tensors]
  double* scalars = nullptr;    // [num_scalars]
  ElementArray* arrays = nullptr;
  float* rounded_scalars = nullptr;

  BoundExpressions() = default;
  BoundExpressions(Carver& carver, const Expressions& expressions);
  void bind(const Problem& problem, const Args& args);
  expression::Bindings bindings(const Expressions& expressions) const {
    return {{views, static_cast<size_t>(expressions.num_tensors)},
            {scalars, static_cast<size_t>(expressions.num_scalars)}};
  }
};

// The registers of one vector program.
struct RegisterFiles {
  float* at[expression::kNumSections] = {};
  int64_t stride[expression::kNumSections] = {};

  RegisterFiles() = default;
  RegisterFiles(Carver& carver, const expression::VectorProgram& program, const TileShape& shape);
};

// What a mask_mod shows a panel of a block of keys.
struct ShownKeys {
  Cover cover = Cover::none;  // of `keys`
  Range keys;                 // before and after which it shows none
  Range whole;                // keys among them that it shows to all lanes
};

// What a slot needs for expressions; nothing where there are none.
struct ExpressionScratch {
  RegisterFiles score_mod, mask_mod, slope, element_slopes;
  expression::Bounds* tile_bounds = nullptr;   // of nodes that read no key, [node]
  expression::Bounds* panel_bounds = nullptr;  // [panel][node]
  bool* is_alike = nullptr;                    // [panel]: to the panel before it
  expression::Bounds* key_bounds = nullptr;    // of nodes that read no query, [node]
  expression::Bounds* part_bounds = nullptr;   // the same of each part of the block, [part][node]
  expression::Bounds* grain_bounds = nullptr;  // [grain][node]
  expression::Bounds* pair_bounds = nullptr;
  ShownKeys* shown = nullptr;  // [2 * group_blocks][panel]

  ExpressionScratch() = default;
  ExpressionScratch(Carver& carver, const TileShape& shape, const Expressions& expressions);
};

}  // namespace sirdar::cpu
