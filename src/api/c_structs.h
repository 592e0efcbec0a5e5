// The C interface's structs <-> those of C++. Nothing here decides what is legal beyond what a C++
// type cannot hold: sizes of structs, flags, enumerators, null arrays.
#pragma once

#include <sirdar/sirdar.h>
#include <sirdar/sirdar.hpp>

namespace sirdar {

// Defaults into the first min(struct_size, ours) bytes, zeros into what a newer caller has beyond.
Status init_struct(sirdar_problem* target, size_t struct_size);
Status init_struct(sirdar_plan_options* target, size_t struct_size);
Status init_struct(sirdar_executor* target, size_t struct_size);
Status init_struct(sirdar_args* target, size_t struct_size);
Status init_struct(sirdar_merge_args* target, size_t struct_size);
Status init_struct(sirdar_jit_options* target, size_t struct_size);

Result<Problem> from_c(const sirdar_problem* source);
Result<Args> from_c(const sirdar_args* source);
Result<MergeArgs> from_c(const sirdar_merge_args* source);

struct CPlanOptions {
  PlanOptions options;  // executor not set: the caller has to keep it
  std::optional<Executor> executor;
  std::string device;  // empty: this one
};
Result<CPlanOptions> from_c(const sirdar_plan_options* source);  // null: defaults

Result<JitOptions> from_c(const sirdar_jit_options* source);  // null: defaults

// Fails for problems whose texts a struct cannot own.
Status to_c(const Problem& source, sirdar_problem* target);

TensorView from_c(const sirdar_tensor& source);

}  // namespace sirdar
