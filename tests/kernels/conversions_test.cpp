// Dequantize of as many values as are stored past the cache: what every row writes must be, to the
// bit, what the portable one does, in every format and dtype, and nothing beside it.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "moeblas/kernels.h"
#include "moeblas/ops.h"
#include "support/cases.h"
#include "support/random.h"
#include "support/seeds.h"

namespace moeblas::test {
namespace {

constexpr uint8_t kUnwritten = 0xa5;
constexpr int64_t kPastCache = 16 << 20;  // bytes, from which on values are stored so

// Rows of `cols` values, `pitch` apart, from `offset` bytes behind a multiple of 64 on.
struct Wanted {
  DType dtype;
  int64_t rows, cols, pitch, offset;

  TensorView view(uint8_t* memory) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
    return {memory + (64 - at % 64) % 64 + offset, dtype, Shape{rows, cols}, Shape{pitch, 1}};
  }
  size_t bytes() const {
    return static_cast<size_t>(rows * pitch) * size_of(dtype) + 64 + static_cast<size_t>(offset);
  }
};

void expect_like_portable(const QuantSpec& given, const Wanted& wanted) {
  const QuantSpec spec = given.resolved();
  Random random(static_cast<uint64_t>(wanted.pitch + spec.bits));
  const int64_t groups = wanted.cols / spec.group_size, code_bytes = wanted.cols * spec.bits / 8;
  std::vector<uint8_t> codes(static_cast<size_t>(wanted.rows * code_bytes));
  for (size_t i = 0; i < codes.size(); i += 8) {
    const uint64_t word = random.next();
    std::memcpy(&codes[i], &word, std::min<size_t>(8, codes.size() - i));
  }
  // NaN is NaN, whatever its bits.
  if (spec.mode == Mode::mxfp8) {
    for (uint8_t& code : codes) code = (code & 0x7f) == 0x7f ? 0 : code;
  }
  std::vector<float> scales(static_cast<size_t>(wanted.rows * groups)), biases(scales.size());
  std::vector<uint8_t> bytes(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<float>(random.normal());
    biases[i] = static_cast<float>(random.normal());
    bytes[i] = static_cast<uint8_t>(random.between(100, 126));
  }
  Quantized w{.spec = spec,
              .codes = TensorView(codes.data(), DType::u8, {wanted.rows, code_bytes}),
              .scales = TensorView(bytes.data(), DType::u8, {wanted.rows, groups})};
  if (spec.mode == Mode::affine) {
    w.scales = TensorView(scales.data(), DType::f32, {wanted.rows, groups});
    w.biases = TensorView(biases.data(), DType::f32, {wanted.rows, groups});
  }
  std::vector<uint8_t> expected;
  for (const moeblas_kernel& row : kernels()) {
    const std::string name = row.name;
    if (std::string(row.backend) != "cpu" || name.find("quantize_") != 0) continue;
    const auto run = [&](const char* kernel) {
      std::vector<uint8_t> memory(wanted.bytes(), kUnwritten);
      dequantize(w, wanted.view(memory.data()), forcing(kernel));
      // From the first value on: memory begins anywhere.
      const auto first =
          static_cast<const uint8_t*>(wanted.view(memory.data()).data) - memory.data();
      memory.erase(memory.begin(), memory.begin() + first);
      memory.resize(wanted.bytes() - 128);
      return memory;
    };
    if (expected.empty()) expected = run("quantize_portable");
    std::vector<uint8_t> got;
    try {
      got = run(row.name);
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), MOEBLAS_UNSUPPORTED);  // the machine has no such tier
      continue;
    }
    EXPECT_TRUE(got == expected) << name << ": " << spec.bits << " bits, groups of "
                                 << spec.group_size << " to " << moeblas::name(wanted.dtype);
  }
}

TEST(Conversions, DequantizePastTheCache) {
  const QuantSpec formats[] = {kAffine4,
                               {Mode::affine, 4, 16},
                               {Mode::affine, 3, 32},
                               {Mode::affine, 8, 128},
                               kMxfp4,
                               kMxfp8,
                               kNvfp4};
  for (const QuantSpec& spec : formats) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      constexpr int64_t kCols = 4096 + 128;
      const auto row = kCols * static_cast<int64_t>(size_of(dtype));
      expect_like_portable(spec, {dtype, (kPastCache + row - 1) / row, kCols, kCols, 0});
    }
  }
  expect_like_portable(kAffine4, {DType::bf16, 2100, 4096, 4096 + 32, 0});  // whole lines
  expect_like_portable(kAffine4, {DType::bf16, 2100, 4096, 4096 + 8, 0});   // no whole lines
  expect_like_portable(kAffine4, {DType::bf16, 2100, 4096, 4096, 32});
}

}  // namespace
}  // namespace moeblas::test
