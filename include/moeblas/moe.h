// An expert layer: how its router chooses, what its experts are.
#pragma once

#include <cstdint>
#include <optional>

#include "moeblas/moeblas.h"
#include "moeblas/quant.h"

namespace moeblas {

enum class Score : int32_t { softmax = MOEBLAS_SOFTMAX, sigmoid = MOEBLAS_SIGMOID };

// See moeblas_router.
struct Router {
  int top_k = 0;
  Score score = Score::softmax;
  bool normalize = false;
  int n_group = 1;
  int topk_group = 1;
  float scaling_factor = 1.0f;
};

enum class Activation : int32_t {
  silu = MOEBLAS_SILU,
  gelu_erf = MOEBLAS_GELU_ERF,
  gelu_tanh = MOEBLAS_GELU_TANH,
  relu = MOEBLAS_RELU,
  clamped_swiglu = MOEBLAS_CLAMPED_SWIGLU,
};

enum class GluLayout : int32_t {
  gate_up = MOEBLAS_GATE_UP,
  up_gate = MOEBLAS_UP_GATE,
  interleaved = MOEBLAS_INTERLEAVED,
};

// The experts of a layer: either gate_up, or gate and up. A dense matrix has mode dense and its
// floats in `codes`.
struct FfnLayer {
  std::optional<Quantized> gate_up{}, gate{}, up{}, down{};
  TensorView gate_up_bias{}, gate_bias{}, up_bias{}, down_bias{};
  TensorView expert_map{};
  Activation activation = Activation::silu;
  GluLayout glu_layout = GluLayout::gate_up;
  float alpha = 1.702f;
  float limit = 7.0f;
};

// What moe_route writes.
struct RouteSpecs {
  Spec ids;
  Spec weights;
};

// What moe_permute writes.
struct PermuteSpecs {
  Spec rows;
  Spec offsets;
  Spec inverse;
};

}  // namespace moeblas
