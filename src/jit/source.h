// The text of one kernel: about ten lines of CUDA C++ around a config.
#pragma once

#include "plan/kernel_source.h"

#include <fmt/format.h>

#include <string_view>
#include <type_traits>

namespace sirdar::jit {

// A config as its own designated initialiser, field by field in the order of its fields() list:
// "{.block_m = 128, .is_causal = true}". Enumerators are written by value, for they need no table
// of names then.
template <class C>
std::string config_text(const C& config, std::string_view type) {
  std::string text;
  fields(config, [&](std::string_view name, const auto& value) {
    using T = std::remove_cvref_t<decltype(value)>;
    text += fmt::format("{}.{} = ", text.empty() ? "" : ", ", name);
    if constexpr (std::is_enum_v<T>) {
      text += fmt::format("decltype({}::{})({})", type, name, static_cast<int>(value));
    } else {
      text += fmt::format("{}", value);
    }
  });
  return "{" + text + "}";
}

// The same text for the same kernel, always: it is hashed.
std::string emit(const KernelSource& source);

}  // namespace sirdar::jit
