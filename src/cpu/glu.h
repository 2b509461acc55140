// The activations of gated layers, in float32.
#pragma once

#include <cmath>

#include "moeblas/moe.h"

namespace moeblas::cpu {

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Comparisons that NaN passes through, as it must.
inline float clamp_above(float x, float most) { return x > most ? most : x; }
inline float clamp_below(float x, float least) { return x < least ? least : x; }

inline float glu(Activation activation, float gate, float up, float alpha, float limit) {
  switch (activation) {
    case Activation::silu:
      return gate * sigmoid(gate) * up;
    case Activation::gelu_erf:
      return 0.5f * gate * (1.0f + std::erf(gate * 0.70710678118654752f)) * up;
    case Activation::gelu_tanh: {
      const float inner = 0.79788456080286536f * (gate + 0.044715f * gate * gate * gate);
      return 0.5f * gate * (1.0f + std::tanh(inner)) * up;
    }
    case Activation::relu:
      return clamp_below(gate, 0.0f) * up;
    case Activation::clamped_swiglu: {
      const float g = clamp_above(gate, limit);
      const float u = clamp_below(clamp_above(up, limit), -limit);
      return (u + 1.0f) * (g * sigmoid(alpha * g));
    }
  }
  return 0.0f;
}

}  // namespace moeblas::cpu
