// A job from end to end on the device, against the CPU backend or whatever the job judges by.
#pragma once

#include "job.h"

namespace moeblas::gpu {

struct Outcome {
  std::string failure;       // "" if everything held
  std::string unsupported;   // the message, if no row (or not the forced one) takes the job
  std::string kernel;        // the row that ran; "" if nothing had to
  bool same_as_cpu = false;  // bit for bit
  int replays = 0;           // of captured graphs, each equal to a call
  Judgement judgement;
};

// Two calls on a stream of its own, from memory and workspaces that are poisoned differently, which
// must agree bit for bit with each other and with what the job judges by, and leave everything but
// the outputs' elements and the workspace as it was. graph: then the call captured and replayed,
// with the job's ids, with others, and with ids that select nothing, each equal to a call.
Outcome run_job(const Job& job, Lane& lane, const char* kernel, bool graph);

// The CPU backend's own result, judged: what a job and its bounds are worth, without a device.
Outcome judge_cpu(const Job& job);

}  // namespace moeblas::gpu
