// Sums that float32 holds exactly, so that results are known to the bit whatever the order of
// summation; and results that must not depend on threads, on the run or on other rows.
#include <gtest/gtest.h>

#include "support/cases.h"

namespace moeblas::test {
namespace {

// The case with integers in x, integer codes and scales that are powers of two.
Case exact(Case c) {
  c.values = Values::integers;
  c.x_exponent = c.scale_exponent = 0;
  if (c.host_tensor_scale) c.host_tensor_scale = 0.5f;
  return c;
}

// run_case compares a run on one thread with a run on c.threads and both with the exact result.
TEST(Exact, EveryOperationOnAnyNumberOfThreads) {
  for (int i = 0; is_product(static_cast<Op>(i)); ++i) {
    const Op op = static_cast<Op>(i);
    for (uint64_t seed = 0; seed < combinations(op); seed += 1 + combinations(op) / 36) {
      Case c = exact(make_case(op, seed + 1'000'000'000));
      for (int threads : {1, 2, 3, 8}) {
        c.threads = threads;
        expect_right(c);
      }
    }
  }
}

TEST(Exact, ManyPanelsOnManyThreads) {
  for (int threads : {2, 3, 8}) {
    for (const QuantSpec& format : {kAffine4, kMxfp4, kMxfp8, kNvfp4}) {
      Case c = exact(expert_case(format, DType::f32, 24, 2, 8, 136, 128));
      c.threads = threads;
      expect_right(c);
    }
    Case d = exact(dense_case(Op::segmented_mm, DType::f32, 5, {40, 136, 64}, 0));
    d.threads = threads;
    expect_right(d);
  }
}

TEST(Exact, RunAfterRunIsBitwiseEqual) {
  for (const QuantSpec& format : {kAffine4, kNvfp4}) {
    Case c = expert_case(format, DType::f32, 40, 2, 8, 100, 256);
    c.ids = Ids::mixed;
    std::vector<uint8_t> first;
    with_threads(8, [&] {
      for (int run = 0; run < 20; ++run) {
        const Operands o = build(c, Side::right, static_cast<uint8_t>(run));
        call(c, o, {});
        const std::vector<uint8_t> bytes = element_bytes(o.out);
        if (run == 0) first = bytes;
        ASSERT_EQ(bytes, first) << "run " << run;
      }
    });
  }
}

// A row of the result with `deterministic` must be what the row alone gives.
TEST(Exact, DeterministicRowsDoNotDependOnOtherRows) {
  constexpr int64_t tokens = 37, n = 45, k = 192;
  Options options;
  options.deterministic = true;
  for (const QuantSpec& format : {kAffine4, kMxfp4, kNvfp4}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Case c = expert_case(format, dtype, tokens, 1, 4, n, k);
      const Operands all = build(c, Side::left, kPoison);
      call(c, all, options);
      const Case single = expert_case(format, dtype, 1, 1, 4, n, k);
      for (int64_t t = 0; t < tokens; ++t) {
        Operand out(single.out, Side::left, kPoison);
        TensorView x = all.x.view, ids = all.rhs.view;
        x.data = all.x.byte(t * k);
        x.shape = single.x.shape;
        ids.data = all.rhs.byte(t);
        ids.shape = single.rhs.shape;
        gather_qmm(x, all.quantized(), {}, ids, true, false, out.view, options);
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(out.get(i), all.out.get(t * n + i)) << t;
      }
    }
  }
}

TEST(Exact, QuantizedMatmulRowsDoNotDependOnM) {
  Options options;
  options.deterministic = true;
  const Case c = matmul_case(kAffine4, DType::f16, {33, 70, 320});
  const Operands all = build(c, Side::left, kPoison);
  call(c, all, options);
  for (int64_t m : {1, 2, 7, 16}) {
    TensorView x = all.x.view;
    x.shape[0] = m;
    Operand out(plain(DType::f16, {m, 70}), Side::left, kPoison);
    quantized_matmul(x, all.quantized(), true, out.view, options);
    for (int64_t i = 0; i < out.numel(); ++i) ASSERT_EQ(out.get(i), all.out.get(i)) << m;
  }
}

// Every operation with each of its sizes at zero.
TEST(Exact, EmptySizes) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const QuantSpec& format : {kAffine4, kMxfp4, kMxfp8, kNvfp4}) {
      for (int zero = 0; zero < 3; ++zero) {
        const int64_t m = zero == 0 ? 0 : 3, n = zero == 1 ? 0 : 64, k = zero == 2 ? 0 : 128;
        expect_right(matmul_case(format, dtype, {m, n, k}));
        expect_right(matmul_case(format, dtype, {m, n, k}, false));
        expect_right(expert_case(format, dtype, m, 2, 4, n, k));
        expect_right(expert_case(format, dtype, 3, m, 4, n, k));
        expect_right(expert_case(format, dtype, 3, 2, 4, n, k, false));
        expect_right(grouped_case(format, dtype, m, 4, n, k));
      }
      Case no_experts = expert_case(format, dtype, 3, 2, 0, 64, 128);
      no_experts.ids = Ids::none;
      expect_right(no_experts);
      expect_right(grouped_case(format, dtype, 3, 0, 64, 128));
    }
    for (Op op : {Op::gather_mm, Op::segmented_mm, Op::grouped_mm}) {
      for (int zero = 0; zero < 4; ++zero) {
        expect_right(dense_case(op, dtype, zero == 0 ? 0 : 2,
                                {zero == 1 ? 0 : 3, zero == 2 ? 0 : 5, zero == 3 ? 0 : 7}, 4));
      }
    }
  }
}

TEST(Exact, KOfZeroGivesZeros) {
  Case c = expert_case(kAffine4, DType::f16, 3, 2, 4, 40, 0);
  const Operands o = build(c, Side::left, kPoison);
  call(c, o, {});
  for (int64_t i = 0; i < o.out.numel(); ++i) EXPECT_EQ(o.out.get(i), 0);
}

TEST(Exact, EmptyOutputsStillHaveTheirArgumentsChecked) {
  const Case c = expert_case(kAffine4, DType::f32, 0, 2, 4, 40, 64);
  Operands o = build(c, Side::left, kPoison);
  o.x.view.shape[3] = 128;
  EXPECT_THROW(call(c, o, {}), Error);
}

}  // namespace
}  // namespace moeblas::test
