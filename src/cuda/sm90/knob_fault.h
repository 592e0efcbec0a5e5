// What is wrong with a caller's knobs, and the sentence that says so.
#pragma once

#include "cuda/sm90/enum_words.h"
#include "plan/config_fields.h"

#include <sirdar/status.hpp>

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace sirdar::sm90 {

// given: "block_n=24"; allowed: what may be, as a clause. Both empty: nothing is wrong.
struct KnobFault {
  std::string given, allowed;

  bool is_fault() const { return !allowed.empty(); }
};

inline Status knob_error(const KnobFault& fault, std::string_view implementation) {
  return {StatusCode::invalid_argument,
          fmt::format("knobs: {} cannot be in {}: {}; change or drop it.", fault.given,
                      implementation, fault.allowed),
          "knobs"};
}

// Of the counts of a config the first that is out of its range.
template <class C>
KnobFault fault_of_counts(const C& config) {
  KnobFault fault;
  counts(config, [&](std::string_view name, int value, int least, int most) {
    if (fault.is_fault() || (value >= least && value <= most)) return;
    fault = {fmt::format("{}={}", name, value), fmt::format("{} to {} may be", least, most)};
  });
  return fault;
}

// `same`: the library's choice with those of the caller's fields that may differ.
template <class C>
KnobFault fault_of_problem(const C& same, const C& config) {
  if (config == same) return {};
  return {print_differences(same, config), "it follows from the problem and is no knob"};
}

template <class C>
KnobFault fault_of_room(const C& chosen, const C& config, int bytes, int most) {
  if (bytes <= most) return {};
  return {print_differences(chosen, config),
          fmt::format("tiles may take {} bytes of shared memory, and these take {}", most, bytes)};
}

}  // namespace sirdar::sm90
