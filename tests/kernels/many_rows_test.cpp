// The CPU's rows for many rows of x beyond the sizes that generated cases reach: several panels,
// several blocks of K with ragged ends, more rows than a block of sums holds.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/cases.h"
#include "support/random.h"
#include "support/seeds.h"

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

// Right by every row that the machine has and that takes the case; at least one does. What is for
// `fast` alone is asked for it.
void expect_right_by_all(Case c) {
  c.threads = 3;  // beside a run on one
  int taken = 0;
  for (const std::string& row : rows_for_many()) {
    c.precision = row.starts_with("mm_int8") ? Precision::fast : Precision::native;
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

// x of 64 rows and more is fetched a tile ahead, and beside a megabyte of it weights a block ahead.
TEST(ManyRows, RowsThatAreFetchedAhead) {
  expect_right_by_all(matmul_case(kAffine4, DType::f32, {64, 5, 192}));
  expect_right_by_all(matmul_case(kAffine4, DType::f32, {512, 5, 640}));
  expect_right_by_all(matmul_case(kAffine4, DType::bf16, {515, 5, 1088}));
  expect_right_by_all(matmul_case(kAffine4, DType::f32, {512, 64, 640}, false));
}

TEST(ManyRows, MoreScalesThanAreTransposedAtATime) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    expect_right_by_all(matmul_case({Mode::affine, 4, 16}, dtype, {3, 33, 16 * 270}));
    expect_right_by_all(matmul_case(kNvfp4, dtype, {3, 33, 16 * 142}));
  }
}

TEST(ManyRows, ATensorScaleThatIsNoPowerOfTwo) {
  for (float scale : {0.037f, 3e-38f, 1e-41f, 7.0f, 1.5e30f}) {
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

// x of whole numbers, of which the largest of every group is 127, is not rounded at all: every
// result is the exact one, whatever codes it meets.
template <int kBits>
void exact_int8(Mode mode, int group) {
  constexpr int64_t m = 13, n = 70, k = 2 * 512 + 128;
  Random random(static_cast<uint64_t>(kBits * group));
  std::vector<float> x(m * k);
  for (int64_t i = 0; i < m * k; i += group) {
    for (int64_t j = i; j < i + group; ++j)
      x[static_cast<size_t>(j)] = static_cast<float>(random.between(-127, 127));
    x[static_cast<size_t>(random.between(i, i + group - 1))] = random.one_in(2) ? 127.0f : -127.0f;
  }
  std::vector<uint8_t> codes(static_cast<size_t>(n * k * kBits / 8));
  for (uint8_t& byte : codes) byte = static_cast<uint8_t>(random.between(0, 255));
  const auto groups = static_cast<size_t>(n * k / group);
  std::vector<float> scales(groups), biases(groups);
  std::vector<uint8_t> powers(groups);
  for (size_t i = 0; i < groups; ++i) {
    const int64_t exponent = random.between(-1, 2);
    powers[i] = static_cast<uint8_t>(127 + exponent);
    scales[i] = std::ldexp(1.0f, static_cast<int>(exponent));
    biases[i] = static_cast<float>(random.between(-8, 8));
  }
  Quantized w{.spec = {mode, kBits, group},
              .codes = TensorView(codes.data(), DType::u8, {n, k * kBits / 8}),
              .scales = TensorView(powers.data(), DType::u8, {n, k / group})};
  if (mode == Mode::affine) {
    w.scales = TensorView(scales.data(), DType::f32, {n, k / group});
    w.biases = TensorView(biases.data(), DType::f32, {n, k / group});
  }
  std::vector<float> expected(m * n), got(m * n, -1);
  const TensorView xs(x.data(), DType::f32, {m, k});
  Options options = forcing("matmul_portable");
  quantized_matmul(xs, w, true, TensorView(expected.data(), DType::f32, {m, n}), options);
  options = forcing("mm_int8_avx512");
  options.precision = Precision::fast;
  quantized_matmul(xs, w, true, TensorView(got.data(), DType::f32, {m, n}), options);
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], expected[i]) << kBits << " bits, groups of " << group << ", result " << i;
}

bool has_int8() {
  Case c = matmul_case(kAffine4, DType::f32, {1, 16, 64});
  c.precision = Precision::fast;
  return run_case(c, "mm_int8_avx512").refusal.empty();
}

TEST(Int8, WholeNumbersUpTo127AreExact) {
  if (!has_int8()) GTEST_SKIP() << "this machine has no such row";
  for (int group : {32, 64, 128}) {
    exact_int8<2>(Mode::affine, group);
    exact_int8<4>(Mode::affine, group);
    exact_int8<8>(Mode::affine, group);
  }
  exact_int8<4>(Mode::mxfp4, 32);
}

// What moeblas.h says of `fast`: rounded to 127ths of the group's largest magnitude, below 2^-100
// to nothing; and numbers that are none stay none, of their own row.
TEST(Int8, RoundsByGroupsAsStated) {
  if (!has_int8()) GTEST_SKIP() << "this machine has no such row";
  constexpr int64_t m = 5, n = 4, k = 64;
  std::vector<uint8_t> codes(n * k / 2, 0x22), scales(n * k / 32, 127);  // ones
  const Quantized w{.spec = kMxfp4,
                    .codes = TensorView(codes.data(), DType::u8, {n, k / 2}),
                    .scales = TensorView(scales.data(), DType::u8, {n, k / 32})};
  std::vector<float> x(m * k), out(m * n);
  x[0] = 127, x[1] = 0.49f, x[32] = 0.49f;  // the second group's own scale keeps it
  x[k] = 0x1p-101f, x[k + 1] = -0x1p-110f;
  x[2 * k] = 0x1p-100f;
  x[3 * k + 7] = std::numeric_limits<float>::quiet_NaN();
  x[4 * k + 40] = std::numeric_limits<float>::infinity();
  Options options = forcing("mm_int8_avx512");
  options.precision = Precision::fast;
  quantized_matmul(TensorView(x.data(), DType::f32, {m, k}), w, true,
                   TensorView(out.data(), DType::f32, {m, n}), options);
  for (int64_t j = 0; j < n; ++j) {
    const auto at = [&](int64_t row) { return out[static_cast<size_t>(row * n + j)]; };
    EXPECT_FLOAT_EQ(at(0), 127.49f);
    EXPECT_EQ(at(1), 0);
    EXPECT_FLOAT_EQ(at(2), 0x1p-100f);
    EXPECT_TRUE(std::isnan(at(3)));
    EXPECT_EQ(at(4), x[4 * k + 40]);
  }
}

TEST(Int8, IsNeverUsedUnasked) {
  for (Precision precision : {Precision::native, Precision::exact}) {
    Case c = matmul_case(kAffine4, DType::bf16, {64, 16, 64});
    c.precision = precision;
    EXPECT_NE(run_case(c).kernel, "mm_int8_avx512");
    const std::string refusal = run_case(c, "mm_int8_avx512").refusal;
    if (!has_int8()) continue;
    EXPECT_NE(refusal.find("which only `fast` allows"), std::string::npos) << refusal;
  }
}

}  // namespace
}  // namespace moeblas::test
