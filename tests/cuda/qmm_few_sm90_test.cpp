// How qmm_few_sm90 cuts a product up: asked of its plan, without a device.
#include "cuda/qmm_few_sm90_plan.h"

#include <gtest/gtest.h>

#include "nowhere.h"

namespace moeblas::test {
namespace {

using dispatch::MatmulProblem;

constexpr QuantSpec kFormats[] = {{Mode::affine, 4, 32},
                                  {Mode::affine, 4, 64},
                                  {Mode::affine, 4, 128},
                                  {Mode::mxfp4, 4, 32},
                                  {Mode::nvfp4, 4, 16}};

dispatch::Reason plan_of(int64_t m, int64_t n, int64_t k, const QuantSpec& spec,
                         cuda::QmmFewPlan& plan, const Options& options = {}) {
  return plan_qmm_few_sm90(dense_nowhere(m, n, k, spec, DType::bf16, DType::bf16, options), plan);
}

TEST(QmmFewPlan, HasEveryRowAndSliceOnceAndFitsSharedMemory) {
  for (const QuantSpec& spec : kFormats) {
    for (int64_t m : {1, 8}) {
      for (int64_t n : {1, 31, 4096, 16385}) {
        for (int64_t k = 2304; k <= 8192; k += 256) {
          cuda::QmmFewPlan plan;
          const dispatch::Reason why_not = plan_of(m, n, k, spec, plan);
          // Copies want rows of scales to begin at multiples of 16 bytes.
          const int64_t scales = k / spec.group_size * (spec.mode == Mode::affine ? 2 : 1);
          ASSERT_EQ(bool(why_not), scales % 16 != 0) << why_not.text() << k;
          if (why_not) continue;
          const cuda::QmmFewParams& q = plan.params;
          const uint32_t rows = cuda::kFewWarps / plan.parts * cuda::kFewTaskRows;
          ASSERT_GE(plan.tokens, m);
          ASSERT_LE(q.slices, plan.parts);
          ASSERT_GE(int64_t{q.slices} * plan.blocks * cuda::kFewSlice, k);
          // Where a block's boxes of scales begin in a row.
          ASSERT_EQ(q.slices * q.slice_scales % 16, 0u) << k;
          // No block is without a slice.
          ASSERT_LT(int64_t{q.slices} * (plan.blocks - 1) * cuda::kFewSlice, k);
          ASSERT_GE(int64_t{q.tiles} * rows, n);
          ASSERT_LT((int64_t{q.tiles} - 1) * rows, n);
          ASSERT_LE(plan.clusters, q.tiles);
          ASSERT_LE(plan.clusters * plan.blocks, 132u);
          ASSERT_GE(q.stages, 2u);
          ASSERT_LE(q.stages, cuda::kFewMostStages);
          ASSERT_LE(plan.shared_bytes, 232448u);
          // What a stage gets lies side by side in it, and a warp's scales in one box.
          const uint32_t of_scales = q.scale_boxes * rows * q.scale_row;
          ASSERT_LE(q.slices * rows * cuda::kFewPiece, q.scales_at);
          ASSERT_LE(q.scales_at + of_scales, q.biases_at);
          ASSERT_LE(q.biases_at + (spec.mode == Mode::affine ? of_scales : 0), q.stage_bytes);
          ASSERT_EQ(q.scale_row % q.slice_scales, 0u);
          ASSERT_GE(q.scale_boxes * q.scale_row, q.slices * q.slice_scales);
        }
      }
    }
  }
}

TEST(QmmFewPlan, SaysWhatItDoesNotTake) {
  cuda::QmmFewPlan plan;
  EXPECT_STREQ(plan_of(9, 4096, 4096, kFormats[1], plan).text(), "M = 9, more than 8");
  EXPECT_STREQ(plan_of(4, 4096, 4160, kFormats[1], plan).text(),
               "K = 4160, not 9 slices of 256 or more");
  EXPECT_STREQ(plan_of(4, 4096, 8448, kFormats[1], plan).text(), "K = 8448, more than 8192");
  Options exact;
  exact.precision = Precision::exact;
  EXPECT_STREQ(plan_of(4, 4096, 4096, kFormats[1], plan, exact).text(),
               "precision is exact, and affine weights are rounded to 16 bits here");
  EXPECT_FALSE(plan_of(4, 4096, 4096, kFormats[3], plan, exact));
}

}  // namespace
}  // namespace moeblas::test
