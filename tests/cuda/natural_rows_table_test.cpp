// Which products of qmm_sm90 multiply rows of x as they lie.
#include <gtest/gtest.h>

#include "cuda/qmm_sm90/kernels.h"
#include "nowhere.h"
#include "table_case.h"

namespace moeblas::test {
namespace {

// Many rows of one matrix or of segments, in formats that have it, where the order of sums may
// change with their number.
TEST_F(CudaTable, RowsOfXThatAreMultipliedAsTheyLie) {
  Options deterministic;
  deterministic.deterministic = true;
  for (const QuantSpec& spec : {kAffine4, kAffine8}) {
    const auto natural = [&](int64_t rows, DType dtype = kBf16, DType scale = kBf16,
                             const Options& options = {}) {
      return cuda::qmm_sm90_is_natural(
          dense_nowhere(rows, 4096, 4096, spec, dtype, scale, options));
    };
    for (int64_t rows : {65, 191, 192, 5000}) {
      EXPECT_EQ(natural(rows), rows >= 192 && spec.bits == 4);
      // Bytes, beside as many columns as staging x takes long for.
      EXPECT_EQ(cuda::qmm_sm90_is_natural(dense_nowhere(rows, 3072, 4096, spec, kBf16, kBf16)),
                rows >= 192);
    }
    EXPECT_FALSE(natural(5000, DType::f16, DType::f16));
    EXPECT_FALSE(natural(5000, kBf16, DType::f32));
    EXPECT_FALSE(natural(5000, kBf16, kBf16, deterministic));
    EXPECT_FALSE(cuda::qmm_sm90_is_natural(
        dense_nowhere(5000, 4096, 4096, {Mode::affine, spec.bits, 32}, kBf16, kBf16)));
    // Rows that experts' ids choose.
    EXPECT_FALSE(
        cuda::qmm_sm90_is_natural(product_nowhere(kLayers[1], false, spec, kBf16, kBf16, 8192)));
    const TensorView x = nowhere(kBf16, {64 * 256, 2048});
    const TensorView out = output_nowhere(kBf16, {64 * 256, 1536});
    const TensorView ends = nowhere(DType::i32, {64}, 8 * 1024);
    const Quantized w = weights_nowhere(spec, {64, 1536}, 2048, kBf16);
    EXPECT_TRUE(cuda::qmm_sm90_is_natural(ops::grouped_qmm(x, w, ends, true, out, {})));
  }
  // Codes of e2m1, beside fewer columns, whose rows have whole halves of blocks of scales.
  const auto natural = [](const QuantSpec& spec, int64_t rows, int64_t n, int64_t k) {
    return cuda::qmm_sm90_is_natural(dense_nowhere(rows, n, k, spec, kBf16, kBf16));
  };
  for (int64_t rows : {65, 191, 192, 5000}) {
    EXPECT_EQ(natural(kMxfp4, rows, 4096, 4096), rows >= 192);
    EXPECT_EQ(natural(kNvfp4, rows, 2048, 4096), rows >= 192);
  }
  EXPECT_FALSE(natural(kMxfp4, 5000, 4104, 4096));
  EXPECT_FALSE(natural(kNvfp4, 5000, 2056, 4096));
  EXPECT_FALSE(natural(kMxfp4, 5000, 4096, 4128));
  EXPECT_FALSE(natural(kNvfp4, 5000, 2048, 4128));
  EXPECT_FALSE(natural(kMxfp8, 5000, 2048, 4096));
  // Nor where rows of scales lie apart: of K that ends within half a block, or that do not begin
  // where one load takes those of half a block.
  const auto apart = [](const QuantSpec& spec, int64_t k, int64_t pitch) {
    Quantized w = weights_nowhere(spec, {2048}, k, kBf16);
    w.scales.strides[0] = pitch;
    return cuda::qmm_sm90_is_natural(ops::quantized_matmul(
        nowhere(kBf16, {5000, k}), w, true, output_nowhere(kBf16, {5000, 2048}), {}));
  };
  EXPECT_TRUE(apart(kMxfp4, 4096, 130));
  EXPECT_TRUE(apart(kNvfp4, 4096, 260));
  EXPECT_FALSE(apart(kMxfp4, 4096, 131));
  EXPECT_FALSE(apart(kNvfp4, 4096, 262));
  EXPECT_FALSE(apart(kMxfp4, 4128, 130));
  EXPECT_FALSE(apart(kNvfp4, 4128, 260));
}

}  // namespace
}  // namespace moeblas::test
