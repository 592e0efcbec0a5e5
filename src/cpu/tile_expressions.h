// The expressions of one tile: what depends on a query alone is computed once, what depends on a
// key or a distance alone once per block, and tiles that a mask_mod shows wholly or not at all are
// known by its bounds.
#pragma once

#include "cpu/forward_call.h"

namespace sirdar::cpu {

class TileExpressions {
 public:
  // A panel's place in its tile.
  struct Lanes {
    int panel, first, vectors, width;
  };

  // `shape` is that of the scratch.
  TileExpressions(const ForwardCall& call, const TileShape& shape, const Scratch& scratch);

  bool has_score_mod() const { return code_ != nullptr && code_->score_mod.has_value(); }
  bool has_slope() const { return code_ != nullptr && code_->slope.has_value(); }
  bool has_mask_mod() const { return code_ != nullptr && code_->mask_mod.has_value(); }

  // The queries that take part, from scratch.query; `rows` bounds them, with all heads of a group.
  // first_head is the place in its group of the first.
  void load_lanes(int num_lanes, int first_head, const expression::Box& rows);
  void set_panel(int panel, const expression::Box& rows);
  // The first key from `begin` on, in steps of `block`, at which a block may be seen; or one from
  // `end` on. Hidden keys are left behind in leaps that double.
  Position shown_from(Position begin, Position end, Position block) const;
  // How much of block n of a group the tile sees by its mask_mod, and how much each panel does.
  Cover bound_block(int n, Range keys, int num_panels);
  // What follows is about block n, already bounded, and about these lanes of the tile.
  struct Window {
    int first, count;
  };
  void enter_block(int n, Range keys, Window lanes);
  Cover cover(int panel) const { return has_mask_mod() ? shown_[panel].cover : Cover::all; }
  // Keys of the block outside of which the panel sees none; a run may start with the first.
  Range seen(int panel) const { return has_mask_mod() ? shown_[panel].keys : keys_; }
  // Keys among them that all lanes of the panel see.
  Range whole(int panel) const { return has_mask_mod() ? shown_[panel].whole : keys_; }

  // score_mod, mask_mod where the panel sees a part, and the masks of `masks` over a run of keys
  // of the block; `masks` is complete but for `visible` and a score has had all other terms added.
  void apply(const Lanes& lanes, Range keys, const MaskArgs& masks);
  // score_mod alone over a run of keys of the block, in place, and its slopes; for the backward
  // pass.
  void modify(const Lanes& lanes, Range keys, float* scores, float* slopes);
  // Rows of [width], `stride` apart: -1 where the mask_mod shows a key of the block to a lane, 0
  // elsewhere. Good until the next call; at most kStripKeys.
  struct Visible {
    const int32_t* first;
    int64_t stride;
  };
  Visible visible(const Lanes& lanes, int64_t first_key, int num_keys);

  // Runs Expressions::element_slopes over at most kStripKeys, given what the score_mod was given.
  void find_slopes(const Lanes& lanes, int64_t first_key, int num_keys, float* scores);
  // A register of it that lies in a section: the value of a panel's first lane and a key; keys lie
  // `stride` apart.
  struct Values {
    const float* first;
    int64_t stride;
  };
  Values slopes_at(expression::Place place, const Lanes& lanes, int64_t key,
                   const float* scores) const;
  // The place in a section's registers of a panel's first lane and a key, and how many are in use.
  int64_t place_in(expression::Section section, const Lanes& lanes, int64_t key) const;
  int64_t count_in(expression::Section section) const;
  // A register from its start.
  const float* slopes_of(expression::Place place) const;
  bool has_slopes() const { return has_element_block_; }

 private:
  using Program = expression::VectorProgram;
  EvaluateArgs evaluation(const Program& program, expression::Section section,
                          const RegisterFiles& files) const;
  void load_lanes(const Program& program, const RegisterFiles& files, int num_lanes) const;
  void load_once(const Program& program, const RegisterFiles& files, bool& is_loaded) const;
  void load_block(const Program& program, const RegisterFiles& files) const;
  void load_distances(const Program& program, const RegisterFiles& files) const;
  // The distance of a panel's first lane from a key of the block, as a place in its registers.
  int64_t distance_of(const Lanes& lanes, int64_t key) const;
  void run_pairs(const Program& program, const RegisterFiles& files, const Lanes& lanes,
                 int64_t first_key, int num_keys, float* scores) const;
  Cover pair_cover(expression::Bounds* lane_bounds, expression::Bounds* key_bounds) const;
  void bound(const expression::Box& box, expression::Section section,
             const expression::BoundsTable& table) const;
  bool is_alike(const expression::Bounds* a, const expression::Bounds* b) const;
  void bound_keys(Range keys, expression::Bounds* key_bounds) const;
  ShownKeys look_closer(expression::Bounds* lane_bounds);
  Cover part_cover(expression::Bounds* lane_bounds, int64_t part) const;
  Cover grain_cover(expression::Bounds* lane_bounds, int64_t grain);
  expression::BoundsTable bounds_table(expression::Bounds* lane_bounds,
                                       expression::Bounds* key_bounds) const;

  const ForwardCall& call_;
  const TileShape& shape_;
  const Expressions* code_;
  const ExpressionScratch& scratch_;
  const LaneQuery* queries_;
  expression::Bindings bindings_;
  expression::Box rows_;
  int first_head_ = 0;
  Range keys_;
  Window window_{};
  const ShownKeys* shown_ = nullptr;  // of the block, [panel]
  uint32_t has_grains_ = 0;           // a bit per part of the block whose grains are bounded
  // Registers are those of keys_ and window_.
  bool has_score_block_ = false, has_mask_block_ = false, has_slope_block_ = false;
  bool has_element_block_ = false;
};

}  // namespace sirdar::cpu
