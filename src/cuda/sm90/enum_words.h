// The words for the enumerators of configs, as knobs read and print them.
#pragma once

#include "cuda/sm90/tile.h"

#include <sirdar/status.hpp>

#include <string>
#include <string_view>

namespace sirdar::sm90 {

template <class E>
struct EnumWords;
template <>
struct EnumWords<Element> {
  static constexpr std::string_view kWords[] = {"bf16", "fp16"};
};
template <>
struct EnumWords<MaskForm> {
  static constexpr std::string_view kWords[] = {"full", "upper", "interval"};
};
template <>
struct EnumWords<Bias> {
  static constexpr std::string_view kWords[] = {"none", "fp32", "bf16", "fp16"};
};

template <class E>
requires requires { EnumWords<E>::kWords; }
std::string field_text(E value) {
  return std::string(EnumWords<E>::kWords[static_cast<int>(value)]);
}

template <class E>
requires requires { EnumWords<E>::kWords; }
Status parse_field(std::string_view text, E& value) {
  std::string known;
  int index = 0;
  for (const std::string_view word : EnumWords<E>::kWords) {
    if (word == text) {
      value = static_cast<E>(index);
      return {};
    }
    known += (index++ == 0 ? "" : ", ") + std::string(word);
  }
  return {StatusCode::invalid_argument, "one of " + known};
}

}  // namespace sirdar::sm90
