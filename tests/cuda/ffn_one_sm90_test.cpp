// ffn_one_sm90 on thread blocks of the host, which take turns: generated layers of one token, in
// every layout, activation and format; what has been handed over by then is drawn, too.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "ffn_one_on_blocks.h"
#include "layer_case.h"
#include "ops/moe.h"
#include "support/codec.h"
#include "support/execute.h"
#include "support/ffn_reference.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

struct Ran {
  std::string refusal;
  std::vector<uint8_t> bytes;
};

Ran run_layer(const FfnCase& c, uint32_t processors, uint64_t seed, uint8_t poison,
              std::map<std::string, int>& kernels,
              const std::function<void(FfnOperands&)>& alter = {}) {
  Ran ran;
  FfnOperands o = build(c, c.seed % 2 == 0 ? Side::right : Side::left, poison);
  if (alter) alter(o);
  const std::string line = describe(c) + " seed=" + std::to_string(c.seed);
  const CrashLine crash(line);
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
  ++kernels[plan.kernel];
  try {
    run_on_blocks(plan, seed);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n  " << line << " processors=" << processors;
    return ran;
  }
  ran.bytes = judged_output(c, o, poison, line + " processors=" + std::to_string(processors));
  return ran;
}

TEST(FfnOneSm90, GeneratedLayers) {
  const char* cases = std::getenv("MOEBLAS_TEST_CASES");
  const char* first = std::getenv("MOEBLAS_TEST_FIRST");
  const auto count = static_cast<uint64_t>(cases != nullptr ? std::atoll(cases) : 120);
  const auto begin = static_cast<uint64_t>(first != nullptr ? std::atoll(first) : 0);
  std::map<std::string, int> kernels, refused;
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    const FfnCase c = one_token_case(seed);
    // Some of them so many that whole items of down's rows are left to each.
    uint32_t processors = seed % 3 == 0 ? 2 : seed % 3 == 1 ? 5 : 7;
    for (const int64_t rows : {32, 16}) {
      if (seed % 2 == 0 && c.hidden / rows <= 8) {
        processors = static_cast<uint32_t>((c.hidden + rows - 1) / rows);
      }
    }
    const Ran ran = run_layer(c, processors, 2 * seed, kPoison, kernels);
    if (!ran.refusal.empty()) {
      ++refused[ran.refusal.substr(0, 60)];
      continue;
    }
    const Ran again = run_layer(c, processors, 2 * seed + 1, kOtherPoison, kernels);
    EXPECT_EQ(ran.bytes, again.bytes)
        << "order or memory show through: " << describe(c) << " seed=" << seed;
    if (HasFailure()) break;
  }
  for (const auto& [name, times] : kernels) RecordProperty(name, times);
  for (const auto& [why, times] : refused) RecordProperty(why, times);
  if (count < 120) return;
  for (const std::string& name : ffn_one_kernels()) {
    EXPECT_GT(kernels[name], 0) << name << " was not reached";
  }
}

// Rows of more chunks than there are teams, which take scales of their next one from further on.
TEST(FfnOneSm90, LongRows) {
  FfnCase c = ffn_case(DType::bf16, QuantSpec{Mode::mxfp4, 4, 32}, 1, 1, 2, 2560, 64);
  c.seed = 3;
  std::map<std::string, int> kernels;
  EXPECT_EQ(run_layer(c, 40, 1, kPoison, kernels).refusal, "");
}

// Thread blocks with a tile of gates more than the others have fewer rows of down.
TEST(FfnOneSm90, FewerRows) {
  FfnCase c = ffn_case(DType::bf16, QuantSpec{Mode::mxfp4, 4, 32}, 1, 2, 3, 128, 96);
  std::map<std::string, int> kernels;
  for (c.seed = 1; c.seed <= 8; ++c.seed) {
    EXPECT_EQ(run_layer(c, 5, c.seed, kPoison, kernels).refusal, "");
  }
}

// Units of x beyond 2^118 have no factor: gates and ups, which are of ordinary size where scales
// are small, are made again, term by term.
TEST(FfnOneSm90, GatesOfLargeNumbers) {
  FfnCase c = ffn_case(DType::bf16, QuantSpec{Mode::mxfp4, 4, 32}, 1, 2, 3, 256, 128);
  c.seed = 1;
  std::map<std::string, int> kernels;
  const Ran ran = run_layer(c, 5, 1, kPoison, kernels, [](FfnOperands& o) {
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
