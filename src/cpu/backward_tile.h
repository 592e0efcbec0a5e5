// A tile of the backward pass: block_m queries of one head, side by side in lanes. Makes their
// logits again, for as many keys at a time as the caller has at hand.
#pragma once

#include "cpu/backward_call.h"
#include "cpu/logit_terms.h"
#include "cpu/tile_expressions.h"

namespace sirdar::cpu {

class BackwardTile {
 public:
  // `width` lanes; those past num_lanes, and rows that take no part, see no key.
  struct Panel {
    int index, first_lane, num_lanes;
    bool is_whole;  // every lane takes part
    Range rows;     // their query positions
    DocumentRange documents;
  };

  BackwardTile(const BackwardCall& call, BackwardScratch& scratch, int64_t b);

  const Sequence& queries() const { return q_; }
  const Sequence& keys() const { return k_; }
  const StructuredMask& mask() const { return mask_; }
  // Takes the queries of head h from `first` on and packs them. With `states`, rows that take no
  // part see no key.
  void start(int64_t h, int64_t first, const RowStates* states);
  int64_t head() const { return h_; }
  int64_t first() const { return first_; }
  int num_rows() const { return num_rows_; }
  // Has any of its rows a weight of the larger problem that lse belongs to, or its own softmax?
  bool has_weights() const { return has_weights_; }
  int num_panels() const { return (num_rows_ + call_.shape.width - 1) / call_.shape.width; }
  Panel panel(int index) const;
  // The keys that any of its queries may see.
  Range seen() const { return key_range(mask_, Range{first_, first_ + num_rows_}); }

  // Before part() and logits() of a block: reads its document ids and bounds a mask_mod. False if
  // no query sees any of it.
  bool start_block(Range block);
  PanelPart part(const Panel& panel) const;
  // scores[key][lane] of the part's keys, not masked; `k` is the first of them, in panels. The
  // slopes of the soft-cap and the score_mod, and what that is given, go to scratch.
  void logits(const Panel& panel, const PanelPart& part, const float* k, float* scores);
  // Where pairs are masked: what tells which, for the keys last given to logits().
  struct Masks {
    const int32_t *lo, *hi, *document_q, *document_k;
    const float* bias;
  };
  Masks masks(const Panel& panel, const PanelPart& part);
  // Dropout: keep[key][lane] of the part.
  void keep_factors(const Panel& panel, const PanelPart& part, float* keep) const;
  // Where a mask_mod shows a panel only some of the part's keys, which are rounded out to whole
  // vectors; else visible() is not to be asked.
  bool is_cut(const Panel& panel, const PanelPart& part) const {
    const Range shown = expressions_.seen(panel.index);
    return expressions_.cover(panel.index) == Cover::part || part.keys.begin < shown.begin ||
           part.keys.end > shown.end;
  }
  TileExpressions::Visible visible(const Panel& panel, int64_t first_key, int num_keys) {
    return expressions_.visible(lanes(panel), first_key, num_keys);
  }
  // Adds to the gradients of the tensors that the score_mod reads, of the keys last given to
  // logits(); then those of all panels, at the end of a block.
  void add_dtensors(const Panel& panel, const PanelPart& part);
  void end_block();

 private:
  TileExpressions::Lanes lanes(const Panel& panel) const {
    return {panel.index, panel.first_lane, kMaxVectors, call_.shape.width};
  }
  void load_expressions();
  void add_terms(const Panel& panel, const PanelPart& part, float* scores);
  void add_strip(const Panel& panel, int64_t first_key, int num_keys, const float* dvalue,
                 const float* scores);
  void scatter_terms(const Panel& panel, const expression::ElementRead& read, int num_keys,
                     double* sums) const;
  float* term_sums(size_t read) const {
    return scratch_.term_sums + static_cast<int64_t>(read) * call_.shape.term_stride();
  }

  const BackwardCall& call_;
  BackwardScratch& scratch_;
  LogitTerms terms_;
  TileExpressions expressions_;
  int64_t b_, h_ = 0, first_ = 0;
  int num_rows_ = 0;
  bool has_weights_ = false;
  Sequence q_, k_;
  StructuredMask mask_;
  Range block_;
  DocumentRange block_documents_;
};

}  // namespace sirdar::cpu
