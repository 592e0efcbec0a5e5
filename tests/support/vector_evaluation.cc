#include "support/vector_evaluation.h"

#include <algorithm>
#include <cstring>

#include "cpu/expressions.h"

namespace sirdar::testing {

using expression::Place;
using expression::Section;

namespace {

// Registers of every section, side by side, each for at most `size` values.
struct Registers {
  std::vector<float> memory[expression::kNumSections];
  int64_t size;
  Registers(const expression::VectorProgram& program, int64_t size_in) : size(size_in) {
    for (int s = 0; s < expression::kNumSections; ++s)
      memory[s].assign(static_cast<size_t>(program.code[s].num_registers * size), -1e38f);
  }
  float* at(Place place) {
    return memory[static_cast<size_t>(place.section)].data() + place.index * size;
  }
  void fill(Place place, int64_t begin, int64_t step) {
    for (int64_t n = 0; n < size; ++n) {
      const int32_t value = static_cast<int32_t>(begin + n * step);
      std::memcpy(at(place) + n, &value, sizeof value);
    }
  }
};

}  // namespace

std::vector<int32_t> evaluate(const cpu::MicroKernels& kernels, int vectors,
                              const expression::Program& program,
                              const expression::Bindings& bindings, const expression::Box& box,
                              const std::vector<float>& scores, bool has_distances) {
  const expression::VectorProgram code = expression::vectorise(program, has_distances);
  const int64_t width = vectors * kernels.lanes, num_keys = box.k.size(),
                num_queries = box.q.size();
  const int64_t key_rows = (num_keys + kernels.lanes - 1) / kernels.lanes;
  const int64_t distance_rows = (width + num_keys - 1 + kernels.lanes - 1) / kernels.lanes;
  Registers registers(
      code, std::max(width * num_keys, std::max(key_rows, distance_rows) * kernels.lanes));
  registers.fill(expression::kSequenceInput, box.b, 0);
  registers.fill(expression::kHeadInput, box.h, 0);
  registers.fill(expression::kQueryInput, box.q.begin, 1);
  registers.fill(expression::kQueryPositionInput, box.q.begin + box.shift, 1);
  registers.fill(expression::kKeyInput, box.k.begin, 1);
  // From the first query's distance to the last key on.
  if (code.of(Section::distances).num_registers > 0) {
    const int64_t first = box.q.begin - (box.k.end - 1);
    registers.fill(expression::kDistanceQueryInput, first, 1);
    registers.fill(expression::kDistanceInput, first + box.shift, 1);
    registers.fill(expression::kDistanceHeadInput, box.h, 0);
  }
  std::vector<cpu::ElementArray> arrays;
  for (const TensorView& view : bindings.tensors) arrays.push_back(cpu::element_array(view));
  std::vector<float> scalars(bindings.scalars.begin(), bindings.scalars.end());
  // The scores stand before the registers of `pairs`, as if they were register 0.
  std::vector<float>& pairs = registers.memory[static_cast<size_t>(Section::pairs)];
  for (int64_t j = 0; j < num_keys; ++j)
    for (int64_t i = 0; i < num_queries && !scores.empty(); ++i)
      pairs[static_cast<size_t>(j * width + i)] = scores[static_cast<size_t>(j * num_queries + i)];
  const auto run = [&](Section section, int64_t rows, int w) {
    const auto& one = code.of(section);
    cpu::EvaluateArgs args{.instructions = one.instructions.data(),
                           .num_instructions = static_cast<int>(one.instructions.size()),
                           .section = section,
                           .rows = static_cast<int>(rows),
                           .distance_stride = -1,
                           .scores = pairs.data(),
                           .tensors = arrays.data(),
                           .scalars = scalars.data()};
    for (int s = 0; s < expression::kNumSections; ++s) {
      args.registers[s] = registers.memory[s].data();
      args.register_stride[s] = registers.size;
    }
    args.registers[static_cast<size_t>(Section::pairs)] += registers.size;
    if (section == Section::pairs &&
        args.registers[static_cast<size_t>(Section::distances)] != nullptr)
      args.registers[static_cast<size_t>(Section::distances)] += num_keys - 1;
    kernels.evaluate[w - 1](args);
  };
  run(Section::lanes, vectors, 1);
  run(Section::keys, key_rows, 1);
  run(Section::distances, distance_rows, 1);
  run(Section::pairs, num_keys, vectors);
  std::vector<int32_t> values;
  const bool by_distance = code.result.section == Section::distances;
  const float* result = registers.at(code.result) + (by_distance ? num_keys - 1 : 0);
  for (int64_t j = 0; j < num_keys; ++j) {
    for (int64_t i = 0; i < num_queries; ++i) {
      int32_t value;
      std::memcpy(&value, result + j * (by_distance ? -1 : width) + i, sizeof value);
      values.push_back(value);
    }
  }
  return values;
}

}  // namespace sirdar::testing
