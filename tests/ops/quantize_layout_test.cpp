// The swizzled scale layout and quantize_dual: other places for the numbers that quantize writes.
#include <gtest/gtest.h>

#include "moeblas/ops.h"
#include "support/block_operand.h"
#include "support/cases.h"
#include "support/source_case.h"

namespace moeblas::test {
namespace {

TEST(QuantizeSwizzled, Generated) {
  run_seeds(270, [](uint64_t seed) { return seeded(make_source_case(seed, false)); });
}
TEST(QuantizeDual, Generated) {
  run_seeds(324, [](uint64_t seed) { return seeded(make_source_case(seed, true)); });
}

TEST(QuantizeSwizzled, TheTileOfTheHeader) {
  // Row 128 * 1 + 32 * 2 + 5, scale 4 * 1 + 3 of a matrix with 6 scales a row: the fourth tile.
  EXPECT_EQ(swizzled_byte(128 + 64 + 5, 7, 8), 3 * 512 + 5 * 16 + 2 * 4 + 3);
  EXPECT_EQ(swizzled_shape(129, 5), (Shape{256, 8}));
  EXPECT_EQ(swizzled_shape(0, 0), (Shape{0, 0}));
  EXPECT_EQ(swizzled_shape(128, 4), (Shape{128, 4}));
}

TEST(QuantizeSwizzled, DequantizeReadsBothLayoutsAlike) {
  constexpr int64_t kColumns = 96;
  for (const QuantSpec& spec : {kMxfp4, kMxfp8, kNvfp4}) {
    for (int64_t rows : {1, 5, 32, 33, 128, 131}) {
      Random random(static_cast<uint64_t>(rows));
      Operand w(plain(DType::f32, {2, rows, kColumns}), Side::right, kPoison);
      fill_floats(random, {}, w, 0, w.numel(), 0);
      const QuantSpec format = spec.resolved();
      const int64_t groups = kColumns / format.group_size;
      const Operand codes(plain(DType::u32, {2, rows, kColumns * format.bits / 32}), Side::right,
                          kPoison);
      std::vector<uint8_t> values[2];
      for (bool swizzled : {false, true}) {
        const Shape shape = swizzled ? swizzled_shape(rows, groups) : Shape{rows, groups};
        const Operand scales(plain(DType::u8, {2, shape[0], shape[1]}), Side::right, kPoison);
        Quantized packed{spec, codes.view, scales.view};
        if (swizzled) packed.scale_layout = ScaleLayout::swizzled_128x4;
        quantize(w.view, packed);
        const Operand out(plain(DType::bf16, w.view.shape), Side::right, kPoison);
        dequantize(packed, out.view);
        values[swizzled] = element_bytes(out);
      }
      EXPECT_EQ(values[0], values[1]) << name(spec.mode) << " " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace moeblas::test
