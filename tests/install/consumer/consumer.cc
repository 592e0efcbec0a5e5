#include <sirdar/sirdar.hpp>

#include <cstdio>
#include <vector>

int main() {
  sirdar::Problem problem;
  problem.seqlen_q = problem.seqlen_k = 16;
  problem.mask = sirdar::Mask::causal();
  sirdar::PlanOptions options;
  options.allow_reference = true;
  const auto plan = sirdar::Plan::create(problem, options);
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", plan.status().message().c_str());
    return 1;
  }
  std::vector<float> q(16 * 64, 0.5F), k = q, v = q, out(16 * 64, -1.0F);
  std::vector<float> workspace(plan.value().workspace_bytes() / 4 + 16);
  const auto address = reinterpret_cast<uintptr_t>(workspace.data());
  const auto view = [](std::vector<float>& values) {
    return sirdar::TensorView::contiguous(values.data(), sirdar::DType::fp32, {1, 16, 1, 64});
  };
  sirdar::Args args;
  args.q = view(q);
  args.k = view(k);
  args.v = view(v);
  args.out = view(out);
  args.workspace = reinterpret_cast<void*>((address + 63) / 64 * 64);
  args.workspace_bytes = plan.value().workspace_bytes();
  const sirdar::Status status = plan.value().run(args);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  for (const float value : out)
    if (value != 0.5F) return 1;  // an average of equal rows
  return 0;
}
