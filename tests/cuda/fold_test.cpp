// Codes of mxfp4 folded into e4m3 against the definitions in src/formats: every code in every place
// under every power, and which rows fold.
#include "cuda/device/fold_e4m3.cuh"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/e8m0.h"

namespace moeblas::test {
namespace {

using namespace cuda::device;

TEST(Fold, EveryCodeInEveryPlace) {
  for (int power = kFoldLeast; power <= kFoldMost; ++power) {
    const FoldTable table = fold_table(power);
    for (unsigned int place = 0; place < 8; ++place) {
      for (unsigned int code = 0; code < 16; ++code) {
        for (const unsigned int others : {0x00000000u, 0xffffffffu, 0x6b19d253u}) {
          const unsigned int shift = 4 * place;
          const unsigned int word = (others & ~(15u << shift)) | code << shift;
          const FoldedOctet octet = fold_octet(word, table);
          for (unsigned int i = 0; i < 8; ++i) {
            const unsigned int byte = (i < 4 ? octet.low : octet.high) >> i % 4 * 8 & 0xffu;
            const float expected = std::ldexp(formats::e2m1_decode(word >> 4 * i & 15u), power);
            const float got = formats::e4m3_decode(byte);
            ASSERT_TRUE(got == expected && std::signbit(got) == std::signbit(expected))
                << "code " << (word >> 4 * i & 15u) << " in place " << i << " times 2^" << power
                << ": " << got << ", expected " << expected;
          }
        }
      }
    }
  }
}

// Codes i and i + 4 in byte i fold as eight in a word do.
TEST(Fold, CodesInBytes) {
  for (int power = kFoldLeast; power <= kFoldMost; ++power) {
    const FoldTable table = fold_table(power);
    for (unsigned int code = 0; code < 16; ++code) {
      for (unsigned int place = 0; place < 8; ++place) {
        for (const unsigned int others : {0x00000000u, 0xffffffffu, 0x6b19d253u}) {
          const unsigned int word = (others & ~(15u << 4 * place)) | code << 4 * place;
          unsigned int bytes = 0;
          for (unsigned int i = 0; i < 8; ++i) {
            bytes |= (word >> 4 * i & 15u) << (i % 4 * 8 + i / 4 * 4);
          }
          const FoldedOctet expected = fold_octet(word, table), got = fold_bytes(bytes, table);
          ASSERT_EQ(got.low, expected.low) << "code " << code << " in place " << place;
          ASSERT_EQ(got.high, expected.high) << "code " << code << " in place " << place;
        }
      }
    }
  }
}

float factor_of(unsigned int most) {
  return formats::bfloat16_to_float(static_cast<unsigned short>(fold_factor(most)));
}

// What a row's product is multiplied by makes the values of all its blocks again.
TEST(Fold, PowersOfEveryWindow) {
  for (unsigned int most = 0; most < 256; ++most) {
    for (unsigned int least = 0; least <= most; ++least) {
      const bool folds = row_folds(least, most);
      EXPECT_EQ(folds, most - least <= 14 && most >= 73 && most <= 193) << least << ", " << most;
      if (!folds) continue;
      for (unsigned int byte = least; byte <= most; ++byte) {
        const int power = static_cast<int>(fold_index(byte, most)) + kFoldLeast;
        EXPECT_EQ(std::ldexp(factor_of(most), power), formats::e8m0_decode(byte));
      }
    }
  }
}

// Blocks of zeros may have any scale: what they take is some table.
TEST(Fold, ScalesOutsideOfTheWindowHaveATable) {
  for (unsigned int most = kFoldLeastTop; most <= kFoldMostTop; ++most) {
    for (unsigned int byte = 0; byte < 256; ++byte) EXPECT_LT(fold_index(byte, most), kFolds);
  }
  EXPECT_EQ(factor_of(kFoldTopOfNothing), 1.0f);
}

}  // namespace
}  // namespace moeblas::test
