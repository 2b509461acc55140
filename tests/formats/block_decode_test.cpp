// mxfp4, mxfp8, nvfp4: every code under every scale code, in the definition and through dequantize.
#include <gtest/gtest.h>

#include "formats/formats.h"
#include "formats/independent.h"
#include "moeblas/ops.h"
#include "support/array.h"

namespace moeblas::test {
namespace {

using namespace independent;

struct BlockFormat {
  const char* name;
  Mode mode;
  int bits;
  int group;
  Layout code;
  double (*scale)(unsigned);
  float (*decode_code)(unsigned);
  float (*decode_scale)(unsigned);
};

double e4m3_scale(unsigned byte) { return value_of(kE4M3, byte); }

const BlockFormat kBlockFormats[] = {
    {"mxfp4", Mode::mxfp4, 4, 32, kE2M1, e8m0_value, formats::Mxfp4::decode_code,
     formats::Mxfp4::decode_scale},
    {"mxfp8", Mode::mxfp8, 8, 32, kE4M3, e8m0_value, formats::Mxfp8::decode_code,
     formats::Mxfp8::decode_scale},
    {"nvfp4", Mode::nvfp4, 4, 16, kE2M1, e4m3_scale, formats::Nvfp4::decode_code,
     formats::Nvfp4::decode_scale},
};

class BlockDecode : public testing::TestWithParam<BlockFormat> {
 protected:
  unsigned codes() const { return 1u << GetParam().bits; }
  float expected(unsigned byte, unsigned code, float tensor_scale) const {
    return block_value(value_of(GetParam().code, code), GetParam().scale(byte), tensor_scale);
  }
  // Row `byte` of the matrix: every code, under this scale byte; `matrices` of them, equal.
  struct Matrix {
    Array codes, scales;
    int64_t columns;
  };
  Matrix every_code_by_every_scale(int64_t matrices) const {
    const BlockFormat& f = GetParam();
    const int64_t columns = std::max<int64_t>(f.group, codes());
    std::vector<unsigned> row(static_cast<size_t>(columns));
    for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<unsigned>(i) % codes();
    const std::vector<uint8_t> bytes = pack(row, f.bits);
    Matrix m{Array(DType::u32, {matrices, 256, columns * f.bits / 32}),
             Array(DType::u8, {matrices, 256, columns / f.group}), columns};
    for (int64_t r = 0; r < matrices * 256; ++r) {
      std::copy(bytes.begin(), bytes.end(),
                m.codes.bytes().begin() + r * static_cast<int64_t>(bytes.size()));
      for (int64_t g = 0; g < columns / f.group; ++g) {
        m.scales.bytes()[static_cast<size_t>(r * (columns / f.group) + g)] =
            static_cast<uint8_t>(r % 256);
      }
    }
    return m;
  }
};

TEST_P(BlockDecode, Definition) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    for (unsigned code = 0; code < codes(); ++code) {
      const float got = formats::mul(GetParam().decode_code(code), GetParam().decode_scale(byte));
      ASSERT_TRUE(same(got, expected(byte, code, 1.0f)))
          << "code " << code << ", scale " << byte << ": " << got;
    }
  }
}

TEST_P(BlockDecode, Dequantize) {
  const Matrix m = every_code_by_every_scale(1);
  const Quantized q{{GetParam().mode}, m.codes, m.scales, {}, {}, {}};
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Array out(dtype, {1, 256, m.columns}, 0xcd);
    dequantize(q, out);
    const Nearest nearest(dtype == DType::f16 ? kFloat16 : kBfloat16);
    for (unsigned byte = 0; byte < 256; ++byte) {
      for (int64_t i = 0; i < m.columns; ++i) {
        const unsigned code = static_cast<unsigned>(i) % codes();
        const float exact = expected(byte, code, 1.0f);
        const int64_t at = byte * m.columns + i;
        if (dtype == DType::f32) {
          ASSERT_TRUE(same(out.get(at), exact)) << "code " << code << ", scale " << byte;
        } else if (std::isnan(exact)) {
          ASSERT_TRUE(std::isnan(out.get(at))) << "code " << code << ", scale " << byte;
        } else {
          ASSERT_EQ(out.as<uint16_t>()[at], nearest(exact))
              << "code " << code << ", scale " << byte;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, BlockDecode, testing::ValuesIn(kBlockFormats),
                         [](const auto& i) { return std::string(i.param.name); });

// The multiplier of nvfp4 meets the scale first, and that product is rounded.
using Nvfp4Decode = BlockDecode;

TEST_P(Nvfp4Decode, TensorScale) {
  const float multipliers[] = {1.0f, 0.3f, 1.0f / 2688, 0x1p-126f, 1e30f, 0.0f, 7.7e-5f};
  constexpr int64_t kMatrices = std::size(multipliers);
  const Matrix m = every_code_by_every_scale(kMatrices);
  Array per_matrix(DType::f32, {kMatrices}), out(DType::f32, {kMatrices, 256, m.columns});
  for (int64_t e = 0; e < kMatrices; ++e) per_matrix.set(e, multipliers[e]);
  const auto expect = [&](auto&& multiplier_of) {
    for (int64_t at = 0; at < out.numel(); ++at) {
      const auto byte = static_cast<unsigned>(at / m.columns % 256);
      const auto code = static_cast<unsigned>(at % m.columns) % codes();
      const float exact = expected(byte, code, multiplier_of(at / (m.columns * 256)));
      ASSERT_TRUE(same(out.get(at), exact)) << "code " << code << ", scale " << byte;
    }
  };
  Quantized q{{Mode::nvfp4}, m.codes, m.scales, {}, per_matrix, {}};
  dequantize(q, out);
  expect([&](int64_t e) { return multipliers[e]; });
  // One number on the device, the same on the host, and every second number of a longer array.
  Array one(DType::f32, {});
  one.set(0, 0.3f);
  q.tensor_scale = one;
  dequantize(q, out);
  expect([](int64_t) { return 0.3f; });
  q.tensor_scale = {};
  q.host_tensor_scale = 7.7e-5f;
  dequantize(q, out);
  expect([](int64_t) { return 7.7e-5f; });
  Array spread(DType::f32, {2 * kMatrices});
  for (int64_t e = 0; e < kMatrices; ++e) spread.set(2 * e, multipliers[e]);
  q.host_tensor_scale.reset();
  q.tensor_scale = TensorView(spread.bytes().data(), DType::f32, {kMatrices}, Shape{2});
  dequantize(q, out);
  expect([&](int64_t e) { return multipliers[e]; });
}

INSTANTIATE_TEST_SUITE_P(Formats, Nvfp4Decode, testing::Values(kBlockFormats[2]),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(Fp8, EveryCodeThroughTheOperations) {
  Array codes(DType::u8, {2, 256});
  for (int64_t i = 0; i < 512; ++i) codes.bytes()[static_cast<size_t>(i)] = uint8_t(i % 256);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Array values(dtype, {2, 256}, 0xcd), back(DType::u8, {2, 256}, 0xcd);
    from_fp8(codes, values);
    to_fp8(values, back);
    for (int64_t i = 0; i < 512; ++i) {
      const auto code = static_cast<unsigned>(i % 256);
      // Every number of E4M3 is one of float16 and of bfloat16.
      ASSERT_TRUE(same(values.get(i), static_cast<float>(value_of(kE4M3, code)))) << code;
      const unsigned expected = code == 0xff ? 0x7f : code;
      ASSERT_EQ(back.bytes()[static_cast<size_t>(i)], expected);
    }
  }
}

TEST(Fp8, EverySixteenBitPatternIsRoundedToTheNearestCode) {
  const Nearest nearest(kE4M3);
  for (DType dtype : {DType::f16, DType::bf16}) {
    const Layout& layout = dtype == DType::f16 ? kFloat16 : kBfloat16;
    Array x(dtype, {65536}), codes(DType::u8, {65536});
    for (unsigned i = 0; i < 65536; ++i) x.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    to_fp8(x, codes);
    for (unsigned i = 0; i < 65536; ++i) {
      const double v = value_of(layout, i);
      ASSERT_EQ(codes.bytes()[i], std::isnan(v) ? 0x7fu : nearest(v)) << "pattern " << i;
    }
  }
}

}  // namespace
}  // namespace moeblas::test
