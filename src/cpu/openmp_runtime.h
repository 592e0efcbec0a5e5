// An Executor over an OpenMP runtime that the process has loaded already, found by its file: for
// bindings that are loaded beside a program's own OpenMP, as Python's is beside torch's. Two pools
// in turns are slow: threads of OpenMP spin for a while after their work, on the cores that the
// other pool wants. C++ programs compile include/sirdar/adapters/openmp.hpp instead.
#pragma once

#include <sirdar/plan.hpp>

namespace sirdar::cpu {

// path: of libgomp, libomp or libiomp5 (all three have GNU's entry points). Not loaded if it is not
// there already. The executor is good until the process ends.
Result<Executor> openmp_executor(const char* path);

}  // namespace sirdar::cpu
