// segmented_sm90 for float32, and segmented_sm90_limbs.
#include "cuda/segmented_sm90_fma.cuh"
#include "cuda/segmented_sm90_instances.cuh"
#include "cuda/segmented_sm90_limbs.cuh"

namespace moeblas::cuda {

MB_SEGMENTED_SM90(fma_128, FmaConsumer, FmaTile128x128);
MB_SEGMENTED_SM90(fma_64, FmaConsumer, FmaTile64x64);
MB_SEGMENTED_SM90(limbs3, LimbConsumer, 3, LimbTile128x128);
MB_SEGMENTED_SM90(limbs2, LimbConsumer, 2, LimbTile128x128);

}  // namespace moeblas::cuda
