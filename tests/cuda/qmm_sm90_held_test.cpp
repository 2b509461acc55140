// How the kernels of qmm_sm90 that hold rows of x in registers are cut; that their orders are those
// of boxes and of shared memory's banks, the headers assert.
#include "cuda/device/ptx.cuh"

#include "cuda/qmm_sm90_held/cut.h"
#include "cuda/qmm_sm90_held/order.h"

#include <gtest/gtest.h>

namespace moeblas::test {
namespace {

// Every k is in one warp's slice, but for those behind the end of K, which read as zeros.
TEST(QmmHeldCut, MakesEveryKOnceByTheFewestBlocks) {
  uint32_t taken = 0;
  for (int64_t k = 256; k <= 32768; k += 256) {
    const cuda::HeldCut cut = cuda::held_cut(136, k);
    if (cut.shares == 0) continue;
    ++taken;
    ASSERT_EQ(k % cuda::kHeldSlice, 0);
    ASSERT_LE(cut.shares, cuda::kHeldMostShares);
    ASSERT_LE(cut.slices, cuda::kHeldWarps);
    ASSERT_GT(2 * cut.slices, cuda::kHeldWarps);
    ASSERT_LE(cut.passes, cuda::kHeldMostPasses);
    ASSERT_TRUE(cut.passes == 1 || cut.shares == cuda::kHeldMostShares);
    const int64_t share = int64_t{cut.slices} * cuda::kHeldSlice, parts = cut.shares * cut.passes;
    ASSERT_GE(parts * share, k);
    ASSERT_LT((parts - 1) * share, k) << "a block has none";
    ASSERT_TRUE(parts == 1 || k > parts / 2 * int64_t{cuda::kHeldMostK});
  }
  EXPECT_GT(taken, 25u);
  const auto shares = [](int64_t n, int64_t k) {
    const cuda::HeldCut cut = cuda::held_cut(n, k);
    return cut.shares * cut.passes;
  };
  EXPECT_EQ(shares(128256, 4096), 1u);
  EXPECT_EQ(shares(57344, 8192), 2u);
  EXPECT_EQ(shares(16384, 16384), 4u);
  EXPECT_EQ(shares(32768, 16896), 0u);
  EXPECT_EQ(shares(200000, 2048), 0u);
  EXPECT_EQ(shares(151936, 2560), 0u) << "others take less time";
  EXPECT_EQ(shares(8192, 8192), 0u) << "others take less time";
  EXPECT_EQ(shares(4096, 4096), 0u) << "others take less time";
}

// Where most blocks have tiles of one run, and where each has about as many runs as any other.
TEST(QmmHeldCut, RowsOfXCostWhereFewBlocksChangeThem) {
  EXPECT_GT(cuda::held_rows_cost(63, 128), cuda::held_rows_cost(64, 128));
  EXPECT_GT(cuda::held_rows_cost(128, 128), cuda::held_rows_cost(128, 64));
  EXPECT_EQ(cuda::held_rows_cost(64, 64), cuda::held_rows_cost(8, 64));
  EXPECT_GT(cuda::held_rows_cost(17, 8), 0u);
  EXPECT_EQ(cuda::held_rows_cost(17, 8), cuda::held_rows_cost(512, 64));
  EXPECT_EQ(cuda::held_rows_cost(129, 128), 0u);
}

// More octets of tokens cost more, and less than each of them by itself.
TEST(QmmHeldCut, TilesCostByOctets) {
  for (const bool affine : {false, true}) {
    for (const uint32_t groups : {1u, 2u, 4u}) {
      for (const int64_t rows : {int64_t{8}, int64_t{768}, int64_t{1024}}) {
        const cuda::HeldCosts costs = cuda::held_costs(affine, groups, rows, 128);
        for (uint32_t u = 1; u < cuda::kHeldMostOctets; ++u) {
          EXPECT_GT(costs.of_octets[u], costs.of_octets[u - 1]);
          EXPECT_LT(costs.of_octets[u], costs.of_octets[u - 1] + costs.of_octets[0]);
        }
      }
    }
  }
  EXPECT_GT(cuda::held_costs(true, 2, 768, 128).of_octets[1],
            cuda::held_costs(true, 2, 769, 128).of_octets[1]);
}

// Products alone have nothing else to do before they know their tiles.
TEST(QmmHeldCut, FirstTilesAreGuessedWhereMostMatricesHaveRows) {
  const auto guesses = [](cuda::HeldKind kind, uint32_t groups, int64_t rows) {
    return cuda::held_guesses_first(kind, groups, rows, 128);
  };
  EXPECT_TRUE(guesses(cuda::HeldKind::runs, 2, 1));
  EXPECT_FALSE(guesses(cuda::HeldKind::gates, 1, 95));
  EXPECT_TRUE(guesses(cuda::HeldKind::gates, 1, 96));
  for (const cuda::HeldKind kind : {cuda::HeldKind::gates, cuda::HeldKind::short_sums}) {
    EXPECT_FALSE(guesses(kind, 2, 255));
    EXPECT_TRUE(guesses(kind, 2, 256));
  }
}

TEST(QmmHeldCut, RunsHaveAllOfKInEachBlock) {
  uint32_t taken[3] = {};
  for (int64_t k = 256; k <= 8192; k += 256) {
    for (int64_t n : {int64_t{136}, int64_t{1} << 18}) {
      const cuda::HeldCut cut = cuda::held_runs_cut(n, k);
      if (cut.shares == 0) continue;
      ASSERT_LE(cut.row_groups, cuda::kHeldMostRowGroups);
      ++taken[cut.row_groups];
      ASSERT_EQ(cut.shares * cut.passes, 1u);
      ASSERT_EQ(cut.slices * cuda::kHeldSlice, k);
      ASSERT_LE(cut.slices * cut.row_groups, cuda::kHeldWarps);
    }
  }
  EXPECT_EQ(taken[1], 5u);
  EXPECT_EQ(taken[2], 3u);
  EXPECT_EQ(cuda::held_runs_cut(8 * 28672, 4096).row_groups, 1u);
  EXPECT_EQ(cuda::held_runs_cut(64 * 2048, 2048).row_groups, 2u);
  EXPECT_EQ(cuda::held_runs_cut(64 * 2048, 2880).shares, 0u);
  EXPECT_EQ(cuda::held_runs_cut(cuda::kHeldMostRows, 4096).shares, 1u);
  EXPECT_EQ(cuda::held_runs_cut(cuda::kHeldMostRows + 1, 4096).shares, 0u);
  EXPECT_EQ(cuda::held_runs_cut(8 * 2048, 2048).shares, 0u) << "others take less time";
}

TEST(QmmHeldCut, LargeMatricesHaveAllClusters) {
  for (uint32_t at_once : {1u, 30u, 66u, 132u}) {
    EXPECT_EQ(cuda::held_clusters(16384, 16384, at_once), at_once);
    EXPECT_EQ(cuda::held_clusters(136, 4096, at_once), 1u);
    EXPECT_EQ(cuda::held_clusters(1, 4096, at_once), 1u);
  }
  EXPECT_EQ(cuda::held_clusters(201, 4096, 132), 2u);
}

}  // namespace
}  // namespace moeblas::test
