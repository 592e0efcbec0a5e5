// One query row of the definition: what forward and backward are made of, and what src/check asks
// for to know how large an error is fair.
#pragma once

#include <vector>

#include "reference/call.h"

namespace sirdar::reference {

// A visible pair of the row at hand.
struct Pair {
  int64_t j;
  double dot;     // q_i . k_j
  double score;   // after scale, soft-cap, bias and ALiBi
  double logit;   // after score_mod too
  double weight;  // p_j
};

struct RowSoftmax {
  double lse = -kInf, max_logit = -kInf, sink_weight = 0;
};

bool is_visible(const Call& call, const Item& item, int64_t h, int64_t i, int64_t j);

// In the order of keys; the weights are filled in by softmax().
std::vector<Pair> visible_pairs(const Call& call, const Item& item, int64_t h, int64_t i,
                                const Row& q_i);

RowSoftmax softmax(std::vector<Pair>& pairs, double sink);

// What dropout multiplies a weight by: 0 or 1 / (1 - p); 1 without dropout.
double dropout_factor(const Call& call, const Item& item, int64_t h, int64_t i, int64_t j);

}  // namespace sirdar::reference
