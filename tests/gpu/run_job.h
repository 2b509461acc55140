// A job from end to end on the device, against the CPU backend or whatever the job judges by.
#pragma once

#include "job.h"

namespace moeblas::gpu {

struct Outcome {
  std::string failure;       // "" if everything held
  std::string unsupported;   // the message, if no row (or not the forced one) takes the job
  std::string kernel;        // the row that ran; "" if nothing had to
  bool same_as_cpu = false;  // bit for bit
  size_t workspace_bytes = 0;
  int replays = 0;  // of captured graphs, each equal to a call
  Judgement judgement;
};

// Two calls on the lane's stream, from memory and workspaces that are poisoned differently, which
// must agree bit for bit with each other and with what the job judges by, and leave everything but
// the outputs' elements and the workspace as it was.
Outcome run_job(const Job& job, Lane& lane, const char* kernel);

// What that poison is, and its parts: one call from a block as it is; "" if two results are equal
// bit for bit, NaNs of whatever bits taken as one.
inline constexpr uint8_t kPoison = 0xff;
std::vector<uint8_t> call_once(const Job& job, Lane& lane, const Block& block, Options options);
std::string difference(const Job& job, std::span<const uint8_t> a, std::span<const uint8_t> b);

// The CPU backend's own result, judged: what a job and its bounds are worth, without a device.
Outcome judge_cpu(const Job& job);

}  // namespace moeblas::gpu
