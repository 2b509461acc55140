// ffn_sm90 on thread blocks of the host: generated layers that bulk copies can read, in every
// layout, activation and format.
#include "cuda/ffn_sm90/plan.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "cases_on_blocks.h"
#include "cpu/elements.h"
#include "dispatch/ids.h"
#include "layer_case.h"
#include "ops/moe.h"
#include "qmv_on_blocks.h"
#include "support/codec.h"
#include "support/execute.h"
#include "support/ffn_case.h"
#include "support/ffn_reference.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

// What the third launch does, where there is one.
void combine(const dispatch::FfnProblem& p, const cuda::FfnPlan& plan) {
  const auto* rows = static_cast<const float*>(plan.second.out.data);
  const auto* weights = static_cast<const float*>(p.weights.data);
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t h = 0; h < p.hidden; ++h) {
      float sum = 0;
      for (int64_t j = 0; j < p.top_k; ++j) {
        const int64_t e = dispatch::load_integer(p.ids.data, p.ids.dtype,
                                                 t * p.ids.strides[0] + j * p.ids.strides[1]);
        if (e < 0 || e >= p.experts) continue;
        float row = 0;
        for (uint32_t s = 0; s < plan.down.sections; ++s) {
          row += rows[(s * p.total_rows() + t * p.top_k + j) * p.hidden + h];
        }
        sum += weights[t * p.weights.strides[0] + j * p.weights.strides[1]] * row;
      }
      cpu::store_float(p.out.data, p.out.dtype, t * p.out.strides[0] + h, sum);
    }
  }
}

struct Ran : RunOnBlocks {
  uint32_t sections = 0;  // of down's K
};

// The kernels of both launches are counted here.
Ran run_layer(const FfnCase& c, uint32_t processors, uint64_t seed, uint8_t poison,
              Counts& counts) {
  Ran ran;
  const FfnOperands o = build(c, c.seed % 2 == 0 ? Side::right : Side::left, poison);
  const std::string line = ran.line = describe(c) + " seed=" + std::to_string(c.seed);
  const CrashLine crash(line);
  const auto problem =
      ops::moe_ffn(o.x.view, o.layer(c), o.ids.view, o.weights.view, o.out.view, {});
  cuda::FfnPlan sizes;
  // Where the workspace lies does not change what is taken.
  const dispatch::Reason why_not =
      cuda::plan_ffn_sm90(problem, processors, reinterpret_cast<void*>(uintptr_t{4096}), sizes);
  if (why_not) {
    ran.refusal = why_not.text();
    return ran;
  }
  std::vector<uint8_t> memory(sizes.bytes + 128, poison);
  auto* workspace =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 127) / 128 * 128);
  cuda::FfnPlan plan;
  EXPECT_FALSE(cuda::plan_ffn_sm90(problem, processors, workspace, plan));
  ran.sections = plan.down.sections;
  ++counts.taken[plan.gate_up.kernel];
  ++counts.taken[plan.down.kernel];
  try {
    run_on_blocks(plan.gate_up, seed);
    run_on_blocks(plan.down, seed + 1);
    if (plan.combines) combine(problem, plan);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n  " << line << " processors=" << processors;
    return ran;
  }
  ran.bytes = judged_output(c, o, poison, line + " processors=" + std::to_string(processors));
  return ran;
}

TEST(FfnSm90, GeneratedLayers) {
  Counts counts;
  const auto run = [&](uint64_t seed, uint64_t order,
                       uint8_t poison) -> std::optional<RunOnBlocks> {
    return run_layer(layer_case(seed),
                     seed % 3 == 0   ? 1
                     : seed % 3 == 1 ? 3
                                     : 8,
                     order, poison, counts);
  };
  run_seeds(150, run, counts);
  counts.report();
  if (std::getenv("MOEBLAS_TEST_CASES") == nullptr) {
    EXPECT_GT(counts.taken.size(), 16u);
  }
}

// Activations of so many values that rows of them stand in shared memory a section at a time.
TEST(FfnSm90, SectionsOfK) {
  Counts counts;
  uint64_t seed = 0;
  for (const QuantSpec& format : {QuantSpec{Mode::affine, 4, 64}, QuantSpec{Mode::mxfp8, 8, 32},
                                  QuantSpec{Mode::nvfp4, 4, 16}}) {
    FfnCase c = ffn_case(DType::bf16, format, 5, 2, 2, 256, 6144, false);
    c.seed = ++seed;
    c.id_kind = Ids::mixed;
    c.values = seed == 1 ? Values::specials : Values::normal;
    // What nothing is added to is stored by text of its own, which knows no sections.
    if (seed != 2) c.down.bias = plain(DType::bf16, {c.experts, c.down.n});
    const uint32_t processors = seed == 1 ? 3 : 1;
    const Ran ran = run_layer(c, processors, 2 * seed, kPoison, counts);
    EXPECT_EQ(ran.refusal, "");
    EXPECT_EQ(ran.sections, 2u) << describe(c);
    const Ran again = run_layer(c, processors, 2 * seed + 1, kOtherPoison, counts);
    EXPECT_EQ(ran.bytes, again.bytes) << "order or memory show through: " << describe(c);
  }
}

}  // namespace
}  // namespace moeblas::test
