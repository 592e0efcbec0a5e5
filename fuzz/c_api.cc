// Any bytes as the structs of the C interface, pointers aside: a status and a sentence, never a
// crash.
#include <sirdar/sirdar.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace {

// Texts and lists are pointers; bytes cannot be them, so they are cleared or set to real ones.
void repair(sirdar_problem& problem) {
  problem.score_mod = (problem.has_sink & 2) != 0 ? "score * 2" : nullptr;
  problem.mask_mod = nullptr;
  problem.tensors = nullptr;
  problem.scalars = nullptr;
}

void check(sirdar_status status) {
  if (status != SIRDAR_STATUS_ok && *sirdar_status_message() == '\0') std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sirdar_problem problem;
  std::memset(&problem, 0, sizeof problem);
  if (sirdar_problem_init(&problem, sizeof problem) != SIRDAR_STATUS_ok) std::abort();
  // A first byte says where in the struct the bytes go.
  if (size == 0) return 0;
  const size_t offset = sizeof(size_t) + size_t{data[0]} * 2 % (sizeof problem - sizeof(size_t));
  const size_t count = std::min(size - 1, sizeof problem - offset);
  std::memcpy(reinterpret_cast<unsigned char*>(&problem) + offset, data + 1, count);
  repair(problem);

  char text[64];
  size_t length = 0;
  check(sirdar_problem_validate(&problem));
  check(sirdar_problem_print(&problem, text, sizeof text, &length));
  sirdar_plan_options options;
  check(sirdar_plan_options_init(&options, sizeof options));
  options.implementation = "reference";
  sirdar_plan* plan = nullptr;
  check(sirdar_plan_create(&problem, &options, &plan));
  if (plan == nullptr) return 0;
  check(sirdar_plan_explain(plan, text, sizeof text, &length));
  // Tensors without memory: legal only where the problem is empty.
  sirdar_args args;
  check(sirdar_args_init(&args, sizeof args));
  check(sirdar_run(plan, &args, nullptr));
  sirdar_plan_destroy(plan);
  return 0;
}
