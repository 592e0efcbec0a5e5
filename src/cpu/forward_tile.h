// One tile of the forward pass: queries in lanes, keys in blocks, softmax on line. The arithmetic
// of a lane depends on nothing but its own query, keys and masks: not on its neighbours, threads or
// strides.
#pragma once

#include "cpu/forward_call.h"
#include "cpu/logit_terms.h"
#include "cpu/tile_expressions.h"

namespace sirdar::cpu {

class Tile {
 public:
  Tile(const ForwardCall& call, Scratch& scratch, int64_t tile);

  int64_t num_segments() const { return segments_.count; }
  void load_queries();
  void reset(AccumulatorState& state) const;
  // The keys of one segment, from nothing.
  void accumulate(int64_t segment, AccumulatorState& state);
  // total <- total with the keys of `state`; where total has none it becomes `state`.
  void merge(AccumulatorState& total, const AccumulatorState& state) const;
  // Normalises and writes out, lse and max_logit of every row the caller owns.
  void write(const AccumulatorState& state);

 private:
  // Up to `width` rows that take part, in one or two vectors.
  struct Panel {
    int index, first_lane, num_lanes;
    int vectors, width;
    Range rows;  // their query positions
    DocumentRange documents_q;
  };
  struct Block {
    Range keys;
    const void* const* k;  // its rows
    const void* const* v;
    DocumentRange documents_k;
    int64_t num_keys_used = 0;  // of all panels, added up
    int num_panels = 0;         // that see any of it
    bool has_part = false;      // some see only a part
    bool is_packed = false;     // both are in scratch too
    bool is_narrow = false;     // few lanes: nothing is packed
    bool is_finite = true;      // V, where has_part
  };

  int group() const { return group_; }
  int64_t query_of(int lane) const {
    return group_ == 1 ? first_row_ + lane : (first_row_ + lane) / group_;
  }
  int64_t head_of(int lane) const {
    return group_ == 1 ? head_kv_ : head_kv_ * group_ + (first_row_ + lane) % group_;
  }
  Panel panel(int index) const;
  TileExpressions::Lanes lanes(const Panel& panel) const;
  void load_expressions();
  void prepare_block(Block& block, Range next);
  void locate(KeyRows& rows, Range keys) const;
  // Keys of the block that a panel computes, and how much of them it sees.
  Cover visible_part(const Panel& panel, const Block& block, Range& keys) const;
  // Runs of key_step keys that a block has.
  int64_t num_steps(const Block& block) const;
  void mark_used(const Block& block, Range keys);
  // visit(first, count) for runs of keys of the block that panels see.
  template <class Visit>
  void for_each_used_run(const Block& block, Visit visit) const;
  void prepare_values(Block& block);
  void pack_values(const Block& block);
  void run_panel(const Panel& panel, const Block& block, AccumulatorState& state);
  void score(const Panel& panel, const Block& block, Range keys, const float* row_max);
  void score_narrow(const Panel& panel, const Block& block, Range keys, const float* row_max);
  // Rows of the next block that a panel asks for while it works: `count` of them from `first` on.
  Prefetch coming(const void* const* rows, int64_t first, int64_t count, int columns) const;
  void apply_dropout(const Panel& panel, Range keys);
  void apply_logits(const Panel& panel, const Block& block, Range keys, Cover cover,
                    const float* max_in);
  void apply_expressions(const Panel& panel, Range keys, LogitArgs args);
  void add_values(const Panel& panel, const Block& block, Range keys, AccumulatorState& state);
  void add_values_narrow(const Panel& panel, const Block& block, Range keys,
                         AccumulatorState& state);
  void add_nonfinite_values(const Panel& panel, const Block& block, Range keys,
                            AccumulatorState& state);
  bool has_nonfinite(const void* const* v, int64_t num_keys) const;
  bool is_visible(const Panel& panel, const Block& block, Range keys, int lane, int64_t key) const;
  void write_row(int lane, float row_max, float row_sum);

  const ForwardCall& call_;
  Scratch& scratch_;
  int64_t b_, head_kv_, first_row_;
  Sequence q_, k_;
  StructuredMask mask_;
  Segments segments_;
  LogitTerms terms_;
  TileExpressions expressions_;
  int group_;
  int num_rows_ = 0;  // of this tile: those the caller owns
  int num_live_ = 0;  // those that take part
  int num_panels_ = 0;
  // Bias and boolean mask of the panel at work, as in LogitArgs; null: they hide nothing there.
  const float* pairs_ = nullptr;
};

}  // namespace sirdar::cpu
