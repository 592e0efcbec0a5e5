#include "core/validate.h"

#include <fmt/format.h>

#include <cmath>

namespace sirdar {
namespace {
constexpr Rule kRules[] = {
    {"V001", "batch", "sizes are not negative"},
};
Status broken(size_t row, std::string_view argument, std::string message) {
  return Status(StatusCode::invalid_argument, fmt::format("{}: {}", argument, message),
                std::string(argument), std::string(kRules[row].id));
}
}  // namespace

std::span<const Rule> rules() { return kRules; }

Status validate(const Problem& p) {
  if (p.batch < 0)
    return broken(0, "batch", fmt::format("{} is negative; use 0 or more.", p.batch));
  return {};
}
Status validate(const Problem& problem, const Args&, DeviceKind) { return validate(problem); }
Status validate_workspace(const Args& args, size_t needed_bytes) {
  if (args.workspace_bytes >= needed_bytes) return {};
  return broken(0, "workspace",
                fmt::format("{} bytes are fewer than {}.", args.workspace_bytes, needed_bytes));
}
Status validate(const MergeArgs&) { return {}; }

}  // namespace sirdar
