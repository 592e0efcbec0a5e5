#include "support/second_formula.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "shared/philox.h"

namespace sirdar::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// sign, exponent and fraction of a narrow float, put together with ldexp.
double unpack(unsigned bits, int exponent_bits, int fraction_bits, bool has_infinity) {
  const int fraction = static_cast<int>(bits & ((1u << fraction_bits) - 1));
  const int top = (1 << exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & top;
  const double sign = (bits >> (exponent_bits + fraction_bits)) & 1 ? -1 : 1;
  if (has_infinity && exponent == top) return fraction ? std::nan("") : sign * kInf;
  if (!has_infinity && (bits & 0x7f) == 0x7f) return std::nan("");
  const double significand = fraction + (exponent ? std::ldexp(1, fraction_bits) : 0);
  return sign * std::ldexp(significand, std::max(exponent, 1) - top / 2 - fraction_bits);
}

double element(const TensorView& view, std::initializer_list<int64_t> index) {
  int64_t offset = 0;
  size_t axis = 0;
  for (const int64_t i : index) {
    if (view.shape[axis] > 1) offset += i * view.stride[axis];  // size 1: broadcast
    ++axis;
  }
  const char* at = static_cast<const char*>(view.data) + offset * size_bytes(view.dtype);
  uint64_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(size_bytes(view.dtype)));  // little endian
  switch (view.dtype) {
    case DType::fp32: {
      float value;
      std::memcpy(&value, at, 4);
      return value;
    }
    case DType::bf16:
      return unpack(static_cast<unsigned>(bits), 8, 7, true);
    case DType::fp16:
      return unpack(static_cast<unsigned>(bits), 5, 10, true);
    case DType::fp8_e4m3:
      return unpack(static_cast<unsigned>(bits), 4, 3, false);
    case DType::fp8_e5m2:
      return unpack(static_cast<unsigned>(bits), 5, 2, true);
    case DType::int32:
      return static_cast<int32_t>(static_cast<uint32_t>(bits));
    default:
      return static_cast<double>(bits);
  }
}

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> data;
  Matrix(int64_t r, int64_t c, double fill = 0)
      : rows(r), columns(c), data(static_cast<size_t>(r * c), fill) {}
  double& operator()(int64_t r, int64_t c) { return data[static_cast<size_t>(r * columns + c)]; }
  double operator()(int64_t r, int64_t c) const {
    return data[static_cast<size_t>(r * columns + c)];
  }
};

// a b and a^T b, a b^T by transposing first; the inner index is the outer loop.
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  for (int64_t k = 0; k < a.columns; ++k) {
    for (int64_t j = 0; j < b.columns; ++j) {
      for (int64_t i = 0; i < a.rows; ++i) c(i, j) += a(i, k) * b(k, j);
    }
  }
  return c;
}
Matrix transpose(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) t(j, i) = a(i, j);
  }
  return t;
}

struct Formula {
  const Problem& p;
  const Args& args;
  const HandWritten* score_mod;
  const HandWritten* mask_mod;

  int64_t first(const TensorView& cu, Layout layout, int64_t b) const {
    return layout == Layout::ragged ? static_cast<int64_t>(element(cu, {b})) : 0;
  }
  int64_t length(bool query, int64_t b) const {
    const TensorView& used = query ? args.seqused_q : args.seqused_k;
    if (used.present()) return static_cast<int64_t>(element(used, {b}));
    const Layout layout = query ? p.layout_q : p.layout_kv;
    const TensorView& cu = query ? args.cu_seqlens_q : args.cu_seqlens_k;
    if (layout == Layout::ragged) return first(cu, layout, b + 1) - first(cu, layout, b);
    return query ? p.seqlen_q : p.seqlen_k;
  }

  double row_element(const TensorView& view, bool query, int64_t b, int64_t row, int64_t head,
                     int64_t c) const {
    const Layout layout = query ? p.layout_q : p.layout_kv;
    if (layout == Layout::dense) return element(view, {b, row, head, c});
    if (layout == Layout::ragged) {
      return element(
          view, {first(query ? args.cu_seqlens_q : args.cu_seqlens_k, layout, b) + row, head, c});
    }
    const int64_t page = static_cast<int64_t>(element(args.page_table, {b, row / p.page_size}));
    return element(view, {page, row % p.page_size, head, c});
  }
  Matrix gather(const TensorView& view, bool query, int64_t b, int64_t head, int64_t width) const {
    Matrix m(length(query, b), width);
    for (int64_t row = 0; row < m.rows; ++row) {
      for (int64_t c = 0; c < width; ++c) m(row, c) = row_element(view, query, b, row, head, c);
    }
    return m;
  }
  // Index of a gap-free output's row.
  int64_t row_index(bool query, int64_t b, int64_t row) const {
    const Layout layout = query ? p.layout_q : p.layout_kv;
    if (layout == Layout::ragged) {
      return first(query ? args.cu_seqlens_q : args.cu_seqlens_k, layout, b) + row;
    }
    return b * (query ? p.seqlen_q : p.seqlen_k) + row;
  }
  size_t statistic_index(int64_t b, int64_t h, int64_t i) const {
    if (p.layout_q == Layout::ragged) {
      return static_cast<size_t>(h * p.total_q + row_index(true, b, i));
    }
    return static_cast<size_t>((b * p.num_heads_q + h) * p.seqlen_q + i);
  }

  HandWritten::At point(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const auto read = [this](const char* name, int64_t x, int64_t y) {
      for (const NamedTensor& t : args.tensors) {
        if (t.name != name) continue;
        return t.view.rank == 1 ? element(t.view, {x}) : element(t.view, {x, y});
      }
      return std::nan("");
    };
    const double scalar = args.scalars.empty() ? 0 : args.scalars[0].second;
    return {b, h, i, j, i + length(false, b) - length(true, b), read, scalar};
  }

  bool shows(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t corner = length(false, b) - length(true, b);
    // The key on the diagonal of this row.
    const int64_t diagonal = p.mask.alignment == Alignment::top_left ? i : i + corner;
    if (p.mask.is_causal && diagonal < j) return false;
    if (p.mask.window_left && diagonal - j > *p.mask.window_left) return false;
    if (p.mask.window_right && j - diagonal > *p.mask.window_right) return false;
    if (p.mask.chunk_size > 0) {
      int64_t start = 0;  // the chunk that holds the diagonal
      while (start > diagonal) start -= p.mask.chunk_size;
      while (start + p.mask.chunk_size <= diagonal) start += p.mask.chunk_size;
      if (j < start || j >= start + p.mask.chunk_size) return false;
    }
    if (p.has_document && element(args.document_q, {b, i}) != element(args.document_k, {b, j})) {
      return false;
    }
    if (p.has_mask_tensor && element(args.mask, {b, h, i, j}) == 0) return false;
    if (p.has_bias && element(args.bias, {b, h, i, j}) == -kInf) return false;
    return mask_mod == nullptr || mask_mod->allows(point(b, h, i, j));
  }

  double keep(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (p.dropout_p == 0) return 1;
    const auto half = [](uint64_t x, int n) { return static_cast<unsigned>(x >> (32 * n)); };
    const PhiloxBlock key = philox4x32_10(
        {{half(args.dropout_offset, 0), half(args.dropout_offset, 1), 0x44524F50u, 0}},
        {half(args.dropout_seed, 0), half(args.dropout_seed, 1)});
    const PhiloxBlock block =
        philox4x32_10({{half(static_cast<uint64_t>(j / 4), 0), static_cast<unsigned>(i),
                        static_cast<unsigned>(h), static_cast<unsigned>(b)}},
                      {key.word[0], key.word[1]});
    const double chance = double{p.dropout_p};
    return block.word[j % 4] >= std::ceil(chance * 4294967296.0) ? 1 / (1 - chance) : 0;
  }

  double scale() const {
    return p.softmax_scale
               ? double{*p.softmax_scale}
               : double{static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim)))};
  }
};

// The matrices of one (b, h).
struct Head {
  const Formula& f;
  int64_t b, h, head_kv;
  Matrix q, k, v;
  Matrix raw, before, logits, weights, factors, out;
  std::vector<double> lse, sink_weight;

  Head(const Formula& formula, int64_t batch, int64_t head)
      : f(formula),
        b(batch),
        h(head),
        head_kv(head * f.p.num_heads_kv / f.p.num_heads_q),
        q(f.gather(f.args.q, true, b, h, f.p.head_dim)),
        k(f.gather(f.args.k, false, b, head_kv, f.p.head_dim)),
        v(f.gather(f.args.v, false, b, head_kv, f.p.value_dim())),
        raw(product(q, transpose(k))),
        before(raw),
        logits(q.rows, k.rows, -kInf),
        weights(q.rows, k.rows),
        factors(q.rows, k.rows),
        out(q.rows, v.columns) {
    score();
    normalise();
    Matrix dropped = weights;
    for (size_t n = 0; n < dropped.data.size(); ++n) dropped.data[n] *= factors.data[n];
    out = product(dropped, v);
  }

  void score() {
    const Problem& p = f.p;
    for (int64_t j = 0; j < k.rows; ++j) {
      for (int64_t i = 0; i < q.rows; ++i) {
        double s = f.scale() * raw(i, j);
        if (p.softcap > 0) s = double{p.softcap} * std::tanh(s / double{p.softcap});
        if (p.has_bias) s += element(f.args.bias, {b, h, i, j});
        if (p.has_alibi) {
          const TensorView& a = f.args.alibi;
          const double slope = a.rank == 1 ? element(a, {h}) : element(a, {b, h});
          s -= slope * std::abs(static_cast<double>(f.point(b, h, i, j).q_pos - j));
        }
        before(i, j) = s;
        factors(i, j) = f.keep(b, h, i, j);
        if (!f.shows(b, h, i, j)) continue;
        logits(i, j) = f.score_mod ? f.score_mod->value(s, f.point(b, h, i, j)) : s;
      }
    }
  }

  void normalise() {
    const double sink = f.p.has_sink ? element(f.args.sink, {h}) : -kInf;
    for (int64_t i = 0; i < q.rows; ++i) {
      double top = sink, total = 0;
      for (int64_t j = k.rows - 1; j >= 0; --j) top = std::max(top, logits(i, j));
      for (int64_t j = k.rows - 1; j >= 0 && top > -kInf; --j)
        total += std::exp(logits(i, j) - top);
      if (top > -kInf) total += std::exp(sink - top);
      lse.push_back(top > -kInf ? top + std::log(total) : -kInf);
      sink_weight.push_back(top > -kInf ? std::exp(sink - lse.back()) : 0);
      for (int64_t j = 0; j < k.rows; ++j) {
        weights(i, j) = top > -kInf ? std::exp(logits(i, j) - lse.back()) : 0;
      }
    }
  }
};

void put(std::vector<double>& to, int64_t row, int64_t heads, int64_t head, const Matrix& m,
         int64_t from) {
  for (int64_t c = 0; c < m.columns; ++c) {
    to[static_cast<size_t>((row * heads + head) * m.columns + c)] += m(from, c);
  }
}

void add_gradients(const Head& one, Matrices& result) {
  const Formula& f = one.f;
  const Problem& p = f.p;
  const Matrix dout = f.gather(f.args.dout, true, one.b, one.h, p.value_dim());
  Matrix dp = product(dout, transpose(one.v)), dropped = one.weights, draw = dp;
  for (int64_t i = 0; i < dp.rows; ++i) {
    double delta = 0;
    for (int64_t c = 0; c < dout.columns; ++c) delta += dout(i, c) * one.out(i, c);
    if (p.has_dlse) {
      const TensorView& dlse = f.args.dlse;
      delta -= p.layout_q == Layout::ragged ? element(dlse, {one.h, f.row_index(true, one.b, i)})
                                            : element(dlse, {one.b, one.h, i});
    }
    if (p.needs_dsink)
      result.dsink[static_cast<size_t>(one.h)] -= one.sink_weight[static_cast<size_t>(i)] * delta;
    for (int64_t j = 0; j < dp.columns; ++j) {
      dropped(i, j) *= one.factors(i, j);
      double ds = one.weights(i, j) * (dp(i, j) * one.factors(i, j) - delta);
      if (!f.shows(one.b, one.h, i, j)) ds = 0;
      const HandWritten::At at = f.point(one.b, one.h, i, j);
      if (f.score_mod && f.score_mod->by_tensor && !result.dtensor.empty()) {
        const int64_t columns =
            f.args.tensors[0].view.rank == 1 ? 1 : f.args.tensors[0].view.shape[1];
        result.dtensor[static_cast<size_t>(f.score_mod->element(at, columns))] +=
            ds * f.score_mod->by_tensor(one.before(i, j), at);
      }
      if (f.score_mod) ds *= f.score_mod->derivative(one.before(i, j), at);
      if (p.needs_dbias) {
        const auto& shape = f.args.bias.shape;
        const int64_t index[4] = {one.b, one.h, i, j};
        int64_t place = 0;
        for (size_t a = 0; a < 4; ++a) place = place * shape[a] + (shape[a] == 1 ? 0 : index[a]);
        result.dbias[static_cast<size_t>(place)] += ds;
      }
      const double cosh = std::cosh(f.scale() * one.raw(i, j) / double{p.softcap});
      draw(i, j) = ds * f.scale() * (p.softcap > 0 ? 1 / (cosh * cosh) : 1);
    }
  }
  const Matrix dq = product(draw, one.k), dk = product(transpose(draw), one.q);
  const Matrix dv = product(transpose(dropped), dout);
  for (int64_t i = 0; i < dq.rows; ++i) {
    put(result.dq, f.row_index(true, one.b, i), p.num_heads_q, one.h, dq, i);
  }
  for (int64_t j = 0; j < dk.rows; ++j) {
    put(result.dk, f.row_index(false, one.b, j), p.num_heads_kv, one.head_kv, dk, j);
    put(result.dv, f.row_index(false, one.b, j), p.num_heads_kv, one.head_kv, dv, j);
  }
}

}  // namespace

Matrices second_formula(const Problem& p, const Args& args, const HandWritten* score_mod,
                        const HandWritten* mask_mod) {
  const Formula formula{p, args, score_mod, mask_mod};
  const int64_t rows_q = p.layout_q == Layout::ragged ? p.total_q : p.batch * p.seqlen_q;
  const int64_t rows_k = p.layout_kv == Layout::ragged ? p.total_k : p.batch * p.seqlen_k;
  const auto zeros = [](int64_t count) { return std::vector<double>(static_cast<size_t>(count)); };
  Matrices result;
  result.out = zeros(rows_q * p.num_heads_q * p.value_dim());
  result.lse.assign(static_cast<size_t>(rows_q * p.num_heads_q), -kInf);
  result.max_logit = result.lse;
  if (p.op == Op::backward) {
    result.dq = zeros(rows_q * p.num_heads_q * p.head_dim);
    result.dk = zeros(rows_k * p.num_heads_kv * p.head_dim);
    result.dv = zeros(rows_k * p.num_heads_kv * p.value_dim());
    if (p.needs_dsink) result.dsink = zeros(p.num_heads_q);
    if (p.needs_dbias) {
      const auto& s = args.bias.shape;
      result.dbias = zeros(s[0] * s[1] * s[2] * s[3]);
    }
    for (const NamedTensor& t : args.dtensors) {
      result.dtensor = zeros(t.view.shape[0] * (t.view.rank == 1 ? 1 : t.view.shape[1]));
    }
  }
  for (int64_t h = p.num_heads_q; h-- > 0;) {
    for (int64_t b = p.batch; b-- > 0;) {
      const Head one(formula, b, h);
      for (int64_t i = 0; i < one.q.rows; ++i) {
        put(result.out, formula.row_index(true, b, i), p.num_heads_q, h, one.out, i);
        const size_t at = formula.statistic_index(b, h, i);
        result.lse[at] = one.lse[static_cast<size_t>(i)];
        for (int64_t j = 0; j < one.k.rows; ++j) {
          result.max_logit[at] = std::max(result.max_logit[at], one.logits(i, j));
        }
      }
      if (p.op == Op::backward) add_gradients(one, result);
    }
  }
  return result;
}

}  // namespace sirdar::testing
