// Files of qmm_few_sm90's kernels, included behind this, as kernels on thread blocks of the host.
#pragma once

#include "block/launches.h"
#include "cuda/qmm_few_sm90/kernel.cuh"

namespace moeblas::cuda {

template <class Multiplier>
void qmm_few_sm90_on_blocks(const QmmFewParams& p) {
  FewKernel<Multiplier>(p, device::shared_address(device::dynamic_shared())).run();
}

// In passes, sums wait where there is room for those of a launch's own clusters.
#undef MB_QMM_FEW_SM90
#define MB_QMM_FEW_SM90(name, parts, ...)                                  \
  static const test::KernelOnBlocks name##_##parts##_kernel {              \
    "qmm_few_sm90_" #name "_" #parts, {kFewBlocks, !__VA_ARGS__::kPasses}, \
        &qmm_few_sm90_on_blocks<__VA_ARGS__>                               \
  }

}  // namespace moeblas::cuda
