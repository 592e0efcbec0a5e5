// expected_outputs(): float64 results, natural scales of errors, and how large an error may be.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check/compare.h"
#include "core/elements.h"
#include "core/geometry.h"
#include "reference/rows.h"
#include "shared/dtype.h"

namespace sirdar::check {
namespace {

using reference::Call;
using reference::Item;
using reference::Pair;
using reference::Row;

constexpr double kEps32 = 0x1p-23;
// Rounding a small product to fp32, whose smallest steps are 2^-149.
constexpr double kHalfStep32 = 0x1p-150;
// Smaller fp32 intermediates may be flushed to zero.
constexpr double kFlushed = 0x1p-126;

// Scale and allowance of one output, row-major.
struct Bound {
  Row scale, allowed;
  explicit Bound(size_t size) : scale(size, 0), allowed(size, 0) {}
  // A term of size `part` that may be off by `relative` of itself, and by `absolute` more.
  void add(size_t at, double part, double relative, double absolute = 0) {
    allowed[at] += absolute;
    if (part == 0) return;  // whatever its relative error, infinite beside a logit of -inf
    scale[at] += part;
    allowed[at] += part * relative + kHalfStep32;
  }
  // What an intermediate loses that is flushed, times what it meets, counts as one epsilon.
  void add_flushed(size_t at, double size) { scale[at] += kFlushed / kEps32 * size; }
};

// The gradient of a logit: its size without signs, and how far it may be off in fp32.
struct LogitGradient {
  double size, relative, absolute;
  double flushed;  // what a weight that is flushed would have been multiplied with
};

// A pair as rounding sees it.
struct Conditioned {
  Pair pair;
  double factor;          // dropout
  double slope;           // |d logit / d dot|
  double slope_mod;       // |d logit / d score|
  double relative32;      // allowed relative error of p in fp32
  double relative;        // and of p as an operand of the product with v or dout
  double slope_relative;  // and of the slopes, which change with the score
  double abs_pv;          // filled by the backward pass: sum_c |dout_ic v_jc|
};

// How a sound implementation rounds, in units of the relative error of p_ij:
//   the products q.k, soft-cap, bias, ALiBi and score_mod are added up in fp32: the logit is off by
//   a few fp32 roundings of its largest parts m_ij = scale sum_c |q_ic k_jc| + cap + |bias| + ...;
//   p_ij inherits that of its own logit and, through the normaliser, the weighted mean of all: 4
//   (m_ij + sum_l p_il m_il) fp32 epsilons; exp, the running sum over n keys and the division: 8 +
//   sqrt(n) fp32 epsilons; with inputs narrower than fp32, p is rounded to their dtype before it
//   meets v: 1 epsilon of it.
double allowance(double m, double mean_m, size_t n) {
  return kEps32 * (4 * (m + mean_m) + 8 + std::sqrt(static_cast<double>(n)));
}

// The format of matrix operands: the inputs' dtype, or bf16 where that is fp8.
const DTypeRow& operand_row(const Problem& problem) {
  const DTypeRow& dtype = row_of(problem.dtype_q);
  return dtype.bits == 8 ? row_of(DType::bf16) : dtype;
}
double operand_epsilon(const Problem& problem) { return operand_row(problem).epsilon(); }

// How often a term's product and the sum it joins may be lost: with ALiBi or a score_mod whatever
// fp32 could only hold as a subnormal number may become 0 (docs/semantics.md, "How results are
// judged").
double losses_per_term(const Problem& problem) {
  return problem.has_alibi || !problem.score_mod.empty() ? 1 : 0;
}

// What an operand loses where it is subnormal in its format (a small weight in fp16), per unit of
// what it is multiplied with.
double operand_tiny(const Problem& problem) {
  return operand_row(problem).min_subnormal() + kFlushed;
}

double abs_dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += std::abs(a[c] * b[c]);
  return sum;
}

struct RowBounds {
  std::vector<Conditioned> pairs;
  reference::RowSoftmax softmax;
  double mean_m = 0, max_m = 0;
  double sink_relative = 0;
};

RowBounds condition(const Call& call, const Item& item, int64_t h, int64_t i, const Row& q_i) {
  const Problem& problem = call.problem;
  RowBounds row;
  std::vector<Pair> pairs = reference::visible_pairs(call, item, h, i, q_i);
  const double sink = call.sink(h);
  row.softmax = reference::softmax(pairs, sink);
  Row k_j(q_i.size()), m(pairs.size());
  for (size_t n = 0; n < pairs.size(); ++n) {
    const Pair& pair = pairs[n];
    load_row(call.args.k, call.k.offset(item.b, item.k, pair.j, h / problem.group_size()), k_j);
    const double bias = std::abs(reference::bias(call, item, h, i, pair.j));
    const double alibi = std::abs(reference::alibi(call, item, h, i, pair.j));
    Conditioned one{pair, 1, std::abs(call.logits.derivative(pair.dot)), 1, 0, 0, 0, 0};
    const double scaled = std::abs(call.logits.softmax_scale) * abs_dot(q_i, k_j);
    // A saturated soft-cap passes nothing of its score on, however large.
    const double passed = one.slope == 0 ? 0 : one.slope * abs_dot(q_i, k_j);
    m[n] = passed + problem.softcap + bias + alibi;
    if (problem.softcap > 0) one.slope_relative = 8 * kEps32 * scaled / problem.softcap;
    if (call.score_mod) {
      const expression::Point point{pair.score, item.b, h, i, pair.j, item.q_pos(i)};
      const std::vector<double*> none(problem.tensors.size(), nullptr);
      one.slope_mod = std::abs(call.score_mod->derivative(call.bindings, point, 1, none));
      one.slope = one.slope_mod == 0 ? 0 : one.slope * one.slope_mod;
      // What is flat passes nothing on either: an infinite score under a tanh.
      const bool is_flat = one.slope_mod == 0;
      if (!is_flat) one.slope_relative += 8 * kEps32 * m[n];
      // A logit of -inf has no weight and no rounding.
      m[n] = (is_flat ? 0 : m[n] * one.slope_mod) +
             (std::isfinite(pair.logit) ? std::abs(pair.logit) : 0);
    }
    one.factor = reference::dropout_factor(call, item, h, i, pair.j);
    if (pair.weight > 0) row.mean_m += pair.weight * m[n];
    row.max_m = std::max(row.max_m, m[n]);
    row.pairs.push_back(one);
  }
  const double epsilon_p = operand_epsilon(problem) - kEps32;
  for (size_t n = 0; n < pairs.size(); ++n) {
    row.pairs[n].relative32 = allowance(m[n], row.mean_m, pairs.size());
    row.pairs[n].relative = row.pairs[n].relative32 + epsilon_p;
  }
  row.sink_relative = allowance(std::isfinite(sink) ? std::abs(sink) : 0, row.mean_m, pairs.size());
  return row;
}

// Adds the last rounding, to the output's own dtype.
Expected finish(std::string name, const TensorView& view, double epsilon, Row value, Bound bound) {
  const DTypeRow& dtype = row_of(view.dtype);
  for (size_t n = 0; n < bound.scale.size(); ++n) {
    bound.allowed[n] += dtype.epsilon() * bound.scale[n] + dtype.min_subnormal();
    bound.scale[n] += dtype.min_normal();
  }
  return {std::move(name),
          view,
          std::max(epsilon, dtype.epsilon()),
          std::move(value),
          std::move(bound.scale),
          std::move(bound.allowed)};
}

std::vector<Expected> forward_outputs(const Call& call) {
  const Problem& problem = call.problem;
  const Args& args = call.args;
  const reference::Dense out_rows = reference::dense_out(problem);
  const reference::Dense statistics = reference::dense_statistics(problem);
  Bound out(static_cast<size_t>(out_rows.size)), lse(static_cast<size_t>(statistics.size));
  Bound max_logit = lse;
  Row q_i(static_cast<size_t>(problem.head_dim)), v_j(static_cast<size_t>(problem.value_dim()));
  const double tiny = operand_tiny(problem), losses = losses_per_term(problem);
  reference::for_each_row(call, [&](const Item& item, int64_t h, int64_t i) {
    load_row(args.q, call.q.offset(item.b, item.q, i, h), q_i);
    const RowBounds row = condition(call, item, h, i, q_i);
    const size_t at = static_cast<size_t>(statistics.map.offset(item.b, item.q, i, h));
    const double log_terms = 2 + std::sqrt(static_cast<double>(row.pairs.size()));
    lse.add(at, 1 + std::abs(row.softmax.lse), kEps32);
    lse.allowed[at] += kEps32 * (4 * row.mean_m + log_terms);
    max_logit.add(at, 1 + std::abs(row.softmax.max_logit), kEps32);
    max_logit.allowed[at] += kEps32 * 4 * row.max_m;
    const size_t begin = static_cast<size_t>(out_rows.map.offset(item.b, item.q, i, h));
    for (const Conditioned& one : row.pairs) {
      load_row(args.v, call.v.offset(item.b, item.k, one.pair.j, h / problem.group_size()), v_j);
      for (size_t c = 0; c < v_j.size(); ++c) {
        // A weight is lost before dropout's factor makes it larger.
        const double size = one.factor * std::abs(v_j[c]);
        out.add(begin + c, one.pair.weight * size, one.relative, tiny * size + losses * kFlushed);
        out.add_flushed(begin + c, size + losses);
      }
    }
  });
  reference::Forward result = reference::forward(problem, args);
  std::vector<Expected> all;
  all.push_back(
      finish("out", args.out, operand_epsilon(problem), std::move(result.out), std::move(out)));
  if (problem.needs_lse)
    all.push_back(finish("lse", args.lse, kEps32, std::move(result.lse), std::move(lse)));
  if (problem.needs_max_logit) {
    all.push_back(finish("max_logit", args.max_logit, kEps32, std::move(result.max_logit),
                         std::move(max_logit)));
  }
  return all;
}

struct GradientBounds {
  const Call& call;
  reference::Gradients shape;  // sizes; the values are the expected ones
  Bound dq{shape.dq.size()}, dk{shape.dk.size()}, dv{shape.dv.size()};
  Bound dbias{shape.dbias.size()}, dsink{shape.dsink.size()};
  std::vector<Bound> dtensors{};
  RowMap dq_map{}, dk_map{}, dv_map{};
  // One pair's contribution to each expression tensor, cleared after use, to add up sizes not
  // signs.
  std::vector<Row> scratch{};
  std::vector<double*> scratch_data{};

  void start() {
    const Problem& p = call.problem;
    const auto key_map = [&p](int64_t dim) {
      return reference::dense_rows(p, p.layout_kv, p.seqlen_k, p.total_k, p.num_heads_kv, dim).map;
    };
    dq_map =
        reference::dense_rows(p, p.layout_q, p.seqlen_q, p.total_q, p.num_heads_q, p.head_dim).map;
    dk_map = key_map(p.head_dim);
    dv_map = key_map(p.value_dim());
    for (const Row& gradient : shape.dtensors) {
      dtensors.emplace_back(gradient.size());
      scratch.emplace_back(gradient.size(), 0.0);
    }
    for (Row& row : scratch) scratch_data.push_back(row.empty() ? nullptr : row.data());
  }

  void add_row(const Item& item, int64_t h, int64_t i, const Row& q_i, const Row& dout_i,
               double abs_dlse) {
    const Problem& problem = call.problem;
    const int64_t head_kv = h / problem.group_size();
    RowBounds row = condition(call, item, h, i, q_i);
    if (row.softmax.lse == -std::numeric_limits<double>::infinity()) return;  // an empty row
    Row k_j(q_i.size()), v_j(dout_i.size());
    double delta = abs_dlse;  // size of D_i
    for (Conditioned& one : row.pairs) {
      load_row(call.args.v, call.v.offset(item.b, item.k, one.pair.j, head_kv), v_j);
      one.abs_pv = one.factor * abs_dot(dout_i, v_j);
      delta += one.pair.weight * one.abs_pv;
    }
    // p is made from the caller's lse and D from the caller's out: fp32 arithmetic, and so are
    // dbias, dsink and the gradients of tensors. An implementation may as well sum D from p and dP,
    // where out has been rounded, and round dS to the inputs' dtype before it meets q and k.
    const double lse = std::isfinite(row.softmax.lse) ? std::abs(row.softmax.lse) : 0;
    const double common32 =
        kEps32 * (lse + 8 + std::sqrt(static_cast<double>(problem.value_dim())));
    const double narrow =
        row_of(problem.output_dtype()).epsilon() + operand_epsilon(problem) - kEps32;
    const double tiny = operand_tiny(problem), losses = losses_per_term(problem);
    const size_t dq_at = static_cast<size_t>(dq_map.offset(item.b, item.q, i, h));
    // Where out is subnormal in its format, its rounding puts an absolute error into D.
    double delta_lost = kFlushed;
    for (const double x : dout_i) {
      delta_lost += std::abs(x) * row_of(problem.output_dtype()).min_subnormal();
    }
    for (const Conditioned& one : row.pairs) {
      const Pair& pair = one.pair;
      const double relative = one.relative + common32 + narrow;
      const LogitGradient dlogit = {pair.weight * (one.abs_pv + delta),
                                    one.relative32 + common32 + one.slope_relative,
                                    kFlushed * (one.abs_pv + delta + 1), one.abs_pv + delta + 1};
      load_row(call.args.k, call.k.offset(item.b, item.k, pair.j, head_kv), k_j);
      const size_t dk_at = static_cast<size_t>(dk_map.offset(item.b, item.k, pair.j, head_kv));
      const size_t dv_at = static_cast<size_t>(dv_map.offset(item.b, item.k, pair.j, head_kv));
      for (size_t c = 0; c < dout_i.size(); ++c) {
        const double size = one.factor * std::abs(dout_i[c]);
        dv.add(dv_at + c, pair.weight * size, relative, tiny * size + losses * kFlushed);
        dv.add_flushed(dv_at + c, size + losses);
      }
      // What is flat passes nothing on, of a row of NaN neither.
      const double ddot = one.slope == 0 ? 0 : dlogit.size * one.slope;
      // The slope of a soft-cap is 4 e / (1 + e)^2 of an e that may be flushed.
      const double capped = problem.softcap > 0 ? 4 * kFlushed * dlogit.size * one.slope_mod *
                                                      std::abs(call.logits.softmax_scale)
                                                : 0;
      const double lost = dlogit.absolute + pair.weight * delta_lost;
      const double absolute = tiny + capped + (one.slope == 0 ? 0 : lost * one.slope);
      const double dot_relative = relative + one.slope_relative;
      // Before and after the slopes.
      const double flushed = one.slope == 0 ? 0 : dlogit.flushed * one.slope + 1;
      for (size_t c = 0; c < q_i.size(); ++c) {
        const double dq_part = ddot == 0 ? 0 : ddot * std::abs(k_j[c]);
        const double dk_part = ddot == 0 ? 0 : ddot * std::abs(q_i[c]);
        dq.add(dq_at + c, dq_part, dot_relative, absolute * std::abs(k_j[c]));
        dk.add(dk_at + c, dk_part, dot_relative, absolute * std::abs(q_i[c]));
        dq.add_flushed(dq_at + c, flushed * std::abs(k_j[c]));
        dk.add_flushed(dk_at + c, flushed * std::abs(q_i[c]));
      }
      add_modifiers(item, h, i, one, dlogit);
    }
    if (problem.needs_dsink) {
      dsink.add(static_cast<size_t>(h), row.softmax.sink_weight * delta,
                row.sink_relative + common32, kFlushed * (delta + 1));
    }
  }

  void add_modifiers(const Item& item, int64_t h, int64_t i, const Conditioned& one,
                     const LogitGradient& dlogit) {
    const Pair& pair = one.pair;
    if (!shape.dbias.empty()) {
      const int64_t index[] = {item.b, h, i, pair.j};
      const auto at = static_cast<size_t>(broadcast_offset(call.args.bias, index, true));
      const bool is_flat = one.slope_mod == 0;
      dbias.add(at, is_flat ? 0 : dlogit.size * one.slope_mod, dlogit.relative,
                is_flat ? 0 : dlogit.absolute * one.slope_mod + kFlushed);
      dbias.add_flushed(at, is_flat ? 0 : dlogit.flushed * one.slope_mod + 1);
    }
    const bool wanted =
        std::any_of(scratch.begin(), scratch.end(), [](const Row& r) { return !r.empty(); });
    if (!wanted || !call.score_mod) return;
    const expression::Point point{pair.score, item.b, h, i, pair.j, item.q_pos(i)};
    const double relative = dlogit.relative + dlogit.absolute / dlogit.size;
    (void)call.score_mod->derivative(call.bindings, point, dlogit.size, scratch_data);
    for (size_t t = 0; t < scratch.size(); ++t) {
      for (size_t n = 0; n < scratch[t].size(); ++n) {
        const double size = std::abs(scratch[t][n]);
        if (size == 0) continue;
        dtensors[t].add(n, size, relative, kFlushed);
        dtensors[t].add_flushed(n, dlogit.flushed * (size / dlogit.size) + 1);
        scratch[t][n] = 0;
      }
    }
  }
};

std::vector<Expected> backward_outputs(const Call& call) {
  const Problem& problem = call.problem;
  const Args& args = call.args;
  const reference::Forward saved{load_all(args.out), load_all(args.lse), {}};
  GradientBounds bounds{call, reference::backward(problem, args, saved)};
  bounds.start();
  const RowMap dout = row_map(args.dout, problem.layout_q);
  const RowMap dlse = row_statistics_map(args.dlse, problem.layout_q);
  Row q_i(static_cast<size_t>(problem.head_dim)), dout_i(static_cast<size_t>(problem.value_dim()));
  reference::for_each_row(call, [&](const Item& item, int64_t h, int64_t i) {
    load_row(args.q, call.q.offset(item.b, item.q, i, h), q_i);
    load_row(args.dout, dout.offset(item.b, item.q, i, h), dout_i);
    const double abs_dlse =
        problem.has_dlse ? std::abs(load_element(args.dlse, dlse.offset(item.b, item.q, i, h))) : 0;
    bounds.add_row(item, h, i, q_i, dout_i, abs_dlse);
  });
  std::vector<Expected> all;
  const double epsilon =
      std::max(operand_epsilon(problem), row_of(problem.output_dtype()).epsilon());
  const auto push = [&](std::string name, const TensorView& view, double coarsest, Row& value,
                        Bound& bound) {
    all.push_back(finish(std::move(name), view, coarsest, std::move(value), std::move(bound)));
  };
  push("dq", args.dq, epsilon, bounds.shape.dq, bounds.dq);
  push("dk", args.dk, epsilon, bounds.shape.dk, bounds.dk);
  push("dv", args.dv, epsilon, bounds.shape.dv, bounds.dv);
  if (problem.needs_dbias) push("dbias", args.dbias, kEps32, bounds.shape.dbias, bounds.dbias);
  if (problem.needs_dsink) push("dsink", args.dsink, kEps32, bounds.shape.dsink, bounds.dsink);
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    for (const NamedTensor& gradient : args.dtensors) {
      if (problem.tensors[t].needs_grad && gradient.name == problem.tensors[t].name) {
        push("d" + gradient.name, gradient.view, kEps32, bounds.shape.dtensors[t],
             bounds.dtensors[t]);
      }
    }
  }
  return all;
}

}  // namespace

std::vector<Expected> expected_outputs(const Problem& problem, const Args& args) {
  const Call call{problem, args};
  return problem.op == Op::forward ? forward_outputs(call) : backward_outputs(call);
}

}  // namespace sirdar::check
