// The names that the host launches the instances of segmented_sm90 by.
#pragma once

#include "cuda/segmented_sm90/kernel.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

// Other architectures of the same build get a kernel that is never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Consumer>
__global__ void __cluster_dims__(Consumer::Tile::kBlocks, 1, 1)
    __launch_bounds__(Consumer::kThreads, Consumer::Tile::kPerProcessor)
        segmented_sm90(const __grid_constant__ SegmentedSm90Params p) {
#if defined(__CUDA_ARCH__)
  Consumer::run(p);
#endif
}
#else
template <class Consumer>
__global__ void segmented_sm90(const __grid_constant__ SegmentedSm90Params) {}
#endif

// By how a and b lie: k along K, t turned, a before b.
#define MB_SEGMENTED_SM90_ONE(name, lies, Consumer, ...)                      \
  static const simt::CudaKernel segmented_##name##_##lies {                   \
    "segmented_sm90_" #name "_" #lies,                                        \
        reinterpret_cast<const void*>(&segmented_sm90<Consumer<__VA_ARGS__>>) \
  }
#define MB_SEGMENTED_SM90(name, Consumer, ...)                                    \
  MB_SEGMENTED_SM90_ONE(name, kk, Consumer, __VA_ARGS__, Along::k, Along::k);     \
  MB_SEGMENTED_SM90_ONE(name, kt, Consumer, __VA_ARGS__, Along::k, Along::lines); \
  MB_SEGMENTED_SM90_ONE(name, tk, Consumer, __VA_ARGS__, Along::lines, Along::k); \
  MB_SEGMENTED_SM90_ONE(name, tt, Consumer, __VA_ARGS__, Along::lines, Along::lines)

}  // namespace moeblas::cuda
