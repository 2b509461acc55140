// Affine: every 16-bit scale pattern with every code of every width and several biases, in the
// definition and through dequantize.
#include <gtest/gtest.h>

#include <random>

#include "formats/affine.h"
#include "formats/float16.h"
#include "formats/independent.h"
#include "moeblas/ops.h"
#include "support/array.h"

namespace moeblas::test {
namespace {

using namespace independent;

constexpr int kWidths[] = {2, 3, 4, 5, 6, 8};

struct ScaleType {
  const char* name;
  DType dtype;
  Layout layout;
};
const ScaleType kScaleTypes[] = {{"float16", DType::f16, kFloat16},
                                 {"bfloat16", DType::bf16, kBfloat16}};

class AffineDecode : public testing::TestWithParam<std::tuple<ScaleType, int>> {
 protected:
  const ScaleType& scale_type() const { return std::get<0>(GetParam()); }
  int bits() const { return std::get<1>(GetParam()); }
};

template <int Bits>
void expect_definition(const Layout& layout, float bias) {
  for (unsigned pattern = 0; pattern < 65536; ++pattern) {
    const auto scale = static_cast<float>(value_of(layout, pattern));
    for (unsigned code = 0; code < 1u << Bits; ++code) {
      const float got = formats::Affine<Bits>::decode(code, {scale, bias});
      ASSERT_TRUE(same(got, affine_value(code, scale, bias)))
          << "scale " << scale << ", code " << code << ", bias " << bias << ": " << got;
    }
  }
}

TEST_P(AffineDecode, Definition) {
  for (float bias : {0.0f, -0.75f, 1.0e-7f, 65504.0f}) {
    switch (bits()) {
      case 2:
        expect_definition<2>(scale_type().layout, bias);
        break;
      case 3:
        expect_definition<3>(scale_type().layout, bias);
        break;
      case 4:
        expect_definition<4>(scale_type().layout, bias);
        break;
      case 5:
        expect_definition<5>(scale_type().layout, bias);
        break;
      case 6:
        expect_definition<6>(scale_type().layout, bias);
        break;
      default:
        ASSERT_EQ(bits(), 8);
        expect_definition<8>(scale_type().layout, bias);
    }
    if (HasFatalFailure()) return;
  }
}

// A row per scale pattern, every code in it; the biases are patterns of their own that differ from
// group to group and include NaN, infinities, subnormals and zeros.
TEST_P(AffineDecode, Dequantize) {
  const int64_t rows = 4096;
  const unsigned codes = 1u << bits();
  const int64_t columns = std::max<int64_t>(32, codes), groups = columns / 16;
  std::vector<unsigned> row(static_cast<size_t>(columns));
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<unsigned>(i) % codes;
  const std::vector<uint8_t> bytes = pack(row, bits());
  Array packed(DType::u32, {rows, columns * bits() / 32}),
      scales(scale_type().dtype, {rows, groups}), biases(scale_type().dtype, {rows, groups}),
      out(DType::f32, {rows, columns});
  for (int64_t r = 0; r < rows; ++r) {
    std::copy(bytes.begin(), bytes.end(),
              packed.bytes().begin() + r * static_cast<int64_t>(bytes.size()));
  }
  const Quantized q{{Mode::affine, bits(), 16}, packed, scales, biases, {}, {}};
  Random rng(3);
  for (unsigned first = 0; first < 65536; first += rows) {
    for (int64_t i = 0; i < rows * groups; ++i) {
      scales.as<uint16_t>()[i] = static_cast<uint16_t>(first + i / groups);
      biases.as<uint16_t>()[i] = static_cast<uint16_t>(i % 5 == 0 ? 0 : rng.bits());
    }
    dequantize(q, out);
    const float* got = out.as<float>();
    for (int64_t g = 0; g < rows * groups; ++g) {
      const auto scale =
          static_cast<float>(value_of(scale_type().layout, scales.as<uint16_t>()[g]));
      const auto bias = static_cast<float>(value_of(scale_type().layout, biases.as<uint16_t>()[g]));
      for (int64_t i = g * 16; i < (g + 1) * 16; ++i) {
        const unsigned code = row[static_cast<size_t>(i % columns)];
        ASSERT_TRUE(same(got[i], affine_value(code, scale, bias)))
            << "scale " << scale << ", code " << code << ", bias " << bias << ": " << got[i];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, AffineDecode,
                         testing::Combine(testing::ValuesIn(kScaleTypes),
                                          testing::ValuesIn(kWidths)),
                         [](const auto& i) {
                           return std::string(std::get<0>(i.param).name) + "_" +
                                  std::to_string(std::get<1>(i.param));
                         });

// float32 scales: the product is rounded before the bias is added (a fused multiply-add differs).
TEST(AffineDecodeFloat32, OneMultiplicationThenOneAddition) {
  Random rng(11);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  int64_t differs_from_fused = 0;
  for (int bits : kWidths) {
    const int64_t groups = 2000, columns = groups * 16;
    std::vector<unsigned> codes(static_cast<size_t>(columns));
    for (unsigned& c : codes) c = rng.bits() % (1u << bits);
    Array packed(DType::u32, {columns * bits / 32}), scales(DType::f32, {groups}),
        biases(DType::f32, {groups});
    packed.bytes() = pack(codes, bits);
    for (int64_t g = 0; g < groups; ++g) {
      // Some patterns of any kind; the others of one magnitude, so that the sum rounds.
      scales.set(g, g % 4 == 0 ? float_of_bits(rng.bits()) : uniform(rng));
      biases.set(g, g % 7 == 0 ? float_of_bits(rng.bits()) : uniform(rng));
    }
    const Quantized q{{Mode::affine, bits, 16}, packed, scales, biases, {}, {}};
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      Array out(dtype, {columns});
      dequantize(q, out);
      const Nearest nearest(dtype == DType::f16 ? kFloat16 : kBfloat16);
      for (int64_t i = 0; i < columns; ++i) {
        const float s = scales.get(i / 16), b = biases.get(i / 16);
        const unsigned code = codes[static_cast<size_t>(i)];
        const float expected = affine_value(code, s, b);
        if (dtype == DType::f32) {
          ASSERT_TRUE(same(out.get(i), expected)) << i;
          differs_from_fused += !same(expected, std::fma(static_cast<float>(code), s, b));
        } else if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(out.get(i))) << i;
        } else {
          ASSERT_EQ(out.as<uint16_t>()[i], nearest(expected)) << i;
        }
      }
    }
  }
  EXPECT_GT(differs_from_fused, 1000) << "the cases do not tell the two apart";
}

}  // namespace
}  // namespace moeblas::test
