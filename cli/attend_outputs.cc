#include "attend_outputs.h"

#include "convert.h"
#include "parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sirdar::cli {
namespace {

using Text = std::optional<std::string>;

// .npy has no name for bf16 and fp8; float32 holds their values exactly.
bool is_widened(const TensorFile& file, io::ElementType type) {
  return file.name.empty() && io::facts(type).npy.empty();
}

}  // namespace

Result<AttendOutputs> AttendOutputs::allocate(const AttendFlags& flags,
                                              const AttendInputs& inputs) {
  AttendOutputs result;
  result.is_bhsd_ = inputs.is_bhsd;
  result.forward_ = result.backward_ = inputs.args;
  // What only one of the passes reads must be absent from the other.
  result.forward_.dout = result.forward_.dlse = {};
  if (Status status = result.add_forward(flags, inputs); !status.ok()) return status;
  if (inputs.backward) {
    result.backward_.out = result.forward_.out;
    result.backward_.lse = result.forward_.lse;
    if (Status status = result.add_backward(flags, inputs); !status.ok()) return status;
  }
  if (Status status = result.check_files(inputs.tensors.paths()); !status.ok()) return status;
  return result;
}

Status AttendOutputs::add(std::string flag, const Text& file, DType dtype,
                          std::vector<int64_t> shape, TensorView& view) {
  const std::optional<int64_t> bytes = io::checked_bytes(shape, size_bytes(dtype));
  if (!bytes) {
    return bad_flag(flag, fmt::format("shape {} holds more bytes than 64 bits can count; use "
                                      "smaller tensors.",
                                      io::print_shape(shape)));
  }
  Result<io::Buffer> buffer = io::Buffer::allocate(static_cast<uint64_t>(*bytes));
  if (!buffer.ok()) return buffer.status();
  // Zeros, for gradients of a problem without query rows, where nothing is computed; and so that
  // the memory of outputs is not counted as extra.
  std::memset(buffer.value().data(), 0, static_cast<size_t>(*bytes));
  outputs_.push_back(
      {std::move(flag), file,
       io::Array{io::element_type_of(dtype), std::move(shape), std::move(buffer).value()}});
  view = outputs_.back().array.view(dtype);
  return {};
}

// An output with the leading axes of `like`, laid out in the file as that is.
Status AttendOutputs::add_like(std::string flag, const Text& file, DType dtype,
                               const TensorView& like, int64_t last_axis, TensorView& view) {
  std::vector<int64_t> shape(like.shape.begin(), like.shape.begin() + like.rank);
  shape.back() = last_axis;
  if (is_bhsd_) std::swap(shape[shape.size() - 3], shape[shape.size() - 2]);
  if (Status status = add(std::move(flag), file, dtype, std::move(shape), view); !status.ok()) {
    return status;
  }
  if (is_bhsd_) view = view.transposed(view.rank - 3, view.rank - 2);
  return {};
}

Status AttendOutputs::add_statistics(std::string flag, const Text& file, const TensorView& q,
                                     TensorView& view) {
  std::vector<int64_t> shape{q.shape[1], q.shape[0]};  // ragged
  if (q.rank == 4) shape = {q.shape[0], q.shape[2], q.shape[1]};
  return add(std::move(flag), file, DType::fp32, std::move(shape), view);
}

Status AttendOutputs::add_forward(const AttendFlags& flags, const AttendInputs& inputs) {
  const Problem& problem = inputs.forward;
  const TensorView& q = inputs.args.q;
  if (Status status =
          add_like("-o", flags.out, problem.output_dtype(), q, problem.value_dim(), forward_.out);
      !status.ok()) {
    return status;
  }
  if (problem.needs_lse) {
    if (Status status = add_statistics("--lse", flags.lse, q, forward_.lse); !status.ok()) {
      return status;
    }
  }
  if (!problem.needs_max_logit) return {};
  return add_statistics("--max-logit", flags.max_logit, q, forward_.max_logit);
}

Status AttendOutputs::add_backward(const AttendFlags& flags, const AttendInputs& inputs) {
  const Args& args = inputs.args;
  Args& to = backward_;
  const std::tuple<const char*, const Text*, const TensorView*, TensorView*> alike[] = {
      {"--dq", &flags.dq, &args.q, &to.dq},
      {"--dk", &flags.dk, &args.k, &to.dk},
      {"--dv", &flags.dv, &args.v, &to.dv}};
  for (const auto& [flag, file, like, view] : alike) {
    const int64_t last_axis = like->shape[static_cast<size_t>(like->rank) - 1];
    if (Status status = add_like(flag, *file, like->dtype, *like, last_axis, *view); !status.ok()) {
      return status;
    }
  }
  if (inputs.backward->needs_dbias && args.bias.present()) {
    const auto& shape = args.bias.shape;
    const auto first = shape.begin() + (4 - inputs.bias_rank);
    if (Status status =
            add("--dbias", flags.dbias, DType::fp32, std::vector(first, shape.end()), to.dbias);
        !status.ok()) {
      return status;
    }
    // As the file's axes became four, so do those of its gradient.
    to.dbias = outputs_.back().array.view(DType::fp32);
    if (to.dbias.rank == 2) {
      to.dbias = TensorView{
          to.dbias.data, DType::fp32, 4, shape, {1, 1, to.dbias.stride[0], to.dbias.stride[1]}};
    }
  }
  if (inputs.backward->needs_dsink && args.sink.present()) {
    if (Status status = add("--dsink", flags.dsink, DType::fp32, {args.sink.shape[0]}, to.dsink);
        !status.ok()) {
      return status;
    }
  }
  return add_expression_gradients(flags, inputs);
}

Status AttendOutputs::add_expression_gradients(const AttendFlags& flags,
                                               const AttendInputs& inputs) {
  for (const std::string& text : flags.dtensor) {
    const auto assignment = parse_assignment("--dtensor", text, "F");
    if (!assignment.ok()) return assignment.status();
    const auto& [name, file] = assignment.value();
    if (std::ranges::count(backward_.dtensors, name, &NamedTensor::name) > 0) {
      return bad_flag("--dtensor", fmt::format("'{}' is given twice; once is allowed.", name));
    }
    const auto tensor = std::ranges::find(inputs.args.tensors, name, &NamedTensor::name);
    if (tensor == inputs.args.tensors.end()) continue;  // read_attend_inputs() has refused it
    const TensorView& like = tensor->view;
    TensorView view;
    if (Status status = add("--dtensor", file, DType::fp32,
                            std::vector(like.shape.begin(), like.shape.begin() + like.rank), view);
        !status.ok()) {
      return status;
    }
    backward_.dtensors.push_back({name, view});
  }
  return {};
}

Status AttendOutputs::check_files(const std::vector<std::string>& input_paths) const {
  std::vector<OutputTensor> outputs;
  for (const Output& output : outputs_) {
    if (!output.file) continue;
    Result<TensorFile> file = parse_tensor_file(output.flag, *output.file);
    if (!file.ok()) return file.status();
    outputs.push_back({output.flag, std::move(file).value(), &output.array});
  }
  return check_outputs(outputs, input_paths);
}

Status AttendOutputs::write() const {
  std::deque<io::Array> widened;
  std::vector<OutputTensor> outputs;
  for (const Output& output : outputs_) {
    if (!output.file) continue;
    Result<TensorFile> file = parse_tensor_file(output.flag, *output.file);
    if (!file.ok()) return file.status();
    const io::Array* array = &output.array;
    if (is_widened(file.value(), array->type)) {
      Result<io::Array> wide = widened_copy(*array);
      if (!wide.ok()) return wide.status();
      notice(fmt::format("{}: .npy has no {}, so {} holds the same values as float32.", output.flag,
                         io::facts(array->type).name, file.value().path));
      widened.push_back(std::move(wide).value());
      array = &widened.back();
    }
    outputs.push_back({output.flag, std::move(file).value(), array});
  }
  return write_outputs(outputs);
}

}  // namespace sirdar::cli
