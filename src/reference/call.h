// The inputs of one call by position, and where its outputs lie: what attention.cc reads and
// writes.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "core/elements.h"
#include "core/geometry.h"
#include "expression/expression.h"
#include "shared/logits.h"
#include "shared/philox.h"

namespace sirdar::reference {

using Row = std::vector<double>;
using Programs = std::optional<expression::Program>;

inline constexpr double kInf = kInfinity<double>;

inline Programs program(expression::Kind kind, const std::string& text, const Problem& problem) {
  if (text.empty()) return std::nullopt;
  return expression::Program::parse(kind, text, problem.tensors, problem.scalars).value();
}

// The inputs of one call, by position.
struct Call {
  const Problem& problem;
  const Args& args;
  Extents queries = query_extents(problem, args), keys = key_extents(problem, args);
  RowMap q = row_map(args.q, problem.layout_q);
  RowMap k = row_map(args.k, problem.layout_kv, problem.page_size, args.page_table);
  RowMap v = row_map(args.v, problem.layout_kv, problem.page_size, args.page_table);
  Logits<double> logits{problem.scale(), problem.softcap};
  Dropout dropout = Dropout::of(problem.dropout_p, args.dropout_seed, args.dropout_offset);
  Programs mask_mod = program(expression::Kind::mask_mod, problem.mask_mod, problem);
  Programs score_mod = program(expression::Kind::score_mod, problem.score_mod, problem);
  std::vector<TensorView> tensors = named_tensors();
  Row scalars = named_scalars();
  expression::Bindings bindings{tensors, scalars};

  std::vector<TensorView> named_tensors() const {
    std::vector<TensorView> views;
    for (const ExpressionTensor& wanted : problem.tensors) {
      for (const NamedTensor& given : args.tensors) {
        if (given.name == wanted.name) views.push_back(given.view);
      }
    }
    return views;
  }
  Row named_scalars() const {
    Row values;
    for (const std::string& wanted : problem.scalars) {
      for (const auto& [name, value] : args.scalars) {
        if (name == wanted) values.push_back(value);
      }
    }
    return values;
  }
  double sink(int64_t h) const {
    return problem.has_sink ? load_element(args.sink, h * stride_or_zero(args.sink, 0)) : -kInf;
  }
};

// One sequence: its rows, and the structured masks between its queries and keys.
struct Item {
  int64_t b;
  Sequence q, k;
  StructuredMask mask;

  Item(const Call& call, int64_t batch_idx)
      : b(batch_idx),
        q(call.queries.sequence(b)),
        k(call.keys.sequence(b)),
        mask(structured_mask(call.problem.mask, q.length, k.length)) {}
  int64_t q_pos(int64_t i) const { return i + k.length - q.length; }
};

inline double bias(const Call& call, const Item& item, int64_t h, int64_t i, int64_t j) {
  if (!call.problem.has_bias) return 0;
  const int64_t index[] = {item.b, h, i, j};
  return load_element(call.args.bias, broadcast_offset(call.args.bias, index, false));
}

inline double alibi(const Call& call, const Item& item, int64_t h, int64_t i, int64_t j) {
  if (!call.problem.has_alibi) return 0;
  const TensorView& slopes = call.args.alibi;
  const int64_t index[] = {item.b, h};
  const std::span<const int64_t> place(index);
  const double slope =
      load_element(slopes, broadcast_offset(slopes, place.last(slopes.rank), false));
  return alibi_term(slope, item.q_pos(i), j);
}

// Gap-free outputs: [batch, seqlen, heads, dim] or [total, heads, dim] ...
struct Dense {
  RowMap map;
  int64_t size;
};
inline Dense dense_rows(const Problem& problem, Layout layout, int64_t seqlen, int64_t total,
                        int64_t heads, int64_t dim) {
  if (layout == Layout::ragged) return {{0, heads * dim, dim}, total * heads * dim};
  return {{seqlen * heads * dim, heads * dim, dim}, problem.batch * seqlen * heads * dim};
}
// ... and [batch, num_heads_q, seqlen_q] or [num_heads_q, total_q].
inline Dense dense_statistics(const Problem& problem) {
  const int64_t heads = problem.num_heads_q;
  if (problem.layout_q == Layout::ragged) return {{0, 1, problem.total_q}, heads * problem.total_q};
  return {{heads * problem.seqlen_q, 1, problem.seqlen_q},
          problem.batch * heads * problem.seqlen_q};
}
inline Dense dense_out(const Problem& problem) {
  return dense_rows(problem, problem.layout_q, problem.seqlen_q, problem.total_q,
                    problem.num_heads_q, problem.value_dim());
}

// Calls visit(item, h, i) for every query row that takes part.
template <class Visit>
void for_each_row(const Call& call, Visit visit) {
  // Sequences without rows are not even counted: there may be 2^50 of them.
  if (call.problem.seqlen_q == 0) return;
  for (int64_t b = 0; b < call.problem.batch; ++b) {
    const Item item(call, b);
    for (int64_t h = 0; h < call.problem.num_heads_q; ++h) {
      for (int64_t i = 0; i < item.q.length; ++i) visit(item, h, i);
    }
  }
}

}  // namespace sirdar::reference
