// segmented_sm90_limbs.
#include "cuda/segmented_sm90/limbs.cuh"

#include "cuda/segmented_sm90/instances.cuh"

namespace moeblas::cuda {

static const simt::CudaKernel segmented_limbs_128{
    "segmented_sm90_limbs_128",
    reinterpret_cast<const void*>(&segmented_sm90<LimbConsumer<LimbTile128x128>>)};
static const simt::CudaKernel segmented_limbs_64{
    "segmented_sm90_limbs_64",
    reinterpret_cast<const void*>(&segmented_sm90<LimbConsumer<LimbTile64x128>>)};

}  // namespace moeblas::cuda
