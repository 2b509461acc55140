// What a tier brings to quantize and dequantize (quantize_tier.cpp): whole groups of a row, floats
// without gaps. Scales and biases are float32 here.
#pragma once

#include <cstdint>

#include "cpu/mm_kernels.h"

namespace moeblas::cpu {

struct Groups {
  void* values = nullptr;
  uint8_t* codes = nullptr;
  float* scales = nullptr;         // affine, or to be decoded with
  float* biases = nullptr;         // affine
  uint8_t* scale_bytes = nullptr;  // of block formats, to be written
  float enc = 1.0f;                // nvfp4: 1 / tensor_scale
  int64_t count = 0;
  int64_t size = 0;         // of a group
  bool past_cache = false;  // dequantized values, which then begin at a multiple of 64 bytes
};

struct QuantizeKernels {
  using Run = void (*)(const Groups&);
  Run dequantize[kCodeKinds][kElements] = {};
  // To codes and scales; E2M1 under powers of two.
  Run quantize[kCodeKinds][kElements] = {};
  Run quantize_nvfp4[kElements] = {};
  // Scale bytes as numbers, times `factor`.
  void (*e8m0)(const uint8_t* bytes, int64_t count, float factor, float* scales) = nullptr;
  void (*e4m3)(const uint8_t* bytes, int64_t count, float factor, float* scales) = nullptr;
};

#if defined(__x86_64__)
namespace avx2 {
extern const QuantizeKernels quantize_kernels;
}
namespace avx512 {
extern const QuantizeKernels quantize_kernels;
}
#elif defined(__aarch64__)
namespace neon {
extern const QuantizeKernels quantize_kernels;
}
#endif

// Those of the machine's tier; null: it has none.
const QuantizeKernels* quantize_kernels();

}  // namespace moeblas::cpu
