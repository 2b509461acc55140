#include "cpu/row_kernels.h"

#include "cpu/quantize_kernels.h"
#include "cpu/tier.h"

namespace moeblas::cpu {

const RowKernels* row_kernels() {
#if defined(__x86_64__)
  dispatch::Reason why_not;
  const Tier tier = current_tier(why_not);
  if (tier >= Tier::avx512) return &avx512::row_kernels;
  if (tier >= Tier::avx2) return &avx2::row_kernels;
#elif defined(__aarch64__)
  dispatch::Reason why_not;
  if (current_tier(why_not) == Tier::neon) return &neon::row_kernels;
#endif
  return nullptr;
}

const QuantizeKernels* quantize_kernels() {
#if defined(__x86_64__)
  dispatch::Reason why_not;
  const Tier tier = current_tier(why_not);
  if (tier >= Tier::avx512) return &avx512::quantize_kernels;
  if (tier >= Tier::avx2) return &avx2::quantize_kernels;
#elif defined(__aarch64__)
  dispatch::Reason why_not;
  if (current_tier(why_not) == Tier::neon) return &neon::quantize_kernels;
#endif
  return nullptr;
}

}  // namespace moeblas::cpu
