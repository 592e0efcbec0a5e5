#include "reference/attention.h"

#include <cmath>

#include "reference/rows.h"

namespace sirdar::reference {

// "Masks": a pair is visible if every mask that is given allows it.
bool is_visible(const Call& call, const Item& item, int64_t h, int64_t i, int64_t j) {
  const Problem& problem = call.problem;
  if (i >= item.q.length || !allows(item.mask, i, j)) return false;
  if (problem.has_document) {
    const int64_t at_q[] = {item.b, i}, at_k[] = {item.b, j};
    const TensorView &ids_q = call.args.document_q, &ids_k = call.args.document_k;
    if (load_element(ids_q, broadcast_offset(ids_q, at_q, false)) !=
        load_element(ids_k, broadcast_offset(ids_k, at_k, false))) {
      return false;
    }
  }
  if (problem.has_mask_tensor) {
    const int64_t index[] = {item.b, h, i, j};
    if (load_element(call.args.mask, broadcast_offset(call.args.mask, index, false)) == 0)
      return false;
  }
  if (call.mask_mod) {
    const expression::Point point{0, item.b, h, i, j, item.q_pos(i)};
    if (!call.mask_mod->allows(call.bindings, point)) return false;
  }
  return bias(call, item, h, i, j) != -kInf;
}

namespace {

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

}  // namespace

// "Scores": the visible keys of row i, in order.
std::vector<Pair> visible_pairs(const Call& call, const Item& item, int64_t h, int64_t i,
                                const Row& q_i) {
  std::vector<Pair> pairs;
  Row k_j(q_i.size());
  const Range range = key_range(item.mask, i);
  for (int64_t j = range.begin; j < range.end; ++j) {
    if (!is_visible(call, item, h, i, j)) continue;
    load_row(call.args.k, call.k.offset(item.b, item.k, j, h / call.problem.group_size()), k_j);
    Pair pair{j, dot(q_i, k_j), 0, 0, 0};
    pair.score = pair.logit =
        call.logits.logit(pair.dot, bias(call, item, h, i, j), alibi(call, item, h, i, j));
    if (call.score_mod) {
      const expression::Point point{pair.score, item.b, h, i, j, item.q_pos(i)};
      pair.logit = call.score_mod->value(call.bindings, point);
    }
    pairs.push_back(pair);
  }
  return pairs;
}

namespace {

double larger(double a, double b) {  // NaN if either is
  return std::isnan(a) || a > b ? a : b;
}

// A NaN among the logits is the result, unless the largest is +inf whatever the NaN stands for.
double largest_logit(const std::vector<Pair>& pairs) {
  double largest = -kInf;
  for (const Pair& pair : pairs) {
    if (pair.logit == kInf) return kInf;
    largest = larger(largest, pair.logit);
  }
  return largest;
}

}  // namespace

// "Softmax": fills in the weights. The largest logit is found first, so that logits of any level
// keep their differences; a row without any weight is empty.
RowSoftmax softmax(std::vector<Pair>& pairs, double sink) {
  RowSoftmax row;
  row.max_logit = largest_logit(pairs);
  const double level = larger(row.max_logit, sink);
  if (level == -kInf) return row;
  double sum = std::exp(sink - level);
  for (const Pair& pair : pairs) sum += std::exp(pair.logit - level);
  for (Pair& pair : pairs) pair.weight = std::exp(pair.logit - level) / sum;
  row.sink_weight = std::exp(sink - level) / sum;
  row.lse = level + std::log(sum);
  return row;
}

double dropout_factor(const Call& call, const Item& item, int64_t h, int64_t i, int64_t j) {
  if (call.problem.dropout_p == 0) return 1;
  return call.dropout.keeps(item.b, h, i, j) ? call.dropout.keep_scale : 0;
}

namespace {

// The part of the softmax that `saved_lse` stands for which these keys hold: less than 1 if it
// belongs to a larger, merged problem. An lse within the rounding of fp32 of this row's own is its
// own; the rounding, which exp would magnify at high levels, is not taken to mean anything.
double share_of(double own_lse, double saved_lse) {
  const double difference = own_lse - saved_lse;
  if (std::abs(difference) <= std::ldexp(std::abs(own_lse), -23)) return 1;
  return std::exp(difference);
}

// A query row in the backward pass.
struct RowInputs {
  const Item& item;
  int64_t h, i;
  const Row &q_i, &dout_i;
  double share, delta;  // share_of(), D_i
};

// The backward pass of one row; adds to what `into` points at. See "Backward" of the semantics.
struct RowGradients {
  const Call& call;
  Gradients& into;
  Dense dq, dk, dv;
  std::vector<double*> dtensors;

  void add(const RowInputs& row, const std::vector<Pair>& pairs) {
    const auto& [item, h, i, q_i, dout_i, share, delta] = row;
    const int64_t head_kv = h / call.problem.group_size();
    double* dq_i = &into.dq[static_cast<size_t>(dq.map.offset(item.b, item.q, i, h))];
    Row k_j(q_i.size()), v_j(dout_i.size());
    for (const Pair& pair : pairs) {
      load_row(call.args.k, call.k.offset(item.b, item.k, pair.j, head_kv), k_j);
      load_row(call.args.v, call.v.offset(item.b, item.k, pair.j, head_kv), v_j);
      double* dk_j = &into.dk[static_cast<size_t>(dk.map.offset(item.b, item.k, pair.j, head_kv))];
      double* dv_j = &into.dv[static_cast<size_t>(dv.map.offset(item.b, item.k, pair.j, head_kv))];
      const double p = pair.weight * share;
      const double factor = dropout_factor(call, item, h, i, pair.j);
      for (size_t c = 0; c < dout_i.size(); ++c) dv_j[c] += p * factor * dout_i[c];
      const double dp = factor * dot(dout_i, v_j);
      const double ddot = chain(item, h, i, pair, p * (dp - delta));
      for (size_t c = 0; c < q_i.size(); ++c) {
        dq_i[c] += ddot * k_j[c];
        dk_j[c] += ddot * q_i[c];
      }
    }
  }

  // d loss / d dot from d loss / d logit, through score_mod, bias, soft-cap and scale. A gradient
  // of exactly 0 stays 0 where a derivative is infinite or NaN.
  double chain(const Item& item, int64_t h, int64_t i, const Pair& pair, double dlogit) {
    if (dlogit == 0) return 0;
    double dscore = dlogit;
    if (call.score_mod) {
      const expression::Point point{pair.score, item.b, h, i, pair.j, item.q_pos(i)};
      dscore = call.score_mod->derivative(call.bindings, point, dlogit, dtensors);
    }
    if (!into.dbias.empty()) {
      const int64_t index[] = {item.b, h, i, pair.j};
      into.dbias[static_cast<size_t>(broadcast_offset(call.args.bias, index, true))] += dscore;
    }
    return dscore == 0 ? 0 : dscore * call.logits.derivative(pair.dot);
  }
};

}  // namespace

Forward forward(const Problem& problem, const Args& args) {
  const Call call{problem, args};
  const Dense out = dense_out(problem), statistics = dense_statistics(problem);
  Forward result;
  result.out.assign(static_cast<size_t>(out.size), 0);
  result.lse.assign(static_cast<size_t>(statistics.size), -kInf);
  result.max_logit = result.lse;
  Row q_i(static_cast<size_t>(problem.head_dim)), v_j(static_cast<size_t>(problem.value_dim()));
  for_each_row(call, [&](const Item& item, int64_t h, int64_t i) {
    load_row(args.q, call.q.offset(item.b, item.q, i, h), q_i);
    std::vector<Pair> pairs = visible_pairs(call, item, h, i, q_i);
    const RowSoftmax row = softmax(pairs, call.sink(h));
    const size_t at = static_cast<size_t>(statistics.map.offset(item.b, item.q, i, h));
    result.lse[at] = row.lse;
    result.max_logit[at] = row.max_logit;
    if (row.lse == -kInf) return;
    double* out_i = &result.out[static_cast<size_t>(out.map.offset(item.b, item.q, i, h))];
    for (const Pair& pair : pairs) {
      load_row(args.v, call.v.offset(item.b, item.k, pair.j, h / problem.group_size()), v_j);
      const double weight = pair.weight * dropout_factor(call, item, h, i, pair.j);
      for (size_t c = 0; c < v_j.size(); ++c) out_i[c] += weight * v_j[c];
    }
  });
  return result;
}

Gradients backward(const Problem& problem, const Args& args, const Forward& saved) {
  const Call call{problem, args};
  const Dense out = dense_out(problem), statistics = dense_statistics(problem);
  const auto key_rows = [&](int64_t dim) {
    return dense_rows(problem, problem.layout_kv, problem.seqlen_k, problem.total_k,
                      problem.num_heads_kv, dim);
  };
  Gradients result;
  RowGradients row_gradients{call,
                             result,
                             dense_rows(problem, problem.layout_q, problem.seqlen_q,
                                        problem.total_q, problem.num_heads_q, problem.head_dim),
                             key_rows(problem.head_dim),
                             key_rows(problem.value_dim()),
                             {}};
  result.dq.assign(static_cast<size_t>(row_gradients.dq.size), 0);
  result.dk.assign(static_cast<size_t>(row_gradients.dk.size), 0);
  result.dv.assign(static_cast<size_t>(row_gradients.dv.size), 0);
  if (problem.needs_dbias) result.dbias.assign(static_cast<size_t>(element_count(args.bias)), 0);
  if (problem.needs_dsink) result.dsink.assign(static_cast<size_t>(problem.num_heads_q), 0);
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    const bool wanted = problem.tensors[t].needs_grad;
    const int64_t count = wanted ? element_count(call.tensors[t]) : 0;
    result.dtensors.emplace_back(static_cast<size_t>(count), 0.0);
  }
  for (auto& gradient : result.dtensors) {
    row_gradients.dtensors.push_back(gradient.empty() ? nullptr : gradient.data());
  }

  const RowMap dout = row_map(args.dout, problem.layout_q);
  const RowMap dlse = row_statistics_map(args.dlse, problem.layout_q);
  Row q_i(static_cast<size_t>(problem.head_dim)), dout_i(static_cast<size_t>(problem.value_dim()));
  for_each_row(call, [&](const Item& item, int64_t h, int64_t i) {
    const size_t at = static_cast<size_t>(statistics.map.offset(item.b, item.q, i, h));
    if (saved.lse[at] == -kInf) return;  // an empty row
    load_row(args.q, call.q.offset(item.b, item.q, i, h), q_i);
    load_row(args.dout, dout.offset(item.b, item.q, i, h), dout_i);
    const double* out_i = &saved.out[static_cast<size_t>(out.map.offset(item.b, item.q, i, h))];
    double delta = 0;  // D_i
    for (size_t c = 0; c < dout_i.size(); ++c) delta += dout_i[c] * out_i[c];
    if (problem.has_dlse) delta -= load_element(args.dlse, dlse.offset(item.b, item.q, i, h));
    std::vector<Pair> pairs = visible_pairs(call, item, h, i, q_i);
    const RowSoftmax row = softmax(pairs, call.sink(h));
    if (row.lse == -kInf) return;  // these keys hold nothing of the row
    const double share = share_of(row.lse, saved.lse[at]);
    if (problem.needs_dsink)
      result.dsink[static_cast<size_t>(h)] -= row.sink_weight * share * delta;
    row_gradients.add({item, h, i, q_i, dout_i, share, delta}, pairs);
  });
  return result;
}

bool visible(const Problem& problem, const Args& args, int64_t b, int64_t h, int64_t i, int64_t j) {
  const Call call{problem, args};
  return is_visible(call, Item(call, b), h, i, j);
}

}  // namespace sirdar::reference
