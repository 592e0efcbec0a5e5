// A ragged batch is its sequences one by one, bit for bit, forward and backward.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "support/call.h"

namespace sirdar::test {
namespace {

struct Batch {
  Problem problem;
  Lengths lengths;
};

Batch random_batch(Op op) {
  Batch result;
  Problem& p = result.problem;
  p.op = op;
  p.batch = *rc::gen::inRange<int64_t>(1, 5);
  for (int64_t b = 0; b < p.batch; ++b) {
    result.lengths.q.push_back(*rc::gen::element(0, 1, 5, 16, 17, 33));
    result.lengths.k.push_back(*rc::gen::element(0, 1, 7, 16, 31, 65));
  }
  p.layout_q = p.layout_kv = Layout::ragged;
  p.total_q = std::accumulate(result.lengths.q.begin(), result.lengths.q.end(), int64_t{0});
  p.total_k = std::accumulate(result.lengths.k.begin(), result.lengths.k.end(), int64_t{0});
  p.seqlen_q = 33;
  p.seqlen_k = 65;
  p.num_heads_q = 4;
  p.num_heads_kv = 2;
  p.head_dim = *rc::gen::element<int64_t>(8, 16, 24);
  p.mask.is_causal = *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>()) p.mask.window_left = *rc::gen::inRange<int64_t>(0, 20);
  p.has_sink = *rc::gen::arbitrary<bool>();
  p.needs_lse = op == Op::forward;
  return result;
}

// Sequence b of a ragged call as a dense batch of one.
Call separate(const Call& ragged, int64_t b) {
  Problem p = ragged.problem;
  p.layout_q = p.layout_kv = Layout::dense;
  p.total_q = p.total_k = 0;
  p.batch = 1;
  p.seqlen_q = ragged.lengths().q[static_cast<size_t>(b)];
  p.seqlen_k = ragged.lengths().k[static_cast<size_t>(b)];
  Call one(p);
  for (int64_t i = 0; i < p.seqlen_q; ++i) {
    copy_row(one.q, i, ragged.q, ragged.query_row(b, i));
    if (p.op == Op::forward) continue;
    copy_row(one.dout, i, ragged.dout, ragged.query_row(b, i));
  }
  for (int64_t j = 0; j < p.seqlen_k; ++j) {
    copy_row(one.k, j, ragged.k, ragged.key_row(b, j));
    copy_row(one.v, j, ragged.v, ragged.key_row(b, j));
  }
  return one;
}

bool rows_equal(const Tensor& a, const Tensor& b, int64_t count,
                const std::function<int64_t(int64_t)>& row) {
  const int64_t columns = a.shape().back() * a.shape()[a.shape().size() - 2];
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < columns; ++c) {
      if (a.flat(i * columns + c) != b.flat(row(i) * columns + c)) return false;
    }
  }
  return true;
}

RC_GTEST_PROP(RaggedEqualsSeparate, Forward, ()) {
  const Batch batch = random_batch(Op::forward);
  Call ragged(batch.problem, batch.lengths);
  for (const Variant& variant : few_variants(batch.problem)) {
    RC_ASSERT(ragged.run(variant).ok());
    for (int64_t b = 0; b < batch.problem.batch; ++b) {
      Call one = separate(ragged, b);
      RC_ASSERT(one.run(variant).ok());
      const auto row = [&](int64_t i) { return ragged.query_row(b, i); };
      RC_ASSERT(rows_equal(one.out, ragged.out, one.problem.seqlen_q, row));
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t i = 0; i < one.problem.seqlen_q; ++i) {
          RC_ASSERT(one.lse.at({0, h, i}) == ragged.lse.flat(ragged.statistic(b, h, i)));
        }
      }
    }
  }
}

RC_GTEST_PROP(RaggedEqualsSeparate, Backward, ()) {
  const Batch batch = random_batch(Op::backward);
  Call ragged(batch.problem, batch.lengths);
  ragged.run_forward_first();
  for (const Variant& variant : few_variants(batch.problem)) {
    RC_ASSERT(ragged.run(variant).ok());
    for (int64_t b = 0; b < batch.problem.batch; ++b) {
      Call one = separate(ragged, b);
      one.run_forward_first();
      RC_ASSERT(one.run(variant).ok());
      const auto query = [&](int64_t i) { return ragged.query_row(b, i); };
      const auto key = [&](int64_t j) { return ragged.key_row(b, j); };
      RC_ASSERT(rows_equal(one.dq, ragged.dq, one.problem.seqlen_q, query));
      RC_ASSERT(rows_equal(one.dk, ragged.dk, one.problem.seqlen_k, key));
      RC_ASSERT(rows_equal(one.dv, ragged.dv, one.problem.seqlen_k, key));
    }
  }
}

}  // namespace
}  // namespace sirdar::test
