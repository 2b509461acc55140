#include <gtest/gtest.h>

#include <random>

#include "moeblas/kernels.h"
#include "support/array.h"

namespace moeblas::test {
namespace {

TEST(Smoke, GatherQmm) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  const int E = 4, N = 40, K = 128, T = 5, k = 2;
  Array w(DType::f32, {E, N, K}), x(DType::f32, {T, 1, 1, K}), ids(DType::i32, {T, k});
  for (int i = 0; i < E * N * K; ++i) w.set(i, normal(rng));
  for (int i = 0; i < T * K; ++i) x.set(i, normal(rng));
  for (int i = 0; i < T * k; ++i) ids.set_integer(i, (i * 7) % E);
  QuantSpec spec{Mode::affine, 4, 64};
  auto s = infer_quantize(w, spec);
  Array codes(s.codes.dtype, s.codes.shape), scales(s.scales.dtype, s.scales.shape),
      biases(s.biases->dtype, s.biases->shape);
  Quantized q{spec, codes, scales, biases, {}, {}};
  quantize(w, q);
  Array d(DType::f32, {E, N, K});
  dequantize(q, d);
  for (int i = 0; i < E * N * K; ++i) EXPECT_NEAR(d.get(i), w.get(i), 0.5);
  auto os = infer_gather_qmm(x, q, {}, ids);
  ASSERT_EQ(os.shape, (Shape{T, k, 1, N}));
  Array out(os.dtype, os.shape);
  gather_qmm(x, q, {}, ids, true, false, out);
  for (int t = 0; t < T; ++t)
    for (int j = 0; j < k; ++j)
      for (int n = 0; n < N; ++n) {
        double sum = 0;
        for (int i = 0; i < K; ++i)
          sum += double(x.get(t * K + i)) * d.get((ids.get_integer(t * k + j) * N + n) * K + i);
        EXPECT_NEAR(out.get((t * k + j) * N + n), sum, 1e-4);
      }
}

}  // namespace
}  // namespace moeblas::test

namespace moeblas::test {
namespace {

TEST(Smoke, FfnRuns) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  const int E = 4, H = 64, I = 32, T = 5, k = 2;
  Array gu(DType::f32, {E, 2 * I, H}), down(DType::f32, {E, H, I}), x(DType::f32, {T, H}),
      ids(DType::i32, {T, k}), wt(DType::f32, {T, k}), out(DType::f32, {T, H}),
      logits(DType::f32, {T, E});
  for (Array* a : {&gu, &down, &x, &logits})
    for (int64_t i = 0; i < a->numel(); ++i) a->set(i, normal(rng) * 0.3f);
  Router r;
  r.top_k = k;
  r.normalize = true;
  moe_route(logits, {}, r, ids, wt);
  FfnLayer layer;
  layer.gate_up = Quantized{{Mode::dense}, gu};
  layer.down = Quantized{{Mode::dense}, down};
  moe_ffn(x, layer, ids, wt, out);
  for (int t = 0; t < T; ++t)
    for (int h = 0; h < H; ++h) {
      double y = 0;
      for (int j = 0; j < k; ++j) {
        const int64_t e = ids.get_integer(t * k + j);
        for (int i = 0; i < I; ++i) {
          double g = 0, u = 0;
          for (int c = 0; c < H; ++c) {
            g += double(gu.get((e * 2 * I + i) * H + c)) * x.get(t * H + c);
            u += double(gu.get((e * 2 * I + I + i) * H + c)) * x.get(t * H + c);
          }
          y += wt.get(t * k + j) * g / (1 + std::exp(-g)) * u * down.get((e * H + h) * I + i);
        }
      }
      EXPECT_NEAR(out.get(t * H + h), y, 1e-4);
    }
  // qqmm against fq(x) @ fq(w)^T.
  QuantSpec spec = QuantSpec{Mode::nvfp4}.resolved();
  Array w(DType::f32, {48, H}), fx(DType::f32, {T, H}), fw(DType::f32, {48, H}),
      y(DType::f32, {T, 48});
  for (int64_t i = 0; i < w.numel(); ++i) w.set(i, normal(rng));
  for (auto layout : {ScaleLayout::rows, ScaleLayout::swizzled_128x4}) {
    for (auto [src, dst] : {std::pair{&x, &fx}, std::pair{&w, &fw}}) {
      auto s = infer_quantize(*src, spec);
      Shape ss = s.scales.shape;
      if (layout == ScaleLayout::swizzled_128x4) ss = {128, 4};
      Array codes(s.codes.dtype, s.codes.shape), scales(s.scales.dtype, ss, 0xee);
      Quantized q{spec, codes, scales, {}, {}, 0.01f, layout};
      quantize(*src, q);
      dequantize(q, *dst);
    }
    qqmm(Quantized{spec, x, {}, {}, {}, 0.01f}, Quantized{spec, w, {}, {}, {}, 0.01f}, y);
    for (int t = 0; t < T; ++t)
      for (int n = 0; n < 48; ++n) {
        double sum = 0;
        for (int i = 0; i < H; ++i) sum += double(fx.get(t * H + i)) * fw.get(n * H + i);
        EXPECT_NEAR(y.get(t * 48 + n), sum, 1e-4);
      }
  }
}

}  // namespace
}  // namespace moeblas::test
