// quantize, quantize_dual, dequantize and the fp8 conversions of the portable kernels: the CPU
// backend's bits, in every format.
#include "simt/quantize.h"

#include "ops/quantization.h"
#include "simt/emulated.h"

namespace moeblas::test {
namespace {

// A packed tensor that owns its memory.
struct Packed {
  QuantSpec spec;
  ScaleLayout layout = ScaleLayout::rows;
  Strided codes, scales, biases;
  Strided tensor_scale;  // on the device, may be absent
  std::optional<float> host_scale;

  Quantized view(bool scaled = true) const {
    Quantized q{spec, codes, scales, {}, {}, {}, layout};
    if (biases.view()) q.biases = biases;
    if (scaled && tensor_scale.view()) q.tensor_scale = tensor_scale;
    if (scaled) q.host_tensor_scale = host_scale;
    return q;
  }
};

struct Case {
  std::string name{};
  QuantSpec spec;
  DType dtype = DType::f32;
  DType scale_dtype = DType::f32;
  Shape shape{3, 256};
  Shape strides{};  // of the float side in quantize; empty: contiguous
  int64_t offset = 0;
  ScaleLayout layout = ScaleLayout::rows;
  int tensor_scale = 0;  // 1 host, 2 device scalar, 3 per matrix
  int gap = 0;           // extra elements between rows of codes (bytes), scales and biases
  bool dual = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Shape gapped(const Shape& shape, int64_t gap) {
  Shape strides = shape;
  int64_t step = 1;
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
    if (i == shape.ndim() - 1) step += gap;
  }
  return strides;
}

Packed make_packed(const Case& c, const Shape& values, int64_t matrices) {
  Packed p;
  p.spec = c.spec.resolved();
  p.layout = c.layout;
  Shape codes = values, scales = values;
  const int last = values.ndim() - 1;
  codes[last] = values[last] * p.spec.bits / 8;
  scales[last] = values[last] / p.spec.group_size;
  const bool affine = p.spec.mode == Mode::affine;
  if (c.layout != ScaleLayout::rows) {
    scales[last] = (scales[last] + 3) / 4 * 4;
    scales[last - 1] = (scales[last - 1] + 127) / 128 * 128;
  }
  const int64_t gap = c.layout == ScaleLayout::rows ? c.gap : 0;
  const DType type = affine ? c.scale_dtype : DType::u8;
  // A gap that is no multiple of four takes the codes out of alignment.
  p.codes = Strided(DType::u8, codes, gapped(codes, c.gap), c.gap);
  p.scales = Strided(type, scales, gapped(scales, gap), gap);
  if (affine) p.biases = Strided(type, scales, gapped(scales, 2 * gap), gap);
  if (c.tensor_scale == 1) p.host_scale = 0.37f;
  if (c.tensor_scale == 2) p.tensor_scale = Strided(DType::f32, Shape{});
  if (c.tensor_scale == 3) p.tensor_scale = Strided(DType::f32, {matrices});
  if (p.tensor_scale.view())
    p.tensor_scale.fill([](int64_t i) { return 0.01f * static_cast<float>(i + 1); });
  return p;
}

// Values of every kind: groups that are zero, negative, tiny, huge, constant, with NaN, infinity,
// only NaN, subnormal, and ties.
void fill_adversarial(Strided& x, int64_t group, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const int64_t cols = x.view().ndim() > 0 ? x.view().shape.back() : 1;
  x.fill([&](int64_t i) {
    const int64_t g = i / cols * ((cols + group - 1) / group) + i % cols / group;
    const float v = normal(random);
    switch (g % 13) {
      case 1:
        return random() % 2 ? 0.0f : -0.0f;
      case 2:
        return -std::fabs(v);
      case 3:
        return v * 1e-9f;
      case 4:
        return v * 1e4f;
      case 5:
        return 0.7f;
      case 6:
        return i % group == 5 ? NAN : v;
      case 7:
        return i % group == 7 ? -INFINITY : v;
      case 8:
        return NAN;
      case 9:
        return static_cast<float>(static_cast<int>(random() % 33) - 16) * 0.25f;
      case 10:
        return v * 1e-40f;
      case 11:
        return i % group == 0 ? NAN : v * 100.0f;
      default:
        return v;
    }
  });
}

Strided values_of(const Case& c) {
  const Shape strides = c.strides.ndim() > 0 ? c.strides : contiguous_strides(c.shape);
  Strided x(c.dtype, c.shape, strides, c.offset);
  fill_adversarial(x, c.spec.resolved().group_size, 7);
  return x;
}
int64_t matrices_of(const Shape& shape) {
  return shape.first(std::max(shape.ndim() - 2, 0)).numel();
}
void name(EmulatorQueue& queue, const Packed& p, bool writable) {
  for (const Strided* s : {&p.codes, &p.scales, &p.biases})
    writable ? queue.output(*s) : queue.input(*s);
  queue.input(p.tensor_scale);
}
void expect_same(const Packed& got, const Packed& expected) {
  expect_same_bytes(got.codes, expected.codes, "codes");
  expect_same_bytes(got.scales, expected.scales, "scales");
  expect_same_bytes(got.biases, expected.biases, "biases");
}

void check(const Case& c, emu::Schedule schedule) {
  const Strided x = values_of(c);
  const int64_t matrices = matrices_of(c.shape);
  Packed expected = make_packed(c, c.shape, matrices), got = expected;
  EmulatorQueue queue(schedule);
  queue.input(x);
  if (c.dual) {
    Case other = c;
    other.tensor_scale = 0;
    Shape turned = c.shape;
    std::swap(turned[c.shape.ndim() - 1], turned[c.shape.ndim() - 2]);
    Packed expected_columns = make_packed(other, turned, matrices), columns = expected_columns;
    quantize_dual(x, expected.view(), expected_columns.view());
    name(queue, got, true);
    name(queue, columns, true);
    simt::simt_quantize(ops::quantize_dual(x, got.view(), columns.view(), {}), {}, queue);
    expect_same(columns, expected_columns);
  } else {
    quantize(x, expected.view());
    name(queue, got, true);
    simt::simt_quantize(ops::quantize(x, got.view(), {}), {}, queue);
  }
  expect_same(got, expected);

  // And back, into a view with gaps between its rows.
  Strided expected_out(c.dtype, c.shape, gapped(c.shape, c.gap), c.offset);
  Strided out = expected_out;
  dequantize(expected.view(), expected_out);
  EmulatorQueue back(schedule);
  name(back, expected, false);
  back.output(out);
  simt::simt_quantize(ops::dequantize(expected.view(), out, {}), {}, back);
  expect_same_bytes(out, expected_out, "values");
}

class Quantization : public testing::TestWithParam<Case> {};

TEST_P(Quantization, IsTheCpuBackends) { check(GetParam(), emu::Schedule::forward); }

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, Case c) {
    c.name = std::move(name);
    all.push_back(std::move(c));
  };
  const auto format = [](const QuantSpec& s) {
    return std::string(moeblas::name(s.mode)) + std::to_string(s.bits) + "_g" +
           std::to_string(s.group_size);
  };
  const DType floats[] = {DType::f32, DType::f16, DType::bf16};
  int n = 0;
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group : {16, 32, 64, 128}) {
      Case c;
      c.spec = {Mode::affine, bits, group};
      c.dtype = floats[n % 3];
      c.scale_dtype = floats[n / 3 % 3];
      c.shape = {3, 5 * 128};
      c.gap = n % 2 ? 3 : 0;
      add(format(c.spec), c);
      ++n;
    }
  }
  for (DType dtype : floats) {
    const std::string type = moeblas::name(dtype);
    for (DType scales : floats) {
      Case c;
      c.spec = {Mode::affine, 4, 64};
      c.dtype = dtype;
      c.scale_dtype = scales;
      add("affine4_" + type + "_scales_" + moeblas::name(scales), c);
    }
    for (Mode mode : {Mode::mxfp4, Mode::mxfp8, Mode::nvfp4}) {
      Case c;
      c.spec = QuantSpec{mode}.resolved();
      c.dtype = dtype;
      c.shape = {3, 416};
      const std::string base = std::string(moeblas::name(mode)) + "_" + type;
      add(base, c);
      c.layout = ScaleLayout::swizzled_128x4;
      c.shape = {2, 33, 96};
      add(base + "_swizzled", c);
      c.shape = {160, 32};
      add(base + "_swizzled_two_tiles", c);
      c.layout = ScaleLayout::rows;
      c.dual = true;
      c.shape = {2, 64, 96};
      add(base + "_dual", c);
    }
  }
  for (int scale : {1, 2, 3}) {
    Case c;
    c.spec = {Mode::nvfp4, 4, 16};
    c.shape = {3, 5, 64};
    c.tensor_scale = scale;
    add("nvfp4_tensor_scale_" + std::to_string(scale), c);
    c.shape = {3, 32, 48};
    c.dual = true;
    c.layout = ScaleLayout::swizzled_128x4;
    add("nvfp4_tensor_scale_" + std::to_string(scale) + "_dual_swizzled", c);
  }
  for (Mode mode : {Mode::affine, Mode::mxfp8, Mode::nvfp4}) {
    Case c;
    c.spec = QuantSpec{mode}.resolved();
    c.dtype = DType::bf16;
    c.scale_dtype = DType::bf16;
    const std::string base = moeblas::name(mode);
    c.shape = {5, 128};
    c.strides = {1, 5};
    add(base + "_transposed", c);
    c.strides = {300, 2};
    add(base + "_every_other_column", c);
    c.strides = {131, 1};
    c.offset = 1;
    add(base + "_misaligned", c);
    c.strides = {0, 1};
    add(base + "_one_row_broadcast", c);
    c.shape = {2, 3, 2, 64};
    c.strides = {1000, 64, 200, 1};
    c.offset = 0;
    add(base + "_permuted_dimensions", c);
    c.shape = {128};
    c.strides = {};
    add(base + "_vector", c);
    c.shape = {1, 1, 128};
    add(base + "_one_row", c);
    c.shape = {300, 128};
    add(base + "_many_rows", c);
  }
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Simt, Quantization, testing::ValuesIn(cases()), case_name);

TEST(SimtQuantization, AllSchedules) {
  for (const Case& c : cases()) {
    if (c.name != "affine4_g64" && c.name != "affine3_g128" &&
        c.name != "nvfp4_tensor_scale_3_dual_swizzled" && c.name != "affine_transposed")
      continue;
    for (emu::Schedule schedule : kSchedules) {
      SCOPED_TRACE(c.name + " " + emu::name_of(schedule));
      check(c, schedule);
    }
  }
}

// Every code of every format under every scale.
TEST(SimtQuantization, DecodesEveryCode) {
  for (const Mode mode : {Mode::mxfp4, Mode::mxfp8, Mode::nvfp4}) {
    const QuantSpec spec = QuantSpec{mode}.resolved();
    const int64_t cols = 256;
    Packed p;
    p.spec = spec;
    p.codes = Strided(DType::u8, {256, cols * spec.bits / 8});
    p.scales = Strided(DType::u8, {256, cols / spec.group_size});
    p.codes.fill_integers([&](int64_t i) {
      const int64_t in_row = i % (cols * spec.bits / 8);
      return spec.bits == 8 ? in_row : (in_row * 2) % 16 + (in_row * 2 + 1) % 16 * 16;
    });
    p.scales.fill_integers([&](int64_t i) { return i / (cols / spec.group_size); });
    Strided expected(DType::f32, {256, cols}), out = expected;
    dequantize(p.view(), expected);
    EmulatorQueue queue;
    queue.input(p.codes).input(p.scales).output(out);
    simt::simt_quantize(ops::dequantize(p.view(), out, {}), {}, queue);
    expect_same_bytes(out, expected, name(mode));
  }
}

struct Fp8Case {
  const char* name;
  DType dtype;
  Shape shape;
  Shape strides;
  int64_t offset;
};
void PrintTo(const Fp8Case& c, std::ostream* out) { *out << c.name; }

std::string fp8_case_name(const testing::TestParamInfo<Fp8Case>& info) { return info.param.name; }

class Fp8 : public testing::TestWithParam<Fp8Case> {};

TEST_P(Fp8, IsTheCpuBackends) {
  const Fp8Case& c = GetParam();
  for (emu::Schedule schedule : kSchedules) {
    Strided x(c.dtype, c.shape, c.strides, c.offset);
    fill_adversarial(x, 3, 3);
    Strided expected(DType::u8, c.shape, gapped(c.shape, c.offset)), codes = expected;
    to_fp8(x, expected);
    EmulatorQueue queue(schedule);
    queue.input(x).output(codes);
    const auto problem = ops::to_fp8(x, codes, {});
    if (!problem.empty()) simt::simt_fp8(problem, {}, queue);
    expect_same_bytes(codes, expected, "codes");

    Strided all_codes(DType::u8, c.shape, c.strides, c.offset);
    all_codes.fill_integers([](int64_t i) { return i % 256; });
    Strided expected_values(c.dtype, c.shape, gapped(c.shape, c.offset));
    Strided values = expected_values;
    from_fp8(all_codes, expected_values);
    EmulatorQueue back(schedule);
    back.input(all_codes).output(values);
    const auto problem_back = ops::from_fp8(all_codes, values, {});
    if (!problem_back.empty()) simt::simt_fp8(problem_back, {}, back);
    expect_same_bytes(values, expected_values, "values");
  }
}

INSTANTIATE_TEST_SUITE_P(Simt, Fp8,
                         testing::Values(Fp8Case{"f32_flat", DType::f32, {1024}, {1}, 0},
                                         Fp8Case{
                                             "f16_tail", DType::f16, {3, 7, 13}, {91, 13, 1}, 0},
                                         Fp8Case{"bf16_rows", DType::bf16, {5, 100}, {100, 1}, 0},
                                         Fp8Case{"f32_columns", DType::f32, {9, 33}, {1, 9}, 0},
                                         Fp8Case{"bf16_gaps", DType::bf16, {4, 40}, {64, 1}, 1},
                                         Fp8Case{"f16_steps", DType::f16, {4, 17}, {64, 3}, 0},
                                         Fp8Case{"f16_broadcast", DType::f16, {6, 16}, {0, 1}, 0},
                                         Fp8Case{"f32_scalar", DType::f32, {}, {}, 0},
                                         Fp8Case{"f32_empty", DType::f32, {0, 5}, {5, 1}, 0}),
                         fp8_case_name);

}  // namespace
}  // namespace moeblas::test
