// Expressions as values in the order in which device code computes them, each once.
#pragma once

#include "expression/ast.h"
#include "expression/emit_cuda.h"

#include <map>
#include <tuple>

namespace sirdar::expression {

// How often a value is computed.
enum class Rate : uint8_t {
  constant,  // literals
  head,      // what depends on b, h and scalars alone
  row,       // once per query: on q or q_pos too
  key,       // once per key: on k too
  pair,      // once per query and key
};

struct DeviceValue {
  Node node;  // operands are places in DeviceValues::values; of an element, `integer` is a tensor's
  Rate rate = Rate::constant;
  bool reads_batch = false, reads_head = false;
};

// A read of a tensor that wants a gradient, and the score_mod's slope by what it gave: places in
// DeviceValues::values.
struct DeviceRead {
  int32_t element, slope;
};

class DeviceValues {
 public:
  // What the problem's score_mod makes of a score, its slope there (slope.h) in a backward pass,
  // and what all that masks pairs one by one says of one; -1 where the problem has none.
  DeviceValues(const Problem& problem, const Modifications& modifications);

  const std::vector<DeviceValue>& values() const { return values_; }
  const std::vector<DeviceTensor>& tensors() const { return tensors_; }
  int32_t score() const { return score_; }
  int32_t slope() const { return slope_; }
  int32_t visible() const { return visible_; }
  const std::vector<DeviceRead>& reads() const { return reads_; }

  const DeviceValue& operator[](int32_t at) const { return values_[static_cast<size_t>(at)]; }

 private:
  int32_t add(const Node& node);
  int32_t leaf(Op op, Type type, int32_t integer = 0);
  int32_t binary(Op op, Type type, int32_t a, int32_t b);
  int32_t tensor(DeviceTensor::Source source, int32_t place, DType dtype, int rank);
  int32_t element(DeviceTensor::Source source, DType dtype, Type type,
                  std::initializer_list<int32_t> indices);
  int32_t pair_element(DeviceTensor::Source source, DType dtype, Type type, const Axes& axes);
  // The values of the tree's nodes, the last one its own, where `score` is the value at that place.
  std::vector<int32_t> add_nodes(const Program::Tree& tree, const Problem& problem, int32_t score);
  int32_t add_tree(const Program::Tree& tree, const Problem& problem, int32_t score) {
    return add_nodes(tree, problem, score).back();
  }
  void add_slopes(const Program& score_mod, const Problem& problem, int32_t score);
  void show_where(int32_t condition);

  struct Less {
    static auto key(const Node& node) {
      return std::tie(node.op, node.type, node.num_operands, node.operands, node.integer);
    }
    bool operator()(const Node& a, const Node& b) const;
  };
  std::vector<DeviceValue> values_;
  std::vector<DeviceTensor> tensors_;
  std::vector<DeviceRead> reads_;
  std::map<Node, int32_t, Less> known_;
  int32_t score_ = -1, slope_ = -1, visible_ = -1;
};

}  // namespace sirdar::expression
