// Arguments for any problem, made from a seed: random but valid, and hostile to faults. Every
// buffer lies between guards and at the least alignment allowed, strides leave gaps, and whatever
// must not take part (gaps, guards, unused rows and pages, outputs and workspace before the run)
// holds NaN.
#pragma once

#include <sirdar/plan.hpp>

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "core/pages.h"

namespace sirdar::check {

enum class Style : uint8_t {
  hostile,  // as above, with outlier channels, empty rows and -inf biases in the data
  plain,    // contiguous, aligned to 64 bytes, smooth data
  timed,    // the same; out and lse of a backward problem are made quickly
  unsaved,  // the same; out and lse are left to whoever wants them
};

// Where timed tensors lie.
struct Placement {
  Pages pages = Pages::small;
  bool heads_first =
      false;  // the rows of a head are adjacent: [batch, heads, seqlen, dim] in memory
};

// The forward problem whose out and lse a backward one reads, and its part of the arguments.
Problem forward_of(const Problem& backward);
Args forward_of(const Args& backward);

class Inputs {
 public:
  // `problem` must be valid. Throws std::bad_alloc. Backward problems get out and lse from the
  // reference, rounded; with Style::timed from whatever a plan chooses, which takes seconds less.
  // Addresses and strides are multiples of `alignment` bytes, a power of two up
  // to 64.
  Inputs(const Problem& problem, uint64_t seed, Style style = Style::hostile, int64_t alignment = 1,
         const Placement& placement = {});
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  const Problem& problem() const { return problem_; }
  // Views may be replaced, and their elements written before accept().
  Args& args() { return args_; }
  const Args& args() const { return args_; }

  // Takes the inputs as they are now for what a run must leave unchanged. Call after editing them.
  void accept();
  // For backward problems: computes out and lse from the inputs as they are now. Before accept().
  void refresh_saved();
  // A guarded, NaN-filled workspace of exactly `bytes` bytes.
  void set_workspace(size_t bytes);
  // Fills outputs and workspace with NaN again.
  void reset_outputs();

  // Empty, or one sentence on what a run wrote and should not have: a guard, a gap or an input.
  std::string damage() const;

 private:
  using Bytes = std::vector<std::byte, PageAllocator<std::byte>>;
  struct Buffer {
    std::string name;
    bool is_output = false;
    Bytes bytes;              // guard, memory of the view, guard
    std::vector<bool> owned;  // outputs: the bytes that are elements; empty: all but the guards
    std::vector<std::byte> accepted;
    size_t begin = 0, size = 0;  // the memory of the view
  };
  enum class Order : uint8_t { last_axis_dense, any };

  TensorView make(std::string name, DType dtype, std::vector<int64_t> shape, Order order,
                  bool is_output);
  TensorView input(std::string name, DType dtype, std::vector<int64_t> shape,
                   Order order = Order::last_axis_dense) {
    return make(std::move(name), dtype, std::move(shape), order, false);
  }
  TensorView output(std::string name, DType dtype, std::vector<int64_t> shape) {
    return make(std::move(name), dtype, std::move(shape), Order::last_axis_dense, true);
  }
  void make_lengths();
  void make_pages();
  void make_qkv();
  void make_masks();
  void make_scores();
  void make_expression_tensors();
  void make_outputs();
  void make_gradients();
  bool run_forward();
  void fill_rows(const TensorView& view, Layout layout, bool is_query);

  uint64_t next();
  int64_t below(int64_t bound) { return bound > 0 ? static_cast<int64_t>(next() % bound) : 0; }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double normal();
  bool hostile() const { return style_ == Style::hostile; }

  Problem problem_;
  Style style_;
  int64_t alignment_;
  Placement placement_;
  uint64_t state_;
  std::deque<Buffer> buffers_;
  Args args_;
};

}  // namespace sirdar::check
