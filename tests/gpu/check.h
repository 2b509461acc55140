// The check of a GPU backend, as a program without a test framework:
//
//   [--cases N] [--first SEED] [--threads N] [--op NAME] [--row NAME] [--json FILE]
//   [--commit ID] [--fact KEY=VALUE] [--smallest] [--launches] [--part I/N] [--no-checks] [--cpu]
//   [--rows]
//
// Every operation over its generated cases, through the table's own choice and forced through every
// row (--row: that one), against the CPU backend and float64. --smallest: each kernel once or
// twice, for tools that watch memory; --part 2/4: the second of four such runs that share the jobs.
// --launches, with it: what is launched, not what it computes; a kernel that no job launches is a
// failure. It needs no GPU where the runtime is no_device.cpp.
// --cpu: the jobs judge the CPU backend itself, on a machine without a GPU. --no-checks: jobs
// alone. --rows: the names of the backend's rows, nothing else.
#pragma once

#include <memory>

#include "report.h"

namespace moeblas::gpu {

// Of jobs that several processes share: every count-th from `first` on.
struct Part {
  unsigned first = 0, count = 1;
};

// A backend as it is checked. What is null is not there.
struct Machine {
  const char* program;
  const char* backend;
  bool (*describe)(Report&);  // facts: the device; false: there is none to run on
  std::unique_ptr<Lane> (*make_lane)(uint64_t thread);
  // A job on a lane: run_job, and what else the backend does with a job, `all` or some of it.
  Outcome (*run)(const Job& job, Lane& lane, const char* kernel, bool all);
  void (*check)(Report&);  // what is not a job
  // row: all if empty; judged: whether results are looked at.
  void (*smallest)(Report&, const std::string& row, Part part, bool judged);
  ForEachKernel for_each_kernel;
};

int run_check(int argc, char** argv, const Machine& machine);

}  // namespace moeblas::gpu
