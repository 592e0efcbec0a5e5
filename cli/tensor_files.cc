#include "tensor_files.h"

#include "io/npy.h"
#include "parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace sirdar::cli {
namespace {

Status with_flag(std::string_view flag, const Status& status) {
  return Status(status.code(), fmt::format("{}: {}", flag, status.message()), std::string(flag));
}

// Tensors that share a file, in the order of `outputs`.
std::vector<std::vector<const OutputTensor*>> by_file(const std::vector<OutputTensor>& outputs) {
  std::vector<std::vector<const OutputTensor*>> files;
  for (const OutputTensor& output : outputs) {
    const auto same = std::ranges::find_if(files, [&](const auto& file) {
      return io::is_same_file(file.front()->file.path, output.file.path);
    });
    if (same == files.end()) {
      files.push_back({&output});
    } else {
      same->push_back(&output);
    }
  }
  return files;
}

Status check_sharing(const std::vector<const OutputTensor*>& file) {
  for (size_t i = 1; i < file.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const OutputTensor &a = *file[j], &b = *file[i];
      if (a.file.name.empty() || b.file.name.empty()) {
        return bad_flag(b.flag,
                        fmt::format("{} is where {} goes too; a .npy file holds one tensor.",
                                    b.file.path, a.flag));
      }
      if (a.file.name == b.file.name) {
        return bad_flag(b.flag, fmt::format("{}:{} is where {} goes too; give each a name of its "
                                            "own.",
                                            b.file.path, b.file.name, a.flag));
      }
    }
  }
  return {};
}

}  // namespace

Result<TensorFile> parse_tensor_file(std::string_view flag, std::string_view text) {
  constexpr std::string_view kSeparator = ".safetensors:";
  const size_t at = text.find(kSeparator);
  if (at != std::string_view::npos && at > 0 && at + kSeparator.size() < text.size()) {
    return TensorFile{std::string(text.substr(0, at + kSeparator.size() - 1)),
                      std::string(text.substr(at + kSeparator.size()))};
  }
  if (text.size() > 4 && text.ends_with(".npy")) return TensorFile{std::string(text), {}};
  return bad_flag(flag,
                  fmt::format("'{}' names no tensor; write x.npy or x.safetensors:name.", text));
}

Result<io::Array> TensorReader::read(std::string_view flag, std::string_view text) {
  const Result<TensorFile> file = parse_tensor_file(flag, text);
  if (!file.ok()) return file.status();
  Result<io::Array> array = read_file(file.value());
  if (!array.ok()) return with_flag(flag, array.status());
  return array;
}

Result<io::Array> TensorReader::read_file(const TensorFile& file) {
  for (const auto& [path, opened] : opened_) {
    if (path == file.path && !file.name.empty()) return opened.read(file.name);
  }
  Result<io::Source> source = io::Source::open(file.path);
  if (!source.ok()) return source.status();
  paths_.push_back(file.path);
  if (file.name.empty()) return io::read_npy(source.value());
  Result<io::Safetensors> opened = io::Safetensors::open(std::move(source).value());
  if (!opened.ok()) return opened.status();
  opened_.emplace_back(file.path, std::move(opened).value());
  return opened_.back().second.read(file.name);
}

Status check_outputs(const std::vector<OutputTensor>& outputs,
                     const std::vector<std::string>& input_paths) {
  for (const OutputTensor& output : outputs) {
    if (!io::is_safetensors_name(output.file.name)) {
      return bad_flag(output.flag,
                      fmt::format("{} cannot be a tensor's name in a .safetensors file; use UTF-8 "
                                  "text other than __metadata__.",
                                  io::in_quotes(output.file.name)));
    }
    for (const std::string& input : input_paths) {
      if (io::is_same_file(input, output.file.path)) {
        return bad_flag(output.flag,
                        fmt::format("{} is also an input; name another file.", output.file.path));
      }
    }
    if (Status status = io::check_writable(output.file.path); !status.ok()) {
      return with_flag(output.flag, status);
    }
  }
  for (const auto& file : by_file(outputs)) {
    if (Status status = check_sharing(file); !status.ok()) return status;
  }
  return {};
}

Status write_outputs(const std::vector<OutputTensor>& outputs) {
  std::deque<std::string> headers;  // addresses must stay
  std::vector<io::OutputFile> files;
  for (auto& tensors : by_file(outputs)) {
    // Widest elements first: then each tensor's data are aligned to its elements.
    std::ranges::stable_sort(tensors, std::ranges::greater(), [](const OutputTensor* tensor) {
      return io::facts(tensor->array->type).bytes;
    });
    const OutputTensor& first = *tensors.front();
    if (first.file.name.empty()) {
      headers.push_back(io::npy_header(first.array->type, first.array->shape));
    } else {
      std::vector<io::SafetensorsItem> items;
      for (const OutputTensor* tensor : tensors) {
        items.push_back({tensor->file.name, tensor->array->type, tensor->array->shape});
      }
      headers.push_back(io::safetensors_header(items));
    }
    io::OutputFile file{first.file.path, {std::as_bytes(std::span(headers.back()))}};
    for (const OutputTensor* tensor : tensors) file.pieces.push_back(tensor->array->buffer.bytes());
    files.push_back(std::move(file));
  }
  return io::write_files(files);
}

}  // namespace sirdar::cli
