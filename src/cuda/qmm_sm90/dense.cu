// qmm_sm90 for weights that are 16-bit floats, in rows of K or (across) of N.
#include "cuda/qmm_sm90/kernel.cuh"

namespace moeblas::cuda {

#define MB_QMM_SM90_DENSE(name, ...)                          \
  MB_QMM_SM90(name##_256, DenseTiles<Tiles256>, __VA_ARGS__); \
  MB_QMM_SM90(name##_128, DenseTiles<Tiles128>, __VA_ARGS__); \
  MB_QMM_SM90(name##_64, DenseTiles<Tiles64>, __VA_ARGS__);   \
  MB_QMM_SM90(name##_32, DenseTiles<Tiles32>, __VA_ARGS__)

using Bf16 = Dense<Bfloat16Pairs, false>;
using Bf16Across = Dense<Bfloat16Pairs, true>;
using F16 = Dense<Float16Pairs, false>;
using F16Across = Dense<Float16Pairs, true>;

MB_QMM_SM90_DENSE(dense_bf16, Bf16);
MB_QMM_SM90_EITHER(dense_bf16, DenseTiles, Bf16);
MB_QMM_SM90_DENSE(across_bf16, Bf16Across);
MB_QMM_SM90_DENSE(dense_f16, F16);
MB_QMM_SM90_EITHER(dense_f16, DenseTiles, F16);
MB_QMM_SM90_DENSE(across_f16, F16Across);

}  // namespace moeblas::cuda
