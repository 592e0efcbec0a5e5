#include <fmt/format.h>

#include "plan/implementation.h"

namespace sirdar {

std::string Plan::explain() const {
  std::string text =
      fmt::format("problem         {}\ndevice          {}\nimplementation  {} ({})\n",
                  state_->problem.str(), state_->device.name, name(), config());
  text += fmt::format("workspace       {} bytes\n", workspace_bytes());
  for (const Refusal& refusal : refusals())
    text += fmt::format("refused         {}: {}\n", refusal.implementation, refusal.reason);
  return text;
}

}  // namespace sirdar
