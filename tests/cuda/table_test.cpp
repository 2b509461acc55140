// Which of CUDA's kernels runs a product: asked of the table by capability, without a device.
#include "cuda/table.h"
#include "cuda/qmv_one_sm90/plan.h"
#include "cuda/qmv_sm90/plan.h"

#include <gtest/gtest.h>

#include "dispatch/select.h"
#include "nowhere.h"
#include "ops/qqmm.h"
#include "table_case.h"

namespace moeblas::test {
namespace {

using dispatch::MatmulProblem;

std::string winner(const MatmulProblem& p, int capability = 90) {
  return dispatch::select(cuda::backend().matmul, p, capability, p.options.kernel).name.text;
}

TEST_F(CudaTable, DecodingOfLayers) {
  for (const Layer& l : kLayers) {
    for (const QuantSpec& spec : {kAffine4, kAffine8, kMxfp4, kMxfp8, kNvfp4}) {
      for (int64_t tokens : {1, 2, 8, 16, 64}) {
        for (bool down : {false, true}) {
          if ((down ? l.intermediate : l.hidden) % spec.group_size != 0) continue;
          // Where shared memory does not hold the rows of a matrix at once.
          const MatmulProblem p = product_nowhere(l, down, spec, kBf16, kBf16, tokens);
          // And where tiles are narrow enough, or rows of x stay in registers.
          const int64_t least = is_held(l, down, spec) ? 0 : spec.bits == 4 ? 6 : 8;
          const bool many = cuda::qmv_sm90_passes(p) > 1 || tokens * l.top_k >= least * l.experts;
          EXPECT_TRUE(!many || tokens * l.top_k >= std::min<int64_t>(least, 4) * l.experts);
          // One row of x for all matrices of a token, where bulk copies take its scales.
          const bool one = tokens == 1 && !cuda::qmv_one_sm90_reject(p);
          EXPECT_TRUE(one || tokens > 1 || down || spec == kMxfp8 || l.hidden % 512 != 0);
          EXPECT_EQ(winner(p), one    ? "qmv_one_sm90"
                               : many ? "qmm_sm90"
                                      : "qmv_sm90")
              << l.name << (down ? " down, " : ", ") << name(spec.mode) << spec.bits << ", "
              << tokens << " tokens";
        }
      }
    }
  }
}

TEST_F(CudaTable, DenseRows) {
  for (const QuantSpec& spec : {kAffine4, kAffine8, kMxfp4, kMxfp8, kNvfp4}) {
    for (int64_t size : {512, 1024, 4096, 8192, 16384}) {
      for (int64_t rows : {1, 2, 4}) {
        const bool one = rows == 1 && size >= 1024 && spec != kMxfp8;
        const int64_t least = size > 8192 && spec != kAffine4 ? 3 : 2;
        const bool few = rows >= least && spec.bits == 4 && size >= 4096;
        EXPECT_EQ(winner(dense_nowhere(rows, size, size, spec, kBf16, kBf16)), one ? "qmv_one_sm90"
                                                                               : few
                                                                                   ? "qmm_few_sm90"
                                                                                   : "qmv_sm90")
            << size << ", " << rows << " rows";
      }
    }
  }
  EXPECT_EQ(winner(dense_nowhere(16, 4096, 4096, kAffine8, kBf16, kBf16)), "qmv_sm90");
  EXPECT_EQ(winner(dense_nowhere(16, 2048, 2048, kAffine4, kBf16, kBf16)), "qmv_sm90");
  EXPECT_EQ(winner(dense_nowhere(64, 4096, 4096, kAffine4, kBf16, kBf16)), "qmm_sm90");
  for (const QuantSpec& spec : {kAffine4, kMxfp4}) {
    // In one launch; where K does not come in whole steps, in two.
    EXPECT_EQ(winner(dense_nowhere(8, 4096, 4096, spec, kBf16, kBf16)), "qmm_few_sm90");
    EXPECT_EQ(winner(dense_nowhere(9, 4096, 4096, spec, kBf16, kBf16)), "qmm_sm90");
    EXPECT_EQ(winner(dense_nowhere(8, 14336, 4096, spec, kBf16, kBf16)), "qmm_few_sm90");
    EXPECT_EQ(winner(dense_nowhere(9, 14336, 4096, spec, kBf16, kBf16)), "qmm_sm90");
    EXPECT_EQ(winner(dense_nowhere(3, 8192, 8192, spec, kBf16, kBf16)), "qmm_few_sm90");
    EXPECT_EQ(winner(dense_nowhere(8, 8192, 8192, spec, kBf16, kBf16)), "qmm_few_sm90");
    EXPECT_EQ(winner(dense_nowhere(9, 8192, 8192, spec, kBf16, kBf16)), "qmm_sm90");
    EXPECT_EQ(winner(dense_nowhere(8, 8192, 9216, spec, kBf16, kBf16)), "qmm_few_sm90");
    EXPECT_EQ(winner(dense_nowhere(9, 8192, 9216, spec, kBf16, kBf16)), "qmm_sm90");
    EXPECT_EQ(winner(dense_nowhere(8, 16384, 16384, spec, kBf16, kBf16)), "qmm_few_sm90");
    EXPECT_EQ(winner(dense_nowhere(2, 4096, 14336, spec, kBf16, kBf16)), "qmm_few_sm90");
    EXPECT_EQ(winner(dense_nowhere(8, 8192, 28672, spec, kBf16, kBf16)),
              spec == kAffine4 ? "qmm_few_sm90" : "qmv_sm90");
    EXPECT_EQ(winner(dense_nowhere(9, 16384, 16384, spec, kBf16, kBf16)), "qmm_sm90");
  }
  EXPECT_EQ(winner(dense_nowhere(8, 8192, 8192, kNvfp4, kBf16, kBf16)), "qmm_few_sm90");
  EXPECT_EQ(winner(dense_nowhere(9, 8192, 8192, kNvfp4, kBf16, kBf16)), "qmm_sm90");
  for (DType dtype : {kBf16, DType::f16}) {
    EXPECT_EQ(winner(dense_nowhere(8, 16384, 16384, kNvfp4, dtype, kBf16)),
              dtype == kBf16 ? "qmm_few_sm90" : "qmv_sm90");
    EXPECT_EQ(winner(dense_nowhere(9, 16384, 16384, kNvfp4, dtype, kBf16)), "qmm_sm90");
  }
  EXPECT_EQ(winner(dense_nowhere(16, 16384, 16384, kAffine4, DType::f16, DType::f16)), "qmv_sm90");
  EXPECT_EQ(winner(dense_nowhere(48, 16384, 16384, kAffine4, kBf16, kBf16)), "qmm_sm90");
}

TEST_F(CudaTable, BorderOfRowsForEachOfSeveralMatrices) {
  const Layer& l = kLayers[0];
  const auto of_tokens = [&](const QuantSpec& spec, DType dtype, DType scale, int64_t tokens) {
    return winner(product_nowhere(l, false, spec, dtype, scale, tokens));
  };
  const auto of = [&](const QuantSpec& spec, DType dtype, DType scale, int64_t rows) {
    return of_tokens(spec, dtype, scale, (rows * l.experts + l.top_k - 1) / l.top_k);
  };
  // Where rows of x stay in registers, whatever their number, but not of few values of w.
  Layer few = kLayers[1];
  few.top_k = 4;
  for (const QuantSpec& spec : {kAffine4, kMxfp4}) {
    EXPECT_EQ(of_tokens(spec, kBf16, kBf16, 2), "qmm_sm90");
    EXPECT_EQ(winner(product_nowhere(few, false, spec, kBf16, kBf16, 2)), "qmv_sm90");
    EXPECT_EQ(winner(product_nowhere(few, false, spec, kBf16, kBf16, 3)), "qmm_sm90");
  }
  EXPECT_EQ(of(kAffine4, DType::f16, DType::f16, 5), "qmv_sm90");
  EXPECT_EQ(of(kAffine4, DType::f16, DType::f16, 6), "qmm_sm90");
  for (DType dtype : {kBf16, DType::f16}) {
    EXPECT_EQ(of(kNvfp4, dtype, dtype, 5), "qmv_sm90");
    EXPECT_EQ(of(kNvfp4, dtype, dtype, 6), "qmm_sm90");
    EXPECT_EQ(of(kAffine8, dtype, dtype, 7), "qmv_sm90");
    EXPECT_EQ(of(kAffine8, dtype, dtype, 8), "qmm_sm90");
  }
  EXPECT_EQ(of(kMxfp8, kBf16, kBf16, 7), "qmv_sm90");
  EXPECT_EQ(of(kMxfp8, kBf16, kBf16, 8), "qmm_sm90");
  // One width of tiles, for many rows.
  for (const QuantSpec& spec : {kAffine4, kAffine8}) {
    EXPECT_EQ(of(spec, kBf16, DType::f32, 8), "qmv_sm90");
  }
}

TEST_F(CudaTable, ManyRowsPerMatrix) {
  const Layer& qwen = kLayers[1];
  for (int64_t tokens : {512, 4096}) {
    EXPECT_EQ(winner(product_nowhere(qwen, false, kAffine4, kBf16, kBf16, tokens)), "qmm_sm90");
    for (const QuantSpec& spec : {kAffine8, kMxfp4, kMxfp8, kNvfp4}) {
      EXPECT_EQ(winner(product_nowhere(qwen, false, spec, kBf16, kBf16, tokens)), "qmm_sm90");
    }
    // Weights under scales of another type than x's are rounded from float32: in bfloat16 they keep
    // the range, in float16 not.
    EXPECT_EQ(winner(product_nowhere(qwen, false, kAffine4, kBf16, DType::f16, tokens)),
              "qmm_sm90");
    EXPECT_EQ(winner(product_nowhere(qwen, false, kAffine4, DType::f16, DType::f16, tokens)),
              "qmm_sm90");
    EXPECT_NE(winner(product_nowhere(qwen, false, kAffine4, DType::f16, kBf16, tokens)),
              "qmm_sm90");
    EXPECT_NE(winner(product_nowhere(qwen, false, kMxfp4, DType::f16, kBf16, tokens)), "qmm_sm90");
  }
  // Between what qmm_sm90 takes and what nothing but the portable rows does.
  EXPECT_EQ(winner(dense_nowhere(64, 4096, 4096, kAffine4, kBf16, kBf16)), "qmm_sm90");
  EXPECT_EQ(winner(dense_nowhere(64, 4096, 4096, kAffine4, DType::f16, kBf16)), "qmv_sm90");
  EXPECT_EQ(winner(dense_nowhere(600, 4096, 4096, kNvfp4, kBf16, kBf16)), "qmm_sm90");
  for (int bits : {2, 3, 5, 6}) {
    const QuantSpec spec{Mode::affine, bits, 64};
    EXPECT_EQ(winner(dense_nowhere(600, 4096, 4096, spec, kBf16, kBf16)), "qmm_sm90_fields");
    EXPECT_EQ(winner(dense_nowhere(600, 4096, 4096, spec, kBf16, kBf16), 80), "qmm_sm80");
    EXPECT_EQ(winner(dense_nowhere(1, 4096, 4096, spec, kBf16, kBf16)), "qmv_one_sm90");
    EXPECT_EQ(winner(dense_nowhere(1, 4096, 4096, spec, kBf16, kBf16), 80), "qmv_sm80");
    EXPECT_EQ(winner(dense_nowhere(64, 4096, 4096, spec, kBf16, kBf16)), "qmm_sm90_fields");
    EXPECT_EQ(winner(product_nowhere(qwen, false, spec, kBf16, kBf16, 16)),
              bits == 2 ? "qmv_sm80" : "qmm_sm90_fields");
    EXPECT_EQ(winner(product_nowhere(qwen, false, spec, kBf16, kBf16, 24)), "qmm_sm90_fields");
    // Scales of another type, groups that two lanes would share, rows that no bulk copy takes.
    EXPECT_EQ(winner(dense_nowhere(600, 4096, 4096, spec, kBf16, DType::f32)), "qmm_sm80");
    EXPECT_EQ(winner(dense_nowhere(600, 4096, 4096, {Mode::affine, bits, 16}, kBf16, kBf16)),
              "qmm_sm80");
    EXPECT_EQ(winner(dense_nowhere(600, 4096, 4096 + 64, spec, kBf16, kBf16)),
              bits % 2 == 0 ? "qmm_sm90_fields" : "qmm_sm80");
  }
}

// Which qmv_sm90 does not read.
TEST_F(CudaTable, FewRowsOfGroupsOf16) {
  for (int bits : {4, 8}) {
    const QuantSpec spec{Mode::affine, bits, 16};
    EXPECT_EQ(winner(dense_nowhere(1, 4096, 4096, spec, kBf16, kBf16)), "qmv_one_sm90");
    EXPECT_EQ(winner(dense_nowhere(1, 1024, 2048, spec, kBf16, kBf16)), "qmv_simt");
    EXPECT_EQ(winner(dense_nowhere(4, 4096, 4096, spec, kBf16, kBf16)), "qmv_simt");
    EXPECT_EQ(winner(dense_nowhere(5, 4096, 4096, spec, kBf16, kBf16)), "qmm_sm90");
    EXPECT_EQ(winner(product_nowhere(kLayers[1], false, spec, kBf16, kBf16, 1)), "qmv_one_sm90");
    EXPECT_EQ(winner(product_nowhere(kLayers[1], false, spec, kBf16, kBf16, 1), 80), "qmv_simt");
    EXPECT_EQ(winner(product_nowhere(kLayers[1], false, spec, kBf16, kBf16, 16)), "qmv_simt");
    EXPECT_EQ(winner(product_nowhere(kLayers[1], false, spec, kBf16, kBf16, 32)), "qmm_sm90");
  }
}

// Beyond the few that read w several times.
TEST_F(CudaTable, ManyRowsOfFloat32) {
  Options exact;
  exact.precision = Precision::exact;
  for (const QuantSpec& spec : {kAffine4, kMxfp4, kNvfp4, QuantSpec{Mode::affine, 6, 64},
                                QuantSpec{Mode::affine, 3, 128}, QuantSpec{Mode::affine, 8, 16}}) {
    const DType scale = spec.mode == Mode::affine ? DType::f32 : DType::u8;
    for (int capability : {80, 89, 90, 100, 120}) {
      for (int64_t rows : {128, 600}) {
        EXPECT_EQ(winner(dense_nowhere(rows, 4096, 4096, spec, DType::f32, scale), capability),
                  "qmm_sm80_limbs");
      }
      EXPECT_EQ(winner(dense_nowhere(600, 4096, 4096, spec, DType::f32, scale, exact), capability),
                "qmm_simt");
      EXPECT_NE(winner(dense_nowhere(4, 4096, 4096, spec, DType::f32, scale), capability),
                "qmm_sm80_limbs");
    }
    EXPECT_EQ(winner(product_nowhere(kLayers[0], false, spec, DType::f32, scale, 2048)),
              "qmm_sm80_limbs");
  }
}

TEST_F(CudaTable, DenseWeights) {
  for (DType dtype : {kBf16, DType::f16, DType::f32}) {
    for (int64_t tokens : {1, 64, 4096}) {
      const MatmulProblem p = ops::gather_mm(nowhere(dtype, {tokens, 1, 1, 2048}),
                                             nowhere(dtype, {128, 2048, 1536}, 2 * 1024), {},
                                             nowhere(DType::i32, {tokens, 8}, 8 * 1024), false,
                                             output_nowhere(dtype, {tokens, 8, 1, 1536}), {});
      EXPECT_EQ(winner(p), dtype == DType::f32 ? "qmm_simt" : "mm_sm90");
      EXPECT_EQ(winner(p, 80), dtype == DType::f32 ? "qmm_simt" : "qmm_sm80");
    }
  }
}

TEST_F(CudaTable, RangesOfK) {
  for (DType dtype : {kBf16, DType::f16, DType::f32}) {
    for (unsigned turned = 0; turned < 4; ++turned) {
      EXPECT_EQ(winner(segments_nowhere(128, 128, 1024, 16, dtype, turned)), "segmented_sm90");
      EXPECT_EQ(winner(segments_nowhere(1024, 1024, 8192, 64, dtype, turned, 8)),
                dtype == DType::f32 ? "segmented_sm90_limbs" : "segmented_sm90");
      EXPECT_EQ(winner(segments_nowhere(128, 128, 1024, 32, dtype, turned, 1)), "segmented_sm80");
      // Limbs are made of operands however they lie.
      EXPECT_EQ(winner(segments_nowhere(1024, 1024, 8192, 64, dtype, turned, 1)),
                dtype == DType::f32 ? "segmented_sm90_limbs" : "segmented_sm80");
    }
    for (int capability : {80, 89, 100, 120}) {
      EXPECT_EQ(winner(segments_nowhere(128, 128, 1024, 32, dtype), capability), "segmented_sm80");
      EXPECT_EQ(winner(segments_nowhere(1024, 1024, 8192, 64, dtype), capability),
                dtype == DType::f32 ? "segmented_sm80_limbs" : "segmented_sm80");
    }
  }
  // IEEE multiply-adds where they are asked for, or win: of few tiles, and of short segments.
  Options exact;
  exact.precision = Precision::exact;
  EXPECT_EQ(winner(segments_nowhere(1024, 1024, 8192, 64, DType::f32, 0, 0, exact)),
            "segmented_sm90");
  EXPECT_EQ(winner(segments_nowhere(1024, 1024, 512, 64, DType::f32)), "segmented_sm90");
  // One line has no pitch, one k neither.
  EXPECT_EQ(winner(segments_nowhere(1, 64, 33, 2, kBf16)), "segmented_sm90");
  EXPECT_EQ(winner(segments_nowhere(64, 33, 1, 2, kBf16, 1)), "segmented_sm80");
  EXPECT_EQ(winner(segments_nowhere(64, 64, 0, 2, kBf16)), "segmented_sm80");
}

// By what a row of limbs refuses, asked for by name.
std::string why_no_limbs(const char* name, Precision precision, bool deterministic, int64_t size,
                         int64_t k, int64_t segments) {
  Options options;
  options.precision = precision;
  options.deterministic = deterministic;
  const MatmulProblem p = segments_nowhere(size, size, k, segments, DType::f32, 0, 0, options);
  for (const auto& row : cuda::backend().matmul) {
    if (std::string(row.name.text) == name) {
      return dispatch::why_not(row, p, 90).text();
    }
  }
  return "no such row";
}

TEST_F(CudaTable, LimbsWhereTheyArePreciseAndFasterEnough) {
  for (const char* row : {"segmented_sm90_limbs", "segmented_sm80_limbs"}) {
    EXPECT_EQ(why_no_limbs(row, Precision::native, false, 1024, 8192, 64), "");
    EXPECT_EQ(why_no_limbs(row, Precision::fast, false, 512, 4096, 32), "");
    EXPECT_EQ(why_no_limbs(row, Precision::exact, false, 1024, 8192, 64),
              "precision is exact, and sums of limbs are no IEEE multiply-adds");
    EXPECT_EQ(why_no_limbs(row, Precision::native, false, 1024, 512, 64),
              "8 of K for each segment, fewer than 32");
    EXPECT_EQ(why_no_limbs(row, Precision::native, false, 128, 1024, 32),
              "so few tiles take less time by multiply-adds");
    EXPECT_EQ(why_no_limbs(row, Precision::native, false, 64, 0, 16), "K is 0");
    // Whatever there is to multiply.
    EXPECT_EQ(why_no_limbs(row, Precision::native, true, 64, 512, 64), "");
  }
  // By tiles of half as many rows.
  EXPECT_EQ(why_no_limbs("segmented_sm90_limbs", Precision::native, false, 256, 1024, 16), "");
  EXPECT_EQ(why_no_limbs("segmented_sm90_limbs", Precision::native, false, 256, 768, 16),
            "so few tiles take less time by multiply-adds");
}

// Both operands in blocks: x as floats of this dtype, or packed.
MatmulProblem blocks_nowhere(int64_t m, const QuantSpec& spec, DType dtype, bool packed,
                             Precision precision, bool deterministic = false) {
  constexpr int64_t kN = 9728, kK = 2560;
  Quantized x;
  x.spec = spec;
  x.codes = nowhere(dtype, {m, kK});
  if (packed) x = weights_nowhere(spec, {m}, kK, dtype);
  Options options;
  options.precision = precision;
  options.deterministic = deterministic;
  return ops::qqmm(x, weights_nowhere(spec, {kN}, kK, dtype), {}, output_nowhere(dtype, {m, kN}),
                   options);
}

// Which products qqmm_cuda is made of the device says; here, by what qqmm_fp8_sm90 refuses.
std::string why_no_fold(const MatmulProblem& p, int capability = 90) {
  for (const auto& row : cuda::backend().matmul) {
    if (std::string(row.name.text) == "qqmm_fp8_sm90") {
      return dispatch::why_not(row, p, capability).text();
    }
  }
  return "no such row";
}

TEST_F(CudaTable, FoldedScalesWhereTheyAreAskedForAndFaster) {
  constexpr Precision kNative = Precision::native, kFast = Precision::fast;
  for (bool packed : {false, true}) {
    EXPECT_EQ(winner(blocks_nowhere(16384, kMxfp4, kBf16, packed, kFast)), "qqmm_fp8_sm90");
    EXPECT_EQ(why_no_fold(blocks_nowhere(16384, kMxfp4, kBf16, packed, kNative)),
              "precision is not fast, and fp8 products keep some 14 bits of a sum");
    EXPECT_EQ(why_no_fold(blocks_nowhere(16, kMxfp4, kBf16, packed, kFast)),
              "16 rows, from 2048 on it is faster than native");
    for (const QuantSpec& spec : {kMxfp8, kNvfp4}) {
      EXPECT_NE(why_no_fold(blocks_nowhere(16384, spec, kBf16, packed, kFast)), "");
    }
    EXPECT_NE(why_no_fold(blocks_nowhere(16384, kMxfp4, DType::f16, packed, kFast)), "");
    for (int capability : {80, 89, 100, 120}) {
      EXPECT_NE(why_no_fold(blocks_nowhere(16384, kMxfp4, kBf16, packed, kFast), capability), "");
    }
    for (int64_t rows : {1, 16, 2047, 2048, 16384}) {
      EXPECT_EQ(winner(blocks_nowhere(rows, kMxfp4, kBf16, packed, kFast, true)), "qqmm_fp8_sm90");
    }
  }
}

TEST_F(CudaTable, OtherDevicesHaveTheKernelsOfSm80) {
  for (int capability : {80, 89, 100, 120}) {
    EXPECT_EQ(winner(product_nowhere(kLayers[0], false, kAffine4, kBf16, kBf16, 1), capability),
              "qmv_sm80");
    EXPECT_EQ(winner(dense_nowhere(512, 4096, 4096, kAffine4, kBf16, kBf16), capability),
              "qmm_sm80");
    EXPECT_EQ(winner(dense_nowhere(512, 4096, 4096, kAffine4, DType::f16, kBf16), capability),
              "qmm_simt");
  }
}

bool is_portable(const std::string& kernel) { return kernel.ends_with("_simt"); }

// 16-bit rows of large weights in every format with every dtype of scales, in groups that the
// portable kernel is not faster with.
TEST_F(CudaTable, NoDecodingOfLargeWeightsIsLeftToThePortableKernels) {
  const auto expect_all = [](const QuantSpec& spec, DType dtype, DType scale) {
    for (int capability : {80, 86, 89, 90, 100, 120}) {
      const auto expect = [&](const MatmulProblem& p, const char* what, int64_t rows) {
        EXPECT_FALSE(is_portable(winner(p, capability)))
            << what << ", " << rows << " rows, " << name(spec.mode) << spec.bits << " g"
            << spec.group_size << ", " << name(dtype) << ", scales " << name(scale) << ", sm_"
            << capability;
      };
      for (int64_t rows : {1, 2, 4, 8, 16}) {
        expect(dense_nowhere(rows, 8192, 8192, spec, dtype, scale), "8192 x 8192", rows);
      }
      for (const Layer& l : kLayers) {
        if (l.hidden % spec.group_size != 0) continue;
        expect(product_nowhere(l, false, spec, dtype, scale, 8), l.name, 8);
      }
    }
  };
  for (DType dtype : {DType::f16, kBf16}) {
    for (const QuantSpec& spec : {kMxfp4, kMxfp8, kNvfp4}) expect_all(spec, dtype, DType::u8);
    for (DType scale : {DType::f32, DType::f16, kBf16}) {
      for (int bits : {2, 3, 4, 5, 6, 8}) {
        for (int group : {32, 64, 128}) {
          expect_all({Mode::affine, bits, group}, dtype, scale);
        }
      }
    }
  }
}

// One row of one large matrix.
TEST_F(CudaTable, OneRowOfAnyWidth) {
  for (int bits : {2, 3, 5, 6}) {
    for (DType dtype : {DType::f32, DType::f16, kBf16}) {
      for (int group : {32, 64, 128}) {
        const QuantSpec spec{Mode::affine, bits, group};
        EXPECT_EQ(winner(dense_nowhere(1, 8192, 8192, spec, dtype, kBf16)), "qmv_one_sm90");
        EXPECT_NE(winner(dense_nowhere(2, 8192, 8192, spec, dtype, kBf16)), "qmv_one_sm90");
      }
    }
  }
  for (const QuantSpec& spec : {kAffine4, kAffine8}) {
    EXPECT_EQ(winner(dense_nowhere(1, 8192, 8192, spec, DType::f32, kBf16)), "qmv_one_sm90");
    EXPECT_EQ(winner(dense_nowhere(1, 8192, 8192, spec, DType::f16, kBf16)), "qmv_one_sm90");
  }
  // Rows of scales that no bulk copy takes; x that shared memory does not hold.
  const QuantSpec spec{Mode::affine, 6, 64};
  EXPECT_EQ(winner(dense_nowhere(1, 8192, 8192 + 64, spec, kBf16, kBf16)), "qmv_sm80");
  EXPECT_EQ(winner(dense_nowhere(1, 1024, 1 << 16, spec, kBf16, kBf16)), "qmv_sm80");
  // Several matrices by index, one row for all.
  EXPECT_EQ(winner(product_nowhere(kLayers[1], false, spec, kBf16, kBf16, 1)), "qmv_one_sm90");
  EXPECT_NE(winner(product_nowhere(kLayers[1], false, spec, kBf16, kBf16, 2)), "qmv_one_sm90");
  Options options;
  options.kernel = "qmv_one_sm90";
  EXPECT_EQ(winner(dense_nowhere(1, 64, 512, spec, kBf16, kBf16, options)), "qmv_one_sm90");
}

// What the portable kernel is faster with.
TEST_F(CudaTable, DecodingThatThePortableKernelKeeps) {
  const QuantSpec spec{Mode::affine, 6, 64};
  for (int64_t rows : {2, 4}) {
    EXPECT_EQ(winner(dense_nowhere(rows, 8192, 8192, spec, DType::f32, kBf16)),
              rows <= 2 ? "qmv_sm80" : "qmv_simt");
    EXPECT_EQ(winner(dense_nowhere(rows, 8192, 8192, {Mode::affine, 6, 16}, kBf16, kBf16)),
              "qmv_simt");
  }
  EXPECT_EQ(winner(dense_nowhere(8, 1024, 1024, spec, kBf16, kBf16)), "qmv_simt");
  EXPECT_EQ(winner(dense_nowhere(2, 4096, 4096, spec, kBf16, kBf16)), "qmv_sm80");
  EXPECT_EQ(winner(dense_nowhere(1, 1024, 2048, spec, kBf16, kBf16)), "qmv_simt");
  EXPECT_EQ(winner(dense_nowhere(2, 4096, 2048, spec, kBf16, kBf16)), "qmv_simt");
  EXPECT_EQ(winner(product_nowhere(kLayers[1], false, spec, kBf16, kBf16, 1), 80), "qmv_simt");
}

// What reads w once stands back while it would be read a few times by rows of few tokens.
TEST_F(CudaTable, BetweenFewAndManyRows) {
  const QuantSpec spec{Mode::affine, 6, 64};
  for (int64_t rows : {2, 5, 6, 8, 16}) {
    for (int bits : {2, 3, 5, 6}) {
      const QuantSpec of{Mode::affine, bits, 64};
      EXPECT_EQ(winner(dense_nowhere(rows, 8192, 8192, of, kBf16, kBf16)),
                rows < 6 ? "qmv_sm80" : "qmm_sm90_fields");
      EXPECT_EQ(winner(dense_nowhere(rows, 4096, 4096, of, kBf16, kBf16)),
                rows <= 8 ? "qmv_sm80" : "qmm_sm90_fields");
      // Shared memory holds four of these rows, and they are long.
      EXPECT_EQ(winner(dense_nowhere(rows, 16384, 16384, of, kBf16, kBf16)),
                rows < (bits < 5 ? 5 : 3) ? "qmv_sm80" : "qmm_sm90_fields");
    }
  }
  // So many rows for each of several matrices.
  for (int64_t rows : {1, 2}) {
    const auto of = [&](const Layer& l, int bits) {
      return winner(product_nowhere(l, false, {Mode::affine, bits, 64}, kBf16, kBf16,
                                    rows * l.experts / l.top_k));
    };
    EXPECT_EQ(of(kLayers[0], 3), rows == 1 ? "qmv_sm80" : "qmm_sm90_fields");
    EXPECT_EQ(of(kLayers[0], 6), "qmm_sm90_fields");
  }
  EXPECT_EQ(winner(product_nowhere(kLayers[1], false, spec, kBf16, kBf16, 8)), "qmv_sm80");
  EXPECT_EQ(winner(dense_nowhere(64, 8192, 8192, spec, kBf16, kBf16)), "qmm_sm90_fields");
  EXPECT_EQ(winner(dense_nowhere(64, 8192, 8192, spec, kBf16, kBf16), 80), "qmm_sm80");
}

// Asked for by name a row runs wherever it can.
TEST_F(CudaTable, DecodingByName) {
  Options options;
  options.kernel = "qmv_sm80";
  const QuantSpec spec{Mode::affine, 3, 64};
  EXPECT_EQ(winner(dense_nowhere(1, 64, 256, spec, kBf16, kBf16, options)), "qmv_sm80");
  EXPECT_EQ(winner(dense_nowhere(1, 64, 256, spec, kBf16, kBf16)), "qmv_simt");
}

// Rows that begin anywhere, experts' rows by their ends.
TEST_F(CudaTable, DecodingFromAnyAddress) {
  const QuantSpec spec{Mode::affine, 3, 64};
  Quantized w = weights_nowhere(spec, {64, 4096}, 2048, kBf16);
  const TensorView x = nowhere(kBf16, {16, 2048}), out = output_nowhere(kBf16, {16, 4096});
  const TensorView ends = nowhere(DType::i32, {64}, 8 * 1024);
  EXPECT_EQ(winner(ops::grouped_qmm(x, w, ends, true, out, {})), "qmv_sm80");
  w.codes = TensorView(static_cast<uint8_t*>(w.codes.data) + 1, DType::u8, {64, 4096, 2048 * 3 / 8},
                       w.codes.device);
  EXPECT_EQ(winner(ops::grouped_qmm(x, w, ends, true, out, {})), "qmv_sm80");
}

// Boxes of bulk copies have rows that lie apart.
TEST_F(CudaTable, RowsOfWeightsThatOverlap) {
  for (const QuantSpec& spec : {kAffine4, kAffine8}) {
    for (int64_t rows : {1, 2}) {
      const TensorView x = nowhere(kBf16, {rows, 8192}), out = output_nowhere(kBf16, {rows, 8192});
      for (TensorView Quantized::* part : {&Quantized::codes, &Quantized::scales}) {
        Quantized w = weights_nowhere(spec, {8192}, 8192, kBf16);
        (w.*part).strides[0] -= 8;
        EXPECT_EQ(winner(ops::quantized_matmul(x, w, true, out, {})), "qmv_sm80");
        (w.*part).strides[0] += 16;
        EXPECT_NE(winner(ops::quantized_matmul(x, w, true, out, {})), "qmv_sm80");
      }
    }
  }
}

// With options.deterministic the choice must not depend on the number of rows.
TEST_F(CudaTable, DeterministicCallsHaveOneKernelForAnyNumberOfRows) {
  Options options;
  options.deterministic = true;
  for (const QuantSpec& spec : {kAffine4, kAffine8, kMxfp4, kMxfp8, kNvfp4}) {
    for (DType dtype : {DType::f32, DType::f16, kBf16}) {
      for (int capability : {80, 90, 100}) {
        const auto dense = [&](int64_t rows) {
          return winner(dense_nowhere(rows, 4096, 4096, spec, dtype, kBf16, options), capability);
        };
        const auto layer = [&](int64_t tokens) {
          return winner(product_nowhere(kLayers[1], false, spec, dtype, kBf16, tokens, options),
                        capability);
        };
        for (int64_t rows : {2, 3, 8, 9, 16, 17, 64, 65, 600, 5000}) {
          EXPECT_EQ(dense(rows), dense(1)) << rows << " rows";
          EXPECT_EQ(layer(rows), layer(1)) << rows << " tokens";
        }
      }
    }
  }
}

// What users read of a row that did not run.
TEST_F(CudaTable, Reasons) {
  std::string text;
  dispatch::select(cuda::backend().matmul, dense_nowhere(48, 4096, 4096, kAffine4, kBf16, kBf16),
                   90, nullptr, &text);
  EXPECT_EQ(text,
            "qmv_one_sm90: 48 rows of x, more than one\n"
            "qmm_few_sm90: M = 48, more than 8\n"
            "qmv_sm90: it would read w 3 times, qmm_sm90 reads it once\n"
            "qmm_sm90: takes it\n");
}

}  // namespace
}  // namespace moeblas::test
