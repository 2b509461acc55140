// What the portable products promise beside their results: rows that do not depend on each other,
// sums that factoring would spoil, reasons, and barriers that are missed where they are missing.
#include "simt/product_case.h"

namespace moeblas::test {
namespace {

// A row's sum does not depend on what other rows there are, nor on where it stands: bit for bit.
void expect_rows_alone(ProductCase c) {
  c.exact = false;
  const Product product(c);
  Array out = product.make_out();
  EmulatorQueue queue;
  product.run_on(queue, out, product.problem(out));
  for (int64_t row : {int64_t{0}, c.m / 2, c.m - 1}) {
    Array alone = product.make_out();
    dispatch::MatmulProblem p = product.problem(alone);
    p.x.values.data = static_cast<char*>(p.x.values.data) +
                      row * p.x.values.row_stride * static_cast<int64_t>(size_of(c.x_type));
    p.m = p.x.values.rows = p.out.rows = 1;
    EmulatorQueue other(emu::Schedule::greedy);
    product.run_on(other, alone, p);
    for (int64_t j = 0; j < c.n; ++j) EXPECT_EQ(alone.get(j), out.get(row * c.n + j)) << row;
  }
}

TEST(SimtProducts, RowsDoNotDependOnEachOther) {
  expect_rows_alone({.op = Op::quantized_matmul, .spec = affine(4, 32), .m = 70, .n = 9, .k = 96});
  expect_rows_alone({.op = Op::quantized_matmul,
                     .kernel = Kernel::qmv,
                     .spec = affine(4, 32),
                     .m = 7,
                     .n = 9,
                     .k = 1152});
  expect_rows_alone(
      {.op = Op::quantized_matmul, .kernel = Kernel::qmv, .spec = kNvfp4, .m = 7, .n = 9, .k = 96});
}

// Codes and scales summed apart overflow, or meet infinity with a zero, where weights do not.
TEST(SimtProducts, QmvKeepsWhatFactoringSpoils) {
  const auto expect_as_cpu = [](const QuantSpec& spec, float x, int64_t count, uint8_t scale) {
    const Product product(
        {.op = Op::quantized_matmul, .kernel = Kernel::qmv, .spec = spec, .n = 9, .k = 128});
    Array out = product.make_out(), expected = product.make_out();
    dispatch::MatmulProblem p = product.problem(out);
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(p.x.values.data)[i] = x;
    if (scale != 0) {
      std::fill_n(static_cast<uint8_t*>(p.w.scales.data), 9 * 128 / spec.group_size, scale);
    }
    dispatch::MatmulProblem q = product.problem(expected);
    std::vector<uint8_t> memory(cpu::matmul_portable_workspace(q) + 64);
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    cpu::matmul_portable(q,
                         {reinterpret_cast<void*>((address + 63) / 64 * 64), memory.size() - 64});
    EmulatorQueue queue;
    product.run_on(queue, out, p);
    for (int64_t i = 0; i < 9; ++i) {
      if (std::isnan(expected.get(i))) {
        EXPECT_TRUE(std::isnan(out.get(i))) << i;
      } else {
        EXPECT_EQ(out.get(i), expected.get(i)) << i;
      }
    }
  };
  expect_as_cpu(affine(4, 32), INFINITY, 1, 0);
  expect_as_cpu(affine(4, 32), INFINITY, 40, 0);
  expect_as_cpu(kMxfp4, 0x1p125f, 128, 100);  // scales of 2^-27
  expect_as_cpu(kMxfp8, 0x1p125f, 128, 100);
  expect_as_cpu(kNvfp4, 0x1p125f, 128, 0x08);  // 2^-6
}

std::string reason_of(Kernel kernel, const ProductCase& c) {
  const Product product(c);
  Array out = product.make_out();
  return simt_reject(kernel, product.problem(out)).text();
}

TEST(SimtProducts, QmvSaysWhatItDoesNotTake) {
  const auto reason = [](const ProductCase& c) { return reason_of(Kernel::qmv, c); };
  EXPECT_EQ(reason({.spec = kDense}), "w is not packed");
  EXPECT_EQ(reason({.spec = affine(4, 32), .transpose = false}), "w is packed along N");
  EXPECT_EQ(reason({.op = Op::quantized_matmul, .spec = affine(4, 32), .m = 9}),
            "9 rows of x per matrix of w, more than 8");
  EXPECT_EQ(reason({.spec = affine(4, 32)}), "");
  const Product product({.spec = affine(4, 32)});
  Array out = product.make_out();
  dispatch::MatmulProblem p = product.problem(out);
  p.w.values.data = static_cast<char*>(p.w.values.data) + 2;
  EXPECT_EQ(std::string(simt::simt_qmv_reject(p).text()),
            "rows of codes begin at addresses that 4 does not divide");
  p = product.problem(out);
  p.k = p.x.values.cols = (int64_t{1} << 30) + 32;
  EXPECT_EQ(std::string(simt::simt_qmv_reject(p).text()), "K = 1073741856, more than 1073741824");
  // Nine rows and more are another kernel's.
  p = product.problem(out);
  p.options.deterministic = true;
  EXPECT_EQ(std::string(simt::simt_qmv_reject(p).text()),
            "deterministic asks for one kernel at any number of rows");
  EXPECT_FALSE(simt::simt_qmm_reject(p));
}

TEST(SimtProducts, GatherQmvFastSaysWhatItDoesNotTake) {
  const auto reason = [](const ProductCase& c) { return reason_of(Kernel::gather_qmv_fast, c); };
  const ProductCase taken{.spec = affine(4, 32), .n = 8, .k = 512};
  EXPECT_EQ(reason(taken), "");
  ProductCase c = taken;
  c.k = 544;
  EXPECT_EQ(reason(c), "K = 544 is not a multiple of 512");
  c = taken, c.n = 7;
  EXPECT_EQ(reason(c), "N = 7 is not a multiple of 8");
  c = taken, c.m = 2;
  EXPECT_EQ(reason(c), "M = 2, more than one row per pair");
  c = taken, c.spec = affine(8, 32);
  EXPECT_EQ(reason(c), "w is not affine4");
  c = taken, c.transpose = false, c.n = 32;
  EXPECT_EQ(reason(c), "w is packed along N");
  const Product product(taken);
  Array out = product.make_out();
  dispatch::MatmulProblem p = product.problem(out);
  p.x.values.data = static_cast<char*>(p.x.values.data) + 4;
  EXPECT_EQ(std::string(simt::simt_gather_qmv_fast_reject(p).text()),
            "rows of x are not aligned to 16 bytes");
  p = product.problem(out);
  p.w.values.data = static_cast<char*>(p.w.values.data) + 4;
  EXPECT_EQ(std::string(simt::simt_gather_qmv_fast_reject(p).text()),
            "rows of w are not aligned to 8 bytes");
}

TEST(SimtProducts, AMissingBarrierIsCaught) {
  Product product({.op = Op::quantized_matmul, .spec = affine(4, 32), .m = 9, .n = 9, .k = 64});
  EmulatorQueue queue;
  queue.rename("qmm_simt_affine4_f32", "planted_qmm_affine4_f32");
  try {
    product.run_on(queue);
    ADD_FAILURE() << "no error";
  } catch (const emu::Error& error) {
    EXPECT_EQ(error.kind(), emu::ErrorKind::race) << error.what();
  }
}

TEST(SimtProducts, TheColumnsMayOutnumberTheGrid) {
  // 65535 tiles of columns and one more, of K = 1.
  Product({.op = Op::quantized_matmul, .transpose = false, .m = 1, .n = 65535 * 128 + 3, .k = 0})
      .check();
}

}  // namespace
}  // namespace moeblas::test
