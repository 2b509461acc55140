// Every operation through the rows of the Metal backend, its kernels run by the emulator behind the
// mock, against float64 or the CPU backend's bits.
#include <gtest/gtest.h>

#include "contract.h"
#include "metal_lane.h"
#include "moe_jobs.h"
#include "run_job.h"
#include "support/generator.h"

namespace moeblas::gpu {
namespace {

using Memory = MetalLane::Memory;
using test::Op;

// What ran; "" if nothing had to.
std::string expect_right(const Job& job, Memory memory, const char* kernel = nullptr) {
  MetalLane lane(memory);
  const Outcome outcome = run_job(job, lane, kernel);
  EXPECT_EQ(outcome.unsupported, "") << job.line;
  EXPECT_EQ(outcome.failure, "") << outcome.kernel << ": " << job.line;
  return outcome.kernel;
}

struct Family {
  const char* name;
  uint64_t seeds;
  Job (*make)(uint64_t seed);
};
template <Op op>
constexpr Family generated(uint64_t seeds) {
  return {test::name(op), seeds, [](uint64_t seed) { return generated_job(op, seed); }};
}

constexpr Family kFamilies[] = {
    generated<Op::quantized_matmul>(12),
    generated<Op::gather_mm>(6),
    generated<Op::gather_qmm>(12),
    generated<Op::gather_qmv>(12),
    generated<Op::segmented_mm>(6),
    generated<Op::grouped_mm>(6),
    generated<Op::grouped_qmm>(12),
    generated<Op::quantize>(24),
    generated<Op::dequantize>(24),
    generated<Op::to_fp8>(6),
    generated<Op::from_fp8>(6),
    {"qqmm", 12, qqmm_job},
    {"quantize_dual", 12, dual_job},
    {"moe_route", 12, route_job},
    {"moe_permute", 12, permute_job},
    {"moe_unpermute", 12, unpermute_job},
    {"moe_ffn", 12, ffn_job},
};

void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class MetalOperations : public testing::TestWithParam<Family> {};

TEST_P(MetalOperations, AreRight) {
  const Family& family = GetParam();
  for (uint64_t seed = 0; seed < family.seeds; ++seed) {
    expect_right(family.make(seed), seed % 2 == 0 ? Memory::library : Memory::pages);
    if (HasFailure()) return;
  }
}
std::string family_name(const testing::TestParamInfo<Family>& family) { return family.param.name; }
INSTANTIATE_TEST_SUITE_P(Every, MetalOperations, testing::ValuesIn(kFamilies), family_name);

TEST(MetalProducts, ManyPairsAreGroupedOnTheDevice) {
  for (uint64_t seed : {0, 1}) expect_right(job_of(many_pairs_case(seed)), Memory::library);
}

class GatherQmvContract : public testing::TestWithParam<Contract> {};

TEST_P(GatherQmvContract, IsKeptByTheRowThatItNames) {
  const Contract& c = GetParam();
  for (DType dtype : {DType::f32, DType::bf16}) {
    const int64_t pairs = c.n * c.k > (1 << 20) ? 2 : 5;
    EXPECT_EQ(expect_right(job_of(contract_case(c, dtype, pairs)), Memory::library), c.kernel);
  }
}
std::string contract_name(const testing::TestParamInfo<Contract>& contract) {
  const Contract& c = contract.param;
  return "E" + std::to_string(c.experts) + "N" + std::to_string(c.n) + "K" + std::to_string(c.k) +
         "G" + std::to_string(c.group);
}
INSTANTIATE_TEST_SUITE_P(Shapes, GatherQmvContract, testing::ValuesIn(kContracts), contract_name);

// Both rows of the contract on what both take: with infinities, NaN and ids out of range.
TEST(GatherQmvContract, BothRowsAgreeWithFloat64) {
  for (test::Values values : {test::Values::specials, test::Values::ends, test::Values::positive}) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      test::Case c = contract_case({3, 16, 1024, 64, ""}, dtype, 7);
      c.values = values;
      c.ids = test::Ids::mixed;
      for (const char* kernel : {"gather_qmv_fast_simt", "qmv_simt"}) {
        EXPECT_EQ(expect_right(job_of(c), Memory::library, kernel), kernel);
      }
    }
  }
}

}  // namespace
}  // namespace moeblas::gpu
