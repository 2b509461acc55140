// ffn_one_sm90 on thread blocks of the host, which take turns: generated layers of one token, in
// every layout, activation and format; what has been handed over by then is drawn, too.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "cases_on_blocks.h"
#include "ffn_one_on_blocks.h"
#include "layer_case.h"
#include "ops/moe.h"
#include "support/codec.h"
#include "support/execute.h"
#include "support/ffn_reference.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

RunOnBlocks run_layer(const FfnCase& c, uint32_t processors, uint64_t order, uint8_t poison,
                      const std::function<void(FfnOperands&)>& alter = {}) {
  RunOnBlocks ran;
  FfnOperands o = build(c, c.seed % 2 == 0 ? Side::right : Side::left, poison);
  if (alter) alter(o);
  ran.line =
      describe(c) + " seed=" + std::to_string(c.seed) + " processors=" + std::to_string(processors);
  const CrashLine crash(ran.line);
  const auto problem =
      ops::moe_ffn(o.x.view, o.layer(c), o.ids.view, o.weights.view, o.out.view, {});
  cuda::FfnOnePlan plan;
  if (const dispatch::Reason why_not =
          cuda::plan_ffn_one_sm90(problem, processors, nullptr, plan)) {
    ran.refusal = why_not.text();
    return ran;
  }
  // Words that look as if they had been written.
  std::vector<uint32_t> memory(plan.bytes / 4 + 4, 0x3f810000u | poison);
  auto* words =
      reinterpret_cast<uint32_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
  EXPECT_FALSE(cuda::plan_ffn_one_sm90(problem, processors, words, plan));
  set_warps(c.seed / 7 % 2 == 0, plan);  // seeds take formats in turn
  ran.kernel = plan.kernel;
  try {
    run_on_blocks(plan, order);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n  " << ran.line;
    return ran;
  }
  ran.bytes = judged_output(c, o, poison, ran.line);
  return ran;
}

// Some of them so many that whole items of down's rows are left to each.
uint32_t processors_of(const FfnCase& c, uint64_t seed) {
  uint32_t processors = seed % 3 == 0 ? 2 : seed % 3 == 1 ? 5 : 7;
  for (const int64_t rows : {32, 16}) {
    if (seed % 2 == 0 && c.hidden / rows <= 8) {
      processors = static_cast<uint32_t>((c.hidden + rows - 1) / rows);
    }
  }
  return processors;
}

TEST(FfnOneSm90, GeneratedLayers) {
  Counts counts;
  const auto run = [](uint64_t seed, uint64_t order, uint8_t poison) -> std::optional<RunOnBlocks> {
    const FfnCase c = one_token_case(seed);
    return run_layer(c, processors_of(c, seed), order, poison);
  };
  run_seeds(120, run, counts);
  counts.expect_all(ffn_one_kernels());
}

// Rows of more chunks than there are teams, which take scales of their next one from further on.
TEST(FfnOneSm90, LongRows) {
  FfnCase c = ffn_case(DType::bf16, QuantSpec{Mode::mxfp4, 4, 32}, 1, 1, 2, 2560, 64);
  c.seed = 3;
  EXPECT_EQ(run_layer(c, 40, 1, kPoison).refusal, "");
}

// Thread blocks with a tile of gates more than the others have fewer rows of down.
TEST(FfnOneSm90, FewerRows) {
  FfnCase c = ffn_case(DType::bf16, QuantSpec{Mode::mxfp4, 4, 32}, 1, 2, 3, 128, 96);
  for (c.seed = 1; c.seed <= 8; ++c.seed) {
    EXPECT_EQ(run_layer(c, 5, c.seed, kPoison).refusal, "");
  }
}

// Units of x beyond 2^118 have no factor: gates and ups, which are of ordinary size where scales
// are small, are made again, term by term.
TEST(FfnOneSm90, GatesOfLargeNumbers) {
  FfnCase c = ffn_case(DType::bf16, QuantSpec{Mode::mxfp4, 4, 32}, 1, 2, 3, 256, 128);
  c.seed = 1;
  const RunOnBlocks ran = run_layer(c, 5, 1, kPoison, [](FfnOperands& o) {
    for (int64_t k = 0; k < 32; ++k) {
      store_value(o.x.view.data, DType::bf16, k, std::ldexp(k % 3 == 0 ? -1.5 : 1.25, 120));
    }
    const Operand& scales = o.gate_up.weights.scales;
    std::memset(scales.view.data, 127 - 120, static_cast<size_t>(scales.numel()));
  });
  EXPECT_EQ(ran.refusal, "");
  ASSERT_FALSE(ran.bytes.empty());
  for (size_t i = 0; i < ran.bytes.size() / 2; ++i) {
    ASSERT_TRUE(std::isfinite(load_value(ran.bytes.data(), c.dtype, static_cast<int64_t>(i))));
  }
}

}  // namespace
}  // namespace moeblas::test
