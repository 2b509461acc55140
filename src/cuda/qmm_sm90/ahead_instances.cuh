// Instances of qmm_sm90 that write rows of x themselves, by the names that the host launches them
// by.
#pragma once

#include "cuda/qmm_sm90/kernel.cuh"

namespace moeblas::cuda {

// Of one width, and with the wider tiles beside it.
#define MB_QMM_SM90_AHEAD(name, Tiles, registers, ...)                                      \
  static const simt::CudaKernel name##_256_ahead_kernel {                                   \
    "qmm_sm90_" #name "_256_ahead",                                                         \
        reinterpret_cast<const void*>(&qmm_sm90<__VA_ARGS__, AheadTiles<Tiles, registers>>) \
  }
#define MB_QMM_SM90_EITHER_AHEAD(name, Tiles, ...)                                            \
  static const simt::CudaKernel name##_256_288_ahead_kernel {                                 \
    "qmm_sm90_" #name "_256_288_ahead",                                                       \
        reinterpret_cast<const void*>(                                                        \
            &qmm_sm90_either<__VA_ARGS__, AheadTiles<Tiles, 224>, AheadTiles<Tiles288, 224>>) \
  }
// Of products of their own and of a layer's first.
#define MB_QMM_SM90_ALL_AHEAD(name, Tiles, ...)                                            \
  MB_QMM_SM90_AHEAD(name, Tiles, 224, __VA_ARGS__);                                        \
  MB_QMM_SM90_EITHER_AHEAD(name, Tiles, __VA_ARGS__);                                      \
  MB_QMM_SM90_AHEAD(gates_##name, Tiles, 224, EndingIn<__VA_ARGS__, Ending::activations>); \
  MB_QMM_SM90_EITHER_AHEAD(gates_##name, Tiles, EndingIn<__VA_ARGS__, Ending::activations>)

}  // namespace moeblas::cuda
