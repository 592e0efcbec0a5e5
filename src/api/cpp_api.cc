// The C++ interface: no rule, no choice and no arithmetic lives here.
#include <sirdar/sirdar.hpp>

#include "core/device.h"
#include "core/validate.h"
#include "plan/implementation.h"

#include <fmt/format.h>

namespace sirdar {
namespace {

// Is there nothing to write? Without queries a backward pass still owes zeros to the gradients that
// are not along queries.
bool nothing_to_write(const Problem& p) {
  const bool no_queries =
      p.batch == 0 || p.seqlen_q == 0 || (p.layout_q == Layout::ragged && p.total_q == 0);
  if (!no_queries || p.op == Op::forward) return no_queries;
  const bool no_keys =
      p.batch == 0 || p.seqlen_k == 0 || (p.layout_kv == Layout::ragged && p.total_k == 0);
  return no_keys && !p.needs_dsink && !p.needs_dbias &&
         p.features().minus(feature::dtensor) == p.features();
}

// A plan may be made for any machine, but code for wider vectors than this one has would trap.
Status check_host(const Device& device) {
  if (device.kind != DeviceKind::cpu) return {};
  static const Isa best = Device::host().isa;
  if (isa_runs_on(device.isa, best)) return {};
  return Status(
      StatusCode::device_error,
      fmt::format("device: the plan is for {} ({}) and this machine runs {}; make the plan "
                  "for Device::host().",
                  device.name, name_of(device.isa), name_of(best)),
      "device");
}

}  // namespace

std::string_view version() { return SIRDAR_VERSION; }

Plan::Plan(std::shared_ptr<const State> state) : state_(std::move(state)) {}
// A moved-from plan keeps its state: copies share it, and moving is copying.
Plan::Plan(const Plan&) = default;
Plan& Plan::operator=(const Plan&) = default;
const Problem& Plan::problem() const { return state_->problem; }
const Device& Plan::device() const { return state_->device; }
const std::string& Plan::name() const { return state_->name; }
std::string Plan::config() const { return state_->implementation->print(state_->config); }
size_t Plan::workspace_bytes() const { return state_->workspace_bytes; }
const std::vector<Refusal>& Plan::refusals() const { return state_->refusals; }

Status Plan::prepare() const {
  if (Status status = check_host(state_->device); !status.ok()) return status;
  if (state_->implementation->warm_up == nullptr) return {};
  return state_->implementation->warm_up(*state_);
}

Status Plan::run(const Args& args, Stream stream) const {
  if (Status status = check_host(state_->device); !status.ok()) return status;
  const bool may_repeat = state_->device.kind == DeviceKind::cuda;
  if (!may_repeat || !state_->checked.find(args)) {
    Status status = validate(state_->problem, args, state_->device.kind);
    if (!status.ok()) return status;
    status = validate_workspace(state_->problem, args, state_->workspace_bytes);
    if (!status.ok()) return status;
    if (may_repeat) state_->checked.keep(args, true);
  }
  if (nothing_to_write(state_->problem)) return {};
  return state_->implementation->run(*state_, args, stream);
}

}  // namespace sirdar
