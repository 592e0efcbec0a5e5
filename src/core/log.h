// Where the library's notices go: the caller's sink, and stderr if SIRDAR_LOG asks for it.
#pragma once

#include <sirdar/sirdar.hpp>

namespace sirdar {

void log(LogLevel level, std::string_view text);

// The same key is said once per process.
void log_once(LogLevel level, std::string_view key, std::string_view text);

}  // namespace sirdar
