// qmv_sm90 on thread blocks of the host, over generated cases of decoding: every instance, plans
// for several numbers of multiprocessors, threads and copies in random order.
#include <gtest/gtest.h>

#include <map>

#include "cases_on_blocks.h"
#include "nowhere.h"
#include "qmv_on_blocks.h"
#include "support/execute.h"
#include "support/generator.h"
#include "support/reference.h"

namespace moeblas::test {
namespace {

using cuda::QmvPlan;

struct Ran {
  std::string kernel;   // "" if the plan refused
  std::string columns;  // "" if x comes whole
  std::string refusal;
  std::vector<uint8_t> bytes;
};

// One run of a case; reports through GoogleTest.
Ran run_case_on_blocks(const Case& c, uint32_t processors, uint64_t seed, uint8_t poison) {
  Ran ran;
  // What lies behind an operand cannot be read where it ends at a page; where it begins at one,
  // every address is aligned.
  const Operands o = build(c, c.seed % 2 == 0 ? Side::right : Side::left, poison);
  if (o.out.numel() == 0) return ran;
  const std::string line = describe(c) + " seed=" + std::to_string(c.seed);
  const CrashLine crash(line);
  QmvPlan plan;
  const dispatch::MatmulProblem problem = problem_of(c, o);
  if (const dispatch::Reason why_not = cuda::plan_qmv_sm90(problem, processors, plan)) {
    ran.refusal = why_not.text();
    return ran;
  }
  ran.kernel = plan.kernel;
  if (plan.columns_kernel != nullptr) ran.columns = plan.columns_kernel;
  try {
    run_on_blocks(plan, seed);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n  " << plan.kernel << ": " << describe(c) << " seed=" << c.seed
                  << " processors=" << processors;
    return ran;
  }
  const auto expected = evaluate(product_of(c, o), path_of("qmv_sm90"), c.x.dtype);
  const std::string wrong =
      compare(expected, values_of(c, o), c.out.dtype, c.values == Values::integers);
  EXPECT_EQ(wrong, "") << plan.kernel << ": " << describe(c) << " seed=" << c.seed
                       << " processors=" << processors;
  EXPECT_EQ(stray_write(o.out, poison), "") << describe(c);
  ran.bytes = element_bytes(o.out);
  return ran;
}

TEST(QmvSm90, GeneratedCases) {
  const char* cases = std::getenv("MOEBLAS_TEST_CASES");
  const char* first = std::getenv("MOEBLAS_TEST_FIRST");
  const auto count = static_cast<uint64_t>(cases != nullptr ? std::atoll(cases) : 600);
  const auto begin = static_cast<uint64_t>(first != nullptr ? std::atoll(first) : 0);
  std::map<std::string, int> taken, refused;
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    const Case c = decode_case(seed);
    const uint32_t processors = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 3 : 8;
    const Ran ran = run_case_on_blocks(c, processors, 2 * seed, kPoison);
    if (!ran.kernel.empty()) {
      const Ran again = run_case_on_blocks(c, processors, 2 * seed + 1, kOtherPoison);
      EXPECT_EQ(ran.bytes, again.bytes)
          << "order or memory show through: " << describe(c) << " seed=" << seed;
    }
    if (!ran.refusal.empty()) ++refused[ran.refusal.substr(0, 40)];
    if (!ran.kernel.empty()) ++taken[ran.kernel];
    if (!ran.columns.empty()) ++taken[ran.columns];
    if (HasFailure()) break;
  }
  for (const std::string& name : qmv_kernels()) {
    RecordProperty(name, taken[name]);
    if (count >= 600 && begin == 0 && !name.ends_with("_helped")) {
      EXPECT_GT(taken[name], 0) << name << " was not reached";
    }
  }
  for (const auto& [why, times] : refused) RecordProperty(why, times);
}

// What has as many tiles of as few rows as kernels with helpers are for.
TEST(QmvSm90, CasesWithHelpers) {
  std::map<std::string, int> taken;
  for (uint64_t seed = 0; seed < 160 && !HasFailure(); ++seed) {
    const uint32_t processors = seed % 2 == 0 ? 1 : 3;
    const Case c = test::few_rows_case(seed, processors);
    const Ran ran = run_case_on_blocks(c, processors, 2 * seed, kPoison);
    const Ran again = run_case_on_blocks(c, processors, 2 * seed + 1, kOtherPoison);
    EXPECT_EQ(ran.bytes, again.bytes)
        << "order or memory show through: " << describe(c) << " seed=" << seed;
    ++taken[ran.kernel];
  }
  for (const std::string& name : qmv_kernels()) {
    if (!name.ends_with("_helped")) continue;
    RecordProperty(name, taken[name]);
    EXPECT_GT(taken[name], 0) << name << " was not reached";
  }
}

// ---- What must not fall to the portable rows -------------------------------------------------

constexpr QuantSpec kFormats[] = {
    {Mode::affine, 4, 32}, {Mode::affine, 4, 64}, {Mode::affine, 4, 128},
    {Mode::affine, 8, 32}, {Mode::affine, 8, 64}, {Mode::affine, 8, 128},
    {Mode::mxfp4, 4, 32},  {Mode::mxfp8, 8, 32},  {Mode::nvfp4, 4, 16}};
constexpr uint32_t kProcessors = 132;

std::string refusal(const dispatch::MatmulProblem& p) {
  QmvPlan plan;
  return cuda::plan_qmv_sm90(p, kProcessors, plan).text();
}

void expect_layer(const Layer& l, const QuantSpec& spec, DType dtype, DType scale, int64_t tokens,
                  bool down) {
  if ((down ? l.intermediate : l.hidden) % spec.group_size != 0) return;
  EXPECT_EQ(refusal(product_nowhere(l, down, spec, dtype, scale, tokens)), "")
      << l.name << (down ? " down" : " gate+up") << ", " << tokens << " tokens, " << name(spec.mode)
      << spec.bits << " g" << spec.group_size << ", " << name(dtype) << ", scales " << name(scale);
}

TEST(QmvSm90, TakesTheLayersOfModels) {
  constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
  for (const Layer& l : kLayers) {
    for (const QuantSpec& spec : kFormats) {
      for (DType dtype : kFloats) {
        for (DType scale : kFloats) {
          for (int64_t tokens : {1, 8, 16, 64}) {
            expect_layer(l, spec, dtype, scale, tokens, false);
            expect_layer(l, spec, dtype, scale, tokens, true);
          }
        }
      }
    }
  }
}

TEST(QmvSm90, TakesDenseRows) {
  for (int64_t size : {4096, 8192, 16384}) {
    for (const QuantSpec& spec : kFormats) {
      for (int64_t rows : {1, 2, 4, 8, 16}) {
        EXPECT_EQ(refusal(dense_nowhere(rows, size, size, spec, DType::bf16, DType::bf16)), "")
            << size << ", " << rows << " rows, " << name(spec.mode) << spec.bits << " g"
            << spec.group_size;
      }
    }
  }
}

}  // namespace
}  // namespace moeblas::test
