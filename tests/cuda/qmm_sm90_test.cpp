// Which tiles and shares of K the clusters of qmm_sm90 make, and how shares become sums: the
// kernels' own text on thread blocks of the host, which run one after the other. A cluster that
// waited for another one's share would never end.
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90/shares.cuh"
#include "cuda/qmm_sm90/shares.h"
#include "cuda/qmm_sm90_one/cut.h"
#include "cuda/qmm_sm90_one/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

namespace moeblas::test {
namespace {

using cuda::QmmShareRoom;
using cuda::QmmShares;
using cuda::TileRecord;

constexpr uint32_t kWhole = 1;  // K is not shared out

// One matrix, whose rows of x all follow each other.
struct Matrix {
  uint32_t rows, n, blocks, chunk;

  template <class Tiles>
  int64_t tiles() const {
    constexpr uint32_t kStripe = 2 * cuda::BlockShape<Tiles>::kRows;
    return int64_t{(n + kStripe - 1) / kStripe} *
           ((rows + Tiles::kMostTokens - 1) / Tiles::kMostTokens);
  }
  cuda::QmmSm90Params params(const QmmShares& shares) const {
    cuda::QmmSm90Params p{};
    p.runs.rows_per_pair = rows;
    p.runs.pair_count = 1;
    p.n = n;
    p.blocks = blocks;
    p.shares = shares.count;
    p.share_blocks = shares.blocks;
    return p;
  }
};
constexpr Matrix kMatrices[] = {{1, 1, 1, 1},         {30, 136, 10, 4},    {64, 512, 9, 2},
                                {100, 136, 10, 4},    {64, 16384, 128, 4}, {128, 16384, 128, 4},
                                {256, 16384, 128, 4}, {200, 8192, 64, 4},  {64, 8192, 64, 2},
                                {96, 4096, 32, 4},    {33, 2880, 23, 4},   {300, 520, 255, 1}};

// All that the clusters make, by where it is.
template <class Tiles>
std::vector<TileRecord> records_of(const cuda::QmmSm90Params& p, uint32_t clusters) {
  std::vector<TileRecord> all;
  run_grid({clusters, 32, 0, 1, 0xff}, [&] {
    cuda::Schedule<Tiles> schedule(p, block_index(), block_count());
    for (TileRecord tile = schedule.next(); tile.tokens != 0; tile = schedule.next()) {
      if (thread_index() == 0) all.push_back(tile);
    }
  });
  return all;
}

template <class Tiles>
void expect_all_of(const Matrix& m, const QmmShares& shares, uint32_t clusters) {
  constexpr uint32_t kStripe = 2 * cuda::BlockShape<Tiles>::kRows;
  SCOPED_TRACE(testing::Message() << m.rows << " rows of x, " << m.n << " of w, " << m.blocks
                                  << " blocks of K in " << shares.count << " shares of "
                                  << shares.blocks << ", " << clusters << " clusters");
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, int> made;  // row of w, of x, block of K
  const std::vector<TileRecord> records = records_of<Tiles>(m.params(shares), clusters);
  // A cluster finds its first one without the schedule.
  for (uint32_t i = 0; clusters == 1 && i < records.size(); ++i) {
    const TileRecord found = cuda::tile_of_one<Tiles>(m.params(shares), i);
    ASSERT_EQ(std::memcmp(&found, &records[i], sizeof found), 0) << "tile " << i;
  }
  for (const TileRecord& tile : records) {
    EXPECT_EQ(tile.w_row % kStripe, 0u);
    EXPECT_EQ(tile.row % Tiles::kMostTokens, 0u);
    EXPECT_EQ(tile.end, m.rows);
    EXPECT_GE(tile.tokens, std::min(m.rows - tile.row, Tiles::kMostTokens));
    const uint32_t first = tile.share * shares.blocks;
    EXPECT_EQ(tile.share * shares.blocks % m.chunk, 0u);
    ASSERT_LT(first, m.blocks);
    for (uint32_t b = first; b < std::min(first + shares.blocks, m.blocks); ++b) {
      ++made[{tile.w_row, tile.row, b}];
    }
  }
  EXPECT_EQ(static_cast<int64_t>(made.size()), m.tiles<Tiles>() * m.blocks);
  for (const auto& [where, times] : made) ASSERT_EQ(times, 1);
}

// The rows of a layer's experts, of which the last may be those without one.
template <class Tiles>
void expect_all_rows_of(const std::vector<uint32_t>& counts, bool some_have_none, uint32_t n,
                        uint32_t rows_per_pair) {
  constexpr uint32_t kStripe = 2 * cuda::BlockShape<Tiles>::kRows;
  SCOPED_TRACE(testing::Message() << counts.size() << " experts, the first with " << counts[0]
                                  << " pairs of " << rows_per_pair << " rows, " << n
                                  << " rows of w");
  std::vector<uint32_t> runs = {0};
  std::vector<int32_t> matrices;
  uint32_t pairs = 0;
  for (uint32_t e = 0; e < counts.size(); ++e) {
    if (counts[e] == 0) continue;  // as grouping leaves them out
    runs.push_back(pairs);
    matrices.push_back(some_have_none && e + 1 == counts.size() ? -1 : static_cast<int32_t>(e));
    pairs += counts[e];
  }
  runs[0] = static_cast<uint32_t>(matrices.size());
  runs.push_back(pairs);
  cuda::QmmSm90Params p{};
  p.runs.runs = runs.data();
  p.runs.matrices = matrices.data();
  p.runs.rows_per_pair = rows_per_pair;
  p.n = n;
  p.blocks = p.share_blocks = 3;
  p.shares = 1;
  std::vector<int32_t> expert_of(pairs * rows_per_pair);
  for (uint32_t r = 0; r < matrices.size(); ++r) {
    std::fill(expert_of.begin() + runs[1 + r] * rows_per_pair,
              expert_of.begin() + runs[2 + r] * rows_per_pair, matrices[r]);
  }
  const uint32_t stripes = (n + kStripe - 1) / kStripe;
  for (uint32_t clusters : {1u, 5u, 66u}) {
    std::vector<int> made(expert_of.size() * stripes, 0);
    for (const TileRecord& tile : records_of<Tiles>(p, clusters)) {
      ASSERT_EQ(tile.w_row % kStripe, 0u);
      ASSERT_LT(tile.w_row, n);
      // A width that there is, and the least that holds what is left of the run, where that is not
      // more than the widest.
      constexpr uint32_t kBase = Tiles::kMostTokens - Tiles::kExtra;
      const uint32_t left = tile.end - tile.row;
      uint32_t width = kBase;
      while (width > Tiles::kLeastTokens && left <= width / 2) width /= 2;
      if constexpr (Tiles::kExtra != 0) {
        constexpr uint32_t kStep = Tiles::kExtraStep;
        if (kBase < left && left <= Tiles::kMostTokens) {
          width = (left + kStep - 1) / kStep * kStep;
        }
      }
      ASSERT_EQ(tile.tokens, width);
      for (uint32_t row = tile.row; row < std::min(tile.end, tile.row + tile.tokens); ++row) {
        ASSERT_EQ(static_cast<int32_t>(tile.w), expert_of[row]);
        ++made[row * stripes + tile.w_row / kStripe];
      }
    }
    for (size_t i = 0; i < made.size(); ++i) {
      ASSERT_EQ(made[i], expert_of[i / stripes] < 0 ? 0 : 1) << "staged row " << i / stripes;
    }
  }
}

template <class Tiles>
class QmmShared : public testing::Test {};
using AllTiles = testing::Types<cuda::Tiles256, cuda::Tiles128, cuda::NibbleTiles<cuda::Tiles128>,
                                cuda::Tiles64, cuda::NibbleTiles<cuda::Tiles64>, cuda::Tiles32,
                                cuda::NibbleTiles<cuda::Tiles32>>;
TYPED_TEST_SUITE(QmmShared, AllTiles);

TYPED_TEST(QmmShared, ClustersMakeEveryBlockOfKOnce) {
  for (const Matrix& m : kMatrices) {
    const QmmShares planned = cuda::shares_of(m.tiles<TypeParam>(), m.blocks, m.chunk);
    for (uint32_t clusters : {1u, 3u, 66u}) {
      expect_all_of<TypeParam>(m, planned, clusters);
      expect_all_of<TypeParam>(m, {kWhole, m.blocks}, clusters);
    }
  }
}

// Of experts there are also tiles that are wider by a few tokens, whose K is never shared out.
template <class Tiles>
class QmmExperts : public testing::Test {};
using TilesOfExperts =
    testing::Types<cuda::Tiles256, cuda::Tiles128, cuda::NibbleTiles<cuda::Tiles128>, cuda::Tiles64,
                   cuda::NibbleTiles<cuda::Tiles64>, cuda::Tiles32,
                   cuda::NibbleTiles<cuda::Tiles32>, cuda::Tiles288, cuda::Tiles160, cuda::Tiles96>;
TYPED_TEST_SUITE(QmmExperts, TilesOfExperts);

TYPED_TEST(QmmExperts, ClustersMakeEveryRowOfEveryExpertOnce) {
  std::vector<std::vector<uint32_t>> all = {
      {1},
      {0, 0, 1, 0},
      {700},
      {0, 700, 0, 0},
      {32, 33, 31, 64, 65, 256, 257, 0, 1, 160, 161},
      {80, 81, 96, 97, 128, 144, 145, 160, 161, 272, 288, 289, 512, 513, 544, 545}};
  std::vector<uint32_t> even(64, 96), some(70), one(128, 0);
  for (uint32_t e = 0; e < some.size(); ++e) some[e] = (e * 2654435761u >> 16) % 300 * (e % 7 != 0);
  one[127] = 513;
  all.insert(all.end(), {even, some, one});
  for (const std::vector<uint32_t>& counts : all) {
    expect_all_rows_of<TypeParam>(counts, false, 1536, 1);
    expect_all_rows_of<TypeParam>(counts, true, 5000, 1);
    expect_all_rows_of<TypeParam>(counts, false, 5, 3);
  }
}

// Rows that products write themselves lie as tiles want them, one behind the other, however runs
// are cut; and where they are in the order of the runs.
template <class Tiles>
void expect_rows_as_tiles_want_them(const std::vector<uint32_t>& counts) {
  SCOPED_TRACE(testing::Message() << counts.size() << " experts, the first with " << counts[0]
                                  << " rows, tiles of " << Tiles::kMostTokens);
  cuda::WiderTiles cuts{
      nullptr, Tiles::kMostTokens - Tiles::kExtra, Tiles::kLeastTokens, Tiles::kExtra, 1, 0};
  if constexpr (Tiles::kExtra != 0) cuts.step = Tiles::kExtraStep;
  const auto experts = static_cast<uint32_t>(counts.size());
  std::vector<uint32_t> runs = {experts}, placed(2 * experts, 0);
  std::vector<int32_t> matrices, expert_of;
  for (uint32_t e = 0; e < experts; ++e) {
    runs.push_back(static_cast<uint32_t>(expert_of.size()));
    matrices.push_back(static_cast<int32_t>(e));
    expert_of.resize(expert_of.size() + counts[e], matrices.back());
  }
  runs.push_back(static_cast<uint32_t>(expert_of.size()));
  uint32_t at = 0;
  for (uint32_t width = Tiles::kMostTokens; width >= Tiles::kLeastTokens;
       width = cuda::narrower<Tiles>(width)) {
    for (uint32_t e = 0; e < experts; ++e) {
      const cuda::RunCut cut = cuda::cut_of(cuts, counts[e]);
      ASSERT_EQ(cut.whole + cut.last, counts[e]);
      if (width == cuts.base) {
        placed[2 * e] = at;
        at += cut.whole;
      } else if (cut.last > 0 && cut.tokens == width) {
        placed[2 * e + 1] = at - cut.whole;
        at += cut.last;
      }
    }
  }
  ASSERT_EQ(at, expert_of.size());
  cuda::QmmSm90AheadParams p{};
  p.runs.runs = runs.data();
  p.runs.matrices = matrices.data();
  p.runs.rows_per_pair = 1;
  p.n = 1;
  p.shares = 1;
  p.ahead.placed = placed.data();
  std::vector<int> made(expert_of.size(), 0);
  uint32_t next = 0;
  run_grid({1, 32, 0, 1, 0xff}, [&] {
    cuda::Schedule<Tiles> schedule(p, 0, 1);
    for (TileRecord tile = schedule.next(); tile.tokens != 0; tile = schedule.next()) {
      if (thread_index() != 0) continue;
      ASSERT_EQ(tile.row, next);
      next = std::min(tile.end, tile.row + tile.tokens);
      for (uint32_t row = tile.row; row < next; ++row) {
        const uint32_t in_run = row + schedule.moved();
        ASSERT_LT(in_run, made.size());
        ASSERT_EQ(static_cast<int32_t>(tile.w), expert_of[in_run]);
        ++made[in_run];
      }
    }
  });
  ASSERT_EQ(next, expert_of.size());
  for (const int times : made) ASSERT_EQ(times, 1);
}

TEST(QmmAhead, RowsLieAsTilesWantThem) {
  std::vector<uint32_t> uneven(70);
  for (uint32_t e = 0; e < uneven.size(); ++e) uneven[e] = (e * 2654435761u >> 16) % 900 + 1;
  const std::vector<std::vector<uint32_t>> all = {
      {1}, {700}, {256, 257, 288, 289, 1, 64, 65, 512, 544, 545, 600, 128, 129, 130}, uneven};
  for (const std::vector<uint32_t>& counts : all) {
    expect_rows_as_tiles_want_them<cuda::AheadTiles<cuda::Tiles256, 224>>(counts);
    expect_rows_as_tiles_want_them<cuda::AheadTiles<cuda::Tiles288, 224>>(counts);
  }
}

// Clusters take tiles in turn: that each has as many of every width, or one more, is what makes
// them end at one time.
TYPED_TEST(QmmExperts, TilesComeByWidthTheWidestFirst) {
  constexpr uint32_t kClusters = 7, kStripe = 2 * cuda::BlockShape<TypeParam>::kRows;
  const uint32_t runs[] = {4, 0, 700, 701, 1000, 1270};
  const int32_t matrices[] = {4, 0, 2, 1};
  cuda::QmmSm90Params p{};
  p.runs.runs = runs;
  p.runs.matrices = matrices;
  p.runs.rows_per_pair = 1;
  p.n = 3 * kStripe;
  p.blocks = p.share_blocks = 3;
  p.shares = 1;
  std::map<uint32_t, std::vector<uint32_t>> made;  // of each width, by cluster
  run_grid({kClusters, 32, 0, 1, 0xff}, [&] {
    cuda::Schedule<TypeParam> schedule(p, block_index(), block_count());
    uint32_t width = TypeParam::kMostTokens;
    for (TileRecord tile = schedule.next(); tile.tokens != 0; tile = schedule.next()) {
      EXPECT_LE(tile.tokens, width);
      width = tile.tokens;
      std::vector<uint32_t>& of = made[width];
      of.resize(kClusters);
      if (thread_index() == 0) ++of[block_index()];
    }
  });
  for (const auto& [width, of] : made) {
    const auto [least, most] = std::minmax_element(of.begin(), of.end());
    EXPECT_LE(*most - *least, 1u) << width << " tokens";
  }
}

// By the kernels' own schedules: what all tiles take, in tokens, with 80 for the codes of each.
template <class Tiles>
double time_of(const std::vector<uint32_t>& counts) {
  std::vector<uint32_t> runs = {static_cast<uint32_t>(counts.size()), 0};
  for (uint32_t count : counts) runs.push_back(runs.back() + count);
  cuda::QmmSm90Params p{};
  p.runs.runs = runs.data();
  p.runs.rows_per_pair = 1;
  p.n = 1;
  p.shares = 1;
  double time = 0;
  for (const TileRecord& tile : records_of<Tiles>(p, 1)) time += 80.0 + tile.tokens;
  return time;
}
template <class Tiles, class Wider>
void expect_the_faster(uint32_t loss) {
  const cuda::WiderTiles t{nullptr,       Tiles::kMostTokens, Wider::kLeastTokens,
                           Wider::kExtra, Wider::kExtraStep,  loss};
  ASSERT_EQ(Tiles::kLeastTokens, Wider::kLeastTokens);
  std::vector<std::vector<uint32_t>> all = {
      {Tiles::kMostTokens}, {Wider::kMostTokens}, {Wider::kMostTokens + 1}, {0}, {1, 300, 17}};
  for (uint32_t rows : {31u, 64u, 70u, 128u, 140u, 256u, 260u, 512u}) {
    all.push_back(std::vector<uint32_t>(20, rows));
    for (uint32_t spread : {2u, 8u, 30u}) {
      all.emplace_back();
      for (uint32_t e = 0; e < 40; ++e) {
        all.back().push_back(rows + (e * 2654435761u >> 16) % (2 * spread) - spread);
      }
    }
  }
  int wider = 0;
  for (const std::vector<uint32_t>& counts : all) {
    cuda::TileTimes times{};
    for (uint32_t rows : counts) {
      const cuda::TileTimes of = cuda::tile_times(t, rows);
      times.others += of.others;
      times.saved += of.saved;
    }
    const double others = time_of<Tiles>(counts), by_wider = time_of<Wider>(counts);
    EXPECT_EQ(times.others * 16.0, others);
    EXPECT_EQ((times.others - times.saved) * 16.0, by_wider);
    EXPECT_EQ(cuda::wider_pays(t, times), others - by_wider > others * loss / 1000);
    wider += cuda::wider_pays(t, times) ? 1 : 0;
  }
  EXPECT_GT(wider, 3);
  EXPECT_LT(wider, 25);
}
TEST(QmmWider, TilesAreThoseThatTakeLess) {
  expect_the_faster<cuda::Tiles256, cuda::Tiles288>(25);
  expect_the_faster<cuda::NibbleTiles<cuda::Tiles128>, cuda::Tiles160>(120);
  expect_the_faster<cuda::NibbleTiles<cuda::Tiles64>, cuda::Tiles96>(90);
}

// What one thread has of a share's sums: zeros behind those of a narrow tile.
float sum_of(const TileRecord& tile, uint32_t rank, uint32_t thread, uint32_t i) {
  if (i >= tile.tokens / 2) return 0;
  const uint32_t mixed =
      (tile.w_row * 31 + tile.row * 7 + tile.share * 1009 + rank * 613 + thread * 101 + i * 17) *
      2654435761u;
  return static_cast<float>(mixed >> 8) * (tile.share % 2 == 0 ? 1.0f : -1.001f);
}

template <class Tiles>
void expect_sums_of(const Matrix& m, uint32_t clusters, uint64_t seed) {
  constexpr uint32_t kRows = cuda::BlockShape<Tiles>::kRows;
  constexpr uint32_t kThreads = 128 * Tiles::kRowGroups, kTokens = Tiles::kMostTokens;
  const QmmShares shares = cuda::shares_of(m.tiles<Tiles>(), m.blocks, m.chunk);
  ASSERT_GT(shares.count, 1u);
  const QmmShareRoom room(shares, m.tiles<Tiles>(), kRows, kTokens);
  constexpr size_t kGuard = 64;  // float4
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float4> sums(room.sums / sizeof(float4) + kGuard, float4{nan, nan, nan, nan});
  std::vector<uint32_t> done(room.parts + kGuard, 0);
  cuda::QmmSm90Params p = m.params(shares);
  p.shared_sums = sums.data();
  p.shares_done = done.data();
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, int> ended;
  // A warp goes through the tiles by itself, as the one that sends rows does.
  run_grid({2 * clusters, kThreads, 0, seed, 0xff}, [&] {
    const uint32_t rank = block_index() % 2, thread = thread_index();
    cuda::Schedule<Tiles> schedule(p, block_index() / 2, block_count() / 2);
    for (TileRecord tile = schedule.next(); tile.tokens != 0; tile = schedule.next()) {
      float own[kTokens / 2];
      for (uint32_t i = 0; i < kTokens / 2; ++i) own[i] = sum_of(tile, rank, thread, i);
      const cuda::SharedSums<Tiles> shared(p, tile, rank, thread / 128);
      if (!shared.template add_up<kTokens>(own, tile.tokens)) continue;
      ++ended[{tile.w_row, tile.row, rank, thread}];
      for (uint32_t i = 0; i < kTokens / 2; ++i) {
        float expected = 0;
        for (tile.share = 0; tile.share < shares.count; ++tile.share) {
          expected += sum_of(tile, rank, thread, i);
        }
        ASSERT_EQ(own[i], expected) << "sum " << i << " of thread " << thread;
      }
    }
  });
  EXPECT_EQ(static_cast<int64_t>(ended.size()), m.tiles<Tiles>() * 2 * kThreads);
  for (const auto& [where, times] : ended) ASSERT_EQ(times, 1);
  for (uint32_t i = 0; i < done.size(); ++i) ASSERT_EQ(done[i], i < room.parts ? shares.count : 0);
  for (size_t i = 0; i < kGuard; ++i) ASSERT_TRUE(std::isnan(sums[sums.size() - 1 - i].x));
}

TYPED_TEST(QmmShared, SumsAreAddedOnceInOrderAndNobodyWaits) {
  expect_sums_of<TypeParam>({30, 136, 10, 4}, 1, 1);
  expect_sums_of<TypeParam>({30, 136, 10, 4}, 3, 2);
  expect_sums_of<TypeParam>({300, 520, 64, 4}, 5, 3);
}

// Fewer shares than there are clusters, and never one without K.
TEST(QmmSharesOf, AreWorthWhatTheyCost) {
  for (int64_t tiles = 0; tiles <= 80; ++tiles) {
    for (int64_t blocks = 1; blocks <= 256; ++blocks) {
      for (int64_t chunk : {1, 2, 4}) {
        const QmmShares s = cuda::shares_of(tiles, blocks, chunk);
        ASSERT_GE(s.count, 1u);
        ASSERT_LT(int64_t{s.count - 1} * s.blocks, blocks);
        ASSERT_GE(int64_t{s.count} * s.blocks, blocks);
        if (s.count > 1) {
          ASSERT_EQ(s.blocks % chunk, 0);
          ASSERT_LE(tiles, 66);
        }
      }
    }
  }
  EXPECT_EQ(cuda::shares_of(32, 128, 4).count, 2u);  // 16384^2 with 64 rows
  EXPECT_EQ(cuda::shares_of(64, 128, 4).count, 1u);
  EXPECT_EQ(cuda::shares_of(16, 8, 4).count, 1u);
}

TEST(QmmSharesOf, BeginWithAChunkOfScales) {
  for (int64_t tiles = 1; tiles <= 66; ++tiles) {
    for (int64_t blocks = 1; blocks <= 256; ++blocks) {
      const QmmShares s = cuda::shares_of(tiles, blocks, 4);
      for (uint32_t most : {4u, 8u, 16u}) {
        const uint32_t chunk = cuda::chunk_within(s, 4, most);
        ASSERT_TRUE(chunk >= 4 && chunk <= most);
        ASSERT_EQ(s.count == 1 ? most : chunk, chunk);
        ASSERT_EQ(s.count == 1 ? 0 : s.blocks % chunk, 0u) << tiles << " tiles, " << blocks;
      }
    }
  }
}

TEST(QmmOneCut, MakesEveryRowAndEveryKOnceInOneTurn) {
  uint32_t taken = 0;
  for (int64_t n : {1, 64, 131, 4096, 4224, 4225, 8448, 8449, 16384, 16896, 16897}) {
    for (int64_t k = 1024; k <= 32768; k += 1024) {
      for (const auto& [group, scale_bytes] :
           {std::pair{int64_t{32}, int64_t{2}}, {64, 2}, {128, 2}, {32, 1}, {16, 1}}) {
        for (uint32_t most_sets : {1u, 2u, cuda::kOneMostSets}) {
          const cuda::OneCut cut = cuda::one_cut({n, k, group, scale_bytes}, most_sets);
          if (cut.sets == 0) continue;
          ++taken;
          ASSERT_LE(cut.sets, most_sets);
          const int64_t tiles = (n + cut.rows() - 1) / cut.rows();
          ASSERT_LE(tiles * cuda::kOneClusterBlocks, cuda::kOneBlocks);
          ASSERT_EQ(int64_t{cut.steps} * cuda::kOneStep * cuda::kOneClusterBlocks, k);
          // Chunks of scales, of which a box has at most so much, begin where steps do.
          ASSERT_EQ(cut.steps % cut.chunk_steps, 0u);
          ASSERT_EQ(cut.scale_chunk * group,
                    int64_t{cut.chunk_steps} * cuda::kOneStep * scale_bytes);
          ASSERT_LE(cut.scale_chunk, cuda::kOneMostScales);
          ASSERT_EQ(cut.scale_chunk % 32, 0u);
        }
      }
    }
  }
  EXPECT_GT(taken, 1000u);
  const auto sets = [](int64_t n, int64_t k) { return cuda::one_cut({n, k, 64, 2}, 4).sets; };
  EXPECT_EQ(sets(4096, 4096), 1u);
  EXPECT_EQ(sets(8192, 8192), 2u);
  EXPECT_EQ(sets(16384, 16384), 4u);
  EXPECT_EQ(sets(16384, 1024), 0u);
  EXPECT_EQ(sets(16384, 7168), 0u);
  EXPECT_EQ(sets(28672, 8192), 0u);
}

// Lanes that read a byte of eight neighbouring rows meet in no bank, and no two rows' bytes in one
// place.
TEST(QmmOneCut, ScalesOfEightRowsLieInDifferentBanks) {
  for (uint32_t bytes : {32u, 64u, 128u}) {
    for (uint32_t at = 0; at < bytes; at += 4) {
      std::vector<bool> banks(32);
      for (uint32_t row = 0; row < 8; ++row) {
        const uint32_t to = row * bytes + (at ^ cuda::one_scale_swizzle(row, bytes));
        ASSERT_EQ(to / bytes, row);
        ASSERT_FALSE(banks[to / 4 % 32]);
        banks[to / 4 % 32] = true;
      }
    }
  }
}

}  // namespace
}  // namespace moeblas::test
