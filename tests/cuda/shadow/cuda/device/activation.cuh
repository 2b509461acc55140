// In the place of src/cuda/device/activation.cuh: the same functions on the host.
#pragma once

#include <cmath>

namespace moeblas::cuda::device {

inline float lesser(float a, float b) { return std::isnan(a) || a < b ? a : b; }
inline float greater(float a, float b) { return std::isnan(a) || a > b ? a : b; }
inline float exp2_beside_1(float x) { return std::exp2(x); }

}  // namespace moeblas::cuda::device
