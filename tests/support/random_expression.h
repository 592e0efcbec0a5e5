// Random typed expressions and a world of tensors and scalars for them to read.
#pragma once

#include "expression/expression.h"

namespace sirdar::testing {

// Uniform in [0, bound) at every size that RapidCheck is at.
int below(int bound);

// Random text; `depth` bounds the nesting.
std::string random_text(expression::Kind kind, int depth);

// The names that random texts use, with random contents.
struct ExpressionWorld {
  ExpressionWorld();
  std::vector<int32_t> ids, grid;
  std::vector<float> weights;
  std::vector<uint8_t> keep;
  std::vector<ExpressionTensor> tensors;
  std::vector<TensorView> views;
  std::vector<std::string> names{"cap"};
  std::vector<double> scalars{1.5};

  expression::Bindings bindings() const { return {views, scalars}; }
  expression::Program parse(expression::Kind kind, const std::string& text) const;
};

expression::Program random_program(const ExpressionWorld& world, expression::Kind kind);
expression::Box random_box();

}  // namespace sirdar::testing
