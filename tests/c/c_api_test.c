/* The C interface as a C99 compiler sees it: sizes, defaults, null arguments, texts, a real run. */
#include <sirdar/sirdar.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #condition, \
              sirdar_status_message());                                                \
      ++failures;                                                                      \
    }                                                                                  \
  } while (0)

static int said(const char* part) { return strstr(sirdar_status_message(), part) != NULL; }

/* A struct as a later version of the library may have it. */
typedef struct newer_problem {
  sirdar_problem known;
  int64_t unknown;
} newer_problem;

static void test_names(void) {
  CHECK(strcmp(sirdar_status_name(SIRDAR_STATUS_invalid_argument), "invalid_argument") == 0);
  CHECK(strcmp(sirdar_status_name(99), "unknown") == 0);
  CHECK(strcmp(sirdar_status_name(-1), "unknown") == 0);
  CHECK(strcmp(sirdar_status_name(1 << 30), "unknown") == 0);
  CHECK(strchr(sirdar_version(), '.') != NULL);
  CHECK(strcmp(sirdar_status_message(), "") == 0);
}

static void test_null_arguments(void) {
  sirdar_problem problem;
  sirdar_plan* plan = (sirdar_plan*)&problem;
  size_t length = 0;
  CHECK(sirdar_problem_init(&problem, sizeof problem) == SIRDAR_STATUS_ok);
  CHECK(sirdar_problem_init(NULL, sizeof problem) == SIRDAR_STATUS_invalid_argument);
  CHECK(said("problem"));
  CHECK(sirdar_problem_parse(NULL, &problem) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_problem_parse("s4", NULL) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_problem_print(NULL, NULL, 0, &length) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_problem_print(&problem, NULL, 9, &length) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_plan_create(&problem, NULL, NULL) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_plan_create(NULL, NULL, &plan) == SIRDAR_STATUS_invalid_argument);
  CHECK(plan == NULL);
  CHECK(sirdar_plan_create_from_text(NULL, NULL, &plan) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_plan_workspace_bytes(NULL, &length) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_plan_explain(NULL, NULL, 0, NULL) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_plan_name(NULL) == NULL);
  CHECK(sirdar_run(NULL, NULL, NULL) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_merge(NULL) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_args_init(NULL, sizeof(sirdar_args)) == SIRDAR_STATUS_invalid_argument);
  sirdar_plan_destroy(NULL);
}

static void test_struct_sizes(void) {
  newer_problem newer;
  sirdar_problem problem;
  const size_t older = offsetof(sirdar_problem, layout_q);
  CHECK(sirdar_problem_init(&problem, 0) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_problem_init(&problem, 7) == SIRDAR_STATUS_invalid_argument);
  CHECK(said("struct_size"));

  memset(&newer, 0xff, sizeof newer);
  CHECK(sirdar_problem_init(&newer.known, sizeof newer) == SIRDAR_STATUS_ok);
  CHECK(newer.unknown == 0);
  CHECK(sirdar_problem_validate(&newer.known) == SIRDAR_STATUS_ok);
  newer.unknown = 1;
  CHECK(sirdar_problem_validate(&newer.known) == SIRDAR_STATUS_invalid_argument);
  CHECK(said("update the library"));

  /* An older caller's bytes end before the layouts, whose defaults then hold. */
  memset(&problem, 0xff, sizeof problem);
  CHECK(sirdar_problem_init(&problem, older) == SIRDAR_STATUS_ok);
  CHECK(problem.layout_q == -1);
  problem.seqlen_q = problem.seqlen_k = 4;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_ok);
  CHECK(sirdar_problem_parse("s4", &problem) == SIRDAR_STATUS_invalid_argument);
}

static void test_values_out_of_range(void) {
  sirdar_problem problem;
  CHECK(sirdar_problem_init(&problem, sizeof problem) == SIRDAR_STATUS_ok);
  problem.op = 2;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_invalid_argument && said("op: 2"));
  problem.op = SIRDAR_OP_forward;
  problem.dtype_q = -7;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_invalid_argument && said("dtype_q: -7"));
  problem.dtype_q = SIRDAR_DTYPE_fp32;
  problem.is_causal = 5;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_invalid_argument &&
        said("is_causal: 5"));
  problem.is_causal = 1;
  problem.mask_axes = 16;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_invalid_argument && said("mask_axes"));
  /* What to do is said in the names of this interface. */
  problem.mask_axes = SIRDAR_AXIS_key;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_invalid_argument);
  CHECK(said("set has_mask or leave them"));
  problem.mask_axes = SIRDAR_AXIS_all;
  problem.has_softmax_scale = 1;
  problem.softmax_scale = (float)NAN;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_invalid_argument && said("nan"));
  CHECK(said("or clear has_softmax_scale"));
  problem.has_softmax_scale = 0;
  problem.window_left = -1;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_invalid_argument);
  CHECK(said("SIRDAR_UNBOUNDED for no bound"));
  problem.window_left = SIRDAR_UNBOUNDED;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_ok);
  problem.num_tensors = 1;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_invalid_argument && said("NULL"));
  problem.num_tensors = SIZE_MAX;
  CHECK(sirdar_problem_validate(&problem) == SIRDAR_STATUS_invalid_argument && said("tensors"));
}

static void test_texts(void) {
  sirdar_problem problem;
  char text[256], cut[8];
  size_t length = 0;
  const char* line =
      "bwd b2 sq4 sk6 hq4 hkv2 d8 bf16 out:fp32 window:3, softcap:0.5 bias:qk:fp16 dbias";
  CHECK(sirdar_problem_init(&problem, sizeof problem) == SIRDAR_STATUS_ok);
  CHECK(sirdar_problem_parse(line, &problem) == SIRDAR_STATUS_ok);
  CHECK(problem.window_left == 3 && problem.window_right == SIRDAR_UNBOUNDED);
  CHECK(problem.bias_axes == SIRDAR_AXIS_query + SIRDAR_AXIS_key);
  CHECK(sirdar_problem_print(&problem, text, sizeof text, &length) == SIRDAR_STATUS_ok);
  CHECK(strcmp(text, line) == 0 && length == strlen(line));
  CHECK(sirdar_problem_print(&problem, cut, sizeof cut, NULL) == SIRDAR_STATUS_ok);
  CHECK(strcmp(cut, "bwd b2 ") == 0);
  CHECK(sirdar_problem_parse("s4 causl", &problem) == SIRDAR_STATUS_invalid_argument);
  CHECK(said("did you mean 'causal'?"));
  CHECK(sirdar_problem_parse("s4 score_mod:\"score * 2\"", &problem) ==
        SIRDAR_STATUS_invalid_argument);
  CHECK(said("sirdar_plan_create_from_text"));
}

/* One query over two keys, by hand: weights 1/4 and 3/4. */
static void test_run(void) {
  const int64_t shape_q[4] = {1, 1, 1, 1}, shape_k[4] = {1, 2, 1, 1}, shape_lse[3] = {1, 1, 1};
  float q = 1, k[2], v[2] = {4, 8}, out = NAN, lse = NAN;
  sirdar_plan_options options;
  sirdar_plan* plan = NULL;
  sirdar_args args;
  size_t bytes = 0, length = 0;
  void* block = NULL;
  k[0] = 0;
  k[1] = logf(3.0F);
  CHECK(sirdar_plan_options_init(&options, sizeof options) == SIRDAR_STATUS_ok);
  options.implementation = "no such thing";
  CHECK(sirdar_plan_create_from_text("sq1 sk2 d1 lse", &options, &plan) ==
        SIRDAR_STATUS_invalid_argument);
  CHECK(plan == NULL && said("reference"));
  options.implementation = "reference";
  CHECK(sirdar_plan_create_from_text("sq1 sk2 d1 lse", &options, &plan) == SIRDAR_STATUS_ok);
  if (plan == NULL) return;
  CHECK(strcmp(sirdar_plan_name(plan), "reference") == 0);
  CHECK(sirdar_plan_workspace_bytes(plan, &bytes) == SIRDAR_STATUS_ok);
  CHECK(sirdar_plan_explain(plan, NULL, 0, &length) == SIRDAR_STATUS_ok && length > 100);
  block = malloc(bytes + 64);
  CHECK(sirdar_args_init(&args, sizeof args) == SIRDAR_STATUS_ok);
  args.q = sirdar_tensor_contiguous(&q, SIRDAR_DTYPE_fp32, 4, shape_q);
  args.k = sirdar_tensor_contiguous(k, SIRDAR_DTYPE_fp32, 4, shape_k);
  args.v = sirdar_tensor_contiguous(v, SIRDAR_DTYPE_fp32, 4, shape_k);
  args.out = sirdar_tensor_contiguous(&out, SIRDAR_DTYPE_fp32, 4, shape_q);
  args.workspace = (char*)block + (64 - (uintptr_t)block % 64) % 64;
  args.workspace_bytes = bytes;
  CHECK(sirdar_run(plan, &args, NULL) == SIRDAR_STATUS_invalid_argument && said("lse"));
  CHECK(isnan(out));
  args.lse = sirdar_tensor_contiguous(&lse, SIRDAR_DTYPE_fp32, 3, shape_lse);
  CHECK(sirdar_run(plan, &args, NULL) == SIRDAR_STATUS_ok);
  CHECK(fabsf(out - 7.0F) < 1e-5F);
  CHECK(fabsf(lse - logf(4.0F)) < 1e-6F);
  args.q.rank = -3;
  CHECK(sirdar_run(plan, &args, NULL) == SIRDAR_STATUS_invalid_argument && said("rank -3"));
  sirdar_plan_destroy(plan);
  free(block);
}

static void test_missing_workspace(void) {
  const int64_t shape[4] = {1, 1, 1, 1};
  float q = 1.0F, k = 2.0F, v = 3.0F, out = NAN;
  sirdar_args args;
  sirdar_plan* plan = NULL;
  CHECK(sirdar_plan_create_from_text("s1 d1", NULL, &plan) == SIRDAR_STATUS_ok);
  if (plan == NULL) return;
  CHECK(sirdar_args_init(&args, sizeof args) == SIRDAR_STATUS_ok);
  args.q = sirdar_tensor_contiguous(&q, SIRDAR_DTYPE_fp32, 4, shape);
  args.k = sirdar_tensor_contiguous(&k, SIRDAR_DTYPE_fp32, 4, shape);
  args.v = sirdar_tensor_contiguous(&v, SIRDAR_DTYPE_fp32, 4, shape);
  args.out = sirdar_tensor_contiguous(&out, SIRDAR_DTYPE_fp32, 4, shape);
  CHECK(sirdar_run(plan, &args, NULL) == SIRDAR_STATUS_invalid_argument);
  CHECK(said("pass sirdar_plan_workspace_bytes() of them"));
  /* The size alone is no memory, and the message does not say that none was asked for. */
  CHECK(sirdar_plan_workspace_bytes(plan, &args.workspace_bytes) == SIRDAR_STATUS_ok);
  CHECK(sirdar_run(plan, &args, NULL) == SIRDAR_STATUS_invalid_argument);
  CHECK(said("bytes are given at a null address and the plan needs"));
  CHECK(isnan(out));
  sirdar_plan_destroy(plan);
}

/* (4, ln 1) and (8, ln 3) over different keys merge to the run above. */
static void test_merge(void) {
  const int64_t shape_out[4] = {1, 1, 1, 1}, shape_lse[3] = {1, 1, 1};
  float out_a = 4, out_b = 8, lse_a = 0, lse_b = logf(3.0F);
  sirdar_merge_args args;
  CHECK(sirdar_merge_args_init(&args, sizeof args) == SIRDAR_STATUS_ok);
  CHECK(sirdar_merge(&args) == SIRDAR_STATUS_invalid_argument);
  args.out = args.out_a = sirdar_tensor_contiguous(&out_a, SIRDAR_DTYPE_fp32, 4, shape_out);
  args.lse = args.lse_a = sirdar_tensor_contiguous(&lse_a, SIRDAR_DTYPE_fp32, 3, shape_lse);
  args.out_b = sirdar_tensor_contiguous(&out_b, SIRDAR_DTYPE_fp32, 4, shape_out);
  args.lse_b = sirdar_tensor_contiguous(&lse_b, SIRDAR_DTYPE_fp32, 3, shape_lse);
  CHECK(sirdar_merge(&args) == SIRDAR_STATUS_ok);
  CHECK(fabsf(out_a - 7.0F) < 1e-5F && fabsf(lse_a - logf(4.0F)) < 1e-6F);
}

/* What is set is checked before any of it holds; no kernel is compiled here. */
static void test_jit_options(void) {
  sirdar_jit_options options;
  CHECK(sirdar_jit_options_init(NULL, sizeof options) == SIRDAR_STATUS_invalid_argument);
  CHECK(sirdar_jit_options_init(&options, sizeof options - 8) == SIRDAR_STATUS_invalid_argument);
  CHECK(said("options.struct_size"));
  CHECK(sirdar_jit_options_init(&options, sizeof options) == SIRDAR_STATUS_ok);
  CHECK(options.may_compile == 1 && options.cache_dir == NULL && options.nvrtc == NULL);
  CHECK(sirdar_set_jit_options(&options) == SIRDAR_STATUS_ok);
  options.cache_dir = "";
  options.nvrtc = "/nowhere/libnvrtc.so";
  options.may_compile = 0;
  CHECK(sirdar_set_jit_options(&options) == SIRDAR_STATUS_ok);
  options.may_compile = 2;
  CHECK(sirdar_set_jit_options(&options) == SIRDAR_STATUS_invalid_argument && said("may_compile"));
  options.may_compile = -1;
  CHECK(sirdar_set_jit_options(&options) == SIRDAR_STATUS_invalid_argument && said("may_compile"));
  options.may_compile = 1;
  options.reserved = 1;
  CHECK(sirdar_set_jit_options(&options) == SIRDAR_STATUS_invalid_argument && said("reserved"));
  options.reserved = 0;
  options.struct_size = 3;
  CHECK(sirdar_set_jit_options(&options) == SIRDAR_STATUS_invalid_argument && said("struct_size"));
  CHECK(sirdar_set_jit_options(NULL) == SIRDAR_STATUS_ok); /* the defaults again */
}

static void test_prepare(void) {
  sirdar_plan* plan = NULL;
  sirdar_plan_options options;
  CHECK(sirdar_plan_prepare(NULL) == SIRDAR_STATUS_invalid_argument && said("plan"));
  CHECK(sirdar_plan_create_from_text("s8 d16", NULL, &plan) == SIRDAR_STATUS_ok);
  CHECK(sirdar_plan_prepare(plan) == SIRDAR_STATUS_ok); /* a CPU has nothing to do, also twice */
  CHECK(sirdar_plan_prepare(plan) == SIRDAR_STATUS_ok);
  sirdar_plan_destroy(plan);
  plan = NULL;
  /* A plan for a recorded machine can be made anywhere, and runs nowhere. */
  CHECK(sirdar_plan_options_init(&options, sizeof options) == SIRDAR_STATUS_ok);
  options.device = "h200";
  CHECK(sirdar_plan_create_from_text("s64 d64 bf16", &options, &plan) == SIRDAR_STATUS_ok);
  CHECK(plan != NULL && sirdar_plan_prepare(plan) != SIRDAR_STATUS_ok && !said("unknown"));
  CHECK(strlen(sirdar_status_message()) > 0);
  sirdar_plan_destroy(plan);
}

int main(void) {
  test_names();
  test_null_arguments();
  test_struct_sizes();
  test_values_out_of_range();
  test_texts();
  test_run();
  test_missing_workspace();
  test_merge();
  test_jit_options();
  test_prepare();
  if (failures == 0) printf("all checks passed\n");
  return failures == 0 ? 0 : 1;
}
