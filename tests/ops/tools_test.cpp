// The tools of these tests must themselves catch what they are there to catch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "support/cases.h"
#include "support/codec.h"

namespace moeblas::test {
namespace {

TEST(GuardDeathTest, OneByteTooFarOnEitherSideIsAFault) {
  const GuardedMemory left(100, Side::left, 0), right(100, Side::right, 0);
  volatile uint8_t sink = 0;
  EXPECT_DEATH({ sink = left.data()[-1]; }, "");
  EXPECT_DEATH({ sink = right.data()[100]; }, "");
  EXPECT_DEATH(
      {
        const CrashLine line("the case that crashed");
        right.data()[100] = sink;
      },
      "the case that crashed");
}

TEST(Guard, WritesBetweenElementsAreFound) {
  Operand t({DType::f32, {3, 2}, {5, 1}, true}, Side::right, kPoison);
  for (int64_t i = 0; i < 6; ++i) t.set(i, 1);
  EXPECT_EQ(stray_write(t, kPoison), "");
  t.byte(1)[4] = 0;
  EXPECT_NE(stray_write(t, kPoison), "");
}

// What a kernel of a given defect would give for this case must not pass.
struct Defective {
  std::vector<Expected> expected;
  std::vector<double> right, wrong;
};

template <class Sum>
Defective with_defect(DType dtype, int64_t n, int64_t k, Sum&& sum) {
  Case c = matmul_case(kAffine4, dtype, {8, n, k});
  c.seed = 5;
  const Operands o = build(c, Side::left, kPoison);
  const Product p = product_of(c, o);
  Defective d{evaluate(p, Path::decoded, dtype), {}, {}};
  const Matrix& x = p.x.matrix(0);
  const Matrix& w = p.w.matrix(0);
  for (const Expected& e : d.expected) d.right.push_back(round_to(float_format(dtype), e.single));
  for (int64_t i = 0; i < 8 * n; ++i) {
    d.wrong.push_back(round_to(float_format(dtype), sum(&x.value[static_cast<size_t>(i / n * k)],
                                                        &w.value[static_cast<size_t>(i % n * k)])));
  }
  return d;
}

void expect_caught(const Defective& d, DType dtype) {
  EXPECT_EQ(compare(d.expected, d.right, dtype, false), "");
  EXPECT_NE(compare(d.expected, d.wrong, dtype, false), "");
}

TEST(Tolerance, CatchesSumsIn16Bits) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const FloatFormat format = float_format(dtype == DType::f16 ? DType::f16 : DType::bf16);
    expect_caught(with_defect(dtype, 32, 512,
                              [&](const double* x, const double* w) {
                                double s = 0;
                                for (int k = 0; k < 512; ++k) s = round_to(format, s + x[k] * w[k]);
                                return s;
                              }),
                  dtype);
  }
}

TEST(Tolerance, CatchesWeightsRoundedTo16Bits) {
  // At this K the elementwise bound alone would let float16 weights pass.
  expect_caught(with_defect(DType::f32, 32, 8192,
                            [&](const double* x, const double* w) {
                              double s = 0;
                              for (int k = 0; k < 8192; ++k) s += x[k] * round_to(kFloat16, w[k]);
                              return s;
                            }),
                DType::f32);
}

TEST(Tolerance, CatchesADroppedTail) {
  expect_caught(with_defect(DType::bf16, 32, 192,
                            [&](const double* x, const double* w) {
                              double s = 0;
                              for (int k = 0; k < 184; ++k) s += x[k] * w[k];
                              return s;
                            }),
                DType::bf16);
}

TEST(Tolerance, CatchesNaNAndInfinity) {
  Defective d = with_defect(DType::f32, 8, 64, [](const double*, const double*) { return 0.0; });
  d.wrong = d.right;
  d.wrong[3] = std::numeric_limits<double>::quiet_NaN();
  expect_caught(d, DType::f32);
  d.wrong[3] = std::numeric_limits<double>::infinity();
  expect_caught(d, DType::f32);
}

// x in whole parts of the largest magnitude of its group of 64.
double in_parts(const double* x, int k, double parts) {
  const double* group = x + k / 64 * 64;
  double largest = 0;
  for (int i = 0; i < 64; ++i) largest = std::max(largest, std::fabs(group[i]));
  return std::nearbyint(x[k] / largest * parts) * largest / parts;
}

TEST(Tolerance, HoldsInt8To127Parts) {
  const auto rounded_to = [](double parts) {
    return with_defect(DType::f32, 32, 256, [parts](const double* x, const double* w) {
      double s = 0;
      for (int k = 0; k < 256; ++k) s += in_parts(x, k, parts) * w[k];
      return s;
    });
  };
  Case c = matmul_case(kAffine4, DType::f32, {8, 32, 256});
  c.seed = 5;
  const Operands o = build(c, Side::left, kPoison);
  const auto expected = evaluate(product_of(c, o), Path::int8, DType::f32);
  expect_caught(rounded_to(127), DType::f32);  // as any other path
  EXPECT_EQ(compare(expected, rounded_to(127).wrong, DType::f32, false), "");
  EXPECT_NE(compare(expected, rounded_to(40).wrong, DType::f32, false), "");
}

// What two limbs of a number hold, the second brought up by `up` beforehand.
struct Limbs {
  double first, second;

  Limbs(const FloatFormat& format, double x, double up) : first(round_to(format, x)) {
    second = round_to(format, (x - first) * up) / up;
  }
};

TEST(Tolerance, TakesTwoFloat16LimbsForFloat32) {
  const auto three_products = [](const FloatFormat& format, double up) {
    return with_defect(DType::f32, 32, 256, [&format, up](const double* x, const double* w) {
      double s = 0;
      for (int k = 0; k < 256; ++k) {
        const Limbs a(format, x[k], up), b(format, w[k], up);
        s += a.first * b.first + a.first * b.second + a.second * b.first;
      }
      return s;
    });
  };
  const Defective half = three_products(kFloat16, 0x1p12);
  EXPECT_EQ(compare(half.expected, half.wrong, DType::f32, false), "");
  expect_caught(three_products(kBfloat16, 1), DType::f32);
  expect_caught(three_products(kFloat16, 0x1p-12), DType::f32);  // second limbs that hold nothing
}

// Codes and x summed apart, as a factored path may: where all x are alike, both sums grow and all
// but cancel. `of_x` is what the sum of x becomes.
std::string factored_sums_of_equal_x(const std::function<float(float)>& of_x) {
  Random random(11);
  std::vector<Expected> expected;
  std::vector<double> got;
  for (int i = 0; i < 64; ++i) {
    const auto x = static_cast<float>(random.normal());
    const auto s = static_cast<float>(random.normal()), b = -7.5f * s;
    Accumulator sum(Path::factored, DType::f32);
    float total = 0;
    for (int part = 0; part < 2; ++part) {
      float of_codes = 0, xs = 0;
      for (int k = 0; k < 16; ++k) {
        const auto code = static_cast<float>(random.between(0, 15));
        sum.add(x, s * code + b, double{s} * code, b);
        of_codes = std::fma(code, x, of_codes);
        xs += x;
      }
      total = std::fma(s, of_codes, std::fma(b, of_x(xs), total));
    }
    expected.push_back(sum.result());
    got.push_back(total);
  }
  return compare(expected, got, DType::f32, false);
}

// Products of e4m3 as a tensor core adds them that keeps so many bits: cut off, 32 at a time.
std::string fp8_sums(int bits, bool positive) {
  constexpr int64_t kCount = 64, kBlocks = 6;
  Random random(11);
  const auto value = [&] {
    const double v = random.pick({0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}) *
                     std::ldexp(1.0, random.pick({-9, -4, -1, 0}));
    return positive || random.one_in(2) ? v : -v;
  };
  std::vector<Expected> expected;
  std::vector<double> got;
  for (int64_t i = 0; i < kCount; ++i) {
    Accumulator sum(Path::fp8_blocks, DType::f32);
    float total = 0;
    for (int64_t b = 0; b < kBlocks; ++b) {
      double part = 0;
      for (int step = 0; step < 4; ++step) {
        std::vector<double> terms{part};
        for (int k = 0; k < 32; ++k) {
          const double x = value(), w = value();
          sum.add(x, w, w, 0);
          terms.push_back(x * w);
        }
        double largest = 0;
        for (double t : terms) largest = std::max(largest, std::fabs(t));
        if (largest == 0) continue;
        const double unit = std::ldexp(1.0, std::ilogb(largest) - (bits - 1));
        part = 0;
        for (double t : terms) part += std::trunc(t / unit) * unit;
      }
      total += static_cast<float>(part);
    }
    expected.push_back(sum.result());
    got.push_back(total);
  }
  return compare(expected, got, DType::f32, false);
}
TEST(Tolerance, HoldsFp8BlocksToTheBitsThatAreKept) {
  for (bool positive : {false, true}) {
    EXPECT_EQ(fp8_sums(14, positive), "");
    // Where signs differ, so do those of what is cut off.
    EXPECT_NE(fp8_sums(positive ? 8 : 4, positive), "");
  }
}
TEST(Tolerance, AllowsFactoredSumsWhatTheyCancel) {
  EXPECT_EQ(factored_sums_of_equal_x([](float xs) { return xs; }), "");
  EXPECT_NE(factored_sums_of_equal_x([](float xs) { return xs * (1 + 0x1p-20f); }), "");
}

TEST(Tolerance, KnowsThePathOfEveryProductKernel) {
  for (const moeblas_kernel& row : kernels()) {
    if (std::string(row.problem) != "matmul") continue;
    EXPECT_NO_THROW(path_of(row.name)) << row.name;
  }
}

TEST(Codec, RoundsAsTheMachineDoes) {
  Random random(7);
  for (int i = 0; i < 100'000; ++i) {
    const double v = std::ldexp(random.normal(), static_cast<int>(random.between(-160, 140)));
    ASSERT_EQ(round_to(kFloat32, v), static_cast<double>(static_cast<float>(v)));
  }
  for (uint32_t code = 0; code < 65536; ++code) {
    for (const FloatFormat& format : {kFloat16, kBfloat16}) {
      const double v = decode(format, code);
      if (std::isnan(v)) continue;
      ASSERT_EQ(encode(format, v), code);
    }
  }
}

// What the default run of generated cases has in it.
TEST(Generator, ReachesWhatItPromises) {
  std::set<std::string> seen;
  int64_t count = 0, empty = 0;
  for (int i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    for (uint64_t seed = 0; seed < combinations(op) + 200; ++seed, ++count) {
      const Case c = make_case(op, seed);
      ASSERT_EQ(describe(c), describe(make_case(op, seed))) << "a seed must give one case";
      const std::string prefix = name(op);
      seen.insert(prefix + name(c.x.dtype));
      if (c.format) {
        seen.insert(prefix + name(c.format->mode) + std::to_string(c.format->bits) + "/" +
                    std::to_string(c.format->group_size) + (c.transpose ? "t" : "n") +
                    name(c.x.dtype));
      } else if (is_product(op) && is_quantized(op)) {
        seen.insert(prefix + "dense " + name(c.w.dtype) + (c.transpose ? "t" : "n") +
                    name(c.x.dtype));
      }
      for (const Layout* t : {&c.lhs, &c.rhs, &c.ranges}) {
        if (t->present) seen.insert(prefix + " index " + name(t->dtype));
      }
      for (const Layout* t : {&c.x, &c.codes, &c.w, &c.rhs, &c.out}) {
        for (int d = 0; t->present && d < t->shape.ndim(); ++d) {
          if (t->shape[d] <= 1) continue;
          if (t->strides[d] == 0) seen.insert("broadcast");
          if (t->strides[d] < 0) seen.insert("reversed");
        }
      }
      empty += is_product(op) && c.out.shape.numel() == 0;
    }
  }
  for (const char* op : {"quantized_matmul", "gather_qmm", "grouped_qmm"}) {
    for (const char* way : {"t", "n"}) {
      for (const char* dtype : {"float32", "float16", "bfloat16"}) {
        for (const char* format : {"affine2/16", "affine3/128", "affine5/32", "affine6/64",
                                   "affine8/16", "mxfp44/32", "mxfp88/32", "nvfp44/16"}) {
          EXPECT_TRUE(seen.count(std::string(op) + format + way + dtype)) << op << format << way;
        }
        for (const char* format : {"dense float32", "dense float16", "dense bfloat16"}) {
          EXPECT_TRUE(seen.count(std::string(op) + format + way + dtype)) << op << format << way;
        }
      }
    }
  }
  for (const char* op : {"gather_mm", "gather_qmm", "gather_qmv", "segmented_mm"}) {
    for (const char* dtype :
         {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}) {
      EXPECT_TRUE(seen.count(std::string(op) + " index " + dtype)) << op << dtype;
    }
  }
  EXPECT_TRUE(seen.count("broadcast") && seen.count("reversed"));
  EXPECT_GT(empty, 0);
  EXPECT_LT(empty * 5, count) << "too many cases compute nothing";
}

}  // namespace
}  // namespace moeblas::test
