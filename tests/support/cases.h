// Cases made by hand, in the layouts that models use: row-major, float32 scales unless a test says
// otherwise. Tests change what they are about and run them.
#pragma once

#include <gtest/gtest.h>

#include "support/execute.h"
#include "support/generator.h"

namespace moeblas::test {

inline constexpr QuantSpec kAffine4{Mode::affine, 4, 64};
inline constexpr QuantSpec kMxfp4{Mode::mxfp4, 4, 32};
inline constexpr QuantSpec kMxfp8{Mode::mxfp8, 8, 32};
inline constexpr QuantSpec kNvfp4{Mode::nvfp4, 4, 16};

// Weights of this logical shape, without gaps.
inline void set_weights(Case& c, const QuantSpec& format, const Shape& logical,
                        DType scale_dtype = DType::f32) {
  c.format = format;
  const QuantSpec spec = format.resolved();
  const int last = logical.ndim() - 1;
  Shape codes = logical, groups = logical;
  codes[last] = logical[last] * spec.bits / 32;
  groups[last] = logical[last] / spec.group_size;
  const bool affine = spec.mode == Mode::affine;
  c.codes = plain(DType::u32, codes);
  c.scales = plain(affine ? scale_dtype : DType::u8, groups);
  if (affine) c.biases = plain(scale_dtype, groups);
}

struct Size {
  int64_t m = 1;
  int64_t n = 1;
  int64_t k = 1;
};

inline Case matmul_case(const QuantSpec& format, DType dtype, const Size& s,
                        bool transpose = true) {
  Case c;
  c.op = Op::quantized_matmul;
  c.transpose = transpose;
  c.x = plain(dtype, {s.m, s.k});
  set_weights(c, format, transpose ? Shape{s.n, s.k} : Shape{s.k, s.n});
  c.out = plain(dtype, {s.m, s.n});
  return c;
}

// The layout of expert layers: x (T, 1, 1, K), ids (T, k), out (T, k, 1, N).
inline Case expert_case(const QuantSpec& format, DType dtype, int64_t tokens, int64_t top_k,
                        int64_t experts, int64_t n, int64_t k, bool transpose = true) {
  Case c;
  c.op = Op::gather_qmm;
  c.transpose = transpose;
  c.x = plain(dtype, {tokens, 1, 1, k});
  set_weights(c, format, transpose ? Shape{experts, n, k} : Shape{experts, k, n});
  c.rhs = plain(DType::i32, {tokens, top_k});
  c.out = plain(dtype, {tokens, top_k, 1, n});
  return c;
}

inline Case grouped_case(const QuantSpec& format, DType dtype, int64_t rows, int64_t experts,
                         int64_t n, int64_t k) {
  Case c;
  c.op = Op::grouped_qmm;
  c.x = plain(dtype, {rows, k});
  set_weights(c, format, {experts, n, k});
  c.ranges = plain(DType::i32, {experts});
  c.out = plain(dtype, {rows, n});
  return c;
}

inline Case dense_case(Op op, DType dtype, int64_t batch, const Size& s, int64_t experts) {
  Case c;
  c.op = op;
  c.transpose = false;
  if (op == Op::segmented_mm) {
    c.x = plain(dtype, {s.m, s.k});
    c.w = plain(dtype, {s.k, s.n});
    c.ranges = plain(DType::i32, {batch, 2});
    c.out = plain(dtype, {batch, s.m, s.n});
  } else if (op == Op::grouped_mm) {
    c.x = plain(dtype, {batch, s.k});
    c.w = plain(dtype, {experts, s.k, s.n});
    c.ranges = plain(DType::i64, {experts});
    c.out = plain(dtype, {batch, s.n});
  } else {
    c.x = plain(dtype, {batch, s.m, s.k});
    c.w = plain(dtype, {experts, s.k, s.n});
    c.rhs = plain(DType::i64, {batch});
    c.out = plain(dtype, {batch, s.m, s.n});
  }
  return c;
}

// Runs a case of a test's own making; MOEBLAS_TEST_SEED has no say in it.
inline void expect_right(const Case& c) {
  const std::string line = describe(c);
  const CrashLine crash(line);
  const Outcome outcome = run_case(c);
  EXPECT_TRUE(outcome.ok()) << outcome.failure << "\n  case: " << line;
}

}  // namespace moeblas::test
