// How qmm_few_sm90 cuts a product up: asked of its plan, without a device.
#include "cuda/qmm_few_sm90/plan.h"

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
        for (int64_t k = 2304; k <= 32768; k += k < 9216 ? 256 : 768) {
          cuda::QmmFewPlan plan;
          const dispatch::Reason why_not = plan_of(m, n, k, spec, plan);
          // Copies want rows of scales to begin at multiples of 16 bytes.
          const int64_t scales = k / spec.group_size * (spec.mode == Mode::affine ? 2 : 1);
          ASSERT_EQ(bool(why_not), scales % 16 != 0) << why_not.text() << k;
          if (why_not) continue;
          const cuda::QmmFewParams& q = plan.params;
          const uint32_t rows = cuda::kFewWarps / plan.parts * cuda::kFewTaskRows;
          ASSERT_LE(q.slices, plan.parts);
          // Of the blocks of a cluster, in each pass.
          const int64_t shares = int64_t{q.passes} * cuda::kFewBlocks;
          ASSERT_EQ(q.passes, (k + 8191) / 8192);
          ASSERT_GE(q.slices * shares * cuda::kFewSlice, k);
          // Where a block's boxes of scales begin in a row.
          ASSERT_EQ(q.slices * q.slice_scales % 16, 0u) << k;
          // No block is without a slice in the first pass, and no pass is.
          ASSERT_LT(int64_t{q.slices} * (cuda::kFewBlocks - 1) * cuda::kFewSlice, k);
          ASSERT_LT((shares - cuda::kFewBlocks) * q.slices * cuda::kFewSlice, k);
          ASSERT_GE(int64_t{q.tiles} * rows, n);
          ASSERT_LT((int64_t{q.tiles} - 1) * rows, n);
          ASSERT_LE(plan.clusters, q.tiles);
          ASSERT_LE(plan.clusters * cuda::kFewBlocks, 132u);
          ASSERT_GE(q.stages, 2u);
          const bool late_mxfp4 = plan.late_scales && spec.mode == Mode::mxfp4;
          ASSERT_LE(q.stages, cuda::kFewMostStages);
          if (late_mxfp4) {
            ASSERT_LE(q.stages * q.stage_bytes, cuda::kFewLateMxfp4Bytes);
          }
          ASSERT_LE(plan.shared_bytes, 232448u);
          // Sums of all tiles of a cluster from pass to pass, a block's half of each, behind all
          // stages; rows of x fit one, by a copy each and by a box.
          const uint32_t tiles = (q.tiles + plan.clusters - 1) / plan.clusters;
          const uint32_t kept = q.passes > 1 ? tiles * rows * cuda::kFewTokens * 4 / 2 : 0;
          ASSERT_GE(q.kept_at, q.stages * q.stage_bytes);
          ASSERT_LE(q.kept_at + kept + 1024, plan.shared_bytes);
          const uint32_t tokens = plan.parts == 8 ? 8 : 4;
          ASSERT_LE(tokens * cuda::FewXRows::pitch(q.slices), q.stage_bytes);
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

// What was timed: one tile fewer than there is room for.
TEST(QmmFewPlan, FourTilesOfLateMxfp4AreOnTheirWay) {
  cuda::QmmFewPlan plan;
  ASSERT_FALSE(plan_of(4, 16384, 16384, kFormats[3], plan));
  EXPECT_EQ(plan.params.stages, 4u);
  EXPECT_GE(232448u - plan.shared_bytes, plan.params.stage_bytes);
}

TEST(QmmFewPlan, SaysWhatItDoesNotTake) {
  cuda::QmmFewPlan plan;
  EXPECT_STREQ(plan_of(9, 4096, 4096, kFormats[1], plan).text(), "M = 9, more than 8");
  EXPECT_STREQ(plan_of(4, 4096, 4160, kFormats[1], plan).text(),
               "K = 4160, not 9 slices of 256 or more");
  EXPECT_STREQ(plan_of(4, 4096, 33280, kFormats[1], plan).text(), "K = 33280, more than 32768");
  EXPECT_STREQ(plan_of(4, 300000, 16384, kFormats[1], plan).text(),
               "N = 300000, whose sums do not wait in shared memory");
  EXPECT_FALSE(plan_of(4, 300000, 8192, kFormats[1], plan));
  Options exact;
  exact.precision = Precision::exact;
  EXPECT_STREQ(plan_of(4, 4096, 4096, kFormats[1], plan, exact).text(),
               "precision is exact, and affine weights are rounded to 16 bits here");
  EXPECT_FALSE(plan_of(4, 4096, 4096, kFormats[3], plan, exact));
}

}  // namespace
}  // namespace moeblas::test
