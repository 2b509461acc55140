// Numbers of a tensor_scale that lies in memory: nobody looks at them before a call, on the CPU as
// little as on devices, and every row of the CPU's tables multiplies by them as they are.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/cases.h"
#include "support/seeds.h"

namespace moeblas::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using List = std::vector<double>;

// For one matrix each.
constexpr float kScales[] = {1.0f, -2.0f, 0.0f, 0x1p-4f, kInfinity, NAN};
constexpr int64_t kMatrices = std::size(kScales);

void set_scales(Operands& o, bool ones) {
  o.tensor_scale = Operand(plain(DType::f32, {kMatrices}), Side::right, kPoison);
  for (int64_t e = 0; e < kMatrices; ++e) o.tensor_scale.set(e, ones ? 1.0f : kScales[e]);
}

struct Results {
  List of_one, scaled;  // nothing where the row does not take the case
};

// Whether `y` is `of_one` times a matrix's number. Among a matrix's codes are zeros, which times
// infinity are NaN.
bool is_multiplied(double y, double of_one, float scale) {
  return std::isfinite(scale) ? y == of_one * scale : std::isnan(y);
}

List result_of(const Case& c, const std::string& row, bool ones) {
  Operands o = build(c, Side::left, kPoison);
  set_scales(o, ones);
  call(c, o, forcing(row.c_str()));
  const Operand& out = c.op == Op::dequantize ? o.x : o.out;
  List values;
  for (int64_t i = 0; i < out.numel(); ++i) values.push_back(out.get(i));
  return values;
}

Results results_of(const Case& c, const moeblas_kernel& row) {
  try {
    return {result_of(c, row.name, true), result_of(c, row.name, false)};
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), MOEBLAS_UNSUPPORTED) << e.what();
    return {};
  }
}

TEST(TensorScaleOfMemory, ProductsMultiplyByItAsItIs) {
  int taken = 0;
  for (const moeblas_kernel& row : kernels()) {
    if (std::string(row.backend) != "cpu" || std::string(row.problem) != "matmul") continue;
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (int64_t tokens : {2, 60}) {
        Case c = expert_case(kNvfp4, dtype, tokens, 3, kMatrices, 20, 64);
        const auto [of_one, scaled] = results_of(c, row);
        taken += !scaled.empty();
        const std::vector<int64_t> ids = indices_of(build(c, Side::left, kPoison).rhs.view);
        for (size_t i = 0; i < scaled.size(); ++i) {
          const float scale = kScales[ids[i / 20]];
          ASSERT_TRUE(is_multiplied(scaled[i], of_one[i], scale))
              << row.name << " makes " << scaled[i] << " of " << of_one[i] << " times " << scale
              << ", " << tokens << " tokens of " << name(dtype);
        }
      }
    }
  }
  EXPECT_GT(taken, 0);
}

TEST(TensorScaleOfMemory, ConversionsMultiplyByItAsItIs) {
  for (const moeblas_kernel& row : kernels()) {
    if (std::string(row.backend) != "cpu" || std::string(row.problem) != "quantize") continue;
    for (DType dtype : {DType::f32, DType::bf16}) {
      Case c;
      c.op = Op::dequantize;
      set_weights(c, kNvfp4, {kMatrices, 5, 64});
      c.x = plain(dtype, {kMatrices, 5, 64});
      const auto [of_one, scaled] = results_of(c, row);
      for (size_t i = 0; i < scaled.size(); ++i) {
        const float scale = kScales[i / (5 * 64)];
        const double expected = of_one[i] * scale, y = scaled[i];
        const bool kept = y == expected || (std::isnan(y) && std::isnan(expected));
        ASSERT_TRUE(kept) << row.name << " makes " << y << " of " << of_one[i] << " times "
                          << scale;
      }
    }
  }
}

}  // namespace
}  // namespace moeblas::test
