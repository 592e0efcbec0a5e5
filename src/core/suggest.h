// What messages say of a word that is not known: the word, and the known one nearest to it.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sirdar {

// The nearest of `known`, or empty when none is near.
std::string_view nearest(std::string_view word, std::span<const std::string_view> known);

// "; did you mean 'causal'?" or "".
std::string suggestion(std::string_view word, std::span<const std::string_view> known);
// The same as the end of a sentence: with it, or ".".
std::string suggestion_or_stop(std::string_view word, std::span<const std::string_view> known);

// A caller's word as a message quotes it: of a long one both ends.
std::string shortened(std::string_view word);

}  // namespace sirdar
