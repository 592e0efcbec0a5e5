// The JSON of a .safetensors header, read event by event: nothing is stored that the format does
// not know, no depth of nesting costs anything, and a name given twice is seen.
#pragma once

#include "io/safetensors.h"

namespace sirdar::io {

// Appends to `entries`; returns what is wrong as a sentence, or nothing.
std::string parse_safetensors_header(std::string_view text, std::vector<SafetensorsEntry>& entries);

}  // namespace sirdar::io
