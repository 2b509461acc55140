// Files of qmm_sm90's kernels, included behind this, as kernels on thread blocks of the host.
#pragma once

#include "block/launches.h"
#include "cuda/qmm_sm90/kernel.cuh"

namespace moeblas::cuda {

template <class Weights, class Tiles>
void qmm_sm90_on_blocks(const QmmParamsOf<Tiles>& p) {
  qmm_block<Weights, Tiles>(p);
}
template <class Weights, class Tiles, class Wider>
void qmm_sm90_either_on_blocks(const QmmParamsOf<Tiles>& p, const QmmParamsOf<Wider>& wider) {
  qmm_block_of_either<Weights, Tiles, Wider>(p, wider);
}

#undef MB_QMM_SM90
#define MB_QMM_SM90(name, Tiles, ...)                                     \
  static const test::KernelOnBlocks name##_kernel {                       \
    "qmm_sm90_" #name, {2, true}, &qmm_sm90_on_blocks<__VA_ARGS__, Tiles> \
  }
#undef MB_QMM_SM90_EITHER_OF
#define MB_QMM_SM90_EITHER_OF(name, Tiles, wider, ...)                                \
  static const test::KernelOnBlocks name##_kernel {                                   \
    "qmm_sm90_" #name, {2, true},                                                     \
        &qmm_sm90_either_on_blocks<__VA_ARGS__, Tiles, WiderThan<Tiles, wider>::Type> \
  }

}  // namespace moeblas::cuda
