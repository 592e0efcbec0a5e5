// Which configuration of the row-by-row forward serves a problem.
#pragma once

#include "cuda/rows/forward/config.h"

#include <sirdar/device.hpp>
#include <sirdar/problem.hpp>

#include <string>
#include <string_view>

namespace sirdar::rows {

// The problem must be one that cuda.rows.forward supports.
ForwardConfig choose_config(const Problem& problem, const Device& device);

// "sirdar_rows_bf16_d128_paged"
std::string entry_name(const ForwardConfig& config);

Element element_of(DType dtype);

// An element's word, as knobs read and print it.
std::string field_text(Element element);
Status parse_field(std::string_view text, Element& element);

}  // namespace sirdar::rows
