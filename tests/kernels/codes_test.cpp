// Fast decoders against the formats' definitions: every code under every scale byte, and every code
// of the affine widths, through every CPU row that takes the product. x holds one 1 per row, so
// that each result is one weight.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/decode.h"
#include "moeblas/kernels.h"
#include "moeblas/ops.h"
#include "support/cases.h"
#include "support/generator.h"
#include "support/random.h"
#include "support/seeds.h"

namespace moeblas::test {
namespace {

// f(row name) for every CPU row of products that takes `call`; returns how many there are.
template <class Call, class F>
int for_each_row(Call&& call, F&& f) {
  int rows = 0;
  for (const moeblas_kernel& row : kernels()) {
    if (std::string(row.backend) != "cpu" || std::string(row.problem) != "matmul") continue;
    try {
      plan(call, forcing(row.name));
    } catch (const Error&) {
      continue;
    }
    ++rows;
    f(row.name);
  }
  return rows;
}

// The unit matrix.
std::vector<float> units(int64_t k) {
  std::vector<float> x(static_cast<size_t>(k * k));
  for (int64_t i = 0; i < k; ++i) x[static_cast<size_t>(i * k + i)] = 1;
  return x;
}
std::vector<uint16_t> halves(const std::vector<float>& x) {
  std::vector<uint16_t> h;
  for (float v : x) h.push_back(formats::float_to_bfloat16(v));
  return h;
}

// Runs x times every packed row on every row of the table; calls check(name, result (k, n)).
template <class Check>
void multiply(const Quantized& w, int64_t k, int64_t n, Check&& check) {
  std::vector<float> x = units(k);
  std::vector<uint16_t> x16 = halves(x);
  int rows = 0;
  for (DType dtype : {DType::f32, DType::bf16}) {
    void* data = dtype == DType::f32 ? static_cast<void*>(x.data()) : x16.data();
    const TensorView xs(data, dtype, {k, k});
    std::vector<float> out(static_cast<size_t>(k * n));
    std::vector<uint16_t> out16(out.size());
    const TensorView y(dtype == DType::f32 ? static_cast<void*>(out.data()) : out16.data(), dtype,
                       {k, n});
    const auto call = [&](const Options& o) { quantized_matmul(xs, w, true, y, o); };
    rows += for_each_row(call, [&](const char* name) {
      call(forcing(name));
      for (size_t i = 0; dtype == DType::bf16 && i < out.size(); ++i)
        out[i] = formats::bfloat16_to_float(out16[i]);
      check(name, dtype, out);
    });
  }
  EXPECT_GE(rows, 2);
}

// Results round to x's dtype, as the definition's value does here; NaN equals NaN, -0 equals 0.
// Products of bfloat16 pairs take what is below 2^-126 for 0.
bool same(const std::string& kernel, float got, float value, DType dtype) {
  if (kernel.starts_with("mm_bf16") && std::fabs(value) < 0x1p-126f) value = 0;
  if (dtype == DType::bf16) value = formats::bfloat16_to_float(formats::float_to_bfloat16(value));
  return got == value || (std::isnan(got) && std::isnan(value));
}

template <class Format>
void every_code_under_every_scale(float tensor_scale) {
  constexpr int64_t kCodes = int64_t{1} << Format::kBits, kGroup = Format::kGroup;
  constexpr int64_t k = kCodes < kGroup ? kGroup : kCodes, n = 256;
  const auto code_at = [](int64_t i) {
    const auto code = static_cast<unsigned>(i % kCodes);
    // NaN would be the result of every product of its row.
    return std::isnan(Format::decode_code(code)) ? 0u : code;
  };
  std::vector<uint8_t> codes(static_cast<size_t>(n * k * Format::kBits / 8));
  std::vector<uint8_t> scales(static_cast<size_t>(n * k / kGroup));
  for (int64_t row = 0; row < n; ++row) {
    std::memset(&scales[static_cast<size_t>(row * k / kGroup)], static_cast<int>(row), k / kGroup);
    for (int64_t i = 0; i < k; i += 8) {
      uint64_t octet = 0;
      for (int j = 0; j < 8; ++j)
        octet = formats::with_code<Format::kBits>(octet, j, code_at(i + j));
      cpu::store_octet<Format::kBits>(&codes[static_cast<size_t>(row * k * Format::kBits / 8)],
                                      i / 8, octet);
    }
  }
  Quantized w{.spec = {static_cast<Mode>(int(Format::kMode)), Format::kBits, kGroup},
              .codes = TensorView(codes.data(), DType::u8, {n, k * Format::kBits / 8}),
              .scales = TensorView(scales.data(), DType::u8, {n, k / kGroup})};
  if (tensor_scale != 1.0f) w.host_tensor_scale = tensor_scale;
  multiply(w, k, n, [&](const char* kernel, DType dtype, const std::vector<float>& out) {
    for (int64_t row = 0; row < n; ++row) {
      const float scale =
          formats::mul(Format::decode_scale(static_cast<unsigned>(row)), tensor_scale);
      // A scale that is NaN makes the whole row NaN. Where a weight is beyond float32, kernels that
      // scale sums and kernels that scale weights differ by right.
      bool beyond = false;
      for (int64_t i = 0; i < k; ++i)
        beyond |= std::isinf(formats::mul(Format::decode_code(code_at(i)), scale));
      if (beyond) continue;
      for (int64_t i = 0; i < k; ++i) {
        const float value = formats::mul(Format::decode_code(code_at(i)), scale);
        const float got = out[static_cast<size_t>(i * n + row)];
        ASSERT_TRUE(same(kernel, got, value, dtype))
            << kernel << ": code " << code_at(i) << " under scale byte " << row << " gives " << got
            << ", expected " << value;
      }
    }
  });
}

TEST(Codes, EveryCodeUnderEveryScaleByte) {
  every_code_under_every_scale<formats::Mxfp4>(1.0f);
  every_code_under_every_scale<formats::Mxfp8>(1.0f);
  every_code_under_every_scale<formats::Nvfp4>(1.0f);
  every_code_under_every_scale<formats::Nvfp4>(0.037f);
}

// A NaN among the codes of a row.
TEST(Codes, NaNIsNeverANumber) {
  constexpr int64_t k = 96, n = 9;
  for (int64_t at : {0, 31, 64, 95}) {
    std::vector<uint8_t> codes(static_cast<size_t>(n * k), 0x38), scales(n * k / 32, 127);
    codes[static_cast<size_t>(4 * k + at)] = at == 31 ? 0xff : 0x7f;
    const Quantized w{.spec = {Mode::mxfp8, 8, 32},
                      .codes = TensorView(codes.data(), DType::u8, {n, k}),
                      .scales = TensorView(scales.data(), DType::u8, {n, k / 32})};
    multiply(w, k, n, [&](const char* kernel, DType, const std::vector<float>& out) {
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t row = 0; row < n; ++row) {
          ASSERT_EQ(std::isnan(out[static_cast<size_t>(i * n + row)]), row == 4) << kernel;
        }
      }
    });
  }
}

template <int Bits>
void every_affine_code() {
  constexpr int64_t k = 384 + 32, n = 5;  // neither a whole number of any kernel's blocks
  constexpr int group = 16;
  std::vector<uint8_t> codes(static_cast<size_t>(n * k * Bits / 8));
  std::vector<float> scales(static_cast<size_t>(n * k / group)), biases(scales.size());
  const auto code_at = [](int64_t row, int64_t i) {
    return static_cast<unsigned>((i * 7 + row * 3) & ((1 << Bits) - 1));
  };
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = std::ldexp(1.0f, static_cast<int>(i % 5) - 2);
    biases[i] = static_cast<float>(i % 7) - 3;
  }
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; i += 8) {
      uint64_t octet = 0;
      for (int j = 0; j < 8; ++j) octet = formats::with_code<Bits>(octet, j, code_at(row, i + j));
      cpu::store_octet<Bits>(&codes[static_cast<size_t>(row * k * Bits / 8)], i / 8, octet);
    }
  }
  const Quantized w{.spec = {Mode::affine, Bits, group},
                    .codes = TensorView(codes.data(), DType::u8, {n, k * Bits / 8}),
                    .scales = TensorView(scales.data(), DType::f32, {n, k / group}),
                    .biases = TensorView(biases.data(), DType::f32, {n, k / group})};
  multiply(w, k, n, [&](const char* kernel, DType dtype, const std::vector<float>& out) {
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        const auto g = static_cast<size_t>((row * k + i) / group);
        const float value = formats::Affine<Bits>::decode(code_at(row, i), {scales[g], biases[g]});
        const float got = out[static_cast<size_t>(i * n + row)];
        ASSERT_TRUE(same(kernel, got, value, dtype))
            << kernel << ": " << Bits << " bits, k " << i << ", row " << row << " gives " << got
            << ", expected " << value;
      }
    }
  });
}

TEST(Codes, EveryAffineCode) {
  every_affine_code<2>();
  every_affine_code<3>();
  every_affine_code<4>();
  every_affine_code<5>();
  every_affine_code<6>();
  every_affine_code<8>();
}

// Rows that the first cache does not hold are multiplied in pieces, whose sums go on: eight rows of
// x and three, whose pieces begin between a vector of scales' first block and its last.
TEST(Codes, RowsLongerThanTheFirstCacheHolds) {
  constexpr int64_t k = 8192 + 64, n = 5, m = 8 + 3;
  std::vector<uint8_t> codes(static_cast<size_t>(n * k / 2), 0x11);
  std::vector<float> scales(static_cast<size_t>(n * k / 64), 2), biases(scales.size());
  float expected = 0;  // of whole numbers, so of any order
  for (size_t i = 0; i < biases.size(); ++i)
    biases[i] = static_cast<float>(i % (k / 64) % 4) - 1.0f;
  for (int64_t i = 0; i < k / 64; ++i) expected += 64 * (2 + biases[static_cast<size_t>(i)]);
  const Quantized w{.spec = {Mode::affine, 4, 64},
                    .codes = TensorView(codes.data(), DType::u8, {n, k / 2}),
                    .scales = TensorView(scales.data(), DType::f32, {n, k / 64}),
                    .biases = TensorView(biases.data(), DType::f32, {n, k / 64})};
  std::vector<float> x(static_cast<size_t>(m * k), 1), out(m * n);
  const TensorView xs(x.data(), DType::f32, {m, k}), y(out.data(), DType::f32, {m, n});
  const auto call = [&](const Options& o) { quantized_matmul(xs, w, true, y, o); };
  EXPECT_GE(for_each_row(call,
                         [&](const char* kernel) {
                           call(forcing(kernel));
                           EXPECT_EQ(out[0], expected) << kernel;
                           EXPECT_EQ(out.back(), expected) << kernel;
                         }),
            1);
}

// The result of a row of x, to the bit, whether it meets the weights alone or with others: kernels
// take rows of x, and rows of weights, by ones, twos and more.
void expect_alike_beside_others(const QuantSpec& format, int64_t k) {
  constexpr int64_t n = 37, most = 16;
  const QuantSpec spec = format.resolved();
  Random random(static_cast<uint64_t>(k * spec.bits + spec.group_size));
  std::vector<uint8_t> codes(static_cast<size_t>(n * k * spec.bits / 8));
  for (uint8_t& byte : codes) {
    byte = static_cast<uint8_t>(random.between(0, 255));
    if (spec.mode == Mode::mxfp8 && (byte & 0x7f) == 0x7f) byte &= 0xf0;  // no NaN
  }
  const auto groups = static_cast<size_t>(n * k / spec.group_size);
  std::vector<uint8_t> bytes(groups);
  for (uint8_t& byte : bytes)
    byte = static_cast<uint8_t>((spec.mode == Mode::nvfp4 ? 40 : 120) + random.between(0, 15));
  std::vector<float> scales(groups), biases(groups);
  for (size_t i = 0; i < groups; ++i) {
    scales[i] = static_cast<float>(random.between(1, 1000)) / 999;
    biases[i] = static_cast<float>(random.between(-1000, 1000)) / 99;
  }
  const Shape of_scales{n, k / spec.group_size};
  Quantized w{.spec = spec,
              .codes = TensorView(codes.data(), DType::u8, {n, k * spec.bits / 8}),
              .scales = TensorView(bytes.data(), DType::u8, of_scales)};
  if (spec.mode == Mode::affine) {
    w.scales = TensorView(scales.data(), DType::f32, of_scales);
    w.biases = TensorView(biases.data(), DType::f32, of_scales);
  }
  std::vector<float> x(static_cast<size_t>(most * k)), all(most * n), some(all.size());
  for (float& value : x) value = static_cast<float>(random.between(-128, 128)) / 64;
  const std::vector<uint16_t> x16 = halves(x);
  for (DType dtype : {DType::f32, DType::bf16}) {
    const void* data = dtype == DType::f32 ? static_cast<const void*>(x.data()) : x16.data();
    const auto product = [&](int64_t m, std::vector<float>& out) {
      return [&, m](const Options& o) {
        quantized_matmul(TensorView(data, dtype, {m, k}), w, true,
                         TensorView(out.data(), dtype, {m, n}), o);
      };
    };
    EXPECT_GE(for_each_row(product(most, all),
                           [&](const char* kernel) {
                             product(most, all)(forcing(kernel));
                             for (int64_t m = 1; m <= 9; ++m) {
                               product(m, some)(forcing(kernel));
                               ASSERT_EQ(std::memcmp(some.data(), all.data(),
                                                     static_cast<size_t>(m * n) * size_of(dtype)),
                                         0)
                                   << kernel << ": " << spec.bits << " bits, k " << k << ", " << m
                                   << " rows of " << most;
                             }
                           }),
              1);
  }
}

TEST(Codes, RowsOfXAreMultipliedAlikeBesideOthers) {
  for (const QuantSpec& format : all_formats()) expect_alike_beside_others(format, 1024 + 128);
  expect_alike_beside_others(kAffine4, 16384 + 64);
  // Where a single row of x meets rows of weights one by one.
  expect_alike_beside_others(kAffine4, 8192 + 64);
  expect_alike_beside_others(kMxfp8, 4096 + 64);
}

// Subnormal numbers of x count, whatever instruction multiplies; but for the row that is stated to
// take them for 0.
TEST(Codes, TheSmallestXCounts) {
  constexpr int64_t k = 128, n = 4;
  std::vector<uint8_t> codes(static_cast<size_t>(n * k / 2), 0x22), scales(n * k / 32, 127);
  const Quantized w{.spec = {Mode::mxfp4, 4, 32},
                    .codes = TensorView(codes.data(), DType::u8, {n, k / 2}),
                    .scales = TensorView(scales.data(), DType::u8, {n, k / 32})};
  // Code 2 is 1: the result is the sum of x, exact in bfloat16.
  std::vector<uint16_t> x(static_cast<size_t>(2 * k)), out(2 * n);
  x[5] = 0x0001;      // 2^-133
  x[k + 7] = 0x0080;  // 2^-126
  const TensorView xs(x.data(), DType::bf16, {2, k}), y(out.data(), DType::bf16, {2, n});
  const auto call = [&](const Options& o) { quantized_matmul(xs, w, true, y, o); };
  EXPECT_GE(for_each_row(call,
                         [&](const char* kernel) {
                           call(forcing(kernel));
                           const bool flushes = std::string(kernel).starts_with("mm_bf16");
                           for (int64_t i = 0; i < n; ++i) {
                             EXPECT_EQ(out[static_cast<size_t>(i)], flushes ? 0 : 1) << kernel;
                             EXPECT_EQ(out[static_cast<size_t>(n + i)], 0x0080) << kernel;
                           }
                         }),
            1);
}

}  // namespace
}  // namespace moeblas::test
