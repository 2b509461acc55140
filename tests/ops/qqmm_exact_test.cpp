// One product in its many spellings must be one result, bit for bit: what the portable kernels
// promise. And the epilogue's operations in their order.
#include <gtest/gtest.h>

#include "moeblas/ops.h"
#include "support/cases.h"
#include "support/codec.h"
#include "support/qqmm_case.h"

namespace moeblas::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

Operand tensor(DType dtype, const Shape& shape) {
  return Operand(plain(dtype, shape), Side::right, kPoison);
}

// Floats and the same quantized, in rows and swizzled.
struct Spellings {
  Operand floats, codes, rows, swizzled;
  Quantized on_the_fly, packed, packed_swizzled;

  Spellings(const QuantSpec& spec, DType dtype, const Shape& shape, uint64_t seed,
            std::optional<float> tensor_scale) {
    Random random(seed);
    floats = tensor(dtype, shape);
    Case numbers;
    fill_floats(random, numbers, floats, 0, floats.numel(), 0);
    const int last = shape.ndim() - 1;
    const int64_t k = shape[last];
    Shape packed_shape = shape, scales = shape, padded = shape;
    packed_shape[last] = k * spec.bits / 32;
    scales[last] = k / spec.group_size;
    const Shape tail = swizzled_shape(shape[last - 1], scales[last]);
    padded[last - 1] = tail[0];
    padded[last] = tail[1];
    codes = tensor(DType::u32, packed_shape);
    rows = tensor(DType::u8, scales);
    swizzled = tensor(DType::u8, padded);
    on_the_fly = {spec, floats.view, {}, {}, {}, tensor_scale};
    packed = {spec, codes.view, rows.view, {}, {}, tensor_scale};
    packed_swizzled = packed;
    packed_swizzled.scales = swizzled.view;
    packed_swizzled.scale_layout = ScaleLayout::swizzled_128x4;
    quantize(floats.view, packed_swizzled);
    quantize(floats.view, packed);
  }
  std::vector<const Quantized*> all() const { return {&on_the_fly, &packed, &packed_swizzled}; }
};

TEST(QqmmExact, PackedSwizzledAndOnTheFlyAreOneResult) {
  for (const QuantSpec& spec : {kNvfp4, kMxfp4, kMxfp8}) {
    for (DType dtype : kFloats) {
      const std::optional<float> scale =
          spec.mode == Mode::nvfp4 ? std::optional(0.037f) : std::nullopt;
      const Spellings x(spec, dtype, {2, 5, 96}, 1, scale),
          w(spec, DType::bf16, {2, 131, 96}, 2, scale);
      std::vector<uint8_t> first;
      for (const Quantized* left : x.all()) {
        for (const Quantized* right : w.all()) {
          const Operand out = tensor(dtype, {2, 5, 131});
          qqmm(*left, *right, out.view);
          if (first.empty()) first = element_bytes(out);
          EXPECT_EQ(element_bytes(out), first) << name(spec.mode) << " " << name(dtype);
        }
      }
    }
  }
}

// fq(x) @ fq(w)^T as its definition says it: quantize, dequantize, multiply. Equal bits where one
// kernel forms all sums.
TEST(QqmmExact, IsTheProductOfTheDequantized) {
  constexpr int64_t pairs = 9, experts = 4, n = 21, k = 160;
  for (const QuantSpec& spec : {kNvfp4, kMxfp4, kMxfp8}) {
    const std::optional<float> scale =
        spec.mode == Mode::nvfp4 ? std::optional(0.5f) : std::nullopt;
    const Spellings x(spec, DType::f32, {pairs, 1, k}, 3, scale);
    const Spellings w(spec, DType::f16, {experts, n, k}, 4, scale);
    const Operand ids = tensor(DType::i32, {pairs});
    for (int64_t i = 0; i < pairs; ++i) {
      store_index(ids.view.data, DType::i32, i, i == 4 ? -1 : i * 3 % experts);
    }
    const Operand fx = tensor(DType::f32, {pairs, 1, k}), fw = tensor(DType::f32, {experts, n, k});
    dequantize(x.packed, fx.view);
    dequantize(w.packed, fw.view);
    TensorView transposed = fw.view;
    std::swap(transposed.shape[1], transposed.shape[2]);
    std::swap(transposed.strides[1], transposed.strides[2]);
    const Operand out = tensor(DType::f32, {pairs, 1, n}),
                  dense = tensor(DType::f32, {pairs, 1, n}),
                  half = tensor(DType::f32, {pairs, 1, n});
    const Options portable = forcing("matmul_portable");
    gather_qqmm(x.on_the_fly, w.packed_swizzled, {}, ids.view, false, out.view, {}, portable);
    gather_mm(fx.view, transposed, {}, ids.view, false, dense.view, portable);
    gather_qmm(fx.view, w.packed, {}, ids.view, true, false, half.view, portable);
    EXPECT_EQ(element_bytes(out), element_bytes(dense)) << name(spec.mode);
    EXPECT_EQ(element_bytes(out), element_bytes(half)) << name(spec.mode);

    // Sorted by expert, the same rows in the offsets form.
    const Operand grouped = tensor(DType::f32, {pairs, n}),
                  by_id = tensor(DType::f32, {pairs, 1, n});
    const Operand offsets = tensor(DType::i64, {experts});
    for (int64_t e = 0; e < experts; ++e) {
      store_index(offsets.view.data, DType::i64, e, std::min(pairs - 1, e * 3));
    }
    for (int64_t i = 0; i < pairs; ++i) {
      store_index(ids.view.data, DType::i32, i, i == pairs - 1 ? experts : i / 3 + 1);
    }
    Quantized x_rows = x.packed;
    x_rows.codes.shape = {pairs, k * spec.bits / 32};
    x_rows.codes.strides = contiguous_strides(x_rows.codes.shape);
    x_rows.scales.shape = {pairs, k / spec.group_size};
    x_rows.scales.strides = contiguous_strides(x_rows.scales.shape);
    grouped_qqmm(x_rows, w.packed, offsets.view, grouped.view);
    gather_qqmm(x.packed, w.packed, {}, ids.view, true, by_id.view);
    EXPECT_EQ(element_bytes(grouped), element_bytes(by_id)) << name(spec.mode);
  }
}

// ---- The epilogue -------------------------------------------------------------------------------

// One product of this sum, with this epilogue.
double with_epilogue(double sum, float alpha, float beta, double c, double bias) {
  Operand x = tensor(DType::f32, {1, 32}), w = tensor(DType::f32, {1, 32});
  for (int64_t i = 0; i < 32; ++i) {
    x.set(i, i == 0 ? sum : 0);
    w.set(i, i == 0 ? 1 : 0);
  }
  Operand addend = tensor(DType::f32, {1, 1}), offset = tensor(DType::f32, {1});
  addend.set(0, c);
  offset.set(0, bias);
  const Operand out = tensor(DType::f32, {1, 1});
  qqmm({kMxfp8, x.view}, {kMxfp8, w.view}, out.view, {alpha, beta, addend.view, offset.view});
  return out.get(0);
}

TEST(QqmmEpilogue, AddsInTheOrderOfTheHeader) {
  // Each of these has another result in any other order of the two additions.
  EXPECT_EQ(with_epilogue(1, 1, 1, 0x1p25, -0x1p25), 0);
  EXPECT_EQ(with_epilogue(0x1p8, 0x1p20f, 1, -0x1p28, 1), 1);
  EXPECT_EQ(with_epilogue(1, 1, -0x1p25f, 1, 0x1p25), 0);
  // alpha and beta round their products on their own, before anything is added.
  const float third = 1.0f / 3.0f;
  EXPECT_EQ(with_epilogue(3, third, 0, 0, -1), static_cast<double>(3 * third) - 1);
  EXPECT_EQ(with_epilogue(7, 1, third, 3, -8), static_cast<double>(7.0f + third * 3) - 8);
}

TEST(QqmmEpilogue, BetaNeedsC) {
  const Operand x = tensor(DType::f32, {1, 32}), w = tensor(DType::f32, {1, 32});
  const Operand out = tensor(DType::f32, {1, 1});
  EXPECT_THROW(qqmm({kMxfp8, x.view}, {kMxfp8, w.view}, out.view, {1, 0.5f, {}, {}}), Error);
}

TEST(QqmmEpilogue, RowsWithoutAMatrixStayZero) {
  // c and biases are NaN: nothing of them may show in rows that select nothing.
  const Operand x = tensor(DType::f32, {3, 1, 32}), w = tensor(DType::f32, {2, 4, 32});
  const Operand ids = tensor(DType::i64, {3}), c = tensor(DType::f32, {3, 1, 4});
  const Operand out = tensor(DType::f32, {3, 1, 4});
  for (const Shape& shape : {Shape{4}, Shape{2, 4}}) {
    const Operand bias = tensor(DType::bf16, shape);
    for (int64_t i = 0; i < 3; ++i) {
      store_index(ids.view.data, DType::i64, i,
                  std::vector<int64_t>{-1, 2, int64_t{1} << 40}[static_cast<size_t>(i)]);
    }
    gather_qqmm({kMxfp4, x.view}, {kMxfp4, w.view}, {}, ids.view, false, out.view,
                {2, 3, c.view, bias.view});
    for (int64_t i = 0; i < out.numel(); ++i) EXPECT_EQ(out.get(i), 0);
  }
}

TEST(QqmmEpilogue, WithoutKTheSumIsZero) {
  const Operand x = tensor(DType::f32, {2, 0}), w = tensor(DType::f32, {3, 0});
  Operand bias = tensor(DType::f32, {3}), c = tensor(DType::f32, {2, 1});
  for (int64_t i = 0; i < 3; ++i) bias.set(i, static_cast<double>(i));
  c.set(0, 10);
  c.set(1, 20);
  const Operand out = tensor(DType::f32, {2, 3});
  qqmm({kNvfp4, x.view}, {kNvfp4, w.view}, out.view, {5, 2, c.view, bias.view});
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(out.get(i), c.get(i / 3) * 2 + bias.get(i % 3));
}

TEST(QqmmTensorScale, BothOrNeither) {
  const Operand x = tensor(DType::f32, {2, 32}), w = tensor(DType::f32, {3, 32});
  const Operand out = tensor(DType::f32, {2, 3});
  const Quantized plain_x{kNvfp4, x.view}, plain_w{kNvfp4, w.view};
  Quantized scaled_x = plain_x, scaled_w = plain_w;
  scaled_x.host_tensor_scale = scaled_w.host_tensor_scale = 1.0f;
  for (const auto& [left, right] : {std::pair{plain_x, scaled_w}, std::pair{scaled_x, plain_w}}) {
    try {
      qqmm(left, right, out.view);
      ADD_FAILURE() << "one tensor scale was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), MOEBLAS_INVALID_ARGUMENT);
      EXPECT_NE(std::string(e.what()).find("tensor_scale"), std::string::npos) << e.what();
    }
  }
  for (uint8_t byte : out.memory.bytes()) ASSERT_EQ(byte, kPoison);
}

}  // namespace
}  // namespace moeblas::test
