// "did you mean": the known word nearest to an unknown one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sirdar {

// The nearest of `known`, or empty when none is near.
std::string_view nearest(std::string_view word, std::span<const std::string_view> known);

// "; did you mean 'causal'?" or "".
std::string suggestion(std::string_view word, std::span<const std::string_view> known);

}  // namespace sirdar
