/* A plan with knobs: tiles of 64 query rows instead of what the library would choose. */
#include <sirdar/sirdar.h>
#include <stdio.h>

int main(void) {
  const sirdar_knob knobs[] = {{"block_m", "64"}, {"block_n", "128"}};
  sirdar_plan_options options;
  sirdar_plan_options_init(&options, sizeof options);
  options.implementation = "cpu.forward"; /* knobs are this implementation's */
  options.knobs = knobs;                  /* copied */
  options.num_knobs = sizeof knobs / sizeof knobs[0];
  sirdar_plan* plan = NULL;
  if (sirdar_plan_create_from_text("fwd s1024 h8 d64 causal", &options, &plan) !=
      SIRDAR_STATUS_ok) {
    fprintf(stderr, "%s\n", sirdar_status_message());
    return 1;
  }
  char text[8192]; /* "config  isa=... block_m=64 block_n=128 ..." is one of its lines */
  sirdar_plan_explain(plan, text, sizeof text, NULL);
  printf("%s", text);
  sirdar_plan_destroy(plan);
  return 0;
}
