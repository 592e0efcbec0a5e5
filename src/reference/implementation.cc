// The reference behind the planner's door: runs only when named or allowed. Its scratch is float64
// host memory of the size of the outputs, taken from the heap and not from the caller's workspace.
#include "plan/implementation.h"

#include <algorithm>
#include <new>

#include "core/elements.h"
#include "core/suggest.h"
#include "reference/attention.h"

namespace sirdar {
namespace {

Status supports(const Problem& problem, const Device& device) {
  if (device.kind != DeviceKind::cpu) {
    return {StatusCode::unsupported, "device: the reference runs on the CPU only.", "device"};
  }
  if (problem.op == Op::backward && problem.layout_kv == Layout::paged) {
    return {StatusCode::unsupported,
            "layout_kv: the backward pass needs dense or ragged K/V, not paged ones.", "layout_kv"};
  }
  return {};
}

Result<Config> configure(const Problem&, const Device&, const PlanOptions& options) {
  if (!options.isa.empty() && options.implementation == "reference") {
    return Status(StatusCode::invalid_argument,
                  "isa: it has no effect on the reference; leave it empty.", "isa");
  }
  if (options.knobs.empty()) return Config{};
  return Status(StatusCode::invalid_argument,
                "knobs: the reference has none, '" + shortened(options.knobs[0].first) +
                    "' included; leave them out.",
                "knobs");
}

std::string print(const Config&) { return "float64"; }

size_t workspace_bytes(const Problem&, const Config&) { return 0; }

// Gap-free float64 values, row-major, into a view of the same shape.
void store_all(const TensorView& view, const std::vector<double>& values) {
  for_each_element(view, [&](int64_t offset, int64_t index) {
    store_element(view, offset, values[static_cast<size_t>(index)]);
  });
}

void run_forward(const Problem& problem, const Args& args) {
  const reference::Forward result = reference::forward(problem, args);
  store_all(args.out, result.out);
  if (problem.needs_lse) store_all(args.lse, result.lse);
  if (problem.needs_max_logit) store_all(args.max_logit, result.max_logit);
}

void run_backward(const Problem& problem, const Args& args) {
  const reference::Forward saved{load_all(args.out), load_all(args.lse), {}};
  const reference::Gradients result = reference::backward(problem, args, saved);
  store_all(args.dq, result.dq);
  store_all(args.dk, result.dk);
  store_all(args.dv, result.dv);
  if (problem.needs_dbias) store_all(args.dbias, result.dbias);
  if (problem.needs_dsink) store_all(args.dsink, result.dsink);
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    if (!problem.tensors[t].needs_grad) continue;
    const auto named = [&](const NamedTensor& x) { return x.name == problem.tensors[t].name; };
    const auto found = std::find_if(args.dtensors.begin(), args.dtensors.end(), named);
    store_all(found->view, result.dtensors[t]);
  }
}

Status run(const Plan::State& plan, const Args& args, Stream) try {
  if (plan.problem.op == Op::forward) {
    run_forward(plan.problem, args);
  } else {
    run_backward(plan.problem, args);
  }
  return {};
} catch (const std::bad_alloc&) {
  return {StatusCode::out_of_memory,
          "memory: float64 copies of the outputs do not fit in memory; use a smaller problem."};
}

}  // namespace

extern const Implementation kReference;
const Implementation kReference = {
    .name = "reference",
    .understands = {~uint64_t{0}},
    .is_reference = true,
    .supports = supports,
    .configure = configure,
    .print = print,
    .workspace_bytes = workspace_bytes,
    .run = run,
};

}  // namespace sirdar
