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
  // All keys: out, lse and max_logit of every row the caller owns.
  void run();
  // The keys of one segment alone, from nothing.
  void accumulate(int64_t segment, AccumulatorState& state);
  // What run() makes of its segments, from the states of `accumulate`.
  template <class StateOf>
  void finish(const StateOf& state_of_segment) {
    load_lanes();
    for (int index = 0; index < num_panels_; ++index) {
      const Panel one = panel(index);
      const AccumulatorState total = scratch_.total.of_panel(0, call_.shape);
      reset(total);
      for (int64_t segment = 0; segment < segments_.count; ++segment)
        merge(one, total, state_of_segment(segment).of_panel(index, call_.shape));
      write(one, total);
    }
    write_unused();
  }

 private:
  // Up to `width` rows that take part, in one or two vectors.
  struct Panel {
    int index, first_lane, num_lanes;
    int place;  // in its chunk
    int vectors, width;
    Range rows;  // their query positions
    Range keys;  // that some of them see, by the structured masks
    DocumentRange documents_q;
  };
  struct Block {
    Range keys;
    const void* const* k = nullptr;  // its rows
    const void* const* v = nullptr;
    float* packed_k = nullptr;
    float* packed_v = nullptr;
    int32_t* document_k = nullptr;
    uint8_t* is_used = nullptr;  // as in KeyGroup
    int bounds = 0;              // its place in ExpressionScratch::shown
    DocumentRange documents_k;
    int64_t num_keys_used = 0;  // of all panels, added up
    int64_t num_keys_seen = 0;  // by any
    int num_panels = 0;         // that see any of it
    bool is_ready = false;      // the rest is known, and packed
    bool starts_segment = false;
    bool has_part = false;   // some see only a part
    bool is_packed = false;  // both are in scratch too
    bool is_narrow = false;  // few lanes: nothing is packed
    bool is_finite = true;   // V, where has_part
  };

  int64_t query_of(int lane) const {
    return group_ == 1 ? first_row_ + lane : (first_row_ + lane) / group_;
  }
  int64_t head_of(int lane) const {
    return group_ == 1 ? head_kv_ : head_kv_ * group_ + (first_row_ + lane) % group_;
  }
  Panel panel(int index) const;
  TileExpressions::Lanes lanes(const Panel& panel) const;
  // Of these panels.
  TileExpressions::Window lanes_of(int first_panel, int end_panel) const {
    const int first = first_panel * call_.shape.width;
    return {first, std::min(end_panel * call_.shape.width, num_live_) - first};
  }
  void load_lanes();
  void load_expressions();
  void load_queries(const Panel& panel);
  float* queries_of(const Panel& panel) const {
    return scratch_.q + int64_t{panel.place} * call_.shape.width * call_.shape.key_words();
  }
  void reset(const AccumulatorState& state) const;
  // Keys that some row sees.
  Range keys_seen() const;
  // The blocks from `begin` on that are packed together, none from `end` on.
  Range group_from(Position begin, Position end) const;
  // Group by group, chunk of panels by chunk, block by block: `visit` of each panel and block,
  // after `start` and before `done` of the panel.
  template <class Start, class Visit, class Done>
  void for_each_block(Range seen, const Start& start, const Visit& visit, const Done& done);
  void start_group(Range keys, Range next);
  int look_at_group(KeyGroup& group, Range keys, Block* blocks);
  void look_at_block(Block& block);
  // By the chunk at work, as far as the structured masks say.
  bool is_seen(const Block& block) const {
    return block.keys.begin < chunk_keys_.end && chunk_keys_.begin < block.keys.end;
  }
  void prepare_block(int n, int64_t panels);
  // The block after n of which something is seen, among those of the group and of the next; null:
  // none.
  const Block* seen_after(int n, bool looks_further) const;
  void locate(KeyGroup& group, Range keys) const;
  // Keys of the block that a panel computes, and how much of them it sees.
  Cover visible_part(const Panel& panel, const Block& block, Range& keys) const;
  // Runs of key_step keys that a block has.
  int64_t num_steps(const Block& block) const;
  void mark_used(Block& block, Range keys) const;
  // visit(first, count) for runs of keys of the block that panels see.
  template <class Visit>
  void for_each_used_run(const Block& block, Visit visit) const;
  void prepare_values(Block& block);
  void pack_values(const Block& block);
  void run_panel(const Panel& panel, const Block& block, const AccumulatorState& state);
  // More than the scaled dot product, in every pair.
  bool has_terms() const { return call_.has_logit_terms || expressions_.has_score_mod(); }
  // Returns the unit that they are in.
  float make_logits(const Panel& panel, const Block& block, Range run, Cover cover,
                    const float* row_max);
  // Scores of `keys`, a part of the `run` that the panel works on, and their maximum.
  void score(const Panel& panel, const Block& block, Range run, Range keys, const float* max_in,
             float* max_out, float unit);
  // From the maximum of the logits to weights, their sum and dropout.
  void make_weights(const Panel& panel, Range keys, float unit, const AccumulatorState& state);
  // All that a panel of few queries does with a block (forward_narrow.cc).
  void run_narrow(const Panel& panel, const Block& block, Range keys, Cover cover,
                  const AccumulatorState& state);
  Prefetch narrow_ahead(const void* const* rows, Range keys, const void* const* then,
                        int64_t num_then, int64_t columns) const;
  // Rows to ask for in the next `calls` calls of `score`.
  struct RowsAhead {
    const void* const* rows = nullptr;
    int64_t count = 0, calls = 0;
  };
  void ask_for_block(const Block& block, int64_t calls);
  void ask(const RowsAhead& ahead) const;
  // For the panels behind `end`, and where the results of the chunk before it will go.
  void ask_for_panels(int first, int end, Range next);
  // Calls of `score` in this group, by the structured masks.
  int64_t num_calls(int first, int end) const;
  void ask_for_queries();
  // The next of those rows; of what is not urgent no more than there is time for.
  Prefetch take_ahead(int64_t most_lines);
  void ask_for_surplus(QkArgs& args) const;
  void apply_dropout(const Panel& panel, Range keys);
  void apply_logits(const Panel& panel, const Block& block, Range run, Range keys, Cover cover,
                    const float* max_in);
  void apply_expressions(const Panel& panel, Range keys, LogitArgs args);
  void add_values(const Panel& panel, const Block& block, Range keys,
                  const AccumulatorState& state);
  void add_nonfinite_values(const Panel& panel, const Block& block, Range keys,
                            const AccumulatorState& state);
  bool has_nonfinite(const void* const* v, int64_t num_keys) const;
  // What the kernels weight values by, of the key at `place` in the run at work.
  float weight_of(const Panel& panel, int lane, int64_t place) const;
  bool is_visible(const Panel& panel, const Block& block, Range keys, int lane, int64_t key) const;
  // total <- total with the keys of `state`; where total has none it becomes `state`.
  void merge(const Panel& panel, const AccumulatorState& total,
             const AccumulatorState& state) const;
  // Normalises and writes the rows of a panel.
  void write(const Panel& panel, const AccumulatorState& state);
  // Rows that the caller owns and that take no part.
  void write_unused();
  void write_row(int lane, float row_max, float row_sum);

  const ForwardCall& call_;
  Scratch& scratch_;
  const int group_;  // query heads that share a K/V head
  int64_t b_, head_kv_, first_row_;
  Sequence q_, k_;
  StructuredMask mask_;
  Segments segments_;
  LogitTerms terms_;
  TileExpressions expressions_;
  Block block_storage_[2][kMaxGroupBlocks];
  Block *blocks_ = block_storage_[0], *next_blocks_ = block_storage_[1];  // of the group, the next
  int num_blocks_ = 0, num_next_blocks_ = 0;
  int64_t segment_ = -1;  // of the last block
  Range chunk_keys_;      // from the first to the last that the chunk at work sees
  RowsAhead ahead_[4];    // of K and V of the next block, of q and out of the next panels
  int num_rows_ = 0;      // of this tile: those the caller owns
  int num_live_ = 0;      // those that take part
  int num_panels_ = 0;
  bool has_queries_[kMaxChunkPanels];  // of the chunk, at each place
  // Bias and boolean mask of the panel at work, as in LogitArgs; null: they hide nothing there.
  const float* pairs_ = nullptr;
};

}  // namespace sirdar::cpu
