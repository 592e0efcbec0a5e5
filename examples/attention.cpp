// Causal attention over 1024 tokens and 8 heads of 64, from C++20.
#include <sirdar/sirdar.hpp>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main() {
  sirdar::Problem problem;  // what
  problem.seqlen_q = problem.seqlen_k = 1024;
  problem.num_heads_q = problem.num_heads_kv = 8;
  problem.head_dim = 64;
  problem.mask = sirdar::Mask::causal();
  const sirdar::Plan plan = sirdar::Plan::create(problem).value();  // how; may throw sirdar::Error

  std::vector<float> x(1024 * 8 * 64), out(x.size());  // q, k and v are one tensor here
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
  const auto view = [](std::vector<float>& tensor) {
    return sirdar::TensorView::contiguous(tensor.data(), sirdar::DType::fp32, {1, 1024, 8, 64});
  };
  sirdar::Args args;
  args.q = args.k = args.v = view(x);
  args.out = view(out);
  args.workspace_bytes = plan.workspace_bytes();
  args.workspace = std::aligned_alloc(64, args.workspace_bytes);
  const sirdar::Status status = plan.run(args);  // go
  std::free(args.workspace);
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  std::printf("%s: out[0] = %g, out[last] = %g\n", plan.name().c_str(), out.front(), out.back());
}
