// qmm_sm80_limbs on thread blocks of the host, over generated cases: every kernel, every grouping,
// threads and copies in random order. The work list is the portable kernels', run by the emulator.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "cases_on_blocks.h"
#include "cuda/qmm_sm80_limbs_plan.h"
#include "nowhere.h"
#include "qmm_sm80_limbs_on_blocks.h"
#include "simt/emulator_queue.h"
#include "support/execute.h"
#include "support/generator.h"
#include "support/reference.h"

namespace moeblas::test {
namespace {

class BlockQueue final : public simt::Queue {
 public:
  explicit BlockQueue(uint64_t seed) : seed_(seed) {}
  EmulatorQueue lists;
  std::string product;  // the last kernel of them

  void run(const simt::Step& step) override {
    if (std::string_view(step.kernel).starts_with("qmm_sm80_limbs")) {
      product = step.kernel;
      run_qmm_sm80_limbs_on_blocks(step, seed_);
    } else {
      lists.run(step);
    }
  }

 private:
  uint64_t seed_;
};

struct Ran {
  std::string kernel, refusal;
  std::vector<uint8_t> bytes;
};

Operands built(const Case& c, uint8_t poison) {
  // What lies behind an operand cannot be read where it ends at a page; where it begins at one,
  // every address is aligned.
  return build(c, c.seed % 2 == 0 ? Side::right : Side::left, poison);
}

// One run of a case; reports through GoogleTest.
Ran run_on_blocks(const Case& c, const Operands& o, uint64_t seed, uint8_t poison) {
  Ran ran;
  const std::string line = describe(c) + " seed=" + std::to_string(c.seed);
  const CrashLine crash(line);
  const dispatch::MatmulProblem problem = problem_of(c, o);
  if (problem.empty()) {
    ran.refusal = "nothing to do";
    return ran;
  }
  if (const dispatch::Reason why_not = cuda::qmm_sm80_limbs_reject(problem)) {
    ran.refusal = why_not.text();
    return ran;
  }
  try {
    BlockQueue queue(seed);
    for (const Operand* index : {&o.lhs, &o.rhs, &o.ranges}) {
      queue.lists.input(index->memory.data(), index->memory.size());
    }
    const size_t room = cuda::qmm_sm80_limbs_workspace(problem);
    cuda::run_qmm_sm80_limbs(problem, queue.lists.workspace(room), queue);
    ran.kernel = queue.product;
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n  " << line;
    return ran;
  }
  const auto expected = evaluate(product_of(c, o), path_of("qmm_sm80_limbs"), c.x.dtype);
  const std::string wrong =
      compare(expected, values_of(c, o), c.out.dtype, c.values == Values::integers);
  EXPECT_EQ(wrong, "") << ran.kernel << ": " << line;
  EXPECT_EQ(stray_write(o.out, poison), "") << line;
  ran.bytes = element_bytes(o.out);
  return ran;
}

Ran run_case_on_blocks(const Case& c, uint64_t seed, uint8_t poison) {
  return run_on_blocks(c, built(c, poison), seed, poison);
}

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

// The case of this seed.
Case any_case(uint64_t seed) {
  constexpr Op kOps[] = {Op::quantized_matmul, Op::gather_qmm, Op::gather_qmv, Op::grouped_qmm};
  Case c = make_case(kOps[seed % std::size(kOps)], seed / std::size(kOps));
  // The emulator knows nothing before the address that a kernel is given.
  for (Layout* index : {&c.lhs, &c.rhs, &c.ranges}) {
    if (index->present) *index = plain(index->dtype, index->shape);
  }
  return c;
}

TEST(QmmSm80Limbs, GeneratedCases) {
  const char* cases = std::getenv("MOEBLAS_TEST_CASES");
  const char* first = std::getenv("MOEBLAS_TEST_FIRST");
  const uint64_t count = cases != nullptr ? static_cast<uint64_t>(std::atoll(cases)) : 1200;
  const auto begin = static_cast<uint64_t>(first != nullptr ? std::atoll(first) : 0);
  std::map<std::string, int> taken, refused;
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    const Case c = any_case(seed);
    if (c.x.dtype != DType::f32 || !c.format) continue;
    const Ran ran = run_case_on_blocks(c, 2 * seed, kPoison);
    if (ran.refusal.empty()) {
      ++taken[ran.kernel];
      const Ran again = run_case_on_blocks(c, 2 * seed + 1, kOtherPoison);
      EXPECT_EQ(ran.bytes, again.bytes)
          << "order or memory show through: " << describe(c) << " seed=" << seed;
    } else {
      ++refused[ran.refusal.substr(0, 40)];
    }
    if (testing::Test::HasFailure()) break;
  }
  for (const auto& [name, times] : taken) RecordProperty(name, times);
  for (const auto& [why, times] : refused) RecordProperty(why, times);
}

TEST(QmmSm80Limbs, TallAndShortTilesOfEveryFormat) {
  std::map<std::string, int> taken;
  uint64_t seed = 0;
  for (const QuantSpec& spec : formats()) {
    for (int64_t m : {34, 131}) {
      for (Values values : {Values::normal, Values::integers, Values::specials}) {
        Case c = dense_case(spec, m, 192, ++seed);
        c.values = values;
        ++taken[run_case_on_blocks(c, seed, kPoison).kernel];
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
    const Operands o = built(all, kPoison);
    Operands part = built(few, kPoison);
    for (auto [to, from] : {std::pair{&part.codes, &o.codes}, std::pair{&part.scales, &o.scales},
                            std::pair{&part.biases, &o.biases}}) {
      ASSERT_EQ(to->memory.size(), from->memory.size());
      std::memcpy(to->memory.data(), from->memory.data(), from->memory.size());
    }
    for (int64_t i = 0; i < part.x.numel(); ++i) {
      part.x.set(i, o.x.get(i % 256 + (126 + i / 256) * 256));
    }
    const Ran ran = run_on_blocks(all, o, 1, kPoison), again = run_on_blocks(few, part, 2, kPoison);
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
    run_case_on_blocks(c, 1, kPoison);
  }
  Case c = dense_case(QuantSpec{Mode::mxfp8}.resolved(), 5, 96, 8);
  c.x_exponent = 90;
  const Operands o = built(c, kPoison);
  for (int64_t i = 0; i < o.scales.numel(); ++i) *o.scales.byte(i) = static_cast<uint8_t>(i % 5);
  run_on_blocks(c, o, 1, kPoison);
}

}  // namespace
}  // namespace moeblas::test
