// The words for a config's enumerators, as knobs read and print them.
#pragma once

#include "cuda/sm90/enum_words.h"
#include "cuda/sm90/forward/config.h"

namespace sirdar::sm90 {

template <>
struct EnumWords<Softmax> {
  static constexpr std::string_view kWords[] = {"classic", "conditional", "guarded"};
};
template <>
struct EnumWords<Order> {
  static constexpr std::string_view kWords[] = {"by_head", "longest_first", "in_sections"};
};

}  // namespace sirdar::sm90
