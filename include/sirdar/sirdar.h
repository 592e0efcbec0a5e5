/* Sirdar's C interface: exact attention, forward and backward. C99.
 *
 *   sirdar_problem problem;
 *   sirdar_plan* plan = NULL;
 *   sirdar_problem_init(&problem, sizeof problem);
 *   problem.seqlen_q = problem.seqlen_k = 2048;
 *   problem.num_heads_q = problem.num_heads_kv = 8;
 *   problem.is_causal = 1;
 *   if (sirdar_plan_create(&problem, NULL, &plan) != SIRDAR_STATUS_ok)
 *     fprintf(stderr, "%s\n", sirdar_status_message());
 *
 * Every struct starts with its own size, set by its init function from the sizeof that the caller
 * was compiled with: an older caller's missing fields take their defaults, and a newer caller's
 * unknown fields are accepted while they are zero and refused otherwise. Every function returns a
 * status; nothing is thrown, printed or kept of what the caller passes, except where said. A plan
 * may be run from several threads at once. */
#ifndef SIRDAR_SIRDAR_H
#define SIRDAR_SIRDAR_H

#include <sirdar/types.h>

#include <stddef.h>
#include <stdint.h>

#ifndef SIRDAR_API
#if defined(_WIN32)
#define SIRDAR_API
#else
#define SIRDAR_API __attribute__((visibility("default")))
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* SIRDAR_STATUS_ok, SIRDAR_STATUS_invalid_argument, ...; the meanings are in types.h. */
typedef enum sirdar_status {
#define SIRDAR_ROW(name, value, meaning) SIRDAR_STATUS_##name = value,
  SIRDAR_STATUS_CODES(SIRDAR_ROW)
#undef SIRDAR_ROW
} sirdar_status;

/* SIRDAR_DTYPE_fp32, SIRDAR_DTYPE_bf16, ... Structs hold dtypes as int32_t. */
enum sirdar_dtype {
#define SIRDAR_ROW(name, value, bits, exponent, mantissa) SIRDAR_DTYPE_##name = value,
  SIRDAR_DTYPES(SIRDAR_ROW)
#undef SIRDAR_ROW
      SIRDAR_DTYPE_default = -1 /* only for sirdar_problem.dtype_out: as q, bf16 for fp8 */
};

enum sirdar_op { SIRDAR_OP_forward = 0, SIRDAR_OP_backward = 1 };
enum sirdar_layout { SIRDAR_LAYOUT_dense = 0, SIRDAR_LAYOUT_ragged = 1, SIRDAR_LAYOUT_paged = 2 };
enum sirdar_alignment { SIRDAR_ALIGNMENT_bottom_right = 0, SIRDAR_ALIGNMENT_top_left = 1 };

/* Axes of a mask or bias that are more than a broadcast: a sum of these. */
enum sirdar_axis {
  SIRDAR_AXIS_batch = 1,
  SIRDAR_AXIS_head = 2,
  SIRDAR_AXIS_query = 4,
  SIRDAR_AXIS_key = 8,
  SIRDAR_AXIS_all = 15
};

/* A window side that is not bounded. */
#define SIRDAR_UNBOUNDED INT64_MIN

/* Memory of the caller's, described: shape slowest axis first, strides in elements. A tensor whose
 * data is NULL is absent. One fixed size, so it has no size field. */
typedef struct sirdar_tensor {
  void* data;
  int32_t dtype; /* sirdar_dtype */
  int32_t rank;  /* 0 to 4 */
  int64_t shape[4];
  int64_t stride[4];
} sirdar_tensor;

/* A tensor that expressions read. */
typedef struct sirdar_expression_tensor {
  const char* name;
  int32_t dtype; /* fp32, int32 or boolean */
  int32_t rank;  /* 1 to 4 */
  int32_t needs_grad;
  int32_t reserved; /* 0 */
} sirdar_expression_tensor;

/* What to compute. Flags are 0 or 1; docs/semantics.md says what each field means. */
typedef struct sirdar_problem {
  size_t struct_size;

  int32_t op; /* sirdar_op */
  int32_t dtype_q, dtype_kv, dtype_out;
  int64_t batch;
  int64_t seqlen_q, seqlen_k; /* maxima when ragged, paged or shortened by seqused */
  int64_t total_q, total_k;   /* rows of a ragged side, 0 elsewhere */
  int64_t num_heads_q, num_heads_kv;
  int64_t head_dim, head_dim_v; /* head_dim_v 0: same as head_dim */

  int32_t layout_q, layout_kv; /* sirdar_layout */
  int64_t page_size;           /* with paged K/V */
  int32_t has_seqused_q, has_seqused_k;

  int32_t is_causal;
  int32_t alignment;                 /* sirdar_alignment */
  int64_t window_left, window_right; /* SIRDAR_UNBOUNDED: that side is not bounded */
  int64_t chunk_size;                /* 0: off */
  int32_t has_document;
  int32_t has_mask;
  int32_t mask_axes; /* sum of sirdar_axis */

  int32_t has_softmax_scale; /* 0: 1/sqrt(head_dim), whatever softmax_scale holds */
  float softmax_scale;
  float softcap; /* 0: off */
  int32_t has_bias;
  int32_t dtype_bias;
  int32_t bias_axes; /* sum of sirdar_axis */
  int32_t has_alibi, has_sink;
  float dropout_p; /* 0: off */

  int32_t needs_lse, needs_max_logit;         /* forward outputs */
  int32_t has_dlse, needs_dbias, needs_dsink; /* backward */
  int32_t deterministic, batch_invariant;

  const char* score_mod; /* expressions; NULL or "": none */
  const char* mask_mod;
  const sirdar_expression_tensor* tensors;
  size_t num_tensors;
  const char* const* scalars; /* names; the values travel in sirdar_args */
  size_t num_scalars;
} sirdar_problem;

/* Runs fn(arg, index, slot) for every index in [0, count), each once, and returns when all are
 * done; slot is below max_slots and never shared by two calls that run at the same time. */
typedef void (*sirdar_function)(void* arg, int64_t index, int slot);
typedef struct sirdar_executor {
  size_t struct_size;
  void (*parallel_for)(void* context, int64_t count, int max_slots, sirdar_function fn, void* arg);
  void* context;
} sirdar_executor;

typedef struct sirdar_knob {
  const char* name;
  const char* value;
} sirdar_knob;

typedef struct sirdar_plan_options {
  size_t struct_size;
  const char* implementation; /* a name; NULL or "": choose */
  const char* isa;            /* "scalar", "avx2", ...; NULL or "": the best */
  const char* device;         /* "cuda", "cuda:1", or a recorded machine to plan for; NULL or "":
                                 this machine's CPU */
  int32_t allow_reference;    /* may the float64 reference serve what nothing faster understands? */
  int32_t num_threads;        /* 0: as many as the device has */
  const sirdar_executor* executor; /* NULL: the library's own threads; copied, but what its context
                                      points at must outlive the plan */
  const sirdar_knob* knobs;
  size_t num_knobs;
} sirdar_plan_options;

typedef struct sirdar_named_tensor {
  const char* name;
  sirdar_tensor tensor;
} sirdar_named_tensor;

typedef struct sirdar_named_value {
  const char* name;
  double value;
} sirdar_named_value;

/* Pointers of one call; shapes are those of the C++ struct sirdar::Args in plan.hpp. What the
 * problem does not ask for must be absent. */
typedef struct sirdar_args {
  size_t struct_size;
  sirdar_tensor q, k, v, out, lse, max_logit;
  sirdar_tensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table;
  sirdar_tensor document_q, document_k, mask, bias, alibi, sink;
  sirdar_tensor dout, dlse, dq, dk, dv, dbias, dsink;
  const sirdar_named_tensor* tensors; /* what the expressions read */
  size_t num_tensors;
  const sirdar_named_tensor* dtensors; /* their gradients */
  size_t num_dtensors;
  const sirdar_named_value* scalars;
  size_t num_scalars;
  uint64_t dropout_seed, dropout_offset;
  void*
      workspace; /* sirdar_plan_workspace_bytes() bytes, 64-byte aligned, not shared by two runs */
  size_t workspace_bytes;
} sirdar_args;

typedef struct sirdar_merge_args {
  size_t struct_size;
  sirdar_tensor out_a, lse_a, out_b, lse_b, out, lse;
} sirdar_merge_args;

/* How GPU kernels are compiled and kept (docs/jit.md). A NULL or "" follows the environment switch
 * named beside it, then the default. */
typedef struct sirdar_jit_options {
  size_t struct_size;
  const char* cache_dir;  /* SIRDAR_CACHE_DIR: kept here; then packs, separated by colons */
  const char* kernel_dir; /* SIRDAR_KERNEL_DIR: device code of a checkout's src/ */
  const char* dump_dir;   /* SIRDAR_DUMP: source, PTX, cubin and report of every kernel go here */
  const char* nvrtc;      /* NVRTC's file, or a folder that pip installed it in */
  int32_t may_compile;    /* 1; SIRDAR_NO_JIT=1 forbids: only what is on disk runs */
  int32_t reserved;       /* 0 */
} sirdar_jit_options;

typedef struct sirdar_plan sirdar_plan;

/* "major.minor.patch". */
SIRDAR_API const char* sirdar_version(void);

/* "invalid_argument"; "unknown" for a number that is no status (any int may be asked about). */
SIRDAR_API const char* sirdar_status_name(int status);

/* One sentence about the last call of this thread that failed, "" before one has; valid until this
 * thread's next call that fails. */
SIRDAR_API const char* sirdar_status_message(void);

/* Row-major and gap-free. A rank outside 0..4 or a NULL shape gives an absent tensor. */
SIRDAR_API sirdar_tensor sirdar_tensor_contiguous(void* data, int32_t dtype, int32_t rank,
                                                  const int64_t* shape);

/* Defaults for every field. struct_size is the caller's sizeof. */
SIRDAR_API sirdar_status sirdar_problem_init(sirdar_problem* problem, size_t struct_size);
SIRDAR_API sirdar_status sirdar_plan_options_init(sirdar_plan_options* options, size_t struct_size);
SIRDAR_API sirdar_status sirdar_executor_init(sirdar_executor* executor, size_t struct_size);
SIRDAR_API sirdar_status sirdar_args_init(sirdar_args* args, size_t struct_size);
SIRDAR_API sirdar_status sirdar_merge_args_init(sirdar_merge_args* args, size_t struct_size);
SIRDAR_API sirdar_status sirdar_jit_options_init(sirdar_jit_options* options, size_t struct_size);

/* An executor, set up by its init function before, over an OpenMP runtime that the process has
 * loaded already: libgomp, libomp or libiomp5 by its file. A program that uses OpenMP and this
 * library in turns is faster on one set of threads than on two. Good until the process ends. */
SIRDAR_API sirdar_status sirdar_openmp_executor(const char* path, sirdar_executor* executor);

/* For the whole process, from the next kernel on; the texts are copied. NULL: the defaults. */
SIRDAR_API sirdar_status sirdar_set_jit_options(const sirdar_jit_options* options);

/* Every rule that needs no tensors. */
SIRDAR_API sirdar_status sirdar_problem_validate(const sirdar_problem* problem);

/* A plan for a problem written as a line of text (docs/problem_strings.md). */
SIRDAR_API sirdar_status sirdar_plan_create_from_text(const char* problem,
                                                      const sirdar_plan_options* options,
                                                      sirdar_plan** plan);

/* The numbers and flags of a line of text. A line with expressions, tensors or scalars is refused:
 * a struct cannot own their text; use sirdar_plan_create_from_text for it. problem->struct_size
 * must be set, by sirdar_problem_init for one. */
SIRDAR_API sirdar_status sirdar_problem_parse(const char* text, sirdar_problem* problem);

/* The problem as a line of text. Texts go into the caller's buffer: at most `size` bytes with the
 * final zero, and *length, unless NULL, receives the length of the whole text without it. A short
 * buffer gets the beginning and is no error; with size 0 the buffer may be NULL. */
SIRDAR_API sirdar_status sirdar_problem_print(const sirdar_problem* problem, char* buffer,
                                              size_t size, size_t* length);

/* Validates, chooses, configures. options may be NULL. On an error *plan is NULL. */
SIRDAR_API sirdar_status sirdar_plan_create(const sirdar_problem* problem,
                                            const sirdar_plan_options* options, sirdar_plan** plan);
/* NULL is fine. */
SIRDAR_API void sirdar_plan_destroy(sirdar_plan* plan);

/* The chosen implementation, "cpu.forward"; lives as long as the plan. NULL for a NULL plan. */
SIRDAR_API const char* sirdar_plan_name(const sirdar_plan* plan);
SIRDAR_API sirdar_status sirdar_plan_workspace_bytes(const sirdar_plan* plan, size_t* bytes);
SIRDAR_API sirdar_status sirdar_plan_explain(const sirdar_plan* plan, char* buffer, size_t size,
                                             size_t* length);

/* Compiles and loads what sirdar_run needs, so that the first run is as fast as the others; needed
 * before a run that is captured into a CUDA graph. Nothing to do on a CPU. */
SIRDAR_API sirdar_status sirdar_plan_prepare(const sirdar_plan* plan);

/* Checks the arguments, then computes; on invalid_argument nothing has been written. `stream` is a
 * CUDA stream, as the driver's handle; a plan for a CPU takes no notice of it. */
SIRDAR_API sirdar_status sirdar_run(const sirdar_plan* plan, const sirdar_args* args, void* stream);

/* Merges two partial results over disjoint keys of the same queries. */
SIRDAR_API sirdar_status sirdar_merge(const sirdar_merge_args* args);

#ifdef __cplusplus
}
#endif

#endif
