// The decoders of rows of bfloat16 against the definitions in src/formats: every code in every
// place of 32.
#include "cuda/device/code_pairs.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "cuda/code_value.h"
#include "formats/e8m0.h"

namespace moeblas::test {
namespace {

using cuda::device::OctetPairs;

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

using Codes = std::array<unsigned int, 32>;

template <class Format>
std::array<float, 32> decoded(const Codes& codes) {
  std::array<unsigned int, Format::kBits> words{};
  for (int i = 0; i < 32; ++i) {
    for (int b = 0; b < Format::kBits; ++b) {
      const int bit = i * Format::kBits + b;
      words[bit / 32] |= (codes[i] >> b & 1u) << bit % 32;
    }
  }
  std::array<float, 32> values;
  for (unsigned int q = 0; q < 4; ++q) {
    unsigned int pairs[4];
    OctetPairs<Format>::decode(words.data(), q, pairs);
    for (int i = 0; i < 8; ++i) {
      values[8 * q + i] =
          formats::bfloat16_to_float(static_cast<unsigned short>(pairs[i / 2] >> i % 2 * 16));
    }
  }
  return values;
}

template <class Format>
class CodePairs : public testing::Test {};
using AllFormats = testing::Types<formats::Affine<2>, formats::Affine<3>, formats::Affine<4>,
                                  formats::Affine<5>, formats::Affine<6>, formats::Affine<8>,
                                  formats::Mxfp4, formats::Mxfp8, formats::Nvfp4>;
TYPED_TEST_SUITE(CodePairs, AllFormats);

TYPED_TEST(CodePairs, EveryCodeInEveryPlace) {
  constexpr unsigned int kCodes = 1u << TypeParam::kBits;
  for (unsigned int place = 0; place < 32; ++place) {
    for (unsigned int code = 0; code < kCodes; ++code) {
      // The neighbours hold all bits, none, and something else, so that no bit can come from them.
      for (unsigned int others = 0; others < 3; ++others) {
        Codes codes;
        for (unsigned int i = 0; i < 32; ++i) {
          codes[i] = others == 0 ? 0 : others == 1 ? kCodes - 1 : (code * 5 + 3 * i + 1) % kCodes;
        }
        codes[place] = code;
        const auto values = decoded<TypeParam>(codes);
        for (unsigned int i = 0; i < 32; ++i) {
          const float expected = value_of<TypeParam>(codes[i]);
          ASSERT_TRUE(same(values[i], expected)) << "code " << codes[i] << " in place " << i << ": "
                                                 << values[i] << ", expected " << expected;
        }
      }
    }
  }
}

TEST(ScalesAsBfloats, EveryE8m0Byte) {
  for (unsigned int byte = 0; byte < 256; ++byte) {
    const float value =
        formats::bfloat16_to_float(static_cast<unsigned short>(cuda::device::e8m0_bfloat(byte)));
    EXPECT_TRUE(same(value, formats::e8m0_decode(byte)) || std::isnan(value)) << byte;
    EXPECT_EQ(std::isnan(value), byte == 255) << byte;
  }
}

}  // namespace
}  // namespace moeblas::test
