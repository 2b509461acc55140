// Device code: the activations of gated layers, in float32.
#pragma once

#include "formats/portable.h"
#include "simt/permute_params.h"
#include "simt/portable_kernel.h"

namespace moeblas {
namespace simt {

// The language has no erf. Below 1 an odd polynomial, from there on 1 - exp(polynomial), both by
// interpolation in Chebyshev points: at most 3 units of 2^-24 from erf, relative below 1 and
// absolute above. NaN stays NaN.
MB_GPU_FN float erf_of(float x) {
  const float m = formats::magnitude(x);
  if (!(m >= 1.0f)) {
    const float z = x * x;
    float r = 7.882497448e-05f;
    r = metal::fma(r, z, -8.018855006e-04f);
    r = metal::fma(r, z, 5.189312156e-03f);
    r = metal::fma(r, z, -2.685432881e-02f);
    r = metal::fma(r, z, 1.128359735e-01f);
    r = metal::fma(r, z, -3.761262596e-01f);
    r = metal::fma(r, z, 1.128379107e+00f);
    return r * x;
  }
  // From 4 on, erf is 1 to the last bit.
  const float u = (m < 4.0f ? m : 4.0f) - 2.5f;
  float r = 1.614061603e-06f;
  r = metal::fma(r, u, -1.330938994e-05f);
  r = metal::fma(r, u, 7.739442663e-05f);
  r = metal::fma(r, u, -4.201445546e-04f);
  r = metal::fma(r, u, 2.165160375e-03f);
  r = metal::fma(r, u, -1.085851714e-02f);
  r = metal::fma(r, u, -9.438936114e-01f);
  r = metal::fma(r, u, -5.352680683e+00f);
  r = metal::fma(r, u, -7.806815147e+00f);
  const float y = 1.0f - metal::precise::exp(r);
  return x < 0.0f ? -y : y;
}

MB_GPU_FN float sigmoid_of(float x) { return 1.0f / (1.0f + metal::precise::exp(-x)); }

MB_GPU_FN float glu(float gate, float up, MB_CONST GluParams& p) {
  switch (p.activation) {
    case kSilu:
      return gate * sigmoid_of(gate) * up;
    case kGeluErf:
      return 0.5f * gate * (1.0f + erf_of(gate * 0.70710678118654752f)) * up;
    case kGeluTanh: {
      const float inner = 0.79788456080286536f * (gate + 0.044715f * gate * gate * gate);
      return 0.5f * gate * (1.0f + metal::precise::tanh(inner)) * up;
    }
    case kRelu:
      return (gate < 0.0f ? 0.0f : gate) * up;
    default: {
      // Comparisons that NaN passes through, as it must.
      const float g = gate > p.limit ? p.limit : gate;
      const float below = up > p.limit ? p.limit : up;
      const float u = below < -p.limit ? -p.limit : below;
      return (u + 1.0f) * (g * sigmoid_of(p.alpha * g));
    }
  }
}

}  // namespace simt
}  // namespace moeblas
