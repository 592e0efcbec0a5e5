#include "check/data_cost.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <vector>

#include "core/elements.h"
#include "core/geometry.h"
#include "expression/ast.h"
#include "expression/expression.h"

namespace sirdar::check {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();
// In the time of reading one element:
constexpr int64_t kEvaluation = 32;  // a mask_mod for a pair or a tile
constexpr int64_t kSequence = 64;    // what a sequence takes besides

constexpr int64_t kLeaf = 16;  // rows and keys of a tile that is not divided further

// Which of some positions were marked, from the ends of the marked ranges.
class Marks {
 public:
  explicit Marks(int64_t count) : steps_(static_cast<size_t>(count) + 1) {}
  void mark(Range range) {
    ++steps_[static_cast<size_t>(range.begin)];
    --steps_[static_cast<size_t>(range.end)];
  }
  double count() const {
    int64_t depth = 0, marked = 0;
    for (const int64_t step : steps_) marked += (depth += step) > 0 ? 1 : 0;
    return static_cast<double>(marked);
  }

 private:
  std::vector<int64_t> steps_;
};

// Counts one problem; stops where that takes too long.
class Counter {
 public:
  Counter(const Problem& problem, const Args& args, int64_t most)
      : problem_(problem), args_(args), left_(most) {
    if (!problem.mask_mod.empty()) bind();
    has_hiding_bias_ = problem.has_bias && holds_lowest(args.bias);
    of_data_ = mask_mod_ || has_hiding_bias_ || problem.has_document || problem.has_mask_tensor;
    heads_differ_ = (problem.has_mask_tensor && problem.mask_axes.head) ||
                    (has_hiding_bias_ && problem.bias_axes.head) || (mask_mod_ && reads_head());
  }

  // Whether all was counted.
  bool run(Work& work) {
    const Extents queries = query_extents(problem_, args_), keys = key_extents(problem_, args_);
    for (int64_t b = 0; b < problem_.batch && left_ >= 0; ++b) {
      b_ = b;
      seqlen_q_ = queries.sequence(b).length;
      seqlen_k_ = keys.sequence(b).length;
      mask_ = structured_mask(problem_.mask, seqlen_q_, seqlen_k_);
      left_ -= kSequence;
      if (of_data_) {
        add_heads(work);
      } else {
        add_sequence(problem_, mask_, seqlen_q_, work);
      }
    }
    return left_ >= 0;
  }

 private:
  void bind() {
    mask_mod_ = expression::Program::parse(expression::Kind::mask_mod, problem_.mask_mod,
                                           problem_.tensors, problem_.scalars)
                    .value();
    for (const ExpressionTensor& wanted : problem_.tensors) {
      for (const NamedTensor& given : args_.tensors)
        if (given.name == wanted.name) tensors_.push_back(given.view);
    }
    for (const std::string& wanted : problem_.scalars) {
      for (const auto& [name, value] : args_.scalars)
        if (name == wanted) scalars_.push_back(value);
    }
  }

  bool holds_lowest(const TensorView& view) {
    bool found = false;
    for_each_element(view, [&](int64_t offset, int64_t) {
      found = found || load_element(view, offset) == kLowest;
    });
    return found;
  }

  bool reads_head() const {
    return std::ranges::any_of(mask_mod_->tree().nodes, [](const expression::Node& node) {
      return node.op == expression::Op::h;
    });
  }

  void add_heads(Work& work) {
    positions_.clear();
    if (problem_.has_document) {
      for (int64_t k = 0; k < seqlen_k_; ++k)
        positions_[document(args_.document_k, k)].push_back(k);
      left_ -= seqlen_k_;
    }
    const int64_t groups = heads_differ_ ? problem_.num_heads_kv : 1;
    const int64_t heads = heads_differ_ ? problem_.group_size() : 1;
    const int64_t same_q = problem_.num_heads_q / (groups * heads);  // heads that one stands for
    const int64_t same_k = problem_.num_heads_kv / groups;
    const auto alike_q = static_cast<double>(same_q), alike_k = static_cast<double>(same_k);
    work.rows_q += static_cast<double>(seqlen_q_ * problem_.num_heads_q);
    work.rows_k += static_cast<double>(seqlen_k_ * problem_.num_heads_kv);
    for (int64_t group = 0; group < groups; ++group) {
      keys_ = Marks(seqlen_k_);
      for (int64_t head = 0; head < heads && left_ >= 0; ++head) {
        h_ = group * heads + head;
        rows_ = Marks(seqlen_q_);
        pairs_ = 0;
        add_head();
        work.pairs += pairs_ * same_q;
        work.seen_q += rows_.count() * alike_q;
      }
      work.seen_k += keys_.count() * alike_k;
    }
  }

  void add_head() {
    if (mask_mod_) return add_tile({0, seqlen_q_}, {0, seqlen_k_});
    for (int64_t q = 0; q < seqlen_q_ && left_ >= 0; ++q) {
      --left_;
      const Range range = key_range(mask_, q);
      problem_.has_document ? add_document(q, range) : add_range(q, range);
    }
  }

  // The keys of `range` that row q's document has.
  void add_document(int64_t q, Range range) {
    const auto found = positions_.find(document(args_.document_q, q));
    if (range.empty() || found == positions_.end()) return;
    const std::vector<int64_t>& all = found->second;
    const auto first = std::ranges::lower_bound(all, range.begin);
    const auto last = std::lower_bound(first, all.end(), range.end);
    if (first == last) return;
    const Range whole{*first, *(last - 1) + 1};
    if (whole.size() == last - first) return add_range(q, whole);
    for (auto key = first; key != last && left_ >= 0; ++key) add_range(q, {*key, *key + 1});
  }

  // Keys that documents and structured masks show to row q.
  void add_range(int64_t q, Range range) {
    left_ -= range.size();
    if (!problem_.has_mask_tensor && !has_hiding_bias_) return add_visible({q, q + 1}, range);
    const Row mask = row_of(problem_.has_mask_tensor, args_.mask, q);
    const Row bias = row_of(has_hiding_bias_, args_.bias, q);
    Range visible{range.begin, range.begin};
    for (int64_t k = range.begin; k < range.end && left_ >= 0; ++k) {
      visible.end = k;
      if (mask.element(k, 1) != 0 && bias.element(k, 0) != kLowest) continue;
      add_visible({q, q + 1}, visible);
      visible.begin = k + 1;
    }
    add_visible({q, q + 1}, {visible.begin, range.end});
  }

  void add_tile(Range q, Range k) {
    if (q.empty() || k.empty() || left_ < 0) return;
    left_ -= kEvaluation;
    const Cover structured = coverage(mask_, q, k);
    if (structured == Cover::none) return;
    const Cover cover = mask_mod_->coverage(
        {tensors_, scalars_}, {.b = b_, .h = h_, .q = q, .k = k, .shift = seqlen_k_ - seqlen_q_});
    if (cover == Cover::none) return;
    const bool others = problem_.has_document || problem_.has_mask_tensor || has_hiding_bias_;
    if (cover == Cover::all && structured == Cover::all && !others) return add_visible(q, k);
    if (q.size() <= kLeaf && k.size() <= kLeaf) return add_leaf(q, k);
    const int64_t middle_q = q.begin + (q.size() > kLeaf ? q.size() / 2 : q.size());
    const int64_t middle_k = k.begin + (k.size() > kLeaf ? k.size() / 2 : k.size());
    for (const Range rows : {Range{q.begin, middle_q}, Range{middle_q, q.end}})
      for (const Range keys : {Range{k.begin, middle_k}, Range{middle_k, k.end}})
        add_tile(rows, keys);
  }

  void add_leaf(Range rows, Range keys) {
    left_ -= kEvaluation * rows.size() * keys.size();
    for (int64_t q = rows.begin; q < rows.end; ++q) {
      for (int64_t k = keys.begin; k < keys.end; ++k) {
        const bool is_visible =
            allows(mask_, q, k) && documents_show(q, k) && tensors_show(q, k) &&
            mask_mod_->allows({tensors_, scalars_}, {0, b_, h_, q, k, q + seqlen_k_ - seqlen_q_});
        if (is_visible) add_visible({q, q + 1}, {k, k + 1});
      }
    }
  }

  void add_visible(Range q, Range k) {
    if (k.empty()) return;
    pairs_ += Wide{q.size()} * k.size();
    rows_.mark(q);
    keys_.mark(k);
  }

  int32_t document(const TensorView& ids, int64_t position) const {
    const int64_t at[] = {b_, position};
    return static_cast<int32_t>(load_element(ids, broadcast_offset(ids, at, false)));
  }
  bool documents_show(int64_t q, int64_t k) const {
    return !problem_.has_document || document(args_.document_q, q) == document(args_.document_k, k);
  }
  bool tensors_show(int64_t q, int64_t k) const {
    return row_of(problem_.has_mask_tensor, args_.mask, q).element(k, 1) != 0 &&
           row_of(has_hiding_bias_, args_.bias, q).element(k, 0) != kLowest;
  }

  // One row of a mask or bias; null where there is none.
  struct Row {
    const TensorView* view;
    int64_t begin, step;
    double element(int64_t k, double otherwise) const {
      return view == nullptr ? otherwise : load_element(*view, begin + k * step);
    }
  };
  Row row_of(bool is_there, const TensorView& view, int64_t q) const {
    if (!is_there) return {nullptr, 0, 0};
    const int64_t at[] = {b_, h_, q, 0};
    return {&view, broadcast_offset(view, at, false), stride_or_zero(view, 3)};
  }

  const Problem& problem_;
  const Args& args_;
  int64_t left_;
  std::optional<expression::Program> mask_mod_;
  std::vector<TensorView> tensors_;
  std::vector<double> scalars_;
  bool has_hiding_bias_ = false, of_data_ = false, heads_differ_ = false;
  // The sequence and head at hand.
  int64_t b_ = 0, h_ = 0, seqlen_q_ = 0, seqlen_k_ = 0;
  StructuredMask mask_;
  std::unordered_map<int32_t, std::vector<int64_t>> positions_;  // of the keys of each document
  Marks rows_{0}, keys_{0};
  Wide pairs_ = 0;
};

}  // namespace

Cost data_cost(const Problem& problem, const Args& args, int64_t most) {
  // Nothing depends on the data: a batch may be larger than what is worth walking.
  if (const Cost cost = cost_of(problem); cost.is_exact) return cost;
  Work work;
  if (Counter(problem, args, most).run(work)) return cost_of(problem, work);
  Cost cost = cost_of(problem);
  cost.is_exact = false;
  return cost;
}

}  // namespace sirdar::check
