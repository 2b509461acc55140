// What the second product of an expert layer stores of a tile: the kernels' own text on a thread
// block of the host, for each width of tiles. Every sum of a row that exists goes to its place, and
// nothing else is written.
#include "cuda/qmm_sm90/layer.cuh"
#include "cuda/qmm_sm90/weights.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "block/block.h"

namespace moeblas::test {
namespace {

using cuda::TileRecord;
template <int kBits>
using Sums = cuda::EndingIn<cuda::Affine<cuda::Bfloat16Pairs, kBits>, cuda::Ending::sums>;

// Where things lie in a block's shared memory.
template <class Weights, class Tiles>
struct Room {
  using Memory = cuda::BlockMemory<typename Weights::Bytes, Tiles>;
  static constexpr uint32_t kOut = 0;
  static constexpr uint32_t kRows =
      kOut + Tiles::kRowGroups * Tiles::kOutBuffers * Memory::kOutBytes;
  static constexpr uint32_t kBytes = kRows + Tiles::kMostTokens * 8;
};

void expect_equal(const std::vector<float>& out, const std::vector<float>& expected, size_t pitch) {
  size_t wrong = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool same = out[i] == expected[i] || (std::isnan(out[i]) && std::isnan(expected[i]));
    if (!same && wrong++ == 0) {
      ADD_FAILURE() << "row " << i / pitch << ", column " << i % pitch << ": " << out[i] << ", not "
                    << expected[i];
    }
  }
  EXPECT_EQ(wrong, 0u);
}

// `rows` of the run's are left in the tile, which comes with the sums of kTokens tokens all the
// same.
template <class Tiles, uint32_t kTokens, class Weights = Sums<4>>
void expect_sums_in_place(uint32_t tokens, uint32_t rows, uint32_t n, bool biased) {
  constexpr uint32_t kThreads = 128 * Tiles::kRowGroups, kBlockRows = 64 * Tiles::kRowGroups;
  constexpr uint32_t kFirst = kBlockRows;  // the block's first row of w
  SCOPED_TRACE(testing::Message() << kBlockRows << " rows of w and " << kTokens
                                  << " tokens of sums: " << tokens << " in the tile, " << rows
                                  << " of the run, N " << n << (biased ? ", biased" : ""));
  std::mt19937 random(tokens * 1000 + rows);
  std::vector<float> sums(size_t{kTokens} * kBlockRows), bias(n);
  for (float& v : sums) v = std::ldexp(static_cast<float>(random()), -20);
  for (float& v : bias) v = static_cast<float>(random() % 100);
  // Rows of out lie in any order, further apart than they are long.
  const uint32_t pitch = n + 4, places = Tiles::kMostTokens + 3;
  std::vector<uint32_t> order(places);
  for (uint32_t i = 0; i < places; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  const float nothing = std::numeric_limits<float>::quiet_NaN();

  cuda::QmmSm90Params p{};
  p.n = n;
  if (biased) p.added[0] = {reinterpret_cast<const uint8_t*>(bias.data()), 0, 1, simt::kF32};
  const TileRecord tile{kFirst, 5, 5 + rows, tokens, 0, 0};
  // In a row, each with sums of its own: the last one's are seen, which finds the buffers used.
  for (int tiles : {1, 2}) {
    std::vector<float> out(size_t{places} * pitch, nothing);
    p.out = reinterpret_cast<uint8_t*>(out.data());
    run_grid({1, kThreads, Room<Weights, Tiles>::kBytes, 7u * rows + tokens, 0xff}, [&] {
      const uint32_t base = shared_address_of(dynamic_memory());
      const uint32_t group = thread_index() / 128, thread = thread_index() % 128;
      if (thread_index() == 0) {
        for (uint32_t i = 0; i < Tiles::kMostTokens; ++i) {
          *reinterpret_cast<int64_t*>(at_shared(base + Room<Weights, Tiles>::kRows + i * 8, 8)) =
              int64_t{order[i]} * pitch;
        }
      }
      cuda::device::named_barrier(0, kThreads);
      const uint32_t first_row = kFirst + group * 64;
      // As products leave them: rows 16w + g and 8 further, columns 8j + 2c and the next.
      const uint32_t row = group * 64 + thread / 32 * 16 + thread % 32 / 4;
      for (int i = 0; i < tiles; ++i) {
        float own[kTokens / 2];
        for (uint32_t j = 0; j < kTokens / 2; ++j) {
          const uint32_t token = j / 4 * 8 + thread % 4 * 2 + j % 2;
          own[j] =
              sums[size_t{token} * kBlockRows + row + j / 2 % 2 * 8] * static_cast<float>(i + 1);
        }
        const cuda::AddedBits added =
            cuda::LayerEnd<Weights, Tiles>::ask(p, tile, first_row, thread);
        cuda::LayerEnd<Weights, Tiles>(
            p, tile, first_row,
            base + group * Tiles::kOutBuffers * Room<Weights, Tiles>::Memory::kOutBytes,
            base + Room<Weights, Tiles>::kRows, group, added)
            .template store<kTokens>(own);
      }
    });
    std::vector<float> expected(out.size(), nothing);
    for (uint32_t t = 0; t < std::min(tokens, rows); ++t) {
      for (uint32_t r = 0; r < kBlockRows && kFirst + r < n; ++r) {
        expected[size_t{order[t]} * pitch + kFirst + r] =
            sums[size_t{t} * kBlockRows + r] * static_cast<float>(tiles) +
            (biased ? bias[kFirst + r] : -0.0f);
      }
    }
    expect_equal(out, expected, pitch);
  }
}

// Sums of all widths lie in registers of the widest where these are one text, else each width has
// its own.
template <class Tiles, uint32_t kTokens, class Weights = Sums<4>>
void expect_all_in_place() {
  constexpr uint32_t kStripe = 2 * 64 * Tiles::kRowGroups;
  for (uint32_t n : {kStripe, kStripe - 36}) {
    for (uint32_t rows : {kTokens, kTokens - 1, kTokens / 2 + 3, 1u}) {
      expect_sums_in_place<Tiles, kTokens, Weights>(kTokens, rows, n, rows % 2 != 0);
    }
  }
}

TEST(LayerEnd, SumsOfWholeTiles) {
  expect_all_in_place<cuda::NibbleTiles<cuda::Tiles32>, 32>();
  expect_all_in_place<cuda::NibbleTiles<cuda::Tiles64>, 64>();
  expect_all_in_place<cuda::NibbleTiles<cuda::Tiles128>, 128>();
  expect_all_in_place<cuda::Tiles128, 64, Sums<8>>();
  expect_all_in_place<cuda::Tiles128, 128, Sums<8>>();
  expect_all_in_place<cuda::Tiles256, 256>();
  expect_all_in_place<cuda::WiderTilesOf<96, 4>, 96>();
  expect_all_in_place<cuda::WiderTilesOf<160, 4>, 160>();
  expect_all_in_place<cuda::WiderTilesOf<288, 2>, 288>();
}

// As a run ends.
TEST(LayerEnd, SumsOfNarrowTiles) {
  expect_sums_in_place<cuda::NibbleTiles<cuda::Tiles128>, 128>(64, 64, 512, false);
  expect_sums_in_place<cuda::NibbleTiles<cuda::Tiles128>, 128>(64, 33, 512, true);
  expect_sums_in_place<cuda::NibbleTiles<cuda::Tiles64>, 64>(32, 31, 512, false);
  expect_sums_in_place<cuda::NibbleTiles<cuda::Tiles32>, 32>(16, 9, 512, false);
  expect_sums_in_place<cuda::Tiles256, 256>(64, 60, 256, false);
  expect_sums_in_place<cuda::Tiles256, 256>(128, 65, 256, true);
  expect_sums_in_place<cuda::WiderTilesOf<96, 4>, 96>(32, 32, 512, false);
  expect_sums_in_place<cuda::WiderTilesOf<160, 4>, 160>(144, 140, 384, false);
  expect_sums_in_place<cuda::WiderTilesOf<160, 4>, 160>(64, 1, 384, false);
  expect_sums_in_place<cuda::WiderTilesOf<288, 2>, 288>(128, 127, 256, true);
}

}  // namespace
}  // namespace moeblas::test
