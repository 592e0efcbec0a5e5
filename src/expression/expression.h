// User modifications of scores and masks as small typed expressions (docs/expressions.md): parsed
// once, evaluated per (b, h, q, k), differentiated, and bounded over index ranges.
#pragma once

#include <sirdar/problem.hpp>

#include "shared/mask.h"

#include <memory>
#include <optional>
#include <span>

namespace sirdar::expression {

enum class Kind : uint8_t { score_mod, mask_mod };

// What names mean during one call: tensors and scalars in the order given to parse().
struct Bindings {
  std::span<const TensorView> tensors;
  std::span<const double> scalars;
};

// Where an expression is evaluated. q_pos = q + seqlen_k - seqlen_q of the sequence at hand.
struct Point {
  double score = 0;  // score_mod only
  int64_t b = 0, h = 0, q = 0, k = 0, q_pos = 0;
};

// Index ranges of a tile, for coverage; q_pos = q + shift.
struct Box {
  int64_t b = 0, h = 0;
  Range q, k;
  int64_t shift = 0;
  int64_t num_heads = 1;  // from h on
};

class Program {
 public:
  // Errors name the column (from 1) and what was expected there. A name that the text does not read
  // is no error here, because the other expression of the problem may read it: see parse(Problem).
  static Result<Program> parse(Kind kind, std::string_view text,
                               std::span<const ExpressionTensor> tensors,
                               std::span<const std::string> scalars);

  double value(const Bindings&, const Point&) const;  // score_mod
  bool allows(const Bindings&, const Point&) const;   // mask_mod

  // ok, or which index of which tensor is out of range at this point. value() and allows() clamp
  // such an index; what a ?:, && or || does not choose is not looked at.
  Status check(const Bindings&, const Point&) const;

  // upstream * d value / d score; adds upstream * d value / d element to tensor_grads[t] (row-major
  // over the tensor's shape, null: not wanted) for every element read.
  double derivative(const Bindings&, const Point&, double upstream,
                    std::span<double* const> tensor_grads) const;

  // mask_mod over a tile: `part` when in doubt.
  Cover coverage(const Bindings&, const Box&) const;

  std::string str() const;  // canonical text; parses to an equal program
  bool operator==(const Program& other) const;

  // Whether the text reads the tensor or scalar at this place of the lists given to parse().
  bool reads_tensor(size_t tensor) const;
  bool reads_scalar(size_t scalar) const;

  struct Tree;
  explicit Program(std::shared_ptr<const Tree> tree) : tree_(std::move(tree)) {}
  const Tree& tree() const { return *tree_; }

 private:
  std::shared_ptr<const Tree> tree_;
};

// The expressions of one problem.
struct Modifications {
  std::optional<Program> score_mod, mask_mod;
};

// Parses what the problem has of them. A tensor or scalar that neither reads is an error, because
// an argument takes effect or is refused.
Result<Modifications> parse(const Problem& problem);

}  // namespace sirdar::expression
