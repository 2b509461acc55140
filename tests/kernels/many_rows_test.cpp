// The CPU's rows for many rows of x beyond the sizes that generated cases reach: several panels,
// several blocks of K with ragged ends, more rows than a block of sums holds.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/cases.h"

namespace moeblas::test {
namespace {

std::vector<std::string> rows_for_many() {
  std::vector<std::string> names;
  for (const moeblas_kernel& row : kernels()) {
    const bool of_cpu = std::string(row.backend) == "cpu";
    if (of_cpu && std::string(row.name).starts_with("mm_")) names.push_back(row.name);
  }
  return names;
}

// Right by every row that the machine has and that takes the case; at least one does.
void expect_right_by_all(Case c) {
  c.threads = 3;  // beside a run on one
  int taken = 0;
  for (const std::string& row : rows_for_many()) {
    const Outcome outcome = run_case(c, row.c_str());
    EXPECT_TRUE(outcome.ok()) << row << ": " << outcome.failure << "\n  case: " << describe(c);
    taken += outcome.refusal.empty() ? 1 : 0;
  }
  EXPECT_TRUE(taken > 0 || rows_for_many().empty()) << describe(c);
}

// Two depths of a panel and what remains.
int64_t deep(const QuantSpec& spec, DType dtype) {
  const int64_t unit = packed_unit(spec.resolved());
  return ((dtype == DType::bf16 ? 513 : 257) + unit - 1) / unit * unit;
}

TEST(ManyRows, EveryFormatAlongBothAxes) {
  uint64_t seed = 1;
  for (const QuantSpec& format : all_formats()) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (bool transpose : {true, false}) {
        const int64_t packed = deep(format, dtype), k = transpose ? packed : 300;
        Case c = matmul_case(format, dtype, {7, transpose ? 70 : packed, k}, transpose);
        c.seed = ++seed;
        expect_right_by_all(c);
        c.values = Values::integers;
        if (format.mode == Mode::nvfp4) c.host_tensor_scale = 0.5f;
        expect_right_by_all(c);
      }
    }
  }
}

TEST(ManyRows, MoreThanABlockOfSums) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const QuantSpec& format : {kAffine4, kMxfp8}) {
      expect_right_by_all(matmul_case(format, dtype, {1030, 67, 64}));
      Case c = expert_case(format, dtype, 300, 4, 2, 67, 64);
      c.ids = Ids::mixed;
      expect_right_by_all(c);
      expect_right_by_all(grouped_case(format, dtype, 1100, 2, 67, 64));
    }
  }
}

TEST(ManyRows, MoreScalesThanAreTransposedAtATime) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    expect_right_by_all(matmul_case({Mode::affine, 4, 16}, dtype, {3, 33, 16 * 270}));
    expect_right_by_all(matmul_case(kNvfp4, dtype, {3, 33, 16 * 142}));
  }
}

TEST(ManyRows, ATensorScaleThatIsNoPowerOfTwo) {
  for (float scale : {0.037f, 3e-38f, 1e-41f, -7.0f, 1.5e30f}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      Case c = matmul_case(kNvfp4, dtype, {9, 70, 320});
      c.host_tensor_scale = scale;
      expect_right_by_all(c);
    }
  }
}

TEST(ManyRows, DenseWeightsOfOddSizes) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (Op op : {Op::gather_mm, Op::grouped_mm, Op::segmented_mm}) {
      for (bool along_k : {false, true}) {
        for (int64_t k : {1, 129, 257, 515}) {
          Case c = dense_case(op, dtype, 7, {op == Op::grouped_mm ? 1 : 11, 71, k}, 3);
          if (along_k) {
            Shape& strides = c.w.strides;
            const int last = strides.ndim() - 1;
            strides[last] = k;
            strides[last - 1] = 1;
          }
          expect_right_by_all(c);
        }
      }
    }
  }
}

}  // namespace
}  // namespace moeblas::test
