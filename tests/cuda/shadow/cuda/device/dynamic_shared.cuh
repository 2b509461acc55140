// In the place of src/cuda/device/dynamic_shared.cuh.
#pragma once

#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

inline unsigned char* dynamic_shared_1024() { return dynamic_shared(); }

}  // namespace moeblas::cuda::device
