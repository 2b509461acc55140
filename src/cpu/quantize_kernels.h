// What a tier brings to quantize and dequantize (quantize_tier.cpp): whole groups that follow each
// other without gaps.
#pragma once

#include <cstdint>

#include "cpu/mm_kernels.h"

namespace moeblas::cpu {

// What scales, and biases with them, are stored as; floats as in Element.
enum class Scales : uint8_t { f32, f16, bf16, e8m0, e4m3 };

struct Groups {
  void* values = nullptr;
  uint8_t* codes = nullptr;
  void* scales = nullptr;
  void* biases = nullptr;  // affine
  Scales stored_as = Scales::f32;
  float tensor_scale = 1.0f;
  int64_t count = 0;
  int64_t size = 0;         // of a group
  bool past_cache = false;  // what is written, which then begins at a multiple of 64 bytes
  bool by_l2 = false;       // values to quantize are fetched to the L2 cache, not past it
};

struct Conversions {
  using Run = void (*)(const Groups&);
  Run of[kCodeKinds][kElements] = {};
};

// Kernel::run<codes, element> for all of them.
template <class Kernel, int kCode = 0>
consteval Conversions conversions(Conversions c = {}) {
  if constexpr (kCode < kCodeKinds) {
    constexpr auto kCodes = static_cast<Codes>(kCode);
    c.of[kCode][static_cast<int>(Element::f32)] = Kernel::template run<kCodes, Element::f32>;
    c.of[kCode][static_cast<int>(Element::f16)] = Kernel::template run<kCodes, Element::f16>;
    c.of[kCode][static_cast<int>(Element::bf16)] = Kernel::template run<kCodes, Element::bf16>;
    return conversions<Kernel, kCode + 1>(c);
  }
  return c;
}

struct QuantizeKernels {
  const Conversions& quantize;
  const Conversions& dequantize;
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
