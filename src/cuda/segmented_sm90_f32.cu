// segmented_sm90 for float32: IEEE multiply-adds.
#include "cuda/segmented_sm90_fma.cuh"
#include "cuda/segmented_sm90_instances.cuh"

namespace moeblas::cuda {

MB_SEGMENTED_SM90(fma_128, FmaConsumer, Tile128x256);
MB_SEGMENTED_SM90(fma_64, FmaConsumer, Tile64x64);

}  // namespace moeblas::cuda
