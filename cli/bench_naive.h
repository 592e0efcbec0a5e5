// The method attention is compared with: S = Q K^T by the library's sgemm, softmax, O = P V by
// sgemm, with S in memory.
#pragma once

#include <sirdar/plan.hpp>

#include <string>
#include <vector>

namespace sirdar::cli {

enum class NaiveSoftmax : uint8_t {
  library_exp,  // std::exp, element by element: what people write
  vector_exp,   // our vector exponential: the naive method at its best
};

class NaiveAttention {
 public:
  // Why the naive method cannot stand beside this problem here; empty: it can.
  static std::string refusal(const Problem& problem);

  NaiveAttention(const Problem& problem, Isa isa, int num_threads);
  // Reads q, k and v of `args`, writes its own output.
  void run(const Args& args, NaiveSoftmax softmax);
  // Largest difference from an output of ours, relative to the largest element.
  double difference(const Args& args) const;

 private:
  void softmax_rows(NaiveSoftmax softmax);

  Problem problem_;
  Isa isa_;
  int num_threads_;
  std::vector<float> scores_;  // [seqlen_q, seqlen_k] of one head
  std::vector<float> out_;     // like args.out, contiguous
};

}  // namespace sirdar::cli
