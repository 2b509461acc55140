// What kernels of few rows and one 4-bit matrix ask of it alike, of matrices where a checkpoint's
// could lie.
#include "cuda/one_matrix.h"

#include <gtest/gtest.h>

#include <string>

#include "nowhere.h"

namespace moeblas::test {
namespace {

using dispatch::MatmulProblem;

const char* format(const QuantSpec& spec, DType scale = DType::bf16, DType x = DType::bf16) {
  const char* name = cuda::one_matrix_format(dense_nowhere(4, 4096, 4096, spec, x, scale));
  return name == nullptr ? "none" : name;
}

TEST(OneMatrix, FormatsAreThoseThatKernelsHave) {
  EXPECT_STREQ(format({Mode::mxfp4, 4, 32}), "mxfp4_bf16");
  EXPECT_STREQ(format({Mode::nvfp4, 4, 16}), "nvfp4_bf16");
  for (int group : {32, 64, 128}) EXPECT_STREQ(format({Mode::affine, 4, group}), "affine4_bf16");
  EXPECT_STREQ(format({Mode::affine, 4, 16}), "none");
  EXPECT_STREQ(format({Mode::affine, 8, 64}), "none");
  EXPECT_STREQ(format({Mode::mxfp8, 8, 32}), "none");
  EXPECT_STREQ(format({Mode::affine, 4, 64}, DType::f16), "none");
  EXPECT_STREQ(format({Mode::affine, 4, 64}, DType::f32), "none");
  EXPECT_STREQ(format({Mode::mxfp4, 4, 32}, DType::bf16, DType::f16), "none");
}

TEST(OneMatrix, BoxesOfScalesHaveTheSwizzleOfTheirRows) {
  const MatmulProblem p =
      dense_nowhere(4, 136, 4096, {Mode::affine, 4, 64}, DType::bf16, DType::bf16);
  for (uint32_t bytes : {16u, 32u, 64u, 128u}) {
    const cuda::TensorMapShape s = cuda::one_matrix_scales(p, p.w.biases, bytes, 16);
    EXPECT_EQ(s.data, p.w.biases.data);
    EXPECT_EQ(s.size[0], 4096u / 64 * 2);
    EXPECT_EQ(s.size[1], 136u);
    EXPECT_EQ(s.box[0], bytes);
    EXPECT_EQ(s.box[1], 16u);
    EXPECT_EQ(s.swizzle, bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                         : bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                         : bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                       : CU_TENSOR_MAP_SWIZZLE_NONE);
    EXPECT_FALSE(cuda::why_no_scales(p, bytes, 16)) << bytes;
  }
}

TEST(OneMatrix, RowsOfScalesThatOverlapAreRefused) {
  MatmulProblem p = dense_nowhere(4, 136, 4096, {Mode::affine, 4, 64}, DType::bf16, DType::bf16);
  const auto refused = [&] { return std::string(cuda::why_no_scales(p, 128, 16).text()); };
  p.w.biases.row_stride = 56;
  EXPECT_EQ(refused(), "rows of biases overlap");
  p.w.scales.row_stride = 56;
  EXPECT_EQ(refused(), "rows of scales overlap");
  // Copies go by 16 bytes.
  p.w.scales.row_stride = p.w.biases.row_stride = 68;
  EXPECT_NE(refused().find("rows of scales"), std::string::npos);
  p = dense_nowhere(4, 136, 4096, {Mode::mxfp4, 4, 32}, DType::bf16, DType::bf16);
  EXPECT_FALSE(cuda::why_no_scales(p, 128, 16)) << "there are no biases";
}

TEST(OneMatrix, OneRowOfXNeedsNoStride) {
  MatmulProblem p = dense_nowhere(1, 136, 4096, {Mode::mxfp4, 4, 32}, DType::bf16, DType::bf16);
  p.x.values.row_stride = 0;
  EXPECT_EQ(cuda::one_matrix_rows(p, 16, 4).stride[1], 4096u * 2);
  p = dense_nowhere(3, 136, 4096, {Mode::mxfp4, 4, 32}, DType::bf16, DType::bf16);
  p.x.values.row_stride = 8192;
  EXPECT_EQ(cuda::one_matrix_rows(p, 16, 4).stride[1], 8192u * 2);
}

}  // namespace
}  // namespace moeblas::test
