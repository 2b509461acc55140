// What a launch reads first, asked for while launches in front of it end: weights, on their way
// into the L2 cache, where they can do no harm however old they are, as those launches may have yet
// to write them; and its own parameters.
#pragma once

#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

constexpr uint32_t kMemoryLine = 128;

// Every line of a kernel's parameters, by a warp that has nothing to do yet: whoever is the first
// to want something of a line waits for it as long as for a hundred instructions. `to`, in shared
// memory and nobody's, keeps the compiler from leaving that out.
template <class Parameters>
__device__ __forceinline__ void fetch_parameters(const Parameters& p, uint32_t* to) {
  constexpr uint32_t kLineWords = 16;
  const auto* words = reinterpret_cast<const uint32_t*>(&p);
  uint32_t all = 0;
#pragma unroll
  for (uint32_t i = 0; i < sizeof p / 4; i += kLineWords) all ^= words[i];
  if (threadIdx.x % 32 == 0) *static_cast<volatile uint32_t*>(to) = all;
}

// So many lines of each of `rows` rows, `stride` bytes apart, by several threads.
__device__ __forceinline__ void prefetch_lines(const uint8_t* from, int64_t stride, uint32_t rows,
                                               uint32_t lines, uint32_t thread, uint32_t threads) {
#pragma unroll 1
  for (uint32_t i = thread; i < rows * lines; i += threads) {
    const uint32_t r = i / lines;
    prefetch_line(from + r * stride + (i - r * lines) * kMemoryLine);
  }
}

// Rows of so many bytes, or of rows without gaps all together: whole lines alone, as what lies
// behind them may be nobody's.
__device__ __forceinline__ void prefetch_rows(const uint8_t* from, int64_t stride, uint32_t rows,
                                              uint32_t bytes, uint32_t thread, uint32_t threads) {
  if (stride == bytes) {
    bytes *= rows;
    rows = 1;
  }
  prefetch_lines(from, stride, rows, bytes / kMemoryLine, thread, threads);
}

}  // namespace moeblas::cuda::device
