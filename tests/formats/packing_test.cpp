// Packing against a writer that sets one bit at a time, for every width, both in the definition and
// through the public operations.
#include <gtest/gtest.h>

#include <random>

#include "cpu/decode.h"
#include "formats/independent.h"
#include "formats/pack.h"
#include "moeblas/ops.h"
#include "support/array.h"

namespace moeblas::test {
namespace {

using namespace independent;

std::vector<unsigned> random_codes(size_t count, int bits, uint32_t seed) {
  Random rng(seed);
  std::vector<unsigned> codes(count);
  for (unsigned& c : codes) c = rng.bits() % (1u << bits);
  return codes;
}

template <int Bits>
void expect_octets() {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    const std::vector<unsigned> codes = random_codes(8, Bits, seed);
    const std::vector<uint8_t> expected = pack(codes, Bits);
    ASSERT_EQ(expected.size(), size_t{Bits});
    uint64_t octet = 0;
    // Any order of writing gives the same octet.
    for (int i = 7; i >= 0; --i) {
      octet = formats::with_code<Bits>(octet, i, codes[static_cast<size_t>(i)]);
    }
    for (size_t b = 0; b < Bits; ++b) ASSERT_EQ(octet >> (8 * b) & 255, expected[b]) << Bits;
    for (int i = 0; i < 8; ++i) {
      ASSERT_EQ(formats::code_of<Bits>(octet, i), codes[static_cast<size_t>(i)]) << Bits;
    }
    // Rows of octets: stores leave their neighbours alone.
    uint8_t row[3 * 8];
    std::fill(std::begin(row), std::end(row), uint8_t{0xee});
    cpu::store_octet<Bits>(row, 1, octet);
    ASSERT_EQ(cpu::load_octet<Bits>(row, 1), octet);
    for (size_t i = 0; i < sizeof row; ++i) {
      const bool inside = i >= Bits && i < 2 * Bits;
      ASSERT_EQ(row[i], inside ? expected[i - Bits] : 0xee) << "byte " << i << ", width " << Bits;
    }
  }
}

TEST(Packing, OctetsOfEveryWidth) {
  expect_octets<2>();
  expect_octets<3>();
  expect_octets<4>();
  expect_octets<5>();
  expect_octets<6>();
  expect_octets<8>();
}

// scale 1 and bias 0 make values of codes: what dequantize reads is what the bit writer wrote, and
// quantize of those values (whose extremes are forced to be the ends of the range) writes it again.
TEST(Packing, EveryWidthAndGroupThroughTheOperations) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group : {16, 32, 64, 128}) {
      const int64_t rows = 3, columns = 3 * 128, groups = columns / group;
      std::vector<unsigned> codes =
          random_codes(static_cast<size_t>(rows * columns), bits, static_cast<uint32_t>(bits));
      const unsigned top = (1u << bits) - 1;
      for (size_t g = 0; g < static_cast<size_t>(rows * groups); ++g) {
        codes[g * static_cast<size_t>(group)] = 0;
        codes[g * static_cast<size_t>(group) + 1] = top;
      }
      const std::vector<uint8_t> bytes = pack(codes, bits);
      Array packed(DType::u32, {rows, columns * bits / 32}), scales(DType::f32, {rows, groups}),
          biases(DType::f32, {rows, groups}), values(DType::f32, {rows, columns});
      ASSERT_EQ(packed.bytes().size(), bytes.size());
      packed.bytes() = bytes;
      for (int64_t i = 0; i < rows * groups; ++i) scales.set(i, 1.0f);
      const Quantized q{{Mode::affine, bits, group}, packed, scales, biases, {}, {}};
      dequantize(q, values);
      for (int64_t i = 0; i < rows * columns; ++i) {
        ASSERT_EQ(values.get(i), static_cast<float>(codes[static_cast<size_t>(i)])) << bits;
      }
      // max is the edge, so that code 0 stands for it and the order of the codes is reversed.
      Array again(DType::u32, packed.shape());
      quantize(values, {{Mode::affine, bits, group}, again, scales, biases, {}, {}});
      for (int64_t i = 0; i < rows * columns; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(unpack(again.bytes().data(), at, bits), top - codes[at]) << bits << " " << group;
      }
    }
  }
}

TEST(Packing, UnsignedBytesAreTheSameBytes) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    const int64_t columns = 64;
    const std::vector<uint8_t> bytes = pack(random_codes(64, bits, 9), bits);
    Array words(DType::u32, {1, columns * bits / 32}), octets(DType::u8, {1, columns * bits / 8});
    words.bytes() = octets.bytes() = bytes;
    Array scales(DType::f32, {1, 1}), biases(DType::f32, {1, 1});
    scales.set(0, 0.37f);
    biases.set(0, -1.1f);
    Array a(DType::f32, {1, columns}), b(DType::f32, {1, columns});
    dequantize({{Mode::affine, bits, 64}, words, scales, biases, {}, {}}, a);
    dequantize({{Mode::affine, bits, 64}, octets, scales, biases, {}, {}}, b);
    EXPECT_EQ(a.bytes(), b.bytes());
    // And quantize writes the same bytes into either.
    Array w2(DType::u32, words.shape()), o2(DType::u8, octets.shape());
    quantize(a, {{Mode::affine, bits, 64}, w2, scales, biases, {}, {}});
    quantize(a, {{Mode::affine, bits, 64}, o2, scales, biases, {}, {}});
    EXPECT_EQ(w2.bytes(), o2.bytes());
  }
}

}  // namespace
}  // namespace moeblas::test
