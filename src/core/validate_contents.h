// Rules about what cu_seqlens, seqused and page_table hold, for views whose shapes are right.
#pragma once

#include "core/validate.h"

namespace sirdar {

Status validate_contents(const Problem& problem, const Args& args);

}  // namespace sirdar
