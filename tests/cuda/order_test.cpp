// The order of k of qmm_sm90, by what its lanes decode: products 16 k deep, of which lane t has
// words h = 0 and 1 of two values e each.
#include <cuda_runtime.h>

#include "cuda/qmm_sm90/gather_order.h"
#include "cuda/qmm_sm90/glu_order.h"
#include "cuda/qqmm_fp8_sm90/params.h"
#include "cuda/quantize_cuda/tile_order.h"
#include "cuda/segmented_sm90/turn_order.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "formats/scale_layout.h"

namespace moeblas::test {
namespace {

uint32_t position(uint32_t product, uint32_t word, uint32_t lane, uint32_t element) {
  return 16 * product + 8 * word + 2 * lane + element;
}

// A lane's 16 bytes are four words; pair i of a word's eight codes is of codes i and i + 4.
TEST(OrderOfK, IsWhatLanesDecodeOfNibbles) {
  for (uint32_t lane = 0; lane < 4; ++lane) {
    for (uint32_t code = 0; code < 32; ++code) {
      const uint32_t word = code / 8, pair = code % 4, element = code / 4 % 2;
      const uint32_t product = 2 * word + pair / 2;
      EXPECT_EQ(cuda::NibbleOrder::natural_k(position(product, pair % 2, lane, element)),
                32 * lane + code);
    }
  }
}

// A lane's 32 codes are four octets of neighbours.
TEST(OrderOfK, IsWhatLanesDecodeOfFields) {
  for (uint32_t lane = 0; lane < 4; ++lane) {
    for (uint32_t code = 0; code < 32; ++code) {
      const uint32_t pair = code / 2, product = pair / 2;
      EXPECT_EQ(cuda::NeighbourOrder::natural_k(position(product, pair % 2, lane, code % 2)),
                32 * lane + code);
    }
  }
}

// 16 bytes of each of two pieces; pair i of a word's four codes is of codes i and i + 2.
TEST(OrderOfK, IsWhatLanesDecodeOfBytes) {
  for (uint32_t piece = 0; piece < 2; ++piece) {
    for (uint32_t lane = 0; lane < 4; ++lane) {
      for (uint32_t code = 0; code < 16; ++code) {
        const uint32_t product = 4 * piece + code / 4, pair = code % 2, element = code / 2 % 2;
        EXPECT_EQ(cuda::ByteOrder::natural_k(position(product, pair, lane, element)),
                  64 * piece + 16 * lane + code);
      }
    }
  }
}

// Products 32 k deep, of which a lane has words h = 0 and 1 of four values each; a word of its 16
// bytes folds into two.
TEST(OrderOfK, IsWhatLanesFold) {
  for (uint32_t lane = 0; lane < 4; ++lane) {
    for (uint32_t code = 0; code < 32; ++code) {
      const uint32_t product = code / 8, half = code / 4 % 2, element = code % 4;
      EXPECT_EQ(cuda::FoldOrder::natural_k(32 * product + 16 * half + 4 * lane + element),
                32 * lane + code);
    }
  }
}

// Chunks of 16 bytes as bulk copies swizzle them in lines of 128.
uint32_t swizzled(uint32_t line, uint32_t chunk) { return line * 128 + (chunk ^ line % 8) * 16; }

TEST(TurnedColumns, StayWithinTheirFourChunks) {
  using Order = cuda::TurnOrder;
  for (uint32_t four = 0; four < 32; ++four) {
    for (uint32_t chunk = 0; chunk < 8; ++chunk) {
      std::set<uint32_t> before, after;
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t of_line =
            Order::begin(four) ^ Order::flip_chunk(chunk) ^ Order::flip_line(j);
        EXPECT_EQ(of_line, swizzled(4 * four + j, chunk));
        before.insert(of_line);
        after.insert(Order::at(four) ^ Order::flip(4 * chunk + j));
      }
      EXPECT_EQ(before, after) << four << ", " << chunk;
    }
  }
}

TEST(TurnedColumns, OfOneKMeetAllBanks) {
  for (uint32_t k = 0; k < 32; ++k) {
    for (uint32_t first = 0; first < 32; first += 8) {
      std::set<uint32_t> banks;
      for (uint32_t four = first; four < first + 8; ++four) {
        banks.insert((cuda::TurnOrder::at(four) ^ cuda::TurnOrder::flip(k)) % 128);
      }
      EXPECT_EQ(banks.size(), 8u) << k << ", " << first;
    }
  }
}

TEST(SwizzledScales, NumbersOfWarpsAreDivided) {
  using Order = cuda::ScaleTileOrder;
  for (uint32_t beside = 1; beside < 5000; beside = beside * 9 / 8 + 1) {
    const uint64_t most = ((uint64_t{1} << 32) - 1) / beside;
    const uint32_t inverse = Order::inverse(beside, most);
    EXPECT_EQ(inverse == 0, beside == 1);
    EXPECT_EQ(Order::inverse(beside, most + 1), 0u);
    for (uint64_t pair : {uint64_t{0}, uint64_t{1}, most / beside / 2, most / beside - 1}) {
      for (uint64_t warp : {pair * beside, pair * beside + beside - 1}) {
        const auto at = Order::of(static_cast<uint32_t>(warp), beside, inverse, 1u << 30, 1);
        EXPECT_EQ(at.first, static_cast<uint32_t>(pair / 16 * 128 + pair % 16 * 2)) << warp;
        EXPECT_EQ(at.lane, warp % beside * 4) << warp << " / " << beside;
      }
    }
  }
}

TEST(SwizzledScales, AreWrittenOnceAndBySectors) {
  using Order = cuda::ScaleTileOrder;
  constexpr uint32_t kMatrices = 2, kTiles = 3, kBeside = 5;
  for (uint32_t of_lane : {1u, 2u, 4u}) {
    const uint32_t inverse =
        of_lane == 4 ? 0 : Order::inverse(kBeside, kMatrices * kTiles * 16 * kBeside);
    EXPECT_EQ(inverse == 0, of_lane == 4);
    std::set<std::tuple<uint32_t, uint32_t, uint32_t>> all;
    for (uint32_t warp = 0; warp < kMatrices * kTiles * 16 * kBeside; ++warp) {
      const Order order = Order::of(warp, kBeside, inverse, kTiles, kMatrices);
      std::map<uint64_t, uint32_t> bytes;  // of a sector
      for (uint32_t lane = 0; lane < 32; ++lane) {
        const uint32_t row = order.first + Order::below(lane / 4);
        const uint32_t scale = (order.lane + lane % 4) * of_lane;
        EXPECT_LT(row, kTiles * 128);
        EXPECT_TRUE(all.insert({order.matrix, row, scale}).second) << row << ", " << scale;
        bytes[formats::swizzled_128x4(row, scale, kBeside * 4 * of_lane) / 32] += of_lane;
      }
      EXPECT_EQ(bytes.size(), of_lane);
      for (const auto& [sector, count] : bytes) EXPECT_EQ(count, 32u) << sector;
    }
    EXPECT_EQ(all.size(), kMatrices * kTiles * 128 * kBeside * 4);
    EXPECT_EQ(std::get<0>(*all.rbegin()), kMatrices - 1);
  }
}

}  // namespace
}  // namespace moeblas::test
