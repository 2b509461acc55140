// The registration of moeblas::* for CPU and CUDA tensors, over torch's stable ABI: one binary for
// every torch from TORCH_TARGET_VERSION on. Shapes and gradients are Python's (moeblas/torch).
#include "torch/operators.h"

#include <torch/csrc/stable/library.h>

#include <string_view>

#include "torch/schemas.h"

namespace moeblas::torch_operators {
namespace {

struct Kernel {
  const char* name;
  void (*function)(Stack, uint64_t, uint64_t);
};

#define MOEBLAS_KERNEL(name) {#name, name}
constexpr Kernel kKernels[] = {
    MOEBLAS_KERNEL(quantize),     MOEBLAS_KERNEL(quantize_dual), MOEBLAS_KERNEL(dequantize),
    MOEBLAS_KERNEL(to_fp8),       MOEBLAS_KERNEL(from_fp8),      MOEBLAS_KERNEL(quantized_matmul),
    MOEBLAS_KERNEL(gather_mm),    MOEBLAS_KERNEL(gather_qmm),    MOEBLAS_KERNEL(gather_qmv),
    MOEBLAS_KERNEL(segmented_mm), MOEBLAS_KERNEL(grouped_mm),    MOEBLAS_KERNEL(grouped_qmm),
    MOEBLAS_KERNEL(qqmm),         MOEBLAS_KERNEL(gather_qqmm),   MOEBLAS_KERNEL(grouped_qqmm),
    MOEBLAS_KERNEL(moe_route),    MOEBLAS_KERNEL(moe_permute),   MOEBLAS_KERNEL(moe_unpermute),
    MOEBLAS_KERNEL(moe_ffn),
};
#undef MOEBLAS_KERNEL

void implement(torch::stable::detail::StableLibrary& library) {
  for (const Kernel& kernel : kKernels) library.impl(kernel.name, kernel.function);
}

}  // namespace

STABLE_TORCH_LIBRARY(moeblas, library) {
  std::string_view text = kSchemas;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() + (line.size() < text.size() ? 1 : 0));
    if (!line.empty() && line.front() != '#') library.def(std::string(line).c_str());
  }
}

STABLE_TORCH_LIBRARY_IMPL(moeblas, CPU, library) { implement(library); }
STABLE_TORCH_LIBRARY_IMPL(moeblas, CUDA, library) { implement(library); }

}  // namespace moeblas::torch_operators
