// segmented_sm90 for float16.
#include "cuda/segmented_sm90/instances.cuh"
#include "cuda/segmented_sm90/wgmma.cuh"

namespace moeblas::cuda {

MB_SEGMENTED_SM90(f16_256, WgmmaConsumer, device::Float16, Tile256x256);
MB_SEGMENTED_SM90(f16_128, WgmmaConsumer, device::Float16, Tile128x128);
MB_SEGMENTED_SM90(f16_64, WgmmaConsumer, device::Float16, Tile64x64);

}  // namespace moeblas::cuda
