// qmm_sm80_limbs on thread blocks of the host, over generated cases: every kernel, every grouping,
// threads and copies in random order. The work list is the portable kernels', run by the emulator.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "block_queue.h"
#include "cuda/qmm_sm80_limbs/plan.h"
#include "qmm_sm80_limbs_on_blocks.h"

namespace moeblas::test {
namespace {

const RowOnBlocks kRow{"qmm_sm80_limbs",
                       [](const dispatch::MatmulProblem& problem, const Operands& o, uint64_t seed,
                          std::string& kernel) -> std::string {
                         if (const auto why_not = cuda::qmm_sm80_limbs_reject(problem))
                           return why_not.text();
                         BlockQueue queue("qmm_sm80_limbs", run_qmm_sm80_limbs_on_blocks, o, seed);
                         const size_t room = cuda::qmm_sm80_limbs_workspace(problem);
                         cuda::run_qmm_sm80_limbs(problem, queue.lists.workspace(room), queue);
                         kernel = queue.kernel;
                         return "";
                       }};

// More rows than a short tile has, or fewer; more columns than either.
Case dense_case(const QuantSpec& spec, int64_t m, int64_t k, uint64_t seed) {
  constexpr int64_t kN = 133;
  Case c;
  c.op = Op::quantized_matmul;
  c.seed = seed;
  c.format = spec;
  const bool affine = spec.mode == Mode::affine;
  c.x = plain(DType::f32, {m, k});
  c.codes = plain(DType::u32, {kN, k * spec.bits / 32});
  c.scales = plain(affine ? DType::f32 : DType::u8, {kN, k / spec.group_size});
  if (affine) c.biases = c.scales;
  c.out = plain(DType::f32, {m, kN});
  return c;
}

std::vector<QuantSpec> formats() {
  std::vector<QuantSpec> all;
  for (Mode mode : {Mode::mxfp4, Mode::mxfp8, Mode::nvfp4})
    all.push_back(QuantSpec{mode}.resolved());
  for (int bits : {2, 3, 4, 5, 6, 8}) all.push_back({Mode::affine, bits, bits % 2 == 0 ? 64 : 32});
  return all;
}

TEST(QmmSm80Limbs, GeneratedCases) {
  Counts counts;
  const auto packed = [](uint64_t seed) -> std::optional<Case> {
    const Case c = any_case(seed);
    if (c.x.dtype != DType::f32 || !c.format) return {};
    return c;
  };
  run_cases(1200, packed, [](uint64_t) { return kRow; }, counts);
  counts.report();
}

TEST(QmmSm80Limbs, TallAndShortTilesOfEveryFormat) {
  std::map<std::string, int> taken;
  uint64_t seed = 0;
  for (const QuantSpec& spec : formats()) {
    for (int64_t m : {34, 131}) {
      for (Values values : {Values::normal, Values::integers, Values::specials}) {
        Case c = dense_case(spec, m, 192, ++seed);
        c.values = values;
        ++taken[run_case(kRow, c, seed, kPoison).kernel];
      }
    }
  }
  for (const std::string& name : qmm_sm80_limbs_kernels()) {
    EXPECT_GT(taken[name], 0) << name << " was not reached";
  }
}

// Which tile a row stands in, where, and beside which others makes no difference.
TEST(QmmSm80Limbs, RowsDoNotDependOnEachOther) {
  for (int group : {16, 32, 128}) {
    const Case all = dense_case({Mode::affine, 4, group}, 130, 256, 1);
    const Case few = dense_case({Mode::affine, 4, group}, 3, 256, 1);
    const Operands o = operands_of(all, kPoison);
    Operands part = operands_of(few, kPoison);
    for (auto [to, from] : {std::pair{&part.codes, &o.codes}, std::pair{&part.scales, &o.scales},
                            std::pair{&part.biases, &o.biases}}) {
      ASSERT_EQ(to->memory.size(), from->memory.size());
      std::memcpy(to->memory.data(), from->memory.data(), from->memory.size());
    }
    for (int64_t i = 0; i < part.x.numel(); ++i) {
      part.x.set(i, o.x.get(i % 256 + (126 + i / 256) * 256));
    }
    const RunOnBlocks ran = run_case(kRow, all, o, 1, kPoison);
    const RunOnBlocks again = run_case(kRow, few, part, 2, kPoison);
    EXPECT_NE(ran.kernel, again.kernel);
    const size_t row = 133 * sizeof(float);
    ASSERT_EQ(ran.bytes.size(), 130 * row);
    EXPECT_TRUE(std::equal(again.bytes.begin(), again.bytes.end(),
                           ran.bytes.begin() + static_cast<std::ptrdiff_t>(126 * row)));
  }
}

// Numbers of x whose last bits no bfloat16 holds, scales that leave weights such bits: made again.
TEST(QmmSm80Limbs, WhatLimbsDoNotHold) {
  for (const QuantSpec& spec : formats()) {
    Case c = dense_case(spec, 5, 96 / spec.group_size * spec.group_size, 7);
    c.values = Values::ends;
    c.x_exponent = spec.mode == Mode::nvfp4 ? -115 : -120;
    c.scale_exponent = spec.mode == Mode::nvfp4 ? 4 : 100;
    run_case(kRow, c, 1, kPoison);
  }
  Case c = dense_case(QuantSpec{Mode::mxfp8}.resolved(), 5, 96, 8);
  c.x_exponent = 90;
  const Operands o = operands_of(c, kPoison);
  for (int64_t i = 0; i < o.scales.numel(); ++i) *o.scales.byte(i) = static_cast<uint8_t>(i % 5);
  run_case(kRow, c, o, 1, kPoison);
  // Beside others they would be less than what a sum may be off by.
  for (uint8_t scale = 0; scale < 5; ++scale) {
    const Operands smallest = operands_of(c, kPoison);
    for (int64_t i = 0; i < o.scales.numel(); ++i) *smallest.scales.byte(i) = scale;
    for (int64_t i = 0; i < 4 * o.codes.numel(); ++i) {
      smallest.codes.byte(i / 4)[i % 4] = static_cast<uint8_t>(1 + i % 7 + (i % 3 == 0 ? 128 : 0));
    }
    run_case(kRow, c, smallest, 1, kPoison);
  }
}

}  // namespace
}  // namespace moeblas::test
