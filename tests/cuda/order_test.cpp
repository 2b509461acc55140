// The order of k of qmm_sm90, by what its lanes decode: products 16 k deep, of which lane t has
// words h = 0 and 1 of two values e each.
#include <cuda_runtime.h>

#include "cuda/qmm_sm90_gather_order.h"
#include "cuda/qmm_sm90_glu_order.h"
#include "cuda/qqmm_fp8_sm90_params.h"
#include "cuda/segmented_sm90_turn_order.h"

#include <gtest/gtest.h>

#include <set>

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

}  // namespace
}  // namespace moeblas::test
