#include "bench_naive.h"

#include <algorithm>
#include <cmath>

#include "blas.h"
#include "core/geometry.h"
#include "cpu/dispatch.h"
#include "cpu/executor.h"

namespace sirdar::cli {

std::string NaiveAttention::refusal(const Problem& problem) {
  if (blas().sgemm == nullptr) return "there is no libopenblas.so.0 here (Debian: libopenblas0)";
  const FeatureSet understood = feature::gqa | feature::head_dim_v | feature::causal |
                                feature::window | feature::chunk | feature::top_left |
                                feature::lse | feature::max_logit | feature::dtype_fp32;
  const FeatureSet foreign = problem.features().minus(understood);
  return foreign.empty() ? "" : "the naive method here does not understand " + foreign.str();
}

NaiveAttention::NaiveAttention(const Problem& problem, Isa isa, int num_threads)
    : problem_(problem),
      isa_(isa),
      num_threads_(num_threads),
      scores_(static_cast<size_t>(problem.seqlen_q * problem.seqlen_k)),
      out_(static_cast<size_t>(problem.batch * problem.seqlen_q * problem.num_heads_q *
                               problem.value_dim())) {}

void NaiveAttention::run(const Args& args, NaiveSoftmax softmax) {
  const Blas& library = blas();
  library.set_num_threads(num_threads_);
  const RowMap q = row_map(args.q, Layout::dense), k = row_map(args.k, Layout::dense),
               v = row_map(args.v, Layout::dense);
  const int rows = static_cast<int>(problem_.seqlen_q), keys = static_cast<int>(problem_.seqlen_k);
  const int dim = static_cast<int>(problem_.head_dim),
            dim_v = static_cast<int>(problem_.value_dim());
  // A stride of a single row is not known, and not read.
  const auto leading = [](const RowMap& map, int columns) {
    return std::max(static_cast<int>(map.stride_row), columns);
  };
  const auto data = [](const TensorView& view) { return static_cast<const float*>(view.data); };
  for (int64_t b = 0; b < problem_.batch; ++b) {
    for (int64_t h = 0; h < problem_.num_heads_q; ++h) {
      const int64_t head_kv = h / problem_.group_size();
      library.sgemm(Blas::kRowMajor, Blas::kNoTrans, Blas::kTrans, rows, keys, dim,
                    problem_.scale(), data(args.q) + q.offset(b, {}, 0, h), leading(q, dim),
                    data(args.k) + k.offset(b, {}, 0, head_kv), leading(k, dim), 0, scores_.data(),
                    keys);
      softmax_rows(softmax);
      float* out = out_.data() + (b * rows * problem_.num_heads_q + h) * dim_v;
      library.sgemm(Blas::kRowMajor, Blas::kNoTrans, Blas::kNoTrans, rows, dim_v, keys, 1,
                    scores_.data(), keys, data(args.v) + v.offset(b, {}, 0, head_kv),
                    leading(v, dim_v), 0, out, static_cast<int>(problem_.num_heads_q * dim_v));
    }
  }
}

// Row by row over the visible keys; the others get weight 0.
void NaiveAttention::softmax_rows(NaiveSoftmax softmax) {
  struct Rows {
    float* scores;
    int64_t keys;
    StructuredMask mask;
    NaiveSoftmax softmax;
    void (*vector_softmax)(float*, int64_t);

    static void run(void* arg, int64_t i, int) {
      const Rows& rows = *static_cast<const Rows*>(arg);
      float* row = rows.scores + i * rows.keys;
      const Range seen = key_range(rows.mask, i);
      std::fill(row, row + seen.begin, 0.0f);
      std::fill(row + std::max(seen.begin, seen.end), row + rows.keys, 0.0f);
      if (seen.empty()) return;
      if (rows.softmax == NaiveSoftmax::vector_exp) {
        rows.vector_softmax(row + seen.begin, seen.size());
        return;
      }
      const float row_max = *std::max_element(row + seen.begin, row + seen.end);
      float sum = 0;
      for (int64_t j = seen.begin; j < seen.end; ++j) sum += row[j] = std::exp(row[j] - row_max);
      for (int64_t j = seen.begin; j < seen.end; ++j) row[j] /= sum;
    }
  } rows{scores_.data(), problem_.seqlen_k,
         structured_mask(problem_.mask, problem_.seqlen_q, problem_.seqlen_k), softmax,
         cpu::kernels_for(isa_).softmax_row};
  const Executor& pool = cpu::default_executor();
  pool.parallel_for(pool.context, problem_.seqlen_q, num_threads_, Rows::run, &rows);
}

double NaiveAttention::difference(const Args& args) const {
  const RowMap map = row_map(args.out, Layout::dense);
  const float* out = static_cast<const float*>(args.out.data);
  const float* own = out_.data();
  double worst = 0, largest = 0;
  for (int64_t b = 0; b < problem_.batch; ++b)
    for (int64_t i = 0; i < problem_.seqlen_q; ++i)
      for (int64_t h = 0; h < problem_.num_heads_q; ++h, own += problem_.value_dim())
        for (int64_t c = 0; c < problem_.value_dim(); ++c) {
          worst = std::max<double>(worst, std::fabs(out[map.offset(b, {}, i, h) + c] - own[c]));
          largest = std::max<double>(largest, std::fabs(own[c]));
        }
  return largest > 0 ? worst / largest : worst;
}

}  // namespace sirdar::cli
