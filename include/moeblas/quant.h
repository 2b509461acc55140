// Quantized matrices: the format's name and the tensors that hold it.
#pragma once

#include <cstdint>
#include <optional>

#include "moeblas/mode.h"
#include "moeblas/tensor.h"

namespace moeblas {

enum class Mode : int32_t {
  affine = MOEBLAS_AFFINE,
  mxfp4 = MOEBLAS_MXFP4,
  mxfp8 = MOEBLAS_MXFP8,
  nvfp4 = MOEBLAS_NVFP4,
  dense = MOEBLAS_DENSE,
};

inline constexpr int kModes = 4;  // of quantization; dense is not one
inline constexpr const char* kModeNames[] = {"affine", "mxfp4", "mxfp8", "nvfp4", "dense"};
constexpr const char* name(Mode mode) { return kModeNames[static_cast<int>(mode)]; }

// A format; or, as dense, floats where an operation takes them in the place of one. 0 stands for
// the mode's default: affine (4, 64), mxfp4 (4, 32), mxfp8 (8, 32), nvfp4 (4, 16).
struct QuantSpec {
  Mode mode = Mode::affine;
  int bits = 0;
  int group_size = 0;

  constexpr QuantSpec resolved() const {
    QuantSpec s = *this;
    if (s.bits == 0) s.bits = mode == Mode::mxfp8 ? 8 : 4;
    if (s.group_size == 0) s.group_size = mode == Mode::affine ? 64 : mode == Mode::nvfp4 ? 16 : 32;
    return s;
  }
  friend constexpr bool operator==(const QuantSpec&, const QuantSpec&) = default;
};

// How the scales lie in memory; see MOEBLAS_SCALES_SWIZZLED_128X4.
enum class ScaleLayout : int32_t {
  rows = MOEBLAS_SCALES_ROWS,
  swizzled_128x4 = MOEBLAS_SCALES_SWIZZLED_128X4,
};

// A quantized matrix or stack of matrices; see moeblas_quantized for shapes and meaning.
struct Quantized {
  QuantSpec spec{};
  TensorView codes{};
  TensorView scales{};
  TensorView biases{};                       // affine only
  TensorView tensor_scale{};                 // nvfp4: float32, shape () or (E,)
  std::optional<float> host_tensor_scale{};  // nvfp4: the same as a number on the host
  ScaleLayout scale_layout = ScaleLayout::rows;
};

// What quantize writes.
struct QuantizedSpec {
  Spec codes;
  Spec scales;
  std::optional<Spec> biases;
};

// What quantize_dual writes.
struct DualSpecs {
  QuantizedSpec rows;
  QuantizedSpec columns;
};

}  // namespace moeblas
