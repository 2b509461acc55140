// The one place that knows every backend.
#include "registry/registry.h"

#include "cpu/table.h"
#ifdef MOEBLAS_HAS_CUDA
#include "cuda/table.h"
#endif
#ifdef MOEBLAS_HAS_METAL
#include "metal/table.h"
#endif

namespace moeblas {

std::span<const dispatch::Backend* const> backends() {
  static const dispatch::Backend* const all[] = {
      &cpu::backend(),
#ifdef MOEBLAS_HAS_CUDA
      &cuda::backend(),
#endif
#ifdef MOEBLAS_HAS_METAL
      &metal::backend(),
#endif
  };
  return all;
}

}  // namespace moeblas
