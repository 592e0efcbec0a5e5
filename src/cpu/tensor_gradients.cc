#include "cpu/tensor_gradients.h"

#include <algorithm>
#include <limits>
#include <new>

#include "core/elements.h"

namespace sirdar::cpu {
namespace {

// Of all sums together, unless one head needs more.
constexpr int64_t kMaxSumsBytes = 64 << 20;

int64_t num_elements(const TensorView& view) {
  int64_t count = 1;
  for (int axis = 0; axis < view.rank; ++axis) count *= view.shape[static_cast<size_t>(axis)];
  return count;
}

}  // namespace

bool needs_dtensors(const Problem& problem) {
  return std::ranges::any_of(problem.tensors, &ExpressionTensor::needs_grad);
}

bool TensorGradients::start(const Problem& problem, const Args& args) {
  if (!needs_dtensors(problem)) return true;
  for (const ExpressionTensor& tensor : problem.tensors) {
    const auto given = std::ranges::find(args.tensors, tensor.name, &NamedTensor::name);
    const int64_t size = tensor.needs_grad ? num_elements(given->view) : 0;
    if (size > std::numeric_limits<int32_t>::max()) return false;
    tensors_.push_back({tensor.name, size});
    size_ += size;
  }
  // The number of sums decides the order of additions: it must not depend on threads.
  const int64_t fitting = kMaxSumsBytes / (8 * std::max<int64_t>(size_, 1));
  num_sums_ = std::clamp<int64_t>(fitting, 1, problem.num_heads_kv);
  memory_.reset(new (std::nothrow) double[static_cast<size_t>(num_sums_ * size_)]());
  if (memory_ == nullptr) return false;
  double* at = memory_.get();
  for (int64_t n = 0; n < num_sums_; ++n) {
    for (const Tensor& tensor : tensors_) {
      pointers_.push_back(tensor.size > 0 ? at : nullptr);
      at += tensor.size;
    }
  }
  return true;
}

void TensorGradients::finish(const Args& args) const {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const auto gradient = std::ranges::find(args.dtensors, tensors_[t].name, &NamedTensor::name);
    if (gradient == args.dtensors.end()) continue;
    for_each_element(gradient->view, [&](int64_t offset, int64_t index) {
      double sum = 0;
      for (int64_t n = 0; n < num_sums_; ++n)
        sum += pointers_[static_cast<size_t>(n) * tensors_.size() + t][index];
      static_cast<float*>(gradient->view.data)[offset] = static_cast<float>(sum);
    });
  }
}

}  // namespace sirdar::cpu
