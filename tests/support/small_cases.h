// Small random problems over every feature, with expressions whose meaning is known.
#pragma once

#include <sirdar/problem.hpp>

#include <random>

#include "support/second_formula.h"

namespace sirdar::testing {

struct Case {
  Problem problem;
  const HandWritten* score_mod = nullptr;
  const HandWritten* mask_mod = nullptr;
};

class CaseMaker {
 public:
  explicit CaseMaker(unsigned seed) : random_(seed) {}
  Case make();

 private:
  bool one_in(unsigned n) { return random_() % n == 0; }
  int64_t size(unsigned least, unsigned most) { return least + random_() % (most - least + 1); }
  Axes axes() { return {one_in(2), one_in(2), one_in(2), one_in(2)}; }
  void dtypes(Problem& p);
  void layouts(Problem& p);
  void masks(Problem& p);
  void logits(Problem& p);
  void expressions(Case& result);

  std::mt19937 random_;
};

}  // namespace sirdar::testing
