// The check of the CUDA backend on a machine with a GPU; needs nothing but the library and CUDA.
// check.h has the arguments.
#include "check.h"
#include "cuda/queue.h"
#include "cuda_graph.h"
#include "invariance.h"
#include "probe.h"
#include "rows_ahead.h"
#include "smallest.h"
#include "weights.h"

namespace moeblas::gpu {
namespace {

bool describe(Report& report) {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  report.fact("device", properties.name);
  report.fact("devices", std::to_string(device_count()));
  return true;
}

// Threads take devices in turn. Where there are several, the device that is current in a thread is
// never the one that its tensors are on.
std::unique_ptr<Lane> make_lane(uint64_t thread) {
  const int devices = device_count(), device = static_cast<int>(thread) % devices;
  check_cuda(cudaSetDevice((device + 1) % devices), "cudaSetDevice");
  return std::make_unique<CudaLane>(size_t{8} << 20, device);
}

Outcome run(const Job& job, Lane& lane, const char* kernel, bool all) {
  int before = 0, after = 0;
  check_cuda(cudaGetDevice(&before), "cudaGetDevice");
  Outcome outcome = run_job(job, lane, kernel);
  if (all) check_captured(job, static_cast<CudaLane&>(lane), kernel, outcome);
  check_cuda(cudaGetDevice(&after), "cudaGetDevice");
  if (after != before && outcome.failure.empty()) outcome.failure = "made another device current";
  return outcome;
}

void check(Report& report) {
  check_queue(report);
  check_memory(report);
  check_calls(report);
  check_weights(report);
  check_invariance(report);
  check_rows_ahead(report);
}

}  // namespace
}  // namespace moeblas::gpu

int main(int argc, char** argv) {
  using namespace moeblas::gpu;
  return run_check(argc, argv,
                   {"gpu_check", "cuda", describe, make_lane, run, check, run_smallest,
                    moeblas::cuda::for_each_kernel});
}
