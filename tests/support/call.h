// One attention call with all its memory, ready to run: made from a problem, filled with random
// values, outputs NaN. Tests overwrite what they are about and then run it on every implementation.
#pragma once

#include <sirdar/sirdar.hpp>

#include "support/tensor.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sirdar::test {

// A way to compute: implementation, instruction set, threads.
struct Variant {
  std::string implementation, isa;
  int num_threads = 1;
  std::string str() const;
  PlanOptions options() const;
};

// Every variant that accepts the problem on this machine; never empty for a legal problem.
std::vector<Variant> variants(const Problem& problem);
// Only the weakest and the widest of each implementation, one thread.
std::vector<Variant> few_variants(const Problem& problem);

// Lengths of the sequences of a ragged or shortened batch; an empty list is filled from the
// problem.
struct Lengths {
  std::vector<int32_t> q, k, used_q, used_k;
};

class Call {
 public:
  explicit Call(const Problem& problem, const Lengths& lengths = {}, uint64_t seed = 1);
  explicit Call(const std::string& problem_string, const Lengths& lengths = {}, uint64_t seed = 1);

  Problem problem;
  Tensor q, k, v, out, lse, max_logit;
  Tensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table;
  Tensor document_q, document_k, mask, bias, alibi, sink;
  std::vector<Tensor> tensors;
  std::vector<double> scalars;
  uint64_t dropout_seed = 7, dropout_offset = 11;
  Tensor dout, dlse, dq, dk, dv, dbias, dsink;
  std::vector<Tensor> dtensors;

  Args args() const;  // views of the members as they are now
  // Fills outputs with NaN, plans with the variant and runs. Guard bytes are checked after.
  Status run(const Variant& variant);
  Status run(const PlanOptions& options);
  Status run_reference() { return run({"reference", "", 1}); }
  // Backward calls: fills out and lse by the reference's forward of the same problem.
  void run_forward_first();

  // Every output's bits, one after another, for bitwise comparison.
  std::vector<uint8_t> output_bits() const;
  std::vector<Tensor> outputs() const;

  // Row of query i or key j of sequence b in a tensor seen as [rows, heads, columns].
  int64_t query_row(int64_t b, int64_t i) const;
  int64_t key_row(int64_t b, int64_t j) const;
  // Position of (b, h, i) in lse, max_logit and dlse, for Tensor::flat.
  int64_t statistic(int64_t b, int64_t h, int64_t i) const;
  const Lengths& lengths() const { return lengths_; }
  // Random values in the rows in use, NaN in all others; depends on the sequence, not on the
  // layout.
  void fill_rows(Tensor* tensor, bool is_query, uint64_t seed);

 private:
  void make_lengths(const Lengths& lengths);
  void make_inputs(uint64_t seed);
  void make_outputs();
  Shape query_shape(int64_t columns) const;
  Shape key_shape(int64_t columns) const;
  Shape statistic_shape() const;

  Lengths lengths_;
};

// The forward problem whose out and lse a backward problem needs.
Problem forward_of(const Problem& problem);

// |actual - expected| <= tolerance element by element; NaN matches NaN and infinities match
// themselves; names the worst element.
::testing::AssertionResult near(const std::vector<double>& actual,
                                const std::vector<double>& expected, double tolerance);
// Agreement of two computations in `dtype`: some tens of roundings of the largest expected value.
::testing::AssertionResult close(const std::vector<double>& actual,
                                 const std::vector<double>& expected, DType dtype = DType::fp32);
::testing::AssertionResult all_finite(const std::vector<double>& values);
::testing::AssertionResult all_equal(const std::vector<double>& values, double expected);

// A test's name from the problem it is about, with what a name may not hold as underscores.
std::string named_after(const std::string& text, size_t index);
inline std::string named_after_problem(const ::testing::TestParamInfo<const char*>& param) {
  return named_after(param.param, param.index);
}

// Copies one row, of all heads and columns, between tensors seen as [rows, heads, columns].
void copy_row(const Tensor& to, int64_t to_row, const Tensor& from, int64_t from_row);

// Runs the call (forward or backward) and compares every output with float64.
void expect_matches_float64(Call& call, const Variant& variant);
void expect_all_match_float64(Call& call);

}  // namespace sirdar::test
