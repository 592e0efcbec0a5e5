// The library's messages begin with the name of an argument; here that becomes the flag it came by.
#pragma once

#include <sirdar/status.hpp>

namespace sirdar::cli {

Status in_flag_terms(const Status& status);

}  // namespace sirdar::cli
