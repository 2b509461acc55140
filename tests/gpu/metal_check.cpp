// The check of the Metal backend on a Mac; needs nothing but the library. check.h has the arguments.
#include "check.h"
#include "metal/backend.h"
#include "metal_lane.h"

namespace moeblas::gpu {
namespace {

void describe(Report& report) {
  char text[256];
  metal::describe(text, sizeof text);
  report.fact("device", text);
}

// Memory of both kinds.
std::unique_ptr<Lane> make_lane(uint64_t thread) {
  return std::make_unique<MetalLane>(thread % 2 == 0 ? MetalLane::Memory::library
                                                     : MetalLane::Memory::pages);
}

Outcome run(const Job& job, Lane& lane, const char* kernel, bool) {
  return run_job(job, lane, kernel);
}

}  // namespace
}  // namespace moeblas::gpu

int main(int argc, char** argv) {
  using namespace moeblas::gpu;
  return run_check(argc, argv,
                   {"metal_check", "metal", describe, make_lane, run, nullptr, nullptr, nullptr,
                    moeblas::metal::for_each_kernel});
}
