// The C interface: converts, calls, and turns every failure into a status and a sentence.
#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "api/c_structs.h"
#include "core/validate.h"
#include "cpu/openmp_runtime.h"

#include <sirdar/sirdar.hpp>

struct sirdar_plan {
  // What Plan's options point at; made first and destroyed last.
  std::unique_ptr<sirdar::Executor> executor;
  sirdar::Plan plan;
};

namespace sirdar {
namespace {

// The text of the last failure on this thread. `fixed` is used where memory for a text could not be
// had.
struct LastError {
  std::string text;
  const char* fixed = nullptr;
};
LastError& last_error() {
  thread_local LastError error;
  return error;
}

sirdar_status fail(StatusCode code, const char* text) noexcept {
  try {
    last_error().text = text;
    last_error().fixed = nullptr;
  } catch (...) {
    last_error().fixed = "out of memory";
  }
  return static_cast<sirdar_status>(code);
}

// The sentences speak of the C++ interface; where C has another name for something, it is given.
std::string in_c_terms(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kTerms[] = {
      {"set has_mask_tensor", "set has_mask"},
      {"leave the side out for unbounded", "SIRDAR_UNBOUNDED for no bound"},
      {"or leave it unset for 1/sqrt(head_dim)", "or clear has_softmax_scale for 1/sqrt(head_dim)"},
      {"or leave it unset.", "or SIRDAR_DTYPE_default."},
      {"make the plan for Device::host()", "make the plan with a device of NULL"},
      {"Plan::workspace_bytes()", "sirdar_plan_workspace_bytes()"},
      {"allow_reference is set", "options.allow_reference is set"},
  };
  for (const auto& [said, meant] : kTerms) {
    if (const size_t at = text.find(said); at != std::string::npos)
      text.replace(at, said.size(), meant);
  }
  return text;
}

// No exception may cross into C.
template <class F>
sirdar_status guarded(F function) noexcept {
  try {
    const Status status = function();
    return status.ok() ? SIRDAR_STATUS_ok
                       : fail(status.code(), in_c_terms(status.message()).c_str());
  } catch (const std::bad_alloc&) {
    return fail(StatusCode::out_of_memory,
                "memory could not be had; free some or use smaller sizes.");
  } catch (const std::exception& error) {
    return fail(StatusCode::internal, error.what());
  } catch (...) {
    return fail(StatusCode::internal, "an exception without a text; please report it.");
  }
}

Status missing(const char* argument) {
  return Status(StatusCode::invalid_argument, std::string(argument) + ": it is NULL; pass one.",
                argument);
}

Status copy_text(const std::string& text, char* buffer, size_t size, size_t* length) {
  if (buffer == nullptr && size > 0) return missing("buffer");
  if (length != nullptr) *length = text.size();
  if (size == 0) return {};
  const size_t count = std::min(text.size(), size - 1);
  std::memcpy(buffer, text.data(), count);
  buffer[count] = '\0';
  return {};
}

Status create(const Problem& problem, const sirdar_plan_options* options, sirdar_plan** plan) {
  Result<CPlanOptions> converted = from_c(options);
  if (!converted.ok()) return converted.status();
  CPlanOptions& wanted = converted.value();
  std::unique_ptr<Executor> executor;
  if (wanted.executor) executor = std::make_unique<Executor>(*wanted.executor);
  wanted.options.executor = executor.get();
  const Result<Device> device = Device::named(wanted.device.empty() ? "host" : wanted.device);
  if (!device.ok()) return device.status();
  Result<Plan> made = Plan::create(problem, wanted.options, device.value());
  if (!made.ok()) return made.status();
  *plan = new sirdar_plan{std::move(executor), std::move(made).value()};
  return {};
}

}  // namespace
}  // namespace sirdar

using sirdar::from_c;
using sirdar::guarded;
using sirdar::missing;
using sirdar::Status;

const char* sirdar_version(void) { return SIRDAR_VERSION; }

const char* sirdar_status_name(int status) {
  if (status < 0 || status > 255) return "unknown";
  return sirdar::name_of(static_cast<sirdar::StatusCode>(status)).data();
}

const char* sirdar_status_message(void) {
  const sirdar::LastError& error = sirdar::last_error();
  return error.fixed != nullptr ? error.fixed : error.text.c_str();
}

sirdar_tensor sirdar_tensor_contiguous(void* data, int32_t dtype, int32_t rank,
                                       const int64_t* shape) {
  sirdar_tensor tensor{};
  if (rank < 0 || rank > sirdar::kMaxRank || shape == nullptr) return tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = rank;
  uint64_t stride = 1;  // sizes too large for memory wrap here and are refused by validation
  for (int32_t axis = rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = shape[axis];
    tensor.stride[axis] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(shape[axis], 1));
  }
  return tensor;
}

sirdar_status sirdar_problem_init(sirdar_problem* problem, size_t struct_size) {
  return guarded([&] { return sirdar::init_struct(problem, struct_size); });
}
sirdar_status sirdar_plan_options_init(sirdar_plan_options* options, size_t struct_size) {
  return guarded([&] { return sirdar::init_struct(options, struct_size); });
}
sirdar_status sirdar_executor_init(sirdar_executor* executor, size_t struct_size) {
  return guarded([&] { return sirdar::init_struct(executor, struct_size); });
}
sirdar_status sirdar_openmp_executor(const char* path, sirdar_executor* executor) {
  return guarded([&]() -> Status {
    if (path == nullptr) return missing("path");
    if (executor == nullptr) return missing("executor");
    const auto made = sirdar::cpu::openmp_executor(path);
    if (!made.ok()) return made.status();
    executor->parallel_for = made.value().parallel_for;
    executor->context = made.value().context;
    return {};
  });
}
sirdar_status sirdar_args_init(sirdar_args* args, size_t struct_size) {
  return guarded([&] { return sirdar::init_struct(args, struct_size); });
}
sirdar_status sirdar_merge_args_init(sirdar_merge_args* args, size_t struct_size) {
  return guarded([&] { return sirdar::init_struct(args, struct_size); });
}

sirdar_status sirdar_jit_options_init(sirdar_jit_options* options, size_t struct_size) {
  return guarded([&] { return sirdar::init_struct(options, struct_size); });
}

sirdar_status sirdar_set_jit_options(const sirdar_jit_options* options) {
  return guarded([&]() -> Status {
    const auto converted = from_c(options);
    if (converted.ok()) sirdar::set_jit_options(converted.value());
    return converted.status();
  });
}

sirdar_status sirdar_problem_validate(const sirdar_problem* problem) {
  return guarded([&]() -> Status {
    const auto converted = from_c(problem);
    return converted.ok() ? converted.value().validate() : converted.status();
  });
}

sirdar_status sirdar_problem_parse(const char* text, sirdar_problem* problem) {
  return guarded([&]() -> Status {
    if (text == nullptr) return missing("text");
    const auto parsed = sirdar::Problem::parse(text);
    return parsed.ok() ? sirdar::to_c(parsed.value(), problem) : parsed.status();
  });
}

sirdar_status sirdar_problem_print(const sirdar_problem* problem, char* buffer, size_t size,
                                   size_t* length) {
  return guarded([&]() -> Status {
    const auto converted = from_c(problem);
    if (!converted.ok()) return converted.status();
    return sirdar::copy_text(converted.value().str(), buffer, size, length);
  });
}

sirdar_status sirdar_plan_create(const sirdar_problem* problem, const sirdar_plan_options* options,
                                 sirdar_plan** plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return missing("plan");
    *plan = nullptr;
    const auto converted = from_c(problem);
    return converted.ok() ? sirdar::create(converted.value(), options, plan) : converted.status();
  });
}

sirdar_status sirdar_plan_create_from_text(const char* problem, const sirdar_plan_options* options,
                                           sirdar_plan** plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return missing("plan");
    *plan = nullptr;
    if (problem == nullptr) return missing("problem");
    const auto parsed = sirdar::Problem::parse(problem);
    return parsed.ok() ? sirdar::create(parsed.value(), options, plan) : parsed.status();
  });
}

void sirdar_plan_destroy(sirdar_plan* plan) { delete plan; }

const char* sirdar_plan_name(const sirdar_plan* plan) {
  return plan != nullptr ? plan->plan.name().c_str() : nullptr;
}

sirdar_status sirdar_plan_workspace_bytes(const sirdar_plan* plan, size_t* bytes) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return missing("plan");
    if (bytes == nullptr) return missing("bytes");
    *bytes = plan->plan.workspace_bytes();
    return {};
  });
}

sirdar_status sirdar_plan_explain(const sirdar_plan* plan, char* buffer, size_t size,
                                  size_t* length) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return missing("plan");
    return sirdar::copy_text(plan->plan.explain(), buffer, size, length);
  });
}

sirdar_status sirdar_plan_prepare(const sirdar_plan* plan) {
  return guarded([&] { return plan == nullptr ? missing("plan") : plan->plan.prepare(); });
}

sirdar_status sirdar_run(const sirdar_plan* plan, const sirdar_args* args, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return missing("plan");
    const auto converted = from_c(args);
    return converted.ok() ? plan->plan.run(converted.value(), stream) : converted.status();
  });
}

sirdar_status sirdar_merge(const sirdar_merge_args* args) {
  return guarded([&]() -> Status {
    const auto converted = from_c(args);
    return converted.ok() ? sirdar::merge(converted.value()) : converted.status();
  });
}
