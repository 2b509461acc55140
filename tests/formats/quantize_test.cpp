// quantize: the rules of the formats for the groups that rules tend to get wrong, and every mode
// against the rule written once more in independent arithmetic.
#include <gtest/gtest.h>

#include <random>

#include "formats/independent.h"
#include "moeblas/ops.h"
#include "support/array.h"

namespace moeblas::test {
namespace {

using namespace independent;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kQuiet = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

// What quantize makes of one group.
struct Group {
  std::vector<unsigned> codes;
  float scale = 0, bias = 0;  // affine
  unsigned byte = 0;          // the others
};

Group affine_rule(const std::vector<float>& w, int bits) {
  float low = kQuiet, high = kQuiet;
  for (float v : w) {
    if (std::isnan(v)) continue;
    low = std::isnan(low) ? v : std::min(low, v);
    high = std::isnan(high) ? v : std::max(high, v);
  }
  const auto steps = static_cast<float>((1 << bits) - 1);
  Group g{std::vector<unsigned>(w.size(), 0), kQuiet, kQuiet, 0};
  if (std::isnan(low)) return g;
  g.scale = quotient(sum(high, -low), steps);
  if (!(g.scale > 1e-7f)) g.scale = 1e-7f;
  float edge = low;
  if (std::fabs(low) <= std::fabs(high)) {
    g.scale = -g.scale;
    edge = high;
  }
  const float to_zero = std::nearbyint(quotient(edge, g.scale));
  g.bias = 0;
  if (to_zero != 0) {
    g.scale = quotient(edge, to_zero);
    g.bias = edge;
  }
  for (size_t i = 0; i < w.size(); ++i) {
    const float q = std::nearbyint(quotient(sum(w[i], -g.bias), g.scale));
    g.codes[i] = std::isnan(q) ? 0 : static_cast<unsigned>(std::min(std::max(q, 0.0f), steps));
  }
  return g;
}

Group block_rule(const std::vector<float>& w, Mode mode, float tensor_scale) {
  static const Nearest e2m1(kE2M1), e4m3(kE4M3);
  float amax = 0;
  bool nan = false;
  for (float v : w) {
    nan = nan || std::isnan(v);
    if (std::fabs(v) > amax) amax = std::fabs(v);
  }
  Group g{std::vector<unsigned>(w.size(), 0), 0, 0, 0};
  float inverse = 0;
  if (mode == Mode::nvfp4) {
    const float enc = quotient(1.0f, tensor_scale);
    g.byte = nan ? 0x7f : e4m3(product(quotient(amax, 6.0f), enc));
    if (nan || g.byte == 0) return g;
    inverse = quotient(enc, static_cast<float>(value_of(kE4M3, g.byte)));
  } else {
    const float r = quotient(amax, mode == Mode::mxfp4 ? 6.0f : 448.0f);
    g.byte = 255;
    if (nan || std::isinf(amax)) return g;
    g.byte = 0;
    while (e8m0_value(g.byte) < r) ++g.byte;
    inverse = amax == 0 ? 0 : static_cast<float>(1 / e8m0_value(g.byte));
  }
  const Nearest& nearest = mode == Mode::mxfp8 ? e4m3 : e2m1;
  for (size_t i = 0; i < w.size(); ++i) g.codes[i] = nearest(product(w[i], inverse));
  return g;
}

// quantize of the rows of w, group by group.
std::vector<Group> quantized(const Array& w, QuantSpec spec, DType scale_dtype,
                             std::optional<float> tensor_scale = {}) {
  spec = spec.resolved();
  const QuantizedSpec out = infer_quantize(
      w, spec, spec.mode == Mode::affine ? std::optional(scale_dtype) : std::nullopt);
  Array codes(out.codes.dtype, out.codes.shape, 0xcd),
      scales(out.scales.dtype, out.scales.shape, 0xcd), biases;
  Quantized q{spec, codes, scales, {}, {}, tensor_scale};
  if (out.biases) {
    biases = Array(out.biases->dtype, out.biases->shape, 0xcd);
    q.biases = biases;
  }
  quantize(w, q);
  std::vector<Group> groups(static_cast<size_t>(w.numel() / spec.group_size));
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int i = 0; i < spec.group_size; ++i) {
      const size_t at = g * static_cast<size_t>(spec.group_size) + static_cast<size_t>(i);
      groups[g].codes.push_back(unpack(codes.bytes().data(), at, spec.bits));
    }
    if (spec.mode == Mode::affine) {
      groups[g].scale = scales.get(static_cast<int64_t>(g));
      groups[g].bias = biases.get(static_cast<int64_t>(g));
    } else {
      groups[g].byte = scales.bytes()[g];
    }
  }
  return groups;
}

Group quantized_group(const std::vector<float>& values, QuantSpec spec,
                      std::optional<float> tensor_scale = {}) {
  Array w(DType::f32, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) w.set(static_cast<int64_t>(i), values[i]);
  const std::vector<Group> groups = quantized(w, spec, DType::f32, tensor_scale);
  EXPECT_EQ(groups.size(), 1u);
  return groups[0];
}

const std::vector<unsigned> kNoCodes32(32, 0), kNoCodes16(16, 0);
std::vector<float> constant(size_t count, float value) { return std::vector<float>(count, value); }

TEST(QuantizeAffine, ZeroGroup) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    const Group g = quantized_group(constant(32, 0.0f), {Mode::affine, bits, 32});
    EXPECT_EQ(g.scale, -1e-7f);
    EXPECT_EQ(g.bias, 0.0f);
    EXPECT_EQ(g.codes, kNoCodes32);
  }
}

TEST(QuantizeAffine, ConstantGroup) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (float c : {1.0f, -3.7f, 1e-6f, 65504.0f}) {
      const Group g = quantized_group(constant(32, c), {Mode::affine, bits, 32});
      EXPECT_EQ(g.bias, c);
      EXPECT_EQ(g.codes, kNoCodes32);
    }
    // |c| / 1e-7 rounds to 0.
    const Group g = quantized_group(constant(32, 4e-8f), {Mode::affine, bits, 32});
    EXPECT_EQ(g.bias, 0.0f);
    EXPECT_EQ(g.codes, kNoCodes32);
  }
}

TEST(QuantizeAffine, AllNegativeGroupKeepsItsLowerEnd) {
  std::vector<float> w;
  for (int i = 0; i < 32; ++i) w.push_back(-1.0f - static_cast<float>(i) * 0.37f);
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    const Group g = quantized_group(w, {Mode::affine, bits, 32});
    EXPECT_EQ(g.bias, w.back()) << "the end of larger magnitude is exact";
    EXPECT_EQ(g.codes.back(), 0u);
    EXPECT_GT(g.scale, 0.0f);
    for (size_t i = 0; i < w.size(); ++i) {
      const float value = affine_value(g.codes[i], g.scale, g.bias);
      EXPECT_LE(std::fabs(value - w[i]), g.scale * 0.51f + 1e-6f) << bits << " bits, " << i;
    }
  }
}

TEST(QuantizeAffine, NaNIsPassedOver) {
  std::vector<float> w;
  for (int i = 0; i < 32; ++i) w.push_back(static_cast<float>(i) * 0.5f - 3);
  for (size_t at : {size_t{0}, size_t{9}, size_t{31}}) {
    std::vector<float> with_nan = w, without = w;
    with_nan[at] = kQuiet;
    without[at] = w[5];  // a value that is there already: the ends are the same
    const Group a = quantized_group(with_nan, {Mode::affine, 4, 32});
    const Group b = quantized_group(without, {Mode::affine, 4, 32});
    EXPECT_EQ(a.scale, b.scale);
    EXPECT_EQ(a.bias, b.bias);
    for (size_t i = 0; i < w.size(); ++i) EXPECT_EQ(a.codes[i], i == at ? 0 : b.codes[i]);
  }
  const Group all = quantized_group(constant(32, kQuiet), {Mode::affine, 4, 32});
  EXPECT_TRUE(std::isnan(all.scale));
  EXPECT_TRUE(std::isnan(all.bias));
  EXPECT_EQ(all.codes, kNoCodes32);
}

TEST(QuantizeAffine, BeyondFloat32) {
  std::vector<float> huge = constant(32, kMax), infinite = constant(32, 1.0f);
  for (size_t i = 0; i < 16; ++i) huge[i] = -kMax;
  infinite[3] = kInf;
  std::vector<float> minus = infinite;
  minus[3] = -kInf;
  for (const auto& w : {huge, infinite, minus, constant(32, kInf)}) {
    const Group g = quantized_group(w, {Mode::affine, 4, 32});
    EXPECT_FALSE(std::isfinite(g.scale));
    EXPECT_EQ(g.codes, kNoCodes32);
    EXPECT_FALSE(std::isfinite(affine_value(0, g.scale, g.bias))) << "the decoded values";
  }
}

TEST(QuantizeMx, ZeroGroup) {
  for (Mode mode : {Mode::mxfp4, Mode::mxfp8}) {
    const Group g = quantized_group(constant(32, 0.0f), {mode});
    EXPECT_EQ(g.byte, 0u);
    EXPECT_EQ(g.codes, kNoCodes32);
  }
}

TEST(QuantizeMx, NaNAndInfinityMakeTheScaleNaN) {
  for (Mode mode : {Mode::mxfp4, Mode::mxfp8}) {
    for (float bad : {kQuiet, -kQuiet, kInf, -kInf}) {
      for (size_t at : {size_t{0}, size_t{31}}) {
        std::vector<float> w = constant(32, -2.5f);
        w[at] = bad;
        const Group g = quantized_group(w, {mode});
        EXPECT_EQ(g.byte, 255u);
        EXPECT_EQ(g.codes, kNoCodes32);
      }
      std::vector<float> both = constant(32, kInf);
      both[7] = bad;
      EXPECT_EQ(quantized_group(both, {mode}).byte, 255u);
    }
  }
}

// The scale is rounded up: the largest value is not cut, up to the largest float32.
TEST(QuantizeMx, NothingSaturates) {
  Random rng(8);
  for (int i = 0; i < 4000; ++i) {
    const float amax = i == 0 ? kMax : std::fabs(float_of_bits(rng.bits()));
    if (!std::isfinite(amax)) continue;
    for (Mode mode : {Mode::mxfp4, Mode::mxfp8}) {
      std::vector<float> w = constant(32, 0.0f);
      w[4] = -amax;
      const Group g = quantized_group(w, {mode});
      const double top = mode == Mode::mxfp4 ? 6 : 448;
      ASSERT_GE(e8m0_value(g.byte) * top * (1 + 1e-7), amax) << amax;
      if (g.byte > 0) {
        ASSERT_LT(e8m0_value(g.byte - 1) * top * (1 - 1e-7), amax) << amax;
      }
    }
  }
}

TEST(QuantizeMx, SmallNegativesKeepTheSign) {
  std::vector<float> w = constant(32, -1e-4f);
  w[0] = 6.0f;
  const Group fp4 = quantized_group(w, {Mode::mxfp4});
  EXPECT_EQ(fp4.codes[0], 7u);
  for (size_t i = 1; i < 32; ++i) EXPECT_EQ(fp4.codes[i], 8u);
  w = constant(32, -1e-6f);
  w[0] = 448.0f;
  const Group fp8 = quantized_group(w, {Mode::mxfp8});
  EXPECT_EQ(fp8.codes[0], 0x7eu);
  for (size_t i = 1; i < 32; ++i) EXPECT_EQ(fp8.codes[i], 0x80u);
}

TEST(QuantizeNvfp4, ZeroUnderflowAndNaN) {
  const Group zero = quantized_group(constant(16, -0.0f), {Mode::nvfp4});
  EXPECT_EQ(zero.byte, 0u);
  EXPECT_EQ(zero.codes, kNoCodes16) << "signs too";
  // amax / 6 below half of the least E4M3 number.
  const Group underflow = quantized_group(constant(16, -6 * 0x1p-11f), {Mode::nvfp4});
  EXPECT_EQ(underflow.byte, 0u);
  EXPECT_EQ(underflow.codes, kNoCodes16) << "signs too";
  const Group least = quantized_group(constant(16, -6 * 0x1p-9f), {Mode::nvfp4});
  EXPECT_EQ(least.byte, 1u);
  EXPECT_EQ(least.codes, std::vector<unsigned>(16, 15));
  std::vector<float> w = constant(16, -1.0f);
  w[15] = kQuiet;
  const Group nan = quantized_group(w, {Mode::nvfp4});
  EXPECT_EQ(nan.byte, 0x7fu);
  EXPECT_EQ(nan.codes, kNoCodes16);
}

TEST(QuantizeNvfp4, ScalesBeyond448Saturate) {
  std::vector<float> w = constant(16, 100.0f);
  w[2] = -1e6f;
  w[3] = 2688.0f;
  const Group g = quantized_group(w, {Mode::nvfp4});
  EXPECT_EQ(g.byte, 0x7eu);
  EXPECT_EQ(g.codes[2], 15u);
  EXPECT_EQ(g.codes[3], 7u);
  EXPECT_EQ(g.codes[0], 0u) << "100 / 448 is nearer to 0 than to 0.5";
  w[2] = -kInf;
  const Group infinite = quantized_group(w, {Mode::nvfp4});
  EXPECT_EQ(infinite.byte, 0x7eu);
  EXPECT_EQ(infinite.codes, g.codes);
}

// With the multiplier that maps the tensor's largest value to the format's, nothing saturates.
TEST(QuantizeNvfp4, TensorScale) {
  std::vector<float> w = constant(16, 3.0f);
  w[2] = -1e6f;
  const Group g = quantized_group(w, {Mode::nvfp4}, 1e6f / 2688);
  EXPECT_EQ(g.byte, 0x7eu);
  EXPECT_EQ(g.codes[2], 15u);
  const double value = value_of(kE2M1, 15) * value_of(kE4M3, g.byte) * (1e6 / 2688);
  EXPECT_NEAR(value, -1e6, 1);
}

struct RuleCase {
  const char* name;
  QuantSpec spec;
  DType dtype;
  DType scale_dtype;
  std::optional<float> tensor_scale;
};
std::ostream& operator<<(std::ostream& out, const RuleCase& c) { return out << c.name; }

class QuantizeRule : public testing::TestWithParam<RuleCase> {};

// A group of one of several kinds: plain, tiny, huge, an outlier, few distinct values, ties, any
// pattern at all.
void fill_group(Array& w, int64_t first, int64_t count, Random& rng) {
  std::normal_distribution<float> normal;
  const auto kind = rng.bits() % 10;
  const float size = std::ldexp(1.0f, static_cast<int>(rng.bits() % 60) - 30);
  for (int64_t i = first; i < first + count; ++i) {
    float v = normal(rng);
    if (kind == 1) v *= size;
    if (kind == 2) v *= 1e-39f;
    if (kind == 3) v *= 1e38f;
    if (kind == 4 && i == first + 5) v *= 500;
    if (kind == 5) v = static_cast<float>(static_cast<int>(rng.bits() % 5) - 2) * size;
    if (kind == 6) v = static_cast<float>(static_cast<int>(rng.bits() % 97) - 48) / 4;
    if (kind == 7) v = float_of_bits(rng.bits());
    if (kind == 8) v = -std::fabs(v) * size;
    w.set(i, v);
  }
}

TEST_P(QuantizeRule, EqualsTheIndependentRule) {
  const RuleCase& c = GetParam();
  const QuantSpec spec = c.spec.resolved();
  const int64_t rows = 500, columns = 2048;  // a million values
  Array w(c.dtype, {rows, columns});
  Random rng(99);
  for (int64_t i = 0; i < w.numel(); i += spec.group_size) fill_group(w, i, spec.group_size, rng);
  const std::vector<Group> got = quantized(w, spec, c.scale_dtype, c.tensor_scale);
  std::vector<float> values(static_cast<size_t>(spec.group_size));
  const Nearest nearest(c.scale_dtype == DType::f16 ? kFloat16 : kBfloat16);
  const auto stored = [&](float v) {
    if (c.scale_dtype == DType::f32 || std::isnan(v)) return v;
    const Layout& layout = c.scale_dtype == DType::f16 ? kFloat16 : kBfloat16;
    return static_cast<float>(value_of(layout, nearest(v)));
  };
  for (size_t g = 0; g < got.size(); ++g) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = w.get(static_cast<int64_t>(g * values.size() + i));
    }
    const Group expected = spec.mode == Mode::affine
                               ? affine_rule(values, spec.bits)
                               : block_rule(values, spec.mode, c.tensor_scale.value_or(1.0f));
    ASSERT_EQ(got[g].codes, expected.codes)
        << "group " << g << ": " << testing::PrintToString(values) << ", scale " << expected.scale
        << " " << expected.byte;
    ASSERT_EQ(got[g].byte, expected.byte) << "group " << g;
    ASSERT_TRUE(same(got[g].scale, stored(expected.scale))) << "group " << g;
    ASSERT_TRUE(same(got[g].bias, stored(expected.bias))) << "group " << g;
  }
}

const RuleCase kRuleCases[] = {
    {"affine2_f32", {Mode::affine, 2, 16}, DType::f32, DType::f32, {}},
    {"affine3_bf16", {Mode::affine, 3, 32}, DType::bf16, DType::bf16, {}},
    {"affine4_f32", {Mode::affine, 4, 64}, DType::f32, DType::f32, {}},
    {"affine4_f16", {Mode::affine, 4, 128}, DType::f16, DType::f16, {}},
    {"affine5_f32_f16_scales", {Mode::affine, 5, 16}, DType::f32, DType::f16, {}},
    {"affine6_f16_f32_scales", {Mode::affine, 6, 16}, DType::f16, DType::f32, {}},
    {"affine8_bf16_f16_scales", {Mode::affine, 8, 64}, DType::bf16, DType::f16, {}},
    {"affine8_f32", {Mode::affine, 8, 32}, DType::f32, DType::f32, {}},
    {"mxfp4_f32", {Mode::mxfp4}, DType::f32, DType::u8, {}},
    {"mxfp4_bf16", {Mode::mxfp4}, DType::bf16, DType::u8, {}},
    {"mxfp8_f32", {Mode::mxfp8}, DType::f32, DType::u8, {}},
    {"mxfp8_f16", {Mode::mxfp8}, DType::f16, DType::u8, {}},
    {"nvfp4_f32", {Mode::nvfp4}, DType::f32, DType::u8, {}},
    {"nvfp4_bf16", {Mode::nvfp4}, DType::bf16, DType::u8, {}},
    {"nvfp4_f32_tensor_scale", {Mode::nvfp4}, DType::f32, DType::u8, 3.3e-3f},
    {"nvfp4_f16_tensor_scale", {Mode::nvfp4}, DType::f16, DType::u8, 17.0f},
};
INSTANTIATE_TEST_SUITE_P(Formats, QuantizeRule, testing::ValuesIn(kRuleCases),
                         [](const auto& i) { return std::string(i.param.name); });

// One multiplier per matrix: matrix e is quantized as if alone with multiplier e, given on the
// host.
TEST(QuantizeNvfp4, TensorScalePerMatrix) {
  const int64_t experts = 3, rows = 5, columns = 64;
  Array w(DType::f32, {experts, rows, columns}), multipliers(DType::f32, {experts});
  Random rng(4);
  for (int64_t i = 0; i < w.numel(); i += 16) fill_group(w, i, 16, rng);
  for (int64_t e = 0; e < experts; ++e)
    multipliers.set(e, std::ldexp(0.7f, static_cast<int>(e) * 3));
  Array codes(DType::u32, {experts, rows, columns / 8}, 1),
      scales(DType::u8, {experts, rows, 4}, 1);
  quantize(w, {{Mode::nvfp4}, codes, scales, {}, multipliers, {}});
  for (int64_t e = 0; e < experts; ++e) {
    Array own_codes(DType::u32, {rows, columns / 8}), own_scales(DType::u8, {rows, 4});
    const TensorView matrix(w.as<float>() + e * rows * columns, DType::f32, {rows, columns});
    quantize(matrix, {{Mode::nvfp4}, own_codes, own_scales, {}, {}, multipliers.get(e)});
    const auto code_bytes = static_cast<int64_t>(own_codes.bytes().size());
    const auto scale_bytes = static_cast<int64_t>(own_scales.bytes().size());
    EXPECT_TRUE(std::equal(own_codes.bytes().begin(), own_codes.bytes().end(),
                           codes.bytes().begin() + e * code_bytes));
    EXPECT_TRUE(std::equal(own_scales.bytes().begin(), own_scales.bytes().end(),
                           scales.bytes().begin() + e * scale_bytes));
  }
}

}  // namespace
}  // namespace moeblas::test
