#include "expression/device_values.h"

#include <algorithm>
#include <bit>

#include "expression/slope.h"

namespace sirdar::expression {

using Source = DeviceTensor::Source;

bool DeviceValues::Less::operator()(const Node& a, const Node& b) const {
  // By bits: -0 and 0 are two values.
  const auto bits = [](const Node& node) { return std::bit_cast<uint64_t>(node.real); };
  return key(a) != key(b) ? key(a) < key(b) : bits(a) < bits(b);
}

namespace {

// Of what an operator is besides its operands.
Rate rate_of(Op op) {
  switch (op) {
    case Op::b:
    case Op::h:
    case Op::scalar:
    case Op::element:
      return Rate::head;
    case Op::q:
    case Op::q_pos:
      return Rate::row;
    case Op::k:
      return Rate::key;
    case Op::score:
      return Rate::pair;
    default:
      return Rate::constant;
  }
}

Rate together(Rate a, Rate b) {
  const bool is_pair = std::min(a, b) == Rate::row && std::max(a, b) == Rate::key;
  return is_pair ? Rate::pair : std::max(a, b);
}

}  // namespace

int32_t DeviceValues::add(const Node& node) {
  const auto [found, is_new] = known_.try_emplace(node, static_cast<int32_t>(values_.size()));
  if (!is_new) return found->second;
  DeviceValue value{.node = node};
  value.rate = rate_of(node.op);
  value.reads_batch = node.op == Op::b;
  value.reads_head = node.op == Op::h;
  for (int i = 0; i < node.num_operands; ++i) {
    const DeviceValue& operand = (*this)[node.operands[i]];
    value.rate = together(value.rate, operand.rate);
    value.reads_batch |= operand.reads_batch;
    value.reads_head |= operand.reads_head;
  }
  values_.push_back(value);
  return found->second;
}

int32_t DeviceValues::leaf(Op op, Type type, int32_t integer) {
  Node node;
  node.op = op;
  node.type = type;
  node.integer = integer;
  return add(node);
}

int32_t DeviceValues::binary(Op op, Type type, int32_t a, int32_t b) {
  Node node;
  node.op = op;
  node.type = type;
  node.num_operands = 2;
  node.operands = {a, b};
  return add(node);
}

int32_t DeviceValues::tensor(Source source, int32_t place, DType dtype, int rank) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].source == source && tensors_[i].place == place) return static_cast<int32_t>(i);
  }
  tensors_.push_back({source, place, dtype, rank});
  return static_cast<int32_t>(tensors_.size()) - 1;
}

int32_t DeviceValues::element(Source source, DType dtype, Type type,
                              std::initializer_list<int32_t> indices) {
  Node node;
  node.op = Op::element;
  node.type = type;
  node.integer = tensor(source, 0, dtype, static_cast<int>(indices.size()));
  for (const int32_t index : indices) node.operands[node.num_operands++] = index;
  return add(node);
}

int32_t DeviceValues::pair_element(Source source, DType dtype, Type type, const Axes& axes) {
  const int32_t zero = leaf(Op::literal, Type::integer);
  const auto index = [&](bool has_axis, Op op) {
    return has_axis ? leaf(op, Type::integer) : zero;
  };
  return element(source, dtype, type,
                 {index(axes.batch, Op::b), index(axes.head, Op::h), index(axes.query, Op::q),
                  index(axes.key, Op::k)});
}

std::vector<int32_t> DeviceValues::add_nodes(const Program::Tree& tree, const Problem& problem,
                                             int32_t score) {
  std::vector<int32_t> places;
  for (const Node& original : tree.nodes) {
    if (original.op == Op::score) {
      places.push_back(score);
      continue;
    }
    Node node = original;
    for (int i = 0; i < node.num_operands; ++i)
      node.operands[i] = places[static_cast<size_t>(node.operands[i])];
    if (node.op == Op::element) {
      const ExpressionTensor& read = problem.tensors[static_cast<size_t>(node.integer)];
      node.integer = tensor(Source::expression, node.integer, read.dtype, read.rank);
    }
    places.push_back(add(node));
  }
  return places;
}

void DeviceValues::add_slopes(const Program& score_mod, const Problem& problem, int32_t score) {
  slope_ = add_tree(slope_of(score_mod).tree(), problem, score);
  std::vector<bool> wanted;
  for (const ExpressionTensor& tensor : problem.tensors) wanted.push_back(tensor.needs_grad);
  if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return;
  const ElementSlopes slopes = element_slopes_of(score_mod, wanted);
  const std::vector<int32_t> places = add_nodes(slopes.program.tree(), problem, score);
  for (const ElementSlope& read : slopes.reads) {
    reads_.push_back(
        {places[static_cast<size_t>(read.element)], places[static_cast<size_t>(read.slope)]});
  }
}

void DeviceValues::show_where(int32_t condition) {
  visible_ = visible_ < 0 ? condition : binary(Op::logical_and, Type::boolean, visible_, condition);
}

DeviceValues::DeviceValues(const Problem& problem, const Modifications& modifications) {
  if (problem.has_document) {
    const int32_t b = leaf(Op::b, Type::integer);
    show_where(binary(
        Op::equal, Type::boolean,
        element(Source::document_q, DType::int32, Type::integer, {b, leaf(Op::q, Type::integer)}),
        element(Source::document_k, DType::int32, Type::integer, {b, leaf(Op::k, Type::integer)})));
  }
  if (problem.has_mask_tensor)
    show_where(pair_element(Source::mask, DType::boolean, Type::boolean, problem.mask_axes));
  if (modifications.mask_mod) show_where(add_tree(modifications.mask_mod->tree(), problem, -1));
  if (modifications.score_mod) {
    const int32_t score = leaf(Op::score, Type::real);
    score_ = add_tree(modifications.score_mod->tree(), problem, score);
    if (problem.op == sirdar::Op::backward) add_slopes(*modifications.score_mod, problem, score);
  }
}

}  // namespace sirdar::expression
