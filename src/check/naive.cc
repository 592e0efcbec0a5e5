#include "check/naive.h"

#include <algorithm>
#include <cmath>

#include "core/geometry.h"
#include "reference/rows.h"

namespace sirdar::check {
namespace {

using reference::Call;
using reference::Item;
using Floats = std::vector<float>;

constexpr float kInf = kInfinity<float>;

Floats load_floats(const TensorView& view, int64_t offset, int64_t count) {
  std::vector<double> wide(static_cast<size_t>(count));
  load_row(view, offset, wide);
  return Floats(wide.begin(), wide.end());
}

void store_floats(const TensorView& view, const Floats& values) {
  for_each_element(view, [&](int64_t offset, int64_t index) {
    store_element(view, offset, double{values[static_cast<size_t>(index)]});
  });
}

// `value` as the matrix units of the inputs' dtype would be fed with it; fp8 inputs work in bf16.
float operand(const Problem& problem, float value) {
  if (problem.dtype_q == DType::fp32) return value;
  float element = 0;
  TensorView view;
  view.data = &element;
  view.dtype = problem.dtype_q == DType::fp16 ? DType::fp16 : DType::bf16;
  store_element(view, 0, double{value});
  return static_cast<float>(load_element(view, 0));
}

float dot(const Floats& a, const Floats& b) {
  float sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

struct Pair {
  int64_t j;
  float dot, score, logit;
};

struct Naive {
  const Call& call;
  const Problem& problem = call.problem;
  const Args& args = call.args;
  Logits<float> logits{problem.scale(), problem.softcap};

  Floats q_row(const Item& item, int64_t h, int64_t i) const {
    return load_floats(args.q, call.q.offset(item.b, item.q, i, h), problem.head_dim);
  }
  Floats k_row(const Item& item, int64_t h, int64_t j) const {
    return load_floats(args.k, call.k.offset(item.b, item.k, j, h / problem.group_size()),
                       problem.head_dim);
  }
  Floats v_row(const Item& item, int64_t h, int64_t j) const {
    return load_floats(args.v, call.v.offset(item.b, item.k, j, h / problem.group_size()),
                       problem.value_dim());
  }

  std::vector<Pair> scores(const Item& item, int64_t h, int64_t i, const Floats& q_i) const {
    std::vector<Pair> pairs;
    for (int64_t j = 0; j < item.k.length; ++j) {
      if (!reference::is_visible(call, item, h, i, j)) continue;
      Pair pair{j, dot(q_i, k_row(item, h, j)), 0, 0};
      pair.score = logits.logit(pair.dot, static_cast<float>(reference::bias(call, item, h, i, j)),
                                static_cast<float>(reference::alibi(call, item, h, i, j)));
      pair.logit = pair.score;
      if (call.score_mod) {
        const expression::Point point{double{pair.score}, item.b, h, i, j, item.q_pos(i)};
        pair.logit = static_cast<float>(call.score_mod->value(call.bindings, point));
      }
      pairs.push_back(pair);
    }
    return pairs;
  }

  void forward() const {
    const reference::Dense rows = reference::dense_out(problem);
    const reference::Dense statistics = reference::dense_statistics(problem);
    Floats out(static_cast<size_t>(rows.size)), lse(static_cast<size_t>(statistics.size), -kInf);
    Floats max_logit = lse;
    reference::for_each_row(call, [&](const Item& item, int64_t h, int64_t i) {
      const std::vector<Pair> pairs = scores(item, h, i, q_row(item, h, i));
      const float sink = static_cast<float>(call.sink(h));
      float largest = -kInf;
      for (const Pair& pair : pairs) largest = std::max(largest, pair.logit);
      const float level = std::max(largest, sink);
      if (level == -kInf) return;
      float sum = std::exp(sink - level);
      for (const Pair& pair : pairs) sum += std::exp(pair.logit - level);
      const size_t at = static_cast<size_t>(statistics.map.offset(item.b, item.q, i, h));
      lse[at] = level + std::log(sum);
      max_logit[at] = largest;
      float* out_i = &out[static_cast<size_t>(rows.map.offset(item.b, item.q, i, h))];
      for (const Pair& pair : pairs) {
        const double factor = reference::dropout_factor(call, item, h, i, pair.j);
        const float p =
            operand(problem, std::exp(pair.logit - level) / sum * static_cast<float>(factor));
        const Floats v_j = v_row(item, h, pair.j);
        for (size_t c = 0; c < v_j.size(); ++c) out_i[c] += p * v_j[c];
      }
    });
    store_floats(args.out, out);
    if (problem.needs_lse) store_floats(args.lse, lse);
    if (problem.needs_max_logit) store_floats(args.max_logit, max_logit);
  }
};

// Gap-free fp32 gradients and the maps into them.
struct Sums {
  RowMap map;
  Floats values;
  explicit Sums(const reference::Dense& dense)
      : map(dense.map), values(static_cast<size_t>(dense.size)) {}
  float* row(int64_t b, const Sequence& sequence, int64_t row_idx, int64_t head) {
    return &values[static_cast<size_t>(map.offset(b, sequence, row_idx, head))];
  }
};

struct NaiveBackward : Naive {
  Sums dq{reference::dense_rows(problem, problem.layout_q, problem.seqlen_q, problem.total_q,
                                problem.num_heads_q, problem.head_dim)};
  Sums dk{reference::dense_rows(problem, problem.layout_kv, problem.seqlen_k, problem.total_k,
                                problem.num_heads_kv, problem.head_dim)};
  Sums dv{reference::dense_rows(problem, problem.layout_kv, problem.seqlen_k, problem.total_k,
                                problem.num_heads_kv, problem.value_dim())};
  Floats dbias, dsink;
  std::vector<std::vector<double>> dtensors;
  std::vector<double*> dtensor_data;
  RowMap out_map = row_map(args.out, problem.layout_q);
  RowMap dout_map = row_map(args.dout, problem.layout_q);
  RowMap lse_map = row_statistics_map(args.lse, problem.layout_q);
  RowMap dlse_map = row_statistics_map(args.dlse, problem.layout_q);

  explicit NaiveBackward(const Call& of) : Naive{of} {
    if (problem.needs_dbias) dbias.assign(static_cast<size_t>(element_count(args.bias)), 0);
    if (problem.needs_dsink) dsink.assign(static_cast<size_t>(problem.num_heads_q), 0);
    for (size_t t = 0; t < problem.tensors.size(); ++t) {
      const bool wanted = problem.tensors[t].needs_grad;
      const int64_t count = wanted ? element_count(call.tensors[t]) : 0;
      dtensors.emplace_back(static_cast<size_t>(count), 0.0);
    }
    for (auto& sums : dtensors) dtensor_data.push_back(sums.empty() ? nullptr : sums.data());
  }

  void add_row(const Item& item, int64_t h, int64_t i) {
    const float lse =
        static_cast<float>(load_element(args.lse, lse_map.offset(item.b, item.q, i, h)));
    if (lse == -kInf) return;
    const Floats q_i = q_row(item, h, i);
    const int64_t head_kv = h / problem.group_size(), width = problem.value_dim();
    const Floats dout = load_floats(args.dout, dout_map.offset(item.b, item.q, i, h), width);
    const Floats out = load_floats(args.out, out_map.offset(item.b, item.q, i, h), width);
    float delta = dot(dout, out);
    if (problem.has_dlse) {
      delta -= static_cast<float>(load_element(args.dlse, dlse_map.offset(item.b, item.q, i, h)));
    }
    if (problem.needs_dsink) {
      dsink[static_cast<size_t>(h)] -= std::exp(static_cast<float>(call.sink(h)) - lse) * delta;
    }
    float* dq_i = dq.row(item.b, item.q, i, h);
    for (const Pair& pair : scores(item, h, i, q_i)) {
      const float p = std::exp(pair.logit - lse);
      const float factor = static_cast<float>(reference::dropout_factor(call, item, h, i, pair.j));
      const Floats v_j = v_row(item, h, pair.j), k_j = k_row(item, h, pair.j);
      float* dv_j = dv.row(item.b, item.k, pair.j, head_kv);
      float* dk_j = dk.row(item.b, item.k, pair.j, head_kv);
      const float p_operand = operand(problem, p * factor);
      for (size_t c = 0; c < v_j.size(); ++c) dv_j[c] += p_operand * dout[c];
      const float dlogit = p * (factor * dot(dout, v_j) - delta);
      const float ddot = operand(problem, chain(item, h, i, pair, dlogit));
      for (size_t c = 0; c < q_i.size(); ++c) {
        dq_i[c] += ddot * k_j[c];
        dk_j[c] += ddot * q_i[c];
      }
    }
  }

  float chain(const Item& item, int64_t h, int64_t i, const Pair& pair, float dlogit) {
    float dscore = dlogit;
    if (call.score_mod) {
      const expression::Point point{double{pair.score}, item.b, h, i, pair.j, item.q_pos(i)};
      dscore = static_cast<float>(
          call.score_mod->derivative(call.bindings, point, double{dlogit}, dtensor_data));
    }
    if (!dbias.empty()) {
      const int64_t index[] = {item.b, h, i, pair.j};
      dbias[static_cast<size_t>(broadcast_offset(args.bias, index, true))] += dscore;
    }
    return dscore * logits.derivative(pair.dot);
  }

  void backward() {
    reference::for_each_row(call,
                            [&](const Item& item, int64_t h, int64_t i) { add_row(item, h, i); });
    store_floats(args.dq, dq.values);
    store_floats(args.dk, dk.values);
    store_floats(args.dv, dv.values);
    if (problem.needs_dbias) store_floats(args.dbias, dbias);
    if (problem.needs_dsink) store_floats(args.dsink, dsink);
    for (size_t t = 0; t < problem.tensors.size(); ++t) {
      for (const NamedTensor& gradient : args.dtensors) {
        if (!problem.tensors[t].needs_grad || gradient.name != problem.tensors[t].name) continue;
        store_floats(gradient.view, Floats(dtensors[t].begin(), dtensors[t].end()));
      }
    }
  }
};

}  // namespace

void run_naive(const Problem& problem, const Args& args) {
  const Call call{problem, args};
  if (problem.op == Op::forward) {
    Naive{call}.forward();
  } else {
    NaiveBackward(call).backward();
  }
}

}  // namespace sirdar::check
