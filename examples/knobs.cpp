// A plan with knobs: tiles of 64 query rows instead of what the library would choose.
#include <sirdar/sirdar.hpp>

#include <cstdio>

int main() {
  const sirdar::Problem problem = sirdar::Problem::parse("fwd s1024 h8 d64 causal").value();
  sirdar::PlanOptions options;
  options.implementation = "cpu.forward";  // knobs are this implementation's
  options.knobs = {{"block_m", "64"}, {"block_n", "128"}};
  const sirdar::Result<sirdar::Plan> plan = sirdar::Plan::create(problem, options);
  if (!plan.ok()) return std::fprintf(stderr, "%s\n", plan.status().message().c_str()), 1;
  std::printf("%s\n", plan.value().config().c_str());  // isa=... block_m=64 block_n=128 ...
}
