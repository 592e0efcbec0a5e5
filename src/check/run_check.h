// Runs one implementation on one problem and judges everything it did: the engine of `sirdar
// check`, `sirdar selftest` and the conformance tests.
#pragma once

#include <string>

#include "check/compare.h"
#include "check/inputs.h"

namespace sirdar::check {

struct OutputReport {
  std::string name;        // "out", "lse", "dq", ...
  double worst = 0;        // largest error in units of natural scale * epsilon(dtype)
  double naive_worst = 0;  // the same of a plain same-precision computation on the same data
};

struct Report {
  bool ok = false;
  Status status;               // of planning or running; not ok: nothing was compared
  std::string implementation;  // the one that ran
  std::string config;
  std::vector<OutputReport> outputs;
  // Ready to print: one line when ok; otherwise what is wrong, the worst element, the problem
  // string and the seed.
  std::string text;
};

// On random, hostile data made from `seed`, in host memory; on a GPU in copies of it.
// options.implementation names what is checked; empty: what the planner chooses.
Report check(const Problem& problem, const PlanOptions& options, uint64_t seed,
             const Device& device = Device::host());

// What is right on given data and how far a plain computation is from it: made once, good for any
// number of implementations.
struct Oracle {
  std::vector<Expected> expected;
  std::vector<Deviation> naive;
};

// Arguments must be valid; outputs are not touched. Throws std::bad_alloc.
Oracle make_oracle(const Problem& problem, const Args& args);

// What stands in the outputs now, held against both limits of docs/semantics.md.
struct Verdict {
  std::vector<Deviation> deviations;  // in the order of Oracle::expected
  std::vector<std::string> faults;    // one for each output that is wrong
};
Verdict judge(const Oracle& oracle);

// On the data that the oracle was made from. `seed` is only printed.
Report check(Inputs& inputs, const Oracle& oracle, const PlanOptions& options, uint64_t seed,
             const Device& device = Device::host());
Report check(Inputs& inputs, const PlanOptions& options, uint64_t seed,
             const Device& device = Device::host());

}  // namespace sirdar::check
