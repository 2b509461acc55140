// What a tier brings to the ends of expert layers: activations and weighted sums of whole rows.
#pragma once

#include <cstdint>

#include "cpu/mm_kernels.h"
#include "moeblas/moe.h"

namespace moeblas::cpu {

// count pairs of a gate and an up, `step` (1 or 2) floats from one to the next.
struct GluRow {
  const float* gate;
  const float* up;
  int64_t step;
  int64_t count;
  float alpha, limit;
};

inline constexpr int kActivations = 5;

struct RowKernels {
  // Rounded once; null where an activation has no kernel.
  void (*glu[kActivations][kElements])(const GluRow& row, void* out) = {};
  // sums[i] += weight * row[i], each operation rounded.
  void (*add_row[kElements])(const void* row, float weight, int64_t count, float* sums) = {};
  void (*store_row[kElements])(const float* sums, int64_t count, void* out) = {};
};

#if defined(__x86_64__)
namespace avx2 {
extern const RowKernels row_kernels;
}
namespace avx512 {
extern const RowKernels row_kernels;
}
#elif defined(__aarch64__)
namespace neon {
extern const RowKernels row_kernels;
}
#endif

// Those of the machine's tier; null: it has none.
const RowKernels* row_kernels();

}  // namespace moeblas::cpu
