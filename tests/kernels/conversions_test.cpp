// Quantize, and dequantize of as many values as are stored past the cache: what every row writes
// must be, to the bit, what the portable one does, in every format and dtype, and nothing beside
// it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "formats/float16.h"
#include "moeblas/kernels.h"
#include "moeblas/ops.h"
#include "support/cases.h"
#include "support/random.h"
#include "support/seeds.h"

namespace moeblas::test {
namespace {

constexpr uint8_t kUnwritten = 0xa5;
constexpr int64_t kPastCache = 16 << 20;  // bytes, from which on values are stored so

// Rows of `cols` values, `pitch` apart, from `offset` bytes behind a multiple of 64 on.
struct Wanted {
  DType dtype;
  int64_t rows, cols, pitch, offset;

  TensorView view(uint8_t* memory) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
    return {memory + (64 - at % 64) % 64 + offset, dtype, Shape{rows, cols}, Shape{pitch, 1}};
  }
  size_t bytes() const {
    return static_cast<size_t>(rows * pitch) * size_of(dtype) + 64 + static_cast<size_t>(offset);
  }
};

// Calls f(row) for every row of the CPU that converts, by whose name an error begins with.
template <class F>
void for_each_conversion(F&& f) {
  for (const moeblas_kernel& row : kernels()) {
    const std::string name = row.name;
    if (std::string(row.backend) != "cpu" || name.find("quantize_") != 0) continue;
    try {
      f(name);
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), MOEBLAS_UNSUPPORTED);  // the machine has no such tier
    }
  }
}

void expect_like_portable(const QuantSpec& given, const Wanted& wanted) {
  const QuantSpec spec = given.resolved();
  Random random(static_cast<uint64_t>(wanted.pitch + spec.bits));
  const int64_t groups = wanted.cols / spec.group_size, code_bytes = wanted.cols * spec.bits / 8;
  std::vector<uint8_t> codes(static_cast<size_t>(wanted.rows * code_bytes));
  for (size_t i = 0; i < codes.size(); i += 8) {
    const uint64_t word = random.next();
    std::memcpy(&codes[i], &word, std::min<size_t>(8, codes.size() - i));
  }
  // NaN is NaN, whatever its bits.
  if (spec.mode == Mode::mxfp8) {
    for (uint8_t& code : codes) code = (code & 0x7f) == 0x7f ? 0 : code;
  }
  std::vector<float> scales(static_cast<size_t>(wanted.rows * groups)), biases(scales.size());
  std::vector<uint8_t> bytes(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<float>(random.normal());
    biases[i] = static_cast<float>(random.normal());
    bytes[i] = static_cast<uint8_t>(random.between(100, 126));
  }
  Quantized w{.spec = spec,
              .codes = TensorView(codes.data(), DType::u8, {wanted.rows, code_bytes}),
              .scales = TensorView(bytes.data(), DType::u8, {wanted.rows, groups})};
  if (spec.mode == Mode::affine) {
    w.scales = TensorView(scales.data(), DType::f32, {wanted.rows, groups});
    w.biases = TensorView(biases.data(), DType::f32, {wanted.rows, groups});
  }
  std::vector<uint8_t> expected;
  for_each_conversion([&](const std::string& name) {
    const auto run = [&](const char* kernel) {
      std::vector<uint8_t> memory(wanted.bytes(), kUnwritten);
      dequantize(w, wanted.view(memory.data()), forcing(kernel));
      // From the first value on: memory begins anywhere.
      const auto first =
          static_cast<const uint8_t*>(wanted.view(memory.data()).data) - memory.data();
      memory.erase(memory.begin(), memory.begin() + first);
      memory.resize(wanted.bytes() - 128);
      return memory;
    };
    if (expected.empty()) expected = run("quantize_portable");
    EXPECT_TRUE(run(name.c_str()) == expected)
        << name << ": " << spec.bits << " bits, groups of " << spec.group_size << " to "
        << moeblas::name(wanted.dtype);
  });
}

TEST(Conversions, DequantizePastTheCache) {
  const QuantSpec formats[] = {kAffine4,
                               {Mode::affine, 4, 16},
                               {Mode::affine, 3, 32},
                               {Mode::affine, 2, 64},
                               {Mode::affine, 5, 64},
                               {Mode::affine, 6, 32},
                               {Mode::affine, 8, 128},
                               kMxfp4,
                               kMxfp8,
                               kNvfp4};
  for (const QuantSpec& spec : formats) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      constexpr int64_t kCols = 4096 + 128;
      const auto row = kCols * static_cast<int64_t>(size_of(dtype));
      expect_like_portable(spec, {dtype, (kPastCache + row - 1) / row, kCols, kCols, 0});
    }
  }
  expect_like_portable(kAffine4, {DType::bf16, 2100, 4096, 4096 + 32, 0});  // whole lines
  expect_like_portable(kAffine4, {DType::bf16, 2100, 4096, 4096 + 8, 0});   // no whole lines
  expect_like_portable(kAffine4, {DType::bf16, 2100, 4096, 4096, 32});
}

// A row of groups of every kind: usual ones, constant ones, zeros; with NaN, with nothing else,
// with infinities; so large and so small that reciprocals of scales are no numbers.
std::vector<float> awkward_row(int64_t cols, int64_t size, Random& random) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t begin = 0; begin < cols; begin += size) {
    const int64_t kind = random.one_in(8) ? random.between(1, 8) : 0;
    const auto factor = static_cast<float>(kind == 1   ? 1e37
                                           : kind == 2 ? 1e-37
                                           : kind == 3 ? 0.0
                                                       : 1.0);
    const auto constant = static_cast<float>(random.normal());
    for (int64_t i = begin; i < begin + size; ++i) {
      float& value = row[static_cast<size_t>(i)];
      value = factor * static_cast<float>(random.normal());
      if (kind == 4) value = constant;
      if (kind == 5 || (kind == 6 && random.one_in(4))) value = kNan;
      if (kind == 7 && random.one_in(8)) value = std::copysign(kInfinity, value);
      if (kind == 8) value = std::fabs(value);
    }
  }
  return row;
}

// A row of groups that are nothing special, of one sign or both, or of few bits, whose quotients
// lie halfway between codes.
std::vector<float> usual_row(int64_t cols, int64_t size, Random& random) {
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t begin = 0; begin < cols; begin += size) {
    const int64_t kind = random.between(0, 3);
    const auto step = static_cast<float>(random.between(1, 9));
    for (int64_t i = begin; i < begin + size; ++i) {
      float& value = row[static_cast<size_t>(i)];
      value = static_cast<float>(random.normal());
      if (kind == 1) value = std::fabs(value);
      if (kind == 2) value = -std::fabs(value);
      if (kind == 3) value = step * static_cast<float>(random.between(-16, 16));
    }
  }
  return row;
}

std::vector<uint8_t> stored(const std::vector<float>& row, DType dtype) {
  std::vector<uint8_t> bytes(row.size() * size_of(dtype));
  for (size_t i = 0; i < row.size(); ++i) {
    const uint16_t half = dtype == DType::f16 ? formats::float_to_float16(row[i])
                                              : formats::float_to_bfloat16(row[i]);
    const void* const from =
        dtype == DType::f32 ? static_cast<const void*>(&row[i]) : static_cast<const void*>(&half);
    std::memcpy(&bytes[i * size_of(dtype)], from, size_of(dtype));
  }
  return bytes;
}

// As many groups as kernels take at a time, more, and fewer, with ends within a vector.
TEST(Conversions, QuantizeGroupsOfEveryKind) {
  Random random(8);
  for (const QuantSpec& given :
       {kAffine4, QuantSpec{Mode::affine, 2, 16}, QuantSpec{Mode::affine, 3, 32},
        QuantSpec{Mode::affine, 5, 128}, QuantSpec{Mode::affine, 6, 16},
        QuantSpec{Mode::affine, 8, 32}, kMxfp4, kMxfp8, kNvfp4}) {
    const QuantSpec spec = given.resolved();
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (int i = 0; i < 16; ++i) {
        const int64_t groups =
            std::array{1, 3, 16, 63, 64, 65, 79, 257}[static_cast<size_t>(i / 2)];
        const bool usual = i % 2 == 1;
        const int64_t cols = groups * spec.group_size, code_bytes = cols * spec.bits / 8;
        if (spec.mode != Mode::affine && cols % 32 != 0) continue;
        const auto row = usual ? usual_row : awkward_row;
        const std::vector<uint8_t> x = stored(row(cols, spec.group_size, random), dtype);
        struct Packed {
          std::vector<uint8_t> codes, bytes;
          std::vector<float> scales, biases;
        } expected;
        for_each_conversion([&](const std::string& name) {
          const auto run = [&](const char* kernel) {
            const auto n = static_cast<size_t>(groups);
            Packed p{std::vector<uint8_t>(static_cast<size_t>(code_bytes) + 64, kUnwritten),
                     std::vector<uint8_t>(n + 64, kUnwritten), std::vector<float>(n, -7.0f),
                     std::vector<float>(n, -7.0f)};
            Quantized out{.spec = spec,
                          .codes = TensorView(p.codes.data(), DType::u8, {1, code_bytes}),
                          .scales = TensorView(p.bytes.data(), DType::u8, {1, groups})};
            if (spec.mode == Mode::affine) {
              out.scales = TensorView(p.scales.data(), DType::f32, {1, groups});
              out.biases = TensorView(p.biases.data(), DType::f32, {1, groups});
            }
            quantize(TensorView(const_cast<uint8_t*>(x.data()), dtype, {1, cols}), out,
                     forcing(kernel));
            return p;
          };
          if (expected.codes.empty()) expected = run("quantize_portable");
          const Packed got = run(name.c_str());
          const std::string where =
              name + ": " + std::to_string(spec.bits) + " bits, " + std::to_string(groups) +
              " groups of " + std::to_string(spec.group_size) + " from " + moeblas::name(dtype);
          EXPECT_TRUE(got.codes == expected.codes) << where;
          EXPECT_TRUE(got.bytes == expected.bytes) << where;
          // NaN is NaN, whatever its bits.
          const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
            return std::equal(a.begin(), a.end(), b.begin(), [](float u, float v) {
              return std::isnan(u) ? std::isnan(v) : std::memcmp(&u, &v, sizeof(float)) == 0;
            });
          };
          EXPECT_TRUE(same(got.scales, expected.scales)) << where;
          EXPECT_TRUE(same(got.biases, expected.biases)) << where;
        });
      }
    }
  }
}

// Codes stored past the cache, of rows with gaps between them and without.
TEST(Conversions, QuantizePastTheCache) {
  Random random(9);
  for (const QuantSpec& given : {kAffine4, QuantSpec{Mode::affine, 3, 32}, kMxfp8, kNvfp4}) {
    const QuantSpec spec = given.resolved();
    constexpr int64_t kCols = 4096, kRows = kPastCache / 2 / kCols + 1;
    const std::vector<uint8_t> x =
        stored(usual_row(kRows * kCols, spec.group_size, random), DType::bf16);
    const int64_t code_bytes = kCols * spec.bits / 8, groups = kCols / spec.group_size;
    for (int64_t gap : {0, 64, 32}) {
      struct Packed {
        std::vector<uint8_t> codes, bytes;
        std::vector<uint16_t> scales, biases;
        bool operator==(const Packed&) const = default;
      } expected;
      for_each_conversion([&](const std::string& name) {
        const auto run = [&](const char* kernel) {
          const auto n = static_cast<size_t>(kRows * groups);
          const Wanted rows{DType::u8, kRows, code_bytes, code_bytes + gap, 0};
          Packed p{std::vector<uint8_t>(rows.bytes(), kUnwritten), std::vector<uint8_t>(n),
                   std::vector<uint16_t>(n), std::vector<uint16_t>(n)};
          const TensorView codes = rows.view(p.codes.data());
          Quantized out{.spec = spec,
                        .codes = codes,
                        .scales = TensorView(p.bytes.data(), DType::u8, {kRows, groups})};
          if (spec.mode == Mode::affine) {
            out.scales = TensorView(p.scales.data(), DType::bf16, {kRows, groups});
            out.biases = TensorView(p.biases.data(), DType::bf16, {kRows, groups});
          }
          quantize(TensorView(const_cast<uint8_t*>(x.data()), DType::bf16, {kRows, kCols}), out,
                   forcing(kernel));
          // From the first code on: memory begins anywhere.
          const auto first = static_cast<const uint8_t*>(codes.data) - p.codes.data();
          p.codes.erase(p.codes.begin(), p.codes.begin() + first);
          p.codes.resize(rows.bytes() - 64);
          return p;
        };
        if (expected.codes.empty()) expected = run("quantize_portable");
        EXPECT_TRUE(run(name.c_str()) == expected)
            << name << ": " << spec.bits << " bits, groups of " << spec.group_size << ", " << gap
            << " bytes between rows";
      });
    }
  }
}

// Numbers at and beside what lies in the middle between two codes, under scales whose mantissas
// are all ones, few ones or any; and, since half a code is met most closely there, under scales
// so small that the first code is the only one.
TEST(Conversions, AffineBesideTheMiddlesOfCodes) {
  constexpr int64_t kGroups = 600;
  Random random(11);
  for (const QuantSpec& given : {QuantSpec{Mode::affine, 2, 16}, QuantSpec{Mode::affine, 4, 16},
                                 QuantSpec{Mode::affine, 4, 64}, QuantSpec{Mode::affine, 6, 32},
                                 QuantSpec{Mode::affine, 8, 64}}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const QuantSpec spec = given.resolved();
      const int64_t cols = kGroups * spec.group_size, steps = (1 << spec.bits) - 1;
      std::vector<float> row(static_cast<size_t>(cols));
      for (int64_t begin = 0; begin < cols; begin += spec.group_size) {
        const int64_t mantissas[] = {0x7fffff, 0x7ffffe, 0, 1, random.between(0, 0x7fffff)};
        const bool small = dtype != DType::f16 && random.one_in(3);
        const auto bits = static_cast<uint32_t>(mantissas[random.between(0, 4)]) |
                          static_cast<uint32_t>(small ? 127 - 24 : random.between(118, 130)) << 23;
        const auto scale = __builtin_bit_cast(float, bits);
        const int64_t zero = small ? 1 : random.between(1, steps);
        const float sign = random.one_in(2) ? -1.0f : 1.0f;
        for (int64_t i = begin; i < begin + spec.group_size; ++i) {
          const auto code = static_cast<float>(small ? 0 : random.between(0, steps - 1));
          float value = (code + 0.5f - static_cast<float>(zero)) * scale;
          const auto beside = static_cast<uint32_t>(random.between(-3, 3));
          value = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, value) + beside);
          row[static_cast<size_t>(i)] = sign * value;
        }
        row[static_cast<size_t>(begin)] = -sign * static_cast<float>(zero) * scale;
        if (!small)
          row[static_cast<size_t>(begin) + 1] = sign * static_cast<float>(steps - zero) * scale;
      }
      const std::vector<uint8_t> x = stored(row, dtype);
      std::vector<uint8_t> expected;
      for_each_conversion([&](const std::string& name) {
        const auto run = [&](const char* kernel) {
          std::vector<uint8_t> packed(static_cast<size_t>(cols * spec.bits / 8), kUnwritten);
          std::vector<float> scales(kGroups), biases(kGroups);
          Quantized out{.spec = spec,
                        .codes = TensorView(packed.data(), DType::u8, {1, cols * spec.bits / 8}),
                        .scales = TensorView(scales.data(), DType::f32, {1, kGroups}),
                        .biases = TensorView(biases.data(), DType::f32, {1, kGroups})};
          quantize(TensorView(const_cast<uint8_t*>(x.data()), dtype, {1, cols}), out,
                   forcing(kernel));
          return packed;
        };
        if (expected.empty()) expected = run("quantize_portable");
        EXPECT_TRUE(run(name.c_str()) == expected)
            << name << ": " << spec.bits << " bits, groups of " << spec.group_size << " from "
            << moeblas::name(dtype);
      });
    }
  }
}

// Numbers of bfloat16 at and beside what lies in the middle between two codes, under scales of
// every mantissa and most exponents; groups that are as large as a scale can be, and too small for
// one.
TEST(Conversions, BlocksBesideEveryThreshold) {
  constexpr float kMiddles[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 0.0f, 6.0f};
  const auto e4m3 = [](int64_t code) {
    const auto exponent = static_cast<int>(std::max<int64_t>(code / 8, 1));
    return std::ldexp(static_cast<float>(code < 8 ? code : 8 + code % 8), exponent - 10);
  };
  constexpr int64_t kGroups = 6000;
  Random random(10);
  const auto check = [&](const QuantSpec& given, const float* tensor_scale, float factor) {
    const QuantSpec spec = given.resolved();
    const int64_t cols = kGroups * spec.group_size, code_bytes = cols * spec.bits / 8;
    std::vector<float> row(static_cast<size_t>(cols));
    const auto middle_of_codes = [&] {
      if (spec.bits == 4) return kMiddles[random.between(0, 8)];
      const int64_t code = random.between(0, 125);
      return (e4m3(code) + e4m3(code + 1)) / 2;
    };
    for (int64_t begin = 0; begin < cols; begin += spec.group_size) {
      const bool edge = random.one_in(64);
      const auto size = static_cast<float>(
          factor * std::ldexp(random.between(8, 15), static_cast<int>(random.between(-9, 5))) *
          (edge ? std::ldexp(1.0, static_cast<int>(random.between(-14, 4))) : 1.0));
      for (int64_t i = begin; i < begin + spec.group_size; ++i) {
        const float middle = middle_of_codes() * size;
        const auto bits = static_cast<int64_t>(formats::float_to_bfloat16(middle));
        const int64_t near = std::max<int64_t>(0, bits + random.between(-2, 2));
        const float value = formats::bfloat16_to_float(static_cast<uint16_t>(near));
        row[static_cast<size_t>(i)] = random.one_in(2) ? -value : value;
      }
      row[static_cast<size_t>(begin)] = (spec.bits == 4 ? 6.0f : 448.0f) * size;
    }
    const std::vector<uint8_t> x = stored(row, DType::bf16);
    std::vector<uint8_t> expected;
    for_each_conversion([&](const std::string& name) {
      const auto run = [&](const char* kernel) {
        std::vector<uint8_t> packed(static_cast<size_t>(code_bytes + kGroups), kUnwritten);
        Quantized out{.spec = spec,
                      .codes = TensorView(packed.data(), DType::u8, {1, code_bytes}),
                      .scales = TensorView(packed.data() + code_bytes, DType::u8, {1, kGroups})};
        if (tensor_scale != nullptr)
          out.tensor_scale = TensorView(const_cast<float*>(tensor_scale), DType::f32, Shape{});
        quantize(TensorView(const_cast<uint8_t*>(x.data()), DType::bf16, {1, cols}), out,
                 forcing(kernel));
        return packed;
      };
      if (expected.empty()) expected = run("quantize_portable");
      EXPECT_TRUE(run(name.c_str()) == expected)
          << name << ": groups of " << spec.group_size << ", tensor_scale "
          << (tensor_scale == nullptr ? 1.0f : *tensor_scale);
    });
  };
  for (const float factor : {1.0f, 0x1p-126f, 0x1p-118f, 0x1p60f, 0x1p117f})
    check(kMxfp4, nullptr, factor);
  for (const float factor : {1.0f, 0x1p-126f, 0x1p-120f, 0x1p-112f, 0x1p60f, 0x1p111f, 0x1p117f})
    check(kMxfp8, nullptr, factor);
  check(kNvfp4, nullptr, 1.0f);
  for (const float scale : {1.0f, 0.37f, 1.7e-4f, 0x1p-63f, 0x1.8p63f, 0x1p-64f, 0x1p-66f, 0x1p66f})
    check(kNvfp4, &scale, scale);
  for (int i = 0; i < 8; ++i) {
    const auto scale = static_cast<float>(std::fabs(random.normal()) + 1e-3);
    check(kNvfp4, &scale, scale);
  }
}

// Parts of rows and parts across rows, with the zeros that no scale has the place of.
TEST(Conversions, SwizzledScales) {
  Random random(11);
  for (const QuantSpec& given : {kMxfp4, kMxfp8, kNvfp4}) {
    const QuantSpec spec = given.resolved();
    for (const auto& [rows, cols, gap] : {std::array<int64_t, 3>{1, 96, 0},
                                          {130, 2080, 0},
                                          {33, 96, 32},
                                          {257, 4128, 0},
                                          {3, 2 * 65536 + 32, 0},
                                          {5, 8192 + 64, 64}}) {
      const int64_t groups = cols / spec.group_size, code_bytes = cols * spec.bits / 8;
      const Shape padded = {2, (rows + 127) / 128 * 128, (groups + 3) / 4 * 4};
      const Shape pitches = {rows * (cols + gap), cols + gap, 1};
      const auto count = static_cast<size_t>(2 * rows * (cols + gap));
      const std::vector<uint8_t> x =
          stored(usual_row(static_cast<int64_t>(count), spec.group_size, random), DType::bf16);
      using Bytes = std::vector<uint8_t>;
      Bytes expected_packed, expected_values;
      for_each_conversion([&](const std::string& name) {
        const auto run = [&](const char* kernel) {
          Bytes codes(static_cast<size_t>(2 * rows * code_bytes), kUnwritten);
          Bytes scales(static_cast<size_t>(padded[0] * padded[1] * padded[2]), kUnwritten);
          Bytes values(count * 2, kUnwritten);
          const Quantized w{.spec = spec,
                            .codes = TensorView(codes.data(), DType::u8, {2, rows, code_bytes}),
                            .scales = TensorView(scales.data(), DType::u8, padded),
                            .scale_layout = ScaleLayout::swizzled_128x4};
          const auto view = [&](const Bytes& of) {
            return TensorView(const_cast<uint8_t*>(of.data()), DType::bf16, {2, rows, cols},
                              pitches);
          };
          quantize(view(x), w, forcing(kernel));
          dequantize(w, view(values), forcing(kernel));
          codes.insert(codes.end(), scales.begin(), scales.end());
          return std::pair(codes, values);
        };
        if (expected_packed.empty())
          std::tie(expected_packed, expected_values) = run("quantize_portable");
        const auto [packed, values] = run(name.c_str());
        const std::string where = name + ": " + std::to_string(spec.bits) + " bits, " +
                                  std::to_string(rows) + " x " + std::to_string(cols);
        EXPECT_TRUE(packed == expected_packed) << where;
        EXPECT_TRUE(values == expected_values) << where;
      });
    }
  }
}

// NaN whose upper half alone is infinity, or which a number added to it makes a number.
TEST(Conversions, EveryNanStaysOne) {
  for (const QuantSpec& spec : {kAffine4, QuantSpec{Mode::affine, 8, 32}}) {
    for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
      const int64_t cols = 4 * spec.group_size, code_bytes = cols * spec.bits / 8;
      std::vector<uint8_t> codes(static_cast<size_t>(code_bytes), 0x35);
      std::vector<float> scales(4, 1.0f), biases(4, 0.0f);
      std::memcpy(&scales[1], &bits, sizeof bits);
      std::memcpy(&biases[2], &bits, sizeof bits);
      const Quantized w{.spec = spec,
                        .codes = TensorView(codes.data(), DType::u8, {1, code_bytes}),
                        .scales = TensorView(scales.data(), DType::f32, {1, 4}),
                        .biases = TensorView(biases.data(), DType::f32, {1, 4})};
      for_each_conversion([&](const std::string& name) {
        std::vector<uint16_t> out(static_cast<size_t>(cols));
        dequantize(w, TensorView(out.data(), DType::bf16, {1, cols}), forcing(name.c_str()));
        for (int64_t i = 0; i < cols; ++i) {
          const int64_t group = i / spec.group_size;
          const float value = formats::bfloat16_to_float(out[static_cast<size_t>(i)]);
          ASSERT_EQ(std::isnan(value), group == 1 || group == 2) << name << ", value " << i;
        }
      });
    }
  }
}

}  // namespace
}  // namespace moeblas::test
