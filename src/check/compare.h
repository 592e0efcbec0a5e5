// How far results are from float64, in units in which an error is fair to judge.
//
// The error of an output element is divided by its natural scale times epsilon:
//   out_ic  sum_j p_ij |v_jc|            dv_jc  sum_i p_ij |dout_ic|
//   lse_i   1 + |largest part of a logit|
//   dS_ij   p_ij (sum_c |dout_ic| (|v_jc| + sum_l p_il |v_lc|) + |dlse_i|)
//   dq, dk, dbias, dsink, expression tensors: the sums over |dS_ij| that make them, without signs.
// What is allowed follows from how a sound implementation rounds: see allowance() in scales.cc.
#pragma once

#include <sirdar/plan.hpp>

#include <string>
#include <vector>

#include "reference/attention.h"

namespace sirdar::check {

// Per element of one output, row-major: what float64 gives, the natural scale, and the largest
// error that is allowed.
struct Expected {
  std::string name;  // as in Args; dtensors by the tensor's name
  TensorView view;   // where the implementation writes it
  double epsilon;    // of the coarsest format that the computation passes through
  std::vector<double> value, scale, allowed;
};

// All outputs of a call; gradients at the out and lse that `args` holds. Throws std::bad_alloc.
std::vector<Expected> expected_outputs(const Problem& problem, const Args& args);

struct Deviation {
  bool ok = true;
  double worst = 0;   // error / (scale * epsilon), largest over the elements
  double error = 0;   // largest, in the output's own units; of the finite ones
  double ratio = 0;   // error / allowed, largest; above 1: a failure
  std::string where;  // "out[0, 3, 1, 7]"
  double expected = 0, actual = 0;
};

// NaN, +inf and -inf must stand exactly where float64 has them.
Deviation compare(const Expected& expected);
// Of values that lie elsewhere, in a view of the same shape and dtype.
Deviation compare(const Expected& expected, const TensorView& actual);

}  // namespace sirdar::check
