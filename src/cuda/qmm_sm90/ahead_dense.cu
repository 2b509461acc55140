// qmm_sm90 for weights that are 16-bit floats in rows of K, where products write rows of x
// themselves: from where x lies.
#include "cuda/qmm_sm90/ahead_instances.cuh"

namespace moeblas::cuda {

using Bf16 = Dense<Bfloat16Pairs, false>;
using F16 = Dense<Float16Pairs, false>;

MB_QMM_SM90_AHEAD(dense_bf16, DenseTiles<Tiles256>, 224, Bf16);
MB_QMM_SM90_AHEAD(dense_f16, DenseTiles<Tiles256>, 224, F16);

}  // namespace moeblas::cuda
