// Runs a kernel on the emulated machine.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "operation.h"

namespace sirdar::emulator {

struct Grid {
  unsigned x = 1, y = 1, z = 1;
};

struct Launch {
  Grid grid;
  int threads = 128;     // of a block
  int shared_bytes = 0;  // dynamic
  uint64_t seed = 1;     // draws the schedule; the same seed gives the same run
  int cluster = 1;       // blocks in x that form a cluster
  int resident = 2;      // clusters that run at the same time
  int registers = 0;     // of a thread at launch; 0: as many as fit
  bool calm = false;     // no adversarial schedule: asynchronous work at once, no preemption
  bool check_order = true;
  unsigned misalignment = 0;    // of dynamic shared memory to 1024: a multiple of 16
  uint64_t max_operations = 0;  // more are a fault; 0: no limit
  Mutation mutation;            // Change::kNone: none
  Coverage* coverage = nullptr;
};

// What the device would have counted, summed over blocks.
struct Counters {
  uint64_t wgmma_flops = 0, mma_flops = 0;
  uint64_t exponentials = 0, logarithms = 0;
  uint64_t bytes_loaded = 0, bytes_stored = 0;  // by TMA, of whole boxes
  uint64_t stmatrix = 0, stmatrix_conflicts = 0;
  uint64_t operations = 0, switches = 0;
};

struct Report {
  std::string fault;  // empty: none
  Counters counters;
  std::set<std::string> files;  // without folders, in which operations were called
  bool ok() const { return fault.empty(); }
};

// `kernel` is what each thread executes; what it captures must outlive the call.
Report launch(const Launch& launch, const std::function<void()>& kernel);
Report launch(Grid grid, int threads, int shared_bytes, uint64_t seed,
              const std::function<void()>& kernel);

// A kernel and the one behind it, which may begin before it has ended (programmatic dependent
// launch): once all blocks of the first have said so (griddepcontrol.launch_dependents) or ended.
// Seed, calm, checks, limits and faults are those of the first.
struct Overlapping {
  Launch launch;
  std::function<void()> kernel;
};
Report launch(const Overlapping& first, const Overlapping& second);

}  // namespace sirdar::emulator
