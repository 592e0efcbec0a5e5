// The stages of the Hopper forward, each a kernel of its own, compiled and timed on one problem.
#pragma once

#include <sirdar/plan.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "jit/jit.h"

namespace sirdar::cli {

struct KernelRung {
  std::string system, name;  // of the articles, "S13"; what it adds
  bool is_extra = false;     // not part of the product: held against the product
  bool is_product = false;
  PlanOptions options;  // that plan exactly this kernel
  std::string config;
  jit::CompiledKernelPtr kernel;
  double ms = 0, tflops = 0;
  double ratio = 0;  // to the rung before, of extra ones to the product; 0: the first
  double max_error = 0;
  std::string fault;  // what is wrong with its result; empty: nothing
};

struct KernelLadderOptions {
  bool compile_only = false;  // no GPU is touched
  std::function<void(std::string_view)> on_step;
};

// What the ladder cannot take, in words; empty if it can.
std::string kernel_ladder_refusal(const Problem& problem);

// Rungs that would compile to the same kernel as the one before them are left out.
Result<std::vector<KernelRung>> climb_kernels(const Problem& problem,
                                              const KernelLadderOptions& options);

// A table for a person, or one JSON object a line.
void print_kernels(const Problem& problem, const std::vector<KernelRung>& rungs,
                   const KernelLadderOptions& options);
void print_kernels_json(const Problem& problem, const std::vector<KernelRung>& rungs,
                        const KernelLadderOptions& options);

}  // namespace sirdar::cli
