// The check of the Metal backend on a Mac; needs nothing but the library. check.h has the
// arguments.
#include <sstream>

#include "check.h"
#include "contract.h"
#include "metal/backend.h"
#include "metal_lane.h"

namespace moeblas::gpu {
namespace {

bool describe(Report& report) {
  char text[256];
  metal::describe(text, sizeof text);
  report.fact("device", text);
  dispatch::Reason why_not;
  metal::capability(0, why_not);
  return !why_not;
}

// Memory of both kinds.
std::unique_ptr<Lane> make_lane(uint64_t thread) {
  return std::make_unique<MetalLane>(thread % 2 == 0 ? MetalLane::Memory::library
                                                     : MetalLane::Memory::pages);
}

// ExecuTorch's shapes are right, by the rows that are to run them.
void check_contract(Report& report) {
  for (const Contract& c : kContracts) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      MetalLane lane(MetalLane::Memory::library);
      const Outcome outcome = run_job(job_of(contract_case(c, dtype, 4)), lane, nullptr);
      std::string failure = outcome.failure + outcome.unsupported;
      if (failure.empty() && outcome.kernel != c.kernel) failure = "took " + outcome.kernel;
      std::ostringstream what;
      what << "gather_qmv of " << c << ", " << name(dtype) << ": " << c.kernel;
      report.check(what.str(), failure);
    }
  }
}

Outcome run(const Job& job, Lane& lane, const char* kernel, bool) {
  return run_job(job, lane, kernel);
}

}  // namespace
}  // namespace moeblas::gpu

int main(int argc, char** argv) {
  using namespace moeblas::gpu;
  return run_check(argc, argv,
                   {"metal_check", "metal", describe, make_lane, run, check_contract, nullptr,
                    moeblas::metal::for_each_kernel});
}
