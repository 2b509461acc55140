// The kernels of qmm_sm90 that hold rows of x in registers, on thread blocks of the host.
#include "block/launches.h"
#include "cuda/qmm_sm90_held/kernel.cuh"

namespace moeblas::cuda {

template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
void qmm_sm90_held_on_blocks(const QmmHeldParams& p) {
  qmm_held_block<Weights, kShares, kKind, kRowGroups>(p);
}

#undef MB_QMM_SM90_HELD
#define MB_QMM_SM90_HELD(name, Weights, shares, kind, row_groups)             \
  static const test::KernelOnBlocks held_##name##_kernel {                    \
    "qmm_sm90_held_" #name, {shares, true},                                   \
        &qmm_sm90_held_on_blocks<Weights, shares, HeldKind::kind, row_groups> \
  }

}  // namespace moeblas::cuda

#include "cuda/qmm_sm90_held/kernels.cu"
