// Problems whose tensors nobody reads, where a checkpoint's could lie: what is asked of plans and
// tables without a device.
#pragma once

#include "moeblas/quant.h"
#include "moeblas/tensor.h"
#include "ops/products.h"

namespace moeblas::test {

struct Layer {
  const char* name;
  int64_t experts, top_k, hidden, intermediate;
};
inline constexpr Layer kLayers[] = {{"Mixtral-8x7B", 8, 2, 4096, 14336},
                                    {"Qwen3-30B-A3B", 128, 8, 2048, 768},
                                    {"DeepSeek-V3", 256, 8, 7168, 2048},
                                    {"gpt-oss-120b", 128, 4, 2880, 2880},
                                    {"OLMoE", 64, 8, 2048, 1024}};
// Of which few rows of x may stay in registers: gates and ups of 4096 or 2048 k, in 4 bits.
inline bool is_held(const Layer& l, bool down, const QuantSpec& spec) {
  const bool format =
      spec == QuantSpec{Mode::affine, 4, 64} || spec == QuantSpec{Mode::mxfp4, 4, 32};
  return format && !down && (l.hidden == 4096 || l.hidden == 2048);
}

inline TensorView nowhere(DType dtype, const Shape& shape, int gigabytes = 1024) {
  return {reinterpret_cast<void*>(uintptr_t(gigabytes) << 30), dtype, shape,
          Device{MOEBLAS_CUDA, 0}};
}
inline TensorView output_nowhere(DType dtype, const Shape& shape) {
  return nowhere(dtype, shape, 16 * 1024);
}

// Rows of K values in a stack with these leading dimensions.
inline Quantized weights_nowhere(const QuantSpec& spec, const Shape& lead, int64_t k, DType scale) {
  const QuantSpec full = spec.resolved();
  const auto with = [&](int64_t cols) {
    Shape shape = lead;
    shape.push_back(cols);
    return shape;
  };
  const bool affine = full.mode == Mode::affine;
  Quantized w;
  w.spec = full;
  w.codes = nowhere(DType::u32, with(k * full.bits / 32), 2 * 1024);
  w.scales = nowhere(affine ? scale : DType::u8, with(k / full.group_size), 4 * 1024);
  if (affine) w.biases = nowhere(scale, with(k / full.group_size), 5 * 1024);
  return w;
}

// One of a layer's products.
inline dispatch::MatmulProblem product_nowhere(const Layer& l, bool down, const QuantSpec& spec,
                                               DType dtype, DType scale, int64_t tokens,
                                               const Options& options = {}) {
  const int64_t k = down ? l.intermediate : l.hidden, n = down ? l.hidden : 2 * l.intermediate;
  return ops::gather_qmm(nowhere(dtype, {tokens, 1, 1, k}),
                         weights_nowhere(spec, {l.experts, n}, k, scale), {},
                         nowhere(DType::i32, {tokens, l.top_k}, 8 * 1024), true, false,
                         output_nowhere(dtype, {tokens, l.top_k, 1, n}), options);
}

inline dispatch::MatmulProblem dense_nowhere(int64_t m, int64_t n, int64_t k, const QuantSpec& spec,
                                             DType dtype, DType scale,
                                             const Options& options = {}) {
  return ops::quantized_matmul(nowhere(dtype, {m, k}), weights_nowhere(spec, {n}, k, scale), true,
                               output_nowhere(dtype, {m, n}), options);
}

// Ranges of K; bits of `turned`: a lies along M, b along K. `gap`: elements between lines.
inline dispatch::MatmulProblem segments_nowhere(int64_t m, int64_t n, int64_t k, int64_t segments,
                                                DType dtype, unsigned turned = 0, int64_t gap = 0,
                                                const Options& options = {}) {
  TensorView a = nowhere(dtype, {m, k}), b = nowhere(dtype, {k, n}, 2 * 1024);
  a.strides = (turned & 1) != 0 ? Shape{1, m + gap} : Shape{k + gap, 1};
  b.strides = (turned & 2) != 0 ? Shape{1, k + gap} : Shape{n + gap, 1};
  return ops::segmented_mm(a, b, nowhere(DType::i32, {segments, 2}, 4 * 1024),
                           output_nowhere(dtype, {segments, m, n}), options);
}

}  // namespace moeblas::test
