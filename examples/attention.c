/* Causal attention over 1024 tokens and 8 heads of 64, from C. */
#include <sirdar/sirdar.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  const int64_t shape[4] = {1, 1024, 8, 64};
  const size_t count = 1024 * 8 * 64;
  float* x = malloc(count * sizeof *x); /* q, k and v are one tensor here */
  float* out = malloc(count * sizeof *out);
  for (size_t i = 0; x && i < count; ++i) x[i] = (float)(i % 7) - 3;

  sirdar_plan* plan = NULL;
  sirdar_args args;
  sirdar_args_init(&args, sizeof args);
  args.q = args.k = args.v = sirdar_tensor_contiguous(x, SIRDAR_DTYPE_fp32, 4, shape);
  args.out = sirdar_tensor_contiguous(out, SIRDAR_DTYPE_fp32, 4, shape);
  const char* problem = "fwd sq1024 sk1024 hq8 hkv8 d64 fp32 causal";        /* what */
  sirdar_status status = sirdar_plan_create_from_text(problem, NULL, &plan); /* how */
  if (status == SIRDAR_STATUS_ok) {
    sirdar_plan_workspace_bytes(plan, &args.workspace_bytes);
    args.workspace = aligned_alloc(64, args.workspace_bytes);
    status = sirdar_run(plan, &args, NULL); /* go */
    free(args.workspace);
  }
  if (status == SIRDAR_STATUS_ok)
    printf("%s: out[0] = %g, out[last] = %g\n", sirdar_plan_name(plan), out[0], out[count - 1]);
  else
    fprintf(stderr, "%s\n", sirdar_status_message());
  sirdar_plan_destroy(plan);
  free(x);
  free(out);
  return status == SIRDAR_STATUS_ok ? 0 : 1;
}
