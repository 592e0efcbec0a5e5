// Sirdar's C++ interface: exact attention, forward and backward.
//
//   sirdar::Problem problem;                     // what
//   problem.seqlen_q = problem.seqlen_k = 2048;
//   problem.num_heads_q = problem.num_heads_kv = 8;
//   problem.mask = sirdar::Mask::causal();
//   sirdar::Plan plan = sirdar::Plan::create(problem).value();   // how
//   sirdar::Status status = plan.run(args);      // go
#pragma once

#include <sirdar/device.hpp>
#include <sirdar/plan.hpp>
#include <sirdar/problem.hpp>
#include <sirdar/status.hpp>
#include <sirdar/tensor.hpp>

#include <functional>

namespace sirdar {

// Version as "major.minor.patch".
SIRDAR_API std::string_view version();

// Where notices go (a fallback taken, a cache that cannot be written). Silent until set; the
// callback may be called from any thread. An empty function silences again.
enum class LogLevel : uint8_t { notice, warning };
SIRDAR_API void set_log_sink(std::function<void(LogLevel, std::string_view)> sink);

}  // namespace sirdar
