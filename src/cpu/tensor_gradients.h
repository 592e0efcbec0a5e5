// Gradients of the tensors that a score_mod reads: any pair may add to any element. Each of a fixed
// number of K/V heads adds to sums of its own in the order of its pairs, and the sums are added in
// the order of the heads, so that the bits do not depend on threads.
#pragma once

#include <sirdar/plan.hpp>

#include <memory>
#include <span>
#include <vector>

namespace sirdar::cpu {

bool needs_dtensors(const Problem& problem);

class TensorGradients {
 public:
  // False if memory for the sums cannot be had.
  bool start(const Problem& problem, const Args& args);
  // K/V heads that may be at work at once: head h adds to the sums h % num_sums().
  int64_t num_sums() const { return num_sums_; }
  // By place in Problem::tensors; null: no gradient is wanted.
  std::span<double* const> sums(int64_t head_kv) const {
    const size_t count = tensors_.size();
    return {pointers_.data() + static_cast<size_t>(head_kv % num_sums_) * count, count};
  }
  // Writes Args::dtensors.
  void finish(const Args& args) const;

 private:
  struct Tensor {
    std::string name;
    int64_t size = 0;  // 0: no gradient is wanted
  };
  std::vector<Tensor> tensors_;
  int64_t num_sums_ = 1, size_ = 0;  // of all tensors together
  std::unique_ptr<double[]> memory_;
  std::vector<double*> pointers_;
};

}  // namespace sirdar::cpu
