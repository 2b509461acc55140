// segmented_sm90_limbs.
#include "cuda/segmented_sm90_limbs.cuh"

#include "cuda/segmented_sm90_instances.cuh"

namespace moeblas::cuda {

MB_SEGMENTED_SM90_LIMBS(limbs_256, LimbTile256x128);
MB_SEGMENTED_SM90_LIMBS(limbs_128, LimbTile128x128);

}  // namespace moeblas::cuda
