// What is launched in front of qmm_sm90's products.
#include "qmm_sm90_on_blocks.h"

#include "cuda/qmm_sm90/stage.cuh"

#define MB_CUDA_ROW(name, ...) \
  static const test::KernelOnBlocks name##_row { #name, {}, &__VA_ARGS__ }

#include "cuda/qmm_sm90/list_pairs.cu"
#include "cuda/qmm_sm90/place.cu"
#include "cuda/qmm_sm90/rows.cu"
