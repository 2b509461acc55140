// In the place of src/cuda/device/wgmma_between.cuh, of whose widths there are no others here.
#pragma once

#include "cuda/device/wgmma.cuh"
