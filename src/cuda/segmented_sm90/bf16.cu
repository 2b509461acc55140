// segmented_sm90 for bfloat16.
#include "cuda/segmented_sm90/instances.cuh"
#include "cuda/segmented_sm90/wgmma.cuh"

namespace moeblas::cuda {

MB_SEGMENTED_SM90(bf16_256, WgmmaConsumer, device::Bfloat16, Tile256x256);
MB_SEGMENTED_SM90(bf16_128, WgmmaConsumer, device::Bfloat16, Tile128x128);
MB_SEGMENTED_SM90(bf16_64, WgmmaConsumer, device::Bfloat16, Tile64x64);

}  // namespace moeblas::cuda
