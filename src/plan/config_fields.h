// Printing and overriding the fields of a config struct by name. A config lists its fields once:
//   template <class C, class Visit>
//   constexpr void fields(C& config, Visit visit) { visit("block_m", config.block_m); ... }
#pragma once

#include <sirdar/device.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/suggest.h"

namespace sirdar {

inline std::string field_text(int32_t value) { return std::to_string(value); }
inline std::string field_text(bool value) { return value ? "true" : "false"; }
inline std::string field_text(Isa value) { return std::string(name_of(value)); }

inline Status parse_field(std::string_view text, int32_t& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && !text.empty()) return {};
  return {StatusCode::invalid_argument, "a whole number of 32 bits"};
}
inline Status parse_field(std::string_view text, bool& value) {
  value = text == "true";
  if (text == "true" || text == "false") return {};
  return {StatusCode::invalid_argument, "true or false"};
}
inline Status parse_field(std::string_view text, Isa& value) {
  std::string known;
  for (const Isa isa : {Isa::scalar, Isa::neon, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    known += (known.empty() ? "" : ", ") + field_text(isa);
    if (name_of(isa) != text) continue;
    value = isa;
    return {};
  }
  return {StatusCode::invalid_argument, "one of " + known};
}

// "isa=avx512 block_m=128 ..."
template <class C>
std::string print_fields(const C& config) {
  std::string text;
  fields(config, [&](std::string_view name, const auto& value) {
    if (!text.empty()) text += ' ';
    text += fmt::format("{}={}", name, field_text(value));
  });
  return text;
}

// The fields of `config` that differ from those of `other`: "block_m=128, isa=avx512".
template <class C>
std::string print_differences(const C& other, const C& config) {
  std::string text;
  fields(config, [&](std::string_view name, const auto& value) {
    const std::string own = field_text(value);
    fields(other, [&](std::string_view other_name, const auto& other_value) {
      if (name != other_name || field_text(other_value) == own) return;
      text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, own);
    });
  });
  return text;
}

// `config` with the named fields of `other`.
template <class C>
C with_fields_of(C config, const C& other, std::span<const std::string_view> names) {
  fields(config, [&](std::string_view name, auto& value) {
    if (std::ranges::find(names, name) == names.end()) return;
    fields(other, [&](std::string_view other_name, const auto& other_value) {
      if constexpr (std::is_assignable_v<decltype(value), decltype(other_value)>)
        if (name == other_name) value = other_value;
    });
  });
  return config;
}

// Sets the fields named in `knobs`. Unknown names and unreadable values are errors. `may_differ`:
// the fields that a caller can use, where others follow from the problem; empty: all.
template <class C>
Status override_fields(C& config, std::span<const std::pair<std::string, std::string>> knobs,
                       std::span<const std::string_view> may_differ = {}) {
  for (const auto& entry : knobs) {
    const std::string &knob = entry.first, &text = entry.second;  // clang 14 captures no bindings
    bool is_known = false;
    Status status;
    std::vector<std::string_view> names(may_differ.begin(), may_differ.end());
    fields(config, [&](std::string_view name, auto& value) {
      if (may_differ.empty()) names.push_back(name);
      if (name != knob) return;
      is_known = true;
      status = parse_field(text, value);
    });
    if (!is_known) {
      return {StatusCode::invalid_argument,
              fmt::format("knobs: '{}' is not a field of this config; use one of {}{}",
                          shortened(knob), fmt::join(names, ", "), suggestion_or_stop(knob, names)),
              "knobs"};
    }
    if (!status.ok()) {
      return {StatusCode::invalid_argument,
              fmt::format("knobs: {}='{}' cannot be read; give {}.", knob, shortened(text),
                          status.message()),
              "knobs"};
    }
  }
  return {};
}

}  // namespace sirdar
