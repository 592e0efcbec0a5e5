// An expression as straight-line code over rows of lanes, for implementations that evaluate a block
// of pairs at once: queries are lanes, keys are rows. What depends on the query alone, on the key
// alone or on the distance between them stands in sections of its own, evaluated once for each.
#pragma once

#include "expression/sections.h"
#include "expression/slope.h"

namespace sirdar::expression {

// Values are 32 bits: an int, a float, or a bool as 0 or -1 (all bits).
enum class VectorOp : uint8_t {
  // no operand
  constant,  // Instruction::immediate
  scalar,    // place `index` of the call's scalars
  // indices, one per axis; place `index` of the call's tensors
  element_integer,
  element_real,
  element_boolean,
  element_place,  // the element's place in its tensor, row-major
  // one operand
  copy,
  to_real,
  negate_integer,
  abs_integer,
  divide_by,     // int by the constant `immediate`, which is not 0
  remainder_by,  // of the same
  logical_not,
  negate,
  abs,
  floor,
  exp,
  exp2,
  log,
  tanh,
  tanh_slope,  // 1 - tanh^2, exact where that is small
  sigmoid,
  sqrt,
  // two operands
  add_integer,
  subtract_integer,
  multiply_integer,
  divide_integer,
  remainder_integer,
  min_integer,
  max_integer,
  add,
  subtract,
  multiply,
  divide,
  divide_by_lane,  // in `pairs`, by a register of `lanes`
  unless_zero,     // the second, but 0 where the first is 0
  min,
  max,
  less_integer,
  less_equal_integer,
  equal_integer,  // of ints and of bools
  not_equal_integer,
  less,
  less_equal,
  equal,
  not_equal,
  logical_and,
  logical_or,
  // three: condition, value where true, value where false
  select,
};
inline constexpr int kNumVectorOps = static_cast<int>(VectorOp::select) + 1;

// A register of a section. Those of `lanes` hold one value per query, of `keys` one per key, of
// `distances` one per distance and head, of `pairs` one per pair.
struct Place {
  Section section = Section::lanes;
  int32_t index = 0;
  bool operator==(const Place&) const = default;
};

// What the caller fills before a section runs.
inline constexpr Place kSequenceInput{Section::lanes, 0};  // b, in every lane
inline constexpr Place kHeadInput{Section::lanes, 1};
inline constexpr Place kQueryInput{Section::lanes, 2};
inline constexpr Place kQueryPositionInput{Section::lanes, 3};
inline constexpr int kNumLaneInputs = 4;
inline constexpr Place kKeyInput{Section::keys, 0};
// A distance is computed as the pair of the key 0 and the query that far from it.
inline constexpr Place kDistanceInput{Section::distances, 0};       // q_pos - k
inline constexpr Place kDistanceQueryInput{Section::distances, 1};  // q - k
inline constexpr Place kDistanceHeadInput{Section::distances, 2};
inline constexpr int kNumDistanceInputs = 3;
// The scores, in place: a score_mod reads and at last writes it, a mask_mod does not touch it.
inline constexpr Place kScore{Section::pairs, 0};

// The result lies in the section that lists the instruction. An operand lies there too, or in a
// section that was evaluated before: `keys` and `distances` read of `lanes` only what is the same
// in every lane. In `pairs`, copy alone may read only a key register; select and elements of it
// never do, and no two operands of one instruction both are key registers.
struct Instruction {
  VectorOp op = VectorOp::constant;
  int8_t num_operands = 0;
  int32_t result = 0;
  int32_t immediate = 0;  // bits of a constant, or a divisor
  int32_t index = 0;      // of a tensor or scalar
  Place operands[4];
};

// Of one read of a tensor: which element a query and a key read, and the derivative by it. Places
// may be in any section, slopes in all but `keys`.
struct ElementRead {
  int32_t tensor = 0;
  Place place, slope;
};

struct VectorProgram {
  struct Code {
    std::vector<Instruction> instructions;
    int32_t num_registers = 0;  // inputs included
  };
  std::array<Code, kNumSections> code;
  Place result;  // of a score_mod: kScore; of a mask_mod: in `pairs` or `distances`
  std::vector<ElementRead> reads;  // of slopes by elements, which have no other result

  const Code& of(Section section) const { return code[static_cast<size_t>(section)]; }
};

// With `distances` only if all positions are below kMaxTranslated.
VectorProgram vectorise(const Program& program, bool has_distances);
// The scores are not changed.
VectorProgram vectorise(const ElementSlopes& slopes, bool has_distances);

}  // namespace sirdar::expression
