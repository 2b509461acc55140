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
  for (int i = 0; i < E * N * K; ++i) EXPECT_NEAR(d.get(i), w.get(i), 0.3);
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
