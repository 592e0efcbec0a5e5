// Every rule about legal input, once (docs/rules.md is generated from the same table).
#pragma once

#include <sirdar/plan.hpp>

#include <span>

namespace sirdar {

struct Rule {
  std::string_view id;        // "V017"
  std::string_view argument;  // glossary name
  std::string_view text;      // what is allowed
};
std::span<const Rule> rules();

// Rules that need no tensors.
Status validate(const Problem& problem);

// Presence, shapes, dtypes, strides, alignment, overlap; and, where memory may be read (CPU), the
// contents of cu_seqlens, seqused and page_table. Reads only those; writes nothing.
Status validate(const Problem& problem, const Args& args, DeviceKind kind);

// Large enough, aligned to 64 bytes, apart from every tensor of the call.
Status validate_workspace(const Problem& problem, const Args& args, size_t needed_bytes);

Status validate(const MergeArgs& args);

}  // namespace sirdar
