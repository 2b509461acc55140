// qmv_sm90 on thread blocks of the host, over generated cases of decoding: every instance, plans
// for several numbers of multiprocessors, threads and copies in random order.
#include <gtest/gtest.h>

#include "cases_on_blocks.h"
#include "nowhere.h"
#include "qmv_on_blocks.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

using cuda::QmvPlan;

// The row on so many multiprocessors; kernels that make columns of x are counted here.
RowOnBlocks row(uint32_t processors, Counts& counts) {
  return {"qmv_sm90",
          [=, &counts](const dispatch::MatmulProblem& p, const Operands&, uint64_t seed,
                       std::string& kernel) -> std::string {
            QmvPlan plan;
            if (const dispatch::Reason why_not = cuda::plan_qmv_sm90(p, processors, plan)) {
              return why_not.text();
            }
            kernel = plan.kernel;
            if (plan.columns_kernel != nullptr) ++counts.taken[plan.columns_kernel];
            run_on_blocks(plan, seed);
            return "";
          }};
}

// The kernels with helpers, or those without.
std::vector<std::string> kernels(bool helped) {
  std::vector<std::string> names = qmv_kernels();
  std::erase_if(names, [&](const std::string& n) { return n.ends_with("_helped") != helped; });
  return names;
}

TEST(QmvSm90, GeneratedCases) {
  Counts counts;
  run_cases(
      600, [](uint64_t seed) { return decode_case(seed); },
      [&](uint64_t seed) {
        return row(seed % 3 == 0 ? 1 : seed % 3 == 1 ? 3 : 8, counts);
      },
      counts);
  counts.expect_all(kernels(false));
}

// What has as many tiles of as few rows as kernels with helpers are for.
TEST(QmvSm90, CasesWithHelpers) {
  const auto processors = [](uint64_t seed) { return seed % 2 == 0 ? 1u : 3u; };
  Counts counts;
  run_cases(
      160, [&](uint64_t seed) { return few_rows_case(seed, processors(seed)); },
      [&](uint64_t seed) { return row(processors(seed), counts); }, counts);
  counts.expect_all(kernels(true));
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

// ---- What is fetched before ids are known ----------------------------------------------------

// Rows of a thread block, and bytes of each: where enough experts will be chosen, of formats whose
// decoding is not what takes the time, and where it can be said what a block begins with.
TEST(QmvSm90, FetchesWhatIdsAreLikelyToChoose) {
  const auto rows = [](std::string_view model, const QuantSpec& spec, int64_t tokens) {
    for (const Layer& l : kLayers) {
      if (l.name != model) continue;
      QmvPlan plan;
      const dispatch::MatmulProblem p =
          product_nowhere(l, false, spec, DType::bf16, DType::bf16, tokens);
      EXPECT_FALSE(cuda::plan_qmv_sm90(p, kProcessors, plan));
      const cuda::QmvParams& q = plan.params;
      if (q.likely_rows != 0) {
        EXPECT_EQ(q.likely_codes, l.hidden / 8 * spec.bits);
        EXPECT_EQ(q.likely_scales, l.hidden / spec.group_size * 2);
      }
      return q.likely_rows;
    }
    ADD_FAILURE() << model;
    return 0u;
  };
  constexpr QuantSpec kFour = {Mode::affine, 4, 64}, kEight = {Mode::affine, 8, 64};
  EXPECT_EQ(rows("Qwen3-30B-A3B", kFour, 8), 48u);
  EXPECT_EQ(rows("Qwen3-30B-A3B", kEight, 8), 24u);
  EXPECT_EQ(rows("Mixtral-8x7B", kFour, 8), 24u);
  EXPECT_EQ(rows("Qwen3-30B-A3B", kFour, 7), 0u);
  EXPECT_EQ(rows("Qwen3-30B-A3B", {Mode::mxfp4, 4, 32}, 8), 0u);
  EXPECT_EQ(rows("DeepSeek-V3", kFour, 64), 0u);
}

}  // namespace
}  // namespace moeblas::test
