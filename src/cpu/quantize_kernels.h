// What a tier brings to quantize and dequantize (quantize_tier.cpp): whole groups of a row, floats
// without gaps. Scales and biases are float32 here.
#pragma once

#include <cstdint>

#include "cpu/mm_kernels.h"

namespace moeblas::cpu {

struct Groups {
  void* values = nullptr;
  uint8_t* codes = nullptr;
  float* scales = nullptr;  // block formats, to be encoded: what values are multiplied by
  float* biases = nullptr;
  int64_t count = 0;
  int64_t size = 0;  // of a group
};

struct QuantizeKernels {
  using Run = void (*)(const Groups&);
  Run dequantize[kCodeKinds][kElements] = {};
  // Into scales and biases: the least and largest number of every group, NaN left out; infinity and
  // its negative where there is none.
  Run extremes[kElements] = {};
  // Into scales: the largest magnitude; NaN where there is one.
  Run magnitudes[kElements] = {};
  Run encode[kCodeKinds][kElements] = {};
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
#endif

}  // namespace moeblas::cpu
