// The verbs about compiled kernels. This build plans for CPUs only, so they have nothing to act on
// and say so.
#include "commands.h"

#include <CLI/CLI.hpp>

namespace sirdar::cli {
namespace {

Action refuse(CLI::App& app, const char* sentence) {
  app.allow_extras();
  return [sentence] { return fail(sentence); };
}

}  // namespace

Action declare_compile(CLI::App& app) {
  return refuse(app,
                "compile: this build has no kernels that are compiled at run time, only CPU code "
                "compiled with it; 'sirdar explain PROBLEM' shows what runs.");
}

Action declare_cache(CLI::App& app) {
  return refuse(app,
                "cache: this build compiles no kernels at run time and so keeps no cache; there is "
                "nothing to list, verify, clear or pack.");
}

}  // namespace sirdar::cli
