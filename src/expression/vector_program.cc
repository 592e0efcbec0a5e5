#include "expression/vector_program.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <tuple>

#include "expression/translation.h"

namespace sirdar::expression {
namespace {

// The code before registers: an instruction's place in the list is its value, inputs first.
struct Value {
  Section section = Section::lanes;
  VectorOp op = VectorOp::constant;
  int32_t immediate = 0, index = 0;
  int num_operands = 0;
  std::array<int32_t, 4> operands{};

  auto key() const { return std::tie(section, op, immediate, index, num_operands, operands); }
};

constexpr std::array kInputs = {kSequenceInput,      kHeadInput,         kQueryInput,
                                kQueryPositionInput, kKeyInput,          kDistanceInput,
                                kDistanceQueryInput, kDistanceHeadInput, kScore};

VectorOp integer_op(Op op) {
  switch (op) {
    case Op::negate:
      return VectorOp::negate_integer;
    case Op::abs:
      return VectorOp::abs_integer;
    case Op::add:
      return VectorOp::add_integer;
    case Op::subtract:
      return VectorOp::subtract_integer;
    case Op::multiply:
      return VectorOp::multiply_integer;
    case Op::divide:
      return VectorOp::divide_integer;
    case Op::remainder:
      return VectorOp::remainder_integer;
    case Op::min:
      return VectorOp::min_integer;
    default:
      return VectorOp::max_integer;
  }
}

VectorOp real_op(Op op) {
  switch (op) {
    case Op::negate:
      return VectorOp::negate;
    case Op::abs:
      return VectorOp::abs;
    case Op::floor:
      return VectorOp::floor;
    case Op::exp:
      return VectorOp::exp;
    case Op::exp2:
      return VectorOp::exp2;
    case Op::log:
      return VectorOp::log;
    case Op::tanh:
      return VectorOp::tanh;
    case Op::sigmoid:
      return VectorOp::sigmoid;
    case Op::sqrt:
      return VectorOp::sqrt;
    case Op::add:
      return VectorOp::add;
    case Op::subtract:
      return VectorOp::subtract;
    case Op::multiply:
      return VectorOp::multiply;
    case Op::divide:
      return VectorOp::divide;
    case Op::min:
      return VectorOp::min;
    default:
      return VectorOp::max;
  }
}

// a > b is written b < a.
struct Comparison {
  VectorOp op;
  bool swaps = false;
};
Comparison comparison(Op op, bool is_real) {
  switch (op) {
    case Op::less:
      return {is_real ? VectorOp::less : VectorOp::less_integer};
    case Op::less_equal:
      return {is_real ? VectorOp::less_equal : VectorOp::less_equal_integer};
    case Op::greater:
      return {is_real ? VectorOp::less : VectorOp::less_integer, true};
    case Op::greater_equal:
      return {is_real ? VectorOp::less_equal : VectorOp::less_equal_integer, true};
    case Op::equal:
      return {is_real ? VectorOp::equal : VectorOp::equal_integer};
    default:
      return {is_real ? VectorOp::not_equal : VectorOp::not_equal_integer};
  }
}

// Tree to values, each once: equal subexpressions are computed once.
class Lowering {
 public:
  Lowering(const Program::Tree& tree, bool has_distances)
      : tree_(tree),
        sections_(sections_of(tree)),
        is_distance_(tree.nodes.size()),
        is_uniform_(tree.nodes.size()),
        of_node_(tree.nodes.size()),
        of_distance_(tree.nodes.size()) {
    for (const Place& input : kInputs) values_.push_back({.section = input.section});
    for (size_t at = 0; at < tree.nodes.size(); ++at) is_uniform_[at] = is_uniform(tree.nodes[at]);
    if (has_distances) find_distances();
  }

  // The place of the expression's value in values().
  int32_t run() {
    const size_t root = tree_.nodes.size() - 1;
    std::vector<bool> is_root(tree_.nodes.size());
    is_root[root] = true;
    lower_for(is_root);
    const int32_t last = value_of(root);
    // The score itself, or something that no pair changes: put it where results are looked for.
    const bool is_input = last < static_cast<int32_t>(kInputs.size());
    const Section section = value(last).section;
    const bool is_mask_of_distances =
        section == Section::distances && tree_.kind == Kind::mask_mod && !is_input;
    const bool is_in_place = (section == Section::pairs && !is_input) || is_mask_of_distances;
    return is_in_place ? last : unary(Section::pairs, VectorOp::copy, last);
  }
  // The places of where an element lies and of the derivative by it in values().
  struct Read {
    int32_t place, slope;
  };
  std::vector<Read> run(const std::vector<ElementSlope>& reads) {
    std::vector<bool> is_root(tree_.nodes.size());
    for (const ElementSlope& read : reads)
      is_root[static_cast<size_t>(read.element)] = is_root[static_cast<size_t>(read.slope)] = true;
    lower_for(is_root);
    std::vector<Read> result;
    for (const ElementSlope& read : reads) {
      const size_t element = static_cast<size_t>(read.element);
      Value place = value(value_of(element));
      place.op = VectorOp::element_place;
      const int32_t slope = value_of(static_cast<size_t>(read.slope));
      result.push_back({add(place), spread(Section::pairs, slope)});
    }
    return result;
  }
  const std::vector<Value>& values() const { return values_; }

 private:
  // The values of some nodes, and of what they are computed from.
  void lower_for(const std::vector<bool>& is_root) {
    const Uses uses = find_uses(is_root);
    for (size_t at = 0; at < tree_.nodes.size(); ++at) {
      if (uses.of_pair[at]) of_node_[at] = lower(at, false);
      if (uses.of_distance[at]) of_distance_[at] = lower(at, true);
    }
  }
  int32_t value_of(size_t node) const {
    return is_distance_[node] ? of_distance_[node] : of_node_[node];
  }

  const Value& value(int32_t at) const { return values_[static_cast<size_t>(at)]; }

  // The same in every lane.
  bool is_uniform(const Node& node) const {
    const bool varies = node.op == Op::h || node.op == Op::q || node.op == Op::q_pos ||
                        node.op == Op::k || node.op == Op::score;
    if (varies) return false;
    for (int i = 0; i < node.num_operands; ++i)
      if (!is_uniform_[node.operands[i]]) return false;
    return true;
  }

  void find_distances() {
    const std::vector<bool> is_unmoved = unmoved_nodes(tree_);
    for (size_t at = 0; at < tree_.nodes.size(); ++at)
      is_distance_[at] = is_unmoved[at] && sections_[at] == Section::pairs;
  }

  // Which nodes are wanted for their pair, query or key, and which for their distance. What a
  // distance is computed from may be wanted both ways.
  struct Uses {
    std::vector<bool> of_pair, of_distance;
  };
  Uses find_uses(const std::vector<bool>& is_root) const {
    const size_t count = tree_.nodes.size();
    Uses uses{std::vector<bool>(count), std::vector<bool>(count)};
    for (size_t at = count; at-- > 0;) {
      if (is_root[at]) (is_distance_[at] ? uses.of_distance : uses.of_pair)[at] = true;
      const Node& node = tree_.nodes[at];
      for (int i = 0; i < node.num_operands; ++i) {
        const size_t operand = static_cast<size_t>(node.operands[i]);
        if (uses.of_distance[at]) uses.of_distance[operand] = true;
        if (uses.of_pair[at])
          (is_distance_[operand] ? uses.of_distance : uses.of_pair)[operand] = true;
      }
    }
    return uses;
  }
  static int32_t input(const Place& place) {
    return static_cast<int32_t>(std::ranges::find(kInputs, place) - kInputs.begin());
  }

  int32_t add(const Value& value) {
    const auto [found, is_new] = known_.try_emplace(value, static_cast<int32_t>(values_.size()));
    if (is_new) values_.push_back(value);
    return found->second;
  }
  int32_t unary(Section section, VectorOp op, int32_t a, int32_t immediate = 0) {
    return add({section, op, immediate, 0, 1, {a}});
  }
  int32_t binary(Section section, VectorOp op, int32_t a, int32_t b) {
    return add({section, op, 0, 0, 2, {a, b}});
  }
  int32_t constant(int32_t bits) { return add({.op = VectorOp::constant, .immediate = bits}); }
  // Of pairs, where only a value per lane or per pair may stand.
  int32_t spread(Section section, int32_t at) {
    const bool is_column = section == Section::pairs && value(at).section == Section::keys;
    return is_column ? unary(Section::pairs, VectorOp::copy, at) : at;
  }

  int32_t literal(const Node& node) {
    if (node.type == Type::real)
      return constant(std::bit_cast<int32_t>(static_cast<float>(node.real)));
    return constant(node.type == Type::boolean ? -(node.integer != 0) : node.integer);
  }

  int32_t operand(const Node& node, int i, bool by_distance) const {
    const size_t at = static_cast<size_t>(node.operands[i]);
    return by_distance || is_distance_[at] ? of_distance_[at] : of_node_[at];
  }

  int32_t element(const Node& node, Section section, bool by_distance) {
    Value read{section,
               node.type == Type::integer ? VectorOp::element_integer
               : node.type == Type::real  ? VectorOp::element_real
                                          : VectorOp::element_boolean,
               0,
               node.integer,
               node.num_operands,
               {}};
    for (int i = 0; i < node.num_operands; ++i)
      read.operands[i] = spread(section, operand(node, i, by_distance));
    return add(read);
  }

  // A node's value for a pair, query or key; or for a distance, that is at the key 0.
  int32_t lower(size_t at, bool by_distance) {
    const Node& node = tree_.nodes[at];
    Section section = sections_[at];
    if (by_distance) section = is_uniform_[at] ? Section::lanes : Section::distances;
    switch (node.op) {
      case Op::literal:
        return literal(node);
      case Op::score:
        return input(kScore);
      case Op::b:
        return input(kSequenceInput);
      case Op::h:
        return input(by_distance ? kDistanceHeadInput : kHeadInput);
      case Op::q:
        return input(by_distance ? kDistanceQueryInput : kQueryInput);
      case Op::k:
        return by_distance ? constant(0) : input(kKeyInput);
      case Op::q_pos:
        return input(by_distance ? kDistanceInput : kQueryPositionInput);
      case Op::scalar:
        return add({.op = VectorOp::scalar, .index = node.integer});
      case Op::element:
        return element(node, section, by_distance);
      default:
        return lower_operator(node, section, by_distance);
    }
  }

  int32_t lower_operator(const Node& node, Section section, bool by_distance) {
    const int32_t a = operand(node, 0, by_distance);
    const int32_t b = operand(node, 1, by_distance);  // of a node with one operand: not used
    switch (node.op) {
      case Op::to_real:
        return unary(section, VectorOp::to_real, a);
      case Op::logical_not:
        return unary(section, VectorOp::logical_not, a);
      case Op::logical_and:
        return binary(section, VectorOp::logical_and, a, b);
      case Op::logical_or:
        return binary(section, VectorOp::logical_or, a, b);
      case Op::select:
        if (is_test_of_zero(a) && is_constant(b, 0)) {
          const int32_t rest = operand(node, 2, by_distance);
          return binary(section, VectorOp::unless_zero, value(a).operands[0],
                        spread(section, rest));
        }
        return add({section,
                    VectorOp::select,
                    0,
                    0,
                    3,
                    {spread(section, a), spread(section, b),
                     spread(section, operand(node, 2, by_distance))}});
      case Op::less:
      case Op::less_equal:
      case Op::greater:
      case Op::greater_equal:
      case Op::equal:
      case Op::not_equal: {
        const Comparison one = comparison(node.op, tree_.operand(node, 0).type == Type::real);
        return one.swaps ? binary(section, one.op, b, a) : binary(section, one.op, a, b);
      }
      default:
        break;
    }
    const bool is_integer = node.type == Type::integer;
    const VectorOp op = is_integer ? integer_op(node.op) : real_op(node.op);
    if (node.num_operands == 1) return unary(section, op, a);
    const bool divides = is_integer && (node.op == Op::divide || node.op == Op::remainder);
    if (divides && value(b).op == VectorOp::constant && value(b).immediate != 0) {
      const bool is_quotient = node.op == Op::divide;
      return unary(section, is_quotient ? VectorOp::divide_by : VectorOp::remainder_by, a,
                   value(b).immediate);
    }
    if (op == VectorOp::multiply && is_tanh_slope(a, b))
      return unary(section, VectorOp::tanh_slope, tanh_slope_of(a));
    const bool is_by_lane = op == VectorOp::divide && section == Section::pairs &&
                            value(a).section == Section::pairs &&
                            value(b).section == Section::lanes;
    return binary(section, is_by_lane ? VectorOp::divide_by_lane : op, a, b);
  }

  bool is_constant(int32_t at, float number) const {
    return value(at).op == VectorOp::constant &&
           value(at).immediate == std::bit_cast<int32_t>(number) && !is_input(at);
  }
  static bool is_input(int32_t at) { return at < static_cast<int32_t>(kInputs.size()); }
  // By a register that an operation may read where `select` may read its result.
  bool is_test_of_zero(int32_t at) const {
    return value(at).op == VectorOp::equal && is_constant(value(at).operands[1], 0) &&
           value(value(at).operands[0]).section != Section::keys;
  }
  // s (1 - s) times 4 with s = sigmoid(-2 |x|), as slope.cc writes the slope of tanh.
  bool is_tanh_slope(int32_t a, int32_t b) const {
    if (!is_constant(b, 4) || value(a).op != VectorOp::multiply) return false;
    const auto [s, rest] = std::pair(value(a).operands[0], value(a).operands[1]);
    if (value(s).op != VectorOp::sigmoid || value(rest).op != VectorOp::subtract) return false;
    if (!is_constant(value(rest).operands[0], 1) || value(rest).operands[1] != s) return false;
    const Value& twice = value(value(s).operands[0]);
    return twice.op == VectorOp::multiply && value(twice.operands[0]).op == VectorOp::abs &&
           is_constant(twice.operands[1], -2);
  }
  // x of that.
  int32_t tanh_slope_of(int32_t a) const {
    const Value& twice = value(value(value(a).operands[0]).operands[0]);
    return value(twice.operands[0]).operands[0];
  }

  struct Less {
    bool operator()(const Value& a, const Value& b) const { return a.key() < b.key(); }
  };
  const Program::Tree& tree_;
  std::vector<Section> sections_;
  std::vector<Value> values_;
  std::vector<bool> is_distance_, is_uniform_;
  std::vector<int32_t> of_node_, of_distance_;
  std::map<Value, int32_t, Less> known_;
};

// Values to registers: a register is free again after the last use of its value, except for what
// another section reads.
class Allocation {
 public:
  // in_place: the result that replaces the scores, or kNone.
  static constexpr int32_t kNone = -1;
  Allocation(const std::vector<Value>& values, const std::vector<int32_t>& results,
             int32_t in_place)
      : values_(values), in_place_(in_place), last_use_(values.size(), -1), places_(values.size()) {
    find_uses(results);
    for (size_t at = 0; at < kInputs.size(); ++at) places_[at] = kInputs[at];
    code_[static_cast<size_t>(Section::lanes)].num_registers = kNumLaneInputs;
    code_[static_cast<size_t>(Section::keys)].num_registers = 1;
    code_[static_cast<size_t>(Section::distances)].num_registers = kNumDistanceInputs;
    code_[static_cast<size_t>(Section::pairs)].num_registers = 1;
    for (size_t at = kInputs.size(); at < values_.size(); ++at) {
      if (last_use_[at] >= 0) place(static_cast<int32_t>(at));
    }
    VectorProgram::Code& distances = code_[static_cast<size_t>(Section::distances)];
    if (distances.instructions.empty()) distances.num_registers = 0;
  }

  Place place_of(int32_t value) const { return places_[static_cast<size_t>(value)]; }
  VectorProgram take(const Place& result, std::vector<ElementRead> reads) {
    return {std::move(code_), result, std::move(reads)};
  }

 private:
  static constexpr int32_t kForever = std::numeric_limits<int32_t>::max();

  // Operands come before their users, so one walk from the back knows what is used at all.
  void find_uses(const std::vector<int32_t>& results) {
    for (const int32_t result : results) last_use_[static_cast<size_t>(result)] = kForever;
    for (size_t at = values_.size(); at-- > 0;) {
      if (last_use_[at] < 0) continue;
      const Value& user = values_[at];
      for (int i = 0; i < user.num_operands; ++i) {
        const size_t used = static_cast<size_t>(user.operands[i]);
        const bool crosses = values_[used].section != user.section;
        const int32_t use = crosses ? kForever : static_cast<int32_t>(at);
        last_use_[used] = std::max(last_use_[used], use);
      }
    }
  }

  void place(int32_t at) {
    const Value& value = values_[static_cast<size_t>(at)];
    const size_t section = static_cast<size_t>(value.section);
    VectorProgram::Code& code = code_[section];
    Instruction one{
        value.op, static_cast<int8_t>(value.num_operands), 0, value.immediate, value.index, {}};
    for (int i = 0; i < value.num_operands; ++i) {
      const size_t used = static_cast<size_t>(value.operands[i]);
      one.operands[i] = places_[used];
      const bool is_input = used < kInputs.size();
      const bool is_repeated = std::find(value.operands.begin(), value.operands.begin() + i,
                                         value.operands[i]) != value.operands.begin() + i;
      // Every operation is element by element: the result may replace an operand.
      if (last_use_[used] == at && !is_input && !is_repeated)
        free_[section].push_back(places_[used].index);
    }
    if (at == in_place_) {
      one.result = kScore.index;
    } else if (free_[section].empty()) {
      one.result = code.num_registers++;
    } else {
      one.result = free_[section].back();
      free_[section].pop_back();
    }
    places_[static_cast<size_t>(at)] = {value.section, one.result};
    code.instructions.push_back(one);
  }

  const std::vector<Value>& values_;
  int32_t in_place_;
  std::vector<int32_t> last_use_;  // -1: none
  std::vector<Place> places_;
  std::array<std::vector<int32_t>, kNumSections> free_;
  std::array<VectorProgram::Code, kNumSections> code_;
};

}  // namespace

VectorProgram vectorise(const Program& program, bool has_distances) {
  Lowering lowering(program.tree(), has_distances);
  const int32_t result = lowering.run();
  const bool is_score = program.tree().kind == Kind::score_mod;
  Allocation allocation(lowering.values(), {result}, is_score ? result : Allocation::kNone);
  return allocation.take(allocation.place_of(result), {});
}

VectorProgram vectorise(const ElementSlopes& slopes, bool has_distances) {
  const Program::Tree& tree = slopes.program.tree();
  Lowering lowering(tree, has_distances);
  const std::vector<Lowering::Read> values = lowering.run(slopes.reads);
  std::vector<int32_t> results;
  for (const Lowering::Read& read : values) results.insert(results.end(), {read.place, read.slope});
  Allocation allocation(lowering.values(), results, Allocation::kNone);
  std::vector<ElementRead> reads;
  for (size_t n = 0; n < values.size(); ++n) {
    const Node& element = tree.nodes[static_cast<size_t>(slopes.reads[n].element)];
    reads.push_back({element.integer, allocation.place_of(values[n].place),
                     allocation.place_of(values[n].slope)});
  }
  return allocation.take({}, std::move(reads));
}

}  // namespace sirdar::expression
