// segmented_sm90_limbs.
#include "cuda/segmented_sm90_limbs.cuh"

#include "cuda/segmented_sm90_instances.cuh"

namespace moeblas::cuda {

static const simt::CudaKernel segmented_limbs_128{
    "segmented_sm90_limbs_128", reinterpret_cast<const void*>(&segmented_sm90<LimbConsumer>)};

}  // namespace moeblas::cuda
