// The fast decoders of the CUDA kernels against the definitions in src/formats, on every code in
// every place of a word and on every scale byte.
#include "cuda/qmv_sm90/decode.cuh"
#include "cuda/device/decode_bytes.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include "cuda/code_value.h"
#include "formats/float16.h"
#include "formats/pack.h"

namespace moeblas::test {
namespace {

using cuda::device::Decoder;
using cuda::device::QmvDecoder;

bool same(float a, float b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

template <class Format>
class Decoders : public testing::Test {};
using FastFormats = testing::Types<formats::Affine<2>, formats::Affine<3>, formats::Affine<4>,
                                   formats::Affine<5>, formats::Affine<6>, formats::Affine<8>,
                                   formats::Mxfp4, formats::Mxfp8, formats::Nvfp4>;
TYPED_TEST_SUITE(Decoders, FastFormats);

// Eight codes as a row holds them, decoded; the value of element e.
template <class D>
std::array<float, 8> decoded(const std::array<unsigned int, 8>& codes) {
  formats::uint64 octet = 0;
  for (int i = 0; i < 8; ++i) octet = formats::with_code<D::kBits>(octet, i, codes[i]);
  // Behind eight codes that are no whole words stand the next ones.
  if (D::kBits % 4 != 0) octet |= formats::uint64{0x5a3cf00f96e178d2u} << 8 * D::kBits;
  const cuda::device::Octet halves =
      D::decode(static_cast<unsigned int>(octet), static_cast<unsigned int>(octet >> 32));
  std::array<float, 8> values;
  values.fill(-1.0f);
  for (int i = 0; i < 8; ++i) {
    const auto half = static_cast<unsigned short>(halves.pair[i / 2] >> i % 2 * 16);
    values[D::element(i)] =
        std::ldexp(formats::float16_to_float(half), D::kExponent - D::excess(i));
  }
  return values;
}

template <class Format, class D>
void check_every_code() {
  constexpr unsigned int kCodes = 1u << D::kBits;
  for (int place = 0; place < 8; ++place) {
    for (unsigned int code = 0; code < kCodes; ++code) {
      // The neighbours hold something else, so that no bit can come from them.
      std::array<unsigned int, 8> codes;
      for (int i = 0; i < 8; ++i) codes[i] = i == place ? code : (code * 5 + 3 * i + 1) % kCodes;
      const std::array<float, 8> values = decoded<D>(codes);
      for (int i = 0; i < 8; ++i) {
        const float expected = value_of<Format>(codes[i]);
        ASSERT_TRUE(same(values[i], expected)) << "code " << codes[i] << " in place " << i << ": "
                                               << values[i] << ", expected " << expected;
        if (expected == 0) {
          ASSERT_EQ(std::signbit(values[i]), std::signbit(expected));
        }
      }
    }
  }
}

TYPED_TEST(Decoders, EveryCodeInEveryPlace) {
  check_every_code<TypeParam, Decoder<TypeParam>>();
  check_every_code<TypeParam, QmvDecoder<TypeParam>>();
}

TYPED_TEST(Decoders, BringEveryElementOnce) {
  std::set<int> elements;
  for (int i = 0; i < 8; ++i) {
    elements.insert(Decoder<TypeParam>::element(i));
    // Both halves of a pair are scaled alike.
    EXPECT_EQ(Decoder<TypeParam>::excess(i), Decoder<TypeParam>::excess(i ^ 1));
  }
  EXPECT_EQ(elements.size(), 8u);
  EXPECT_EQ(*elements.begin(), 0);
  EXPECT_EQ(*elements.rbegin(), 7);
}

template <class Width>
class ByteDecoders : public testing::Test {};
template <int bits>
using Width = std::integral_constant<int, bits>;
using Widths = testing::Types<Width<2>, Width<3>, Width<4>, Width<5>, Width<6>, Width<8>>;
TYPED_TEST_SUITE(ByteDecoders, Widths);

TYPED_TEST(ByteDecoders, EveryCodeInEveryPlace) {
  constexpr int kBits = TypeParam::value;
  constexpr unsigned int kCodes = 1u << kBits;
  for (int place = 0; place < 32; ++place) {
    for (unsigned int code = 0; code < kCodes; ++code) {
      std::array<unsigned int, 32> codes;
      std::array<unsigned char, 4 * kBits> row;
      for (int i = 0; i < 32; ++i) codes[i] = i == place ? code : (code * 5 + 3 * i + 1) % kCodes;
      for (int i = 0; i < 4; ++i) {
        formats::uint64 octet = 0;
        for (int j = 0; j < 8; ++j) octet = formats::with_code<kBits>(octet, j, codes[8 * i + j]);
        for (int j = 0; j < kBits; ++j) row[i * kBits + j] = octet >> 8 * j & 0xff;
      }
      unsigned int words[kBits], out[8];
      std::memcpy(words, row.data(), sizeof words);
      using Decoder = cuda::device::ByteDecoder<kBits>;
      Decoder::decode(words, out);
      for (int word = 0; word < 8; ++word) {
        for (int byte = 0; byte < 4; ++byte) {
          const int element = cuda::device::element_of_byte<kBits>(word, byte);
          const int raised = word % 4 / 2 == 0 ? 0 : int{Decoder::kRaised};
          ASSERT_EQ(out[word] >> 8 * byte & 0xff, codes[element] << raised)
              << "word " << word << ", byte " << byte << ", code " << element;
        }
      }
    }
  }
}

TYPED_TEST(ByteDecoders, BringEveryElementOnce) {
  std::set<int> elements;
  for (int i = 0; i < 32; ++i) {
    elements.insert(cuda::device::element_of_byte<TypeParam::value>(i / 4, i % 4));
  }
  EXPECT_EQ(elements.size(), 32u);
  EXPECT_EQ(*elements.begin(), 0);
  EXPECT_EQ(*elements.rbegin(), 31);
}

// Where lanes bring half of 32 for groups of 16, half of what comes out is of one group.
TYPED_TEST(ByteDecoders, EvenWidthsBringGroupsOfSixteenApart) {
  constexpr int kBits = TypeParam::value;
  if (kBits % 2 != 0) GTEST_SKIP();
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(cuda::device::element_of_byte<kBits>(i / 4, i % 4) / 16, i / 16);
  }
}

TEST(DecodersOfScales, EveryE8m0Byte) {
  for (unsigned int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(cuda::device::e8m0_or_infinity(byte), formats::e8m0_decode(byte)) << byte;
  }
  EXPECT_TRUE(std::isinf(cuda::device::e8m0_or_infinity(255)));
}

TEST(DecodersOfScales, EveryPairOfE4m3Bytes) {
  for (unsigned int two = 0; two < 65536; ++two) {
    const unsigned int pair = cuda::device::e4m3_pair(two);
    for (int i = 0; i < 2; ++i) {
      const float value = formats::float16_to_float(static_cast<unsigned short>(pair >> 16 * i));
      ASSERT_TRUE(same(value, formats::e4m3_decode(two >> 8 * i & 0xff))) << two;
    }
  }
}

}  // namespace
}  // namespace moeblas::test
