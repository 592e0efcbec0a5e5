#include "expression/emit_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "expression/device_values.h"
#include "expression/names.h"
#include "shared/tensor_operand.h"

namespace sirdar::expression {
namespace {

using Source = DeviceTensor::Source;

std::string_view type_text(Type type, bool is_bounds) {
  if (is_bounds) {
    return type == Type::integer ? "language::IntRange"
           : type == Type::real  ? "language::RealRange"
                                 : "language::Truth";
  }
  return type == Type::integer ? "int" : type == Type::real ? "float" : "bool";
}

std::string_view stored_text(DType dtype) {
  switch (dtype) {
    case DType::int32:
      return "int";
    case DType::boolean:
      return "bool";
    case DType::bf16:
      return "language::Bf16";
    case DType::fp16:
      return "language::Fp16";
    default:
      return "float";
  }
}

// A float's exact digits, or a name.
std::string real_text(double real) {
  if (std::isinf(real)) return real < 0 ? "-language::kInfinity" : "language::kInfinity";
  return fmt::format("{:a}f", static_cast<float>(real));
}

std::string literal_text(const Node& node) {
  if (node.type == Type::real) return real_text(node.real);
  if (node.type == Type::boolean) return node.integer != 0 ? "true" : "false";
  return fmt::format("{}", node.integer);
}

// The function of cuda/expression/language.cuh for an operator that has none in C++ with the same
// meaning.
std::string_view function_of(const Node& node) {
  switch (node.op) {
    case Op::to_real:
      return "to_real";
    case Op::abs:
      return "absolute";
    case Op::min:
      return "smaller";
    case Op::max:
      return "larger";
    case Op::divide:
      return "divide";
    case Op::remainder:
      return "remainder";
    default:
      break;
  }
  if (node.op >= Op::floor && node.op <= Op::sqrt) return symbol_of(node.op);
  if (node.type != Type::integer) return "";
  switch (node.op) {
    case Op::negate:
      return "negate";
    case Op::add:
      return "add";
    case Op::subtract:
      return "subtract";
    case Op::multiply:
      return "multiply";
    default:
      return "";
  }
}

// Writes the functions of one struct: of points, and of what their values can be in a box.
class Emitter {
 public:
  explicit Emitter(const DeviceValues& values) : values_(values) {}

  std::string run(size_t num_scalars, bool has_reads) {
    std::string text = "struct Modification {\n";
    text += fmt::format("  static constexpr bool kScores = {}, kMasks = {};\n",
                        values_.score() >= 0, values_.visible() >= 0);
    if (!values_.tensors().empty())
      text += fmt::format("  TensorOperand tensors[{}];\n", values_.tensors().size());
    if (num_scalars > 0) text += fmt::format("  float scalars[{}];\n", num_scalars);
    find_inputs([&] {
      std::vector<int32_t> results = read_results();
      results.insert(results.end(), {values_.score(), values_.slope(), values_.visible()});
      return results;
    }());
    text += inputs_text("Row", "begin_row(int b, int h, int q, int q_pos)", Scope::row);
    text += inputs_text("Key", "begin_key(int b, int h, int k)", Scope::key);
    if (values_.score() >= 0) {
      text += function_text("float score(const Row& row, const Key& key, float score)",
                            values_.score());
    }
    if (values_.slope() >= 0) {
      text += function_text("float slope(const Row& row, const Key& key, float score)",
                            values_.slope());
    }
    if (has_reads) text += reads_text();
    if (values_.visible() >= 0) {
      text += function_text("bool visible(const Row& row, const Key& key)", values_.visible());
      is_bounds_ = true;
      find_inputs({values_.visible()});
      text += inputs_text("RowBounds", "begin_row_bounds(const language::Box& box)", Scope::row);
      text += function_text(
          "language::Truth visible_bounds(const RowBounds& row, const language::Box& box)",
          values_.visible());
    }
    return text + "};\n";
  }

 private:
  using Marks = std::vector<bool>;

  // Whose function is being written.
  enum class Scope : uint8_t { row, key, pair };

  static bool is_row(const DeviceValue& value) {
    return value.rate == Rate::row || value.rate == Rate::head;
  }
  // Bounds have no part for keys: a box has many.
  bool is_key(const DeviceValue& value) const { return !is_bounds_ && value.rate == Rate::key; }
  bool is_input(const DeviceValue& value) const { return is_row(value) || is_key(value); }

  // What a value is computed from, itself included; what is known before is not looked into if
  // `stops_at_inputs`.
  Marks needed_for(std::vector<int32_t> results, bool stops_at_inputs) const {
    Marks needed(values_.values().size());
    while (!results.empty()) {
      const int32_t at = results.back();
      results.pop_back();
      if (needed[static_cast<size_t>(at)]) continue;
      needed[static_cast<size_t>(at)] = true;
      const DeviceValue& value = values_[at];
      if (stops_at_inputs && is_input(value)) continue;
      for (int i = 0; i < value.node.num_operands; ++i) results.push_back(value.node.operands[i]);
    }
    return needed;
  }

  // Of rows and of keys, what the pairs' results read.
  void find_inputs(std::vector<int32_t> results) {
    std::erase(results, -1);
    row_inputs_.clear();
    key_inputs_.clear();
    const Marks needed = needed_for(results, true);
    for (size_t i = 0; i < needed.size(); ++i) {
      const int32_t at = static_cast<int32_t>(i);
      if (needed[i] && is_row(values_[at])) row_inputs_.push_back(at);
      if (needed[i] && is_key(values_[at])) key_inputs_.push_back(at);
    }
  }

  std::string inputs_text(std::string_view type, std::string_view head, Scope scope) const {
    const std::vector<int32_t>& inputs = scope == Scope::row ? row_inputs_ : key_inputs_;
    std::string fields, list;
    for (const int32_t at : inputs) {
      fields += fmt::format("    {} v{};\n", type_text(values_[at].node.type, is_bounds_), at);
      list += fmt::format("{}v{}", list.empty() ? "" : ", ", at);
    }
    return fmt::format(
        "\n  struct {0} {{\n{2}  }};\n"
        "  SIRDAR_DEVICE {0} {1} const {{\n{3}"
        "    return {{{4}}};\n  }}\n",
        type, head, fields, statements(needed_for(inputs, false), scope), list);
  }

  std::string function_text(std::string_view head, int32_t result) const {
    return fmt::format("\n  SIRDAR_DEVICE {} const {{\n{}    return {};\n  }}\n", head,
                       statements(needed_for({result}, true), Scope::pair),
                       name(result, Scope::pair));
  }

  // What reads() computes: indices and slopes.
  std::vector<int32_t> read_results() const {
    std::vector<int32_t> results;
    for (const DeviceRead& read : values_.reads()) {
      const Node& element = values_[read.element].node;
      results.insert(results.end(), element.operands.begin(),
                     element.operands.begin() + element.num_operands);
      results.push_back(read.slope);
    }
    return results;
  }

  std::string reads_text() const {
    std::string tensors, results;
    for (size_t n = 0; n < values_.reads().size(); ++n) {
      const DeviceRead& read = values_.reads()[n];
      const Node& element = values_[read.element].node;
      tensors += fmt::format("{}{}", n > 0 ? ", " : "", element.integer);
      results += fmt::format(
          "    places[{0}] = language::place(tensors[{1}], {2});\n    slopes[{0}] = {3};\n", n,
          element.integer, arguments(element, Scope::pair), name(read.slope, Scope::pair));
    }
    if (tensors.empty()) tensors = "-1";
    return fmt::format(
        "\n  static constexpr int kReads = {};\n"
        "  SIRDAR_DEVICE static constexpr int read_tensor(int read) {{\n"
        "    constexpr int kTensors[] = {{{}}};\n"
        "    return kTensors[read];\n  }}\n"
        "  SIRDAR_DEVICE void reads(const Row& row, const Key& key, float score, int* places,\n"
        "                           float* slopes) const {{\n{}{}  }}\n",
        values_.reads().size(), tensors, statements(needed_for(read_results(), true), Scope::pair),
        results);
  }

  // Declarations of the marked values, in order. In pairs, what is known before is there already.
  std::string statements(const Marks& needed, Scope scope) const {
    std::string text;
    for (size_t i = 0; i < needed.size(); ++i) {
      const int32_t at = static_cast<int32_t>(i);
      const DeviceValue& value = values_[at];
      const bool is_known = scope == Scope::pair && is_input(value);
      if (!needed[i] || is_named(value.node.op) || is_known) continue;
      text += fmt::format("    const {} v{} = {};\n", type_text(value.node.type, is_bounds_), at,
                          expression(value.node, scope));
    }
    return text;
  }

  // Has a name or spelling of its own.
  bool is_named(Op op) const {
    return op == Op::literal || op == Op::score || (is_bounds_ && op == Op::k);
  }

  std::string name(int32_t at, Scope scope) const {
    const DeviceValue& value = values_[at];
    if (value.node.op == Op::literal) {
      const std::string text = literal_text(value.node);
      return is_bounds_ ? fmt::format("language::exactly({})", text) : text;
    }
    if (value.node.op == Op::score) return "score";
    if (is_bounds_ && value.node.op == Op::k) return "box.k";
    const bool is_known = scope == Scope::pair && is_input(value);
    return fmt::format("{}v{}", !is_known ? "" : is_row(value) ? "row." : "key.", at);
  }

  std::string arguments(const Node& node, Scope scope) const {
    std::string text;
    for (int i = 0; i < node.num_operands; ++i)
      text += (i > 0 ? ", " : "") + name(node.operands[i], scope);
    return text;
  }

  std::string expression(const Node& node, Scope scope) const {
    if (is_bounds_) return bounds_expression(node, scope);
    const auto operand = [&](int i) { return name(node.operands[i], scope); };
    switch (node.op) {
      case Op::b:
      case Op::h:
      case Op::q:
      case Op::q_pos:
      case Op::k:
        return std::string(variable_text(node.op));
      case Op::scalar:
        return fmt::format("scalars[{}]", node.integer);
      case Op::element: {
        const DeviceTensor& tensor = values_.tensors()[static_cast<size_t>(node.integer)];
        return fmt::format("language::read<{}>(tensors[{}], {})", stored_text(tensor.dtype),
                           node.integer, arguments(node, scope));
      }
      case Op::logical_not:
        return fmt::format("!{}", operand(0));
      case Op::select:
        return fmt::format("{} ? {} : {}", operand(0), operand(1), operand(2));
      default:
        break;
    }
    const std::string_view function = function_of(node);
    if (!function.empty()) return fmt::format("language::{}({})", function, arguments(node, scope));
    if (node.num_operands == 1) return fmt::format("-{}", operand(0));
    return fmt::format("{} {} {}", operand(0), symbol_of(node.op), operand(1));
  }

  // The same over ranges; what language/bounds.cuh has no function for may be anything.
  std::string bounds_expression(const Node& node, Scope scope) const {
    switch (node.op) {
      case Op::b:
      case Op::h:
        return fmt::format("language::exactly(box.{})", variable_text(node.op));
      case Op::q:
      case Op::q_pos:
        return fmt::format("box.{}", variable_text(node.op));
      case Op::scalar:
        return fmt::format("language::exactly(scalars[{}])", node.integer);
      case Op::element: {
        const DeviceTensor& tensor = values_.tensors()[static_cast<size_t>(node.integer)];
        return fmt::format("language::read_bounds<{}>(tensors[{}], box, {})",
                           stored_text(tensor.dtype), node.integer, arguments(node, scope));
      }
      case Op::not_equal:
        return fmt::format("language::opposite(language::equal({}))", arguments(node, scope));
      case Op::greater:
      case Op::greater_equal:
        return fmt::format("language::{}({}, {})", bounds_function(node.op),
                           name(node.operands[1], scope), name(node.operands[0], scope));
      default:
        break;
    }
    const bool is_known = node.type != Type::real || node.op == Op::to_real ||
                          node.op == Op::negate || node.op == Op::add || node.op == Op::subtract ||
                          node.op == Op::select;
    if (!is_known) return "language::any_real()";
    std::string_view function = bounds_function(node.op);
    if (function.empty()) function = function_of(node);
    return fmt::format("language::{}({})", function, arguments(node, scope));
  }

  static std::string_view bounds_function(Op op) {
    switch (op) {
      case Op::less:
      case Op::greater:
        return "less";
      case Op::less_equal:
      case Op::greater_equal:
        return "less_equal";
      case Op::equal:
        return "equal";
      case Op::logical_not:
        return "opposite";
      case Op::logical_and:
        return "both";
      case Op::logical_or:
        return "either";
      case Op::select:
        return "choose";
      case Op::negate:
        return "negate";
      case Op::add:
        return "add";
      case Op::subtract:
        return "subtract";
      default:
        return "";
    }
  }

  static std::string_view variable_text(Op op) {
    for (const Variable& row : variables()) {
      if (row.op == op) return row.name;
    }
    return "";
  }

  const DeviceValues& values_;
  std::vector<int32_t> row_inputs_, key_inputs_;
  bool is_bounds_ = false;
};

const TensorView& view_of(const DeviceTensor& tensor, const Problem& problem, const Args& args) {
  switch (tensor.source) {
    case Source::mask:
      return args.mask;
    case Source::document_q:
      return args.document_q;
    case Source::document_k:
      return args.document_k;
    case Source::expression:
      break;
  }
  const std::string& name = problem.tensors[static_cast<size_t>(tensor.place)].name;
  for (const NamedTensor& named : args.tensors) {
    if (named.name == name) return named.view;
  }
  return args.tensors.front().view;
}

std::string name_of(const DeviceTensor& tensor, const Problem& problem) {
  switch (tensor.source) {
    case Source::mask:
      return "mask";
    case Source::document_q:
      return "document_q";
    case Source::document_k:
      return "document_k";
    default:
      return problem.tensors[static_cast<size_t>(tensor.place)].name;
  }
}

Status too_large(const std::string& name, std::string_view what, int64_t value) {
  return {StatusCode::invalid_argument,
          fmt::format("{}: {} is {}, and device code counts to {}; make the tensor contiguous or "
                      "smaller",
                      name, what, value, std::numeric_limits<int32_t>::max()),
          name};
}

}  // namespace

size_t DeviceModification::num_bytes() const {
  const size_t bytes = tensors.size() * sizeof(TensorOperand) + num_scalars * sizeof(float);
  const size_t alignment = tensors.empty() ? sizeof(float) : alignof(TensorOperand);
  return bytes == 0 ? 1 : (bytes + alignment - 1) / alignment * alignment;
}

DeviceModification emit_cuda(const Problem& problem, const Modifications& modifications) {
  const DeviceValues values(problem, modifications);
  DeviceModification result;
  result.has_score_mod = values.score() >= 0;
  result.has_mask_mod = values.visible() >= 0;
  if (result.has_mask_mod) {
    result.mask_reads_batch = values[values.visible()].reads_batch;
    result.mask_reads_head = values[values.visible()].reads_head;
  }
  result.tensors = values.tensors();
  result.num_scalars = problem.scalars.size();
  if (!result.is_empty()) {
    const bool has_reads = std::any_of(problem.tensors.begin(), problem.tensors.end(),
                                       [](const auto& tensor) { return tensor.needs_grad; });
    result.definition = Emitter(values).run(result.num_scalars, has_reads);
  }
  return result;
}

DeviceModification modification_of(const Problem& problem) {
  const Result<Modifications> parsed = parse(problem);
  return parsed.ok() ? emit_cuda(problem, parsed.value()) : DeviceModification{};
}

Status pack_operands(const DeviceModification& modification, const Problem& problem,
                     const Args& args, std::byte* bytes) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  for (const DeviceTensor& tensor : modification.tensors) {
    const TensorView& view = view_of(tensor, problem, args);
    TensorOperand operand{.data = view.data, .stride = {}, .shape = {}};
    for (int axis = 0; axis < tensor.rank; ++axis) {
      const int64_t size = view.shape[axis], stride = size > 1 ? view.stride[axis] : 0;
      if (size > kMax)
        return too_large(name_of(tensor, problem), fmt::format("axis {}", axis), size);
      if (axis == tensor.rank - 1 && std::abs(stride) > kMax)
        return too_large(name_of(tensor, problem), "the last axis' stride", stride);
      if (size == 0) operand.data = nullptr;
      operand.shape[axis] = static_cast<int>(size);
      operand.stride[axis] = stride;
    }
    std::memcpy(bytes, &operand, sizeof operand);
    bytes += sizeof operand;
  }
  for (const std::string& name : problem.scalars) {
    float value = 0;
    for (const auto& [given, number] : args.scalars) {
      if (given == name) value = static_cast<float>(number);
    }
    std::memcpy(bytes, &value, sizeof value);
    bytes += sizeof value;
  }
  return {};
}

}  // namespace sirdar::expression
