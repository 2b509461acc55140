// What a block of qmm_sm80 makes and holds, for its kernel and for its launch.
#pragma once

#include <cstdint>

namespace moeblas::cuda {

// What a block makes, and with what.
inline constexpr uint32_t kQmmSm80Rows = 128, kQmmSm80Cols = 128, kQmmSm80Threads = 256;
// Of shared memory, with packed and with dense w.
inline constexpr uint32_t kQmmSm80PackedBytes = 80 << 10, kQmmSm80DenseBytes = 96 << 10;

}  // namespace moeblas::cuda
