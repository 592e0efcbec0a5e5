#include <sirdar/sirdar.h>

#include <stdio.h>

int main(void) {
  sirdar_problem problem;
  char text[128];
  if (sirdar_problem_init(&problem, sizeof problem) != SIRDAR_STATUS_ok ||
      sirdar_problem_parse("s16 causal", &problem) != SIRDAR_STATUS_ok ||
      sirdar_problem_print(&problem, text, sizeof text, NULL) != SIRDAR_STATUS_ok) {
    fprintf(stderr, "%s\n", sirdar_status_message());
    return 1;
  }
  printf("%s: %s\n", sirdar_version(), text);
  return 0;
}
