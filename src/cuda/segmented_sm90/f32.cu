// segmented_sm90 for float32.
#include "cuda/segmented_sm90/fma.cuh"
#include "cuda/segmented_sm90/instances.cuh"

namespace moeblas::cuda {

MB_SEGMENTED_SM90(fma_128, FmaConsumer, FmaTile128x128);
MB_SEGMENTED_SM90(fma_64, FmaConsumer, FmaTile64x64);

}  // namespace moeblas::cuda
