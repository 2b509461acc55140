// In the place of src/cuda/device/store_async.cuh: stores to other blocks arrive as copies do.
#pragma once

#include <array>
#include <cstring>

#include "cuda/device/cluster.cuh"

namespace moeblas::cuda::device {

template <size_t kCount>
void store_numbers(uint32_t to, uint32_t barrier, const std::array<float, kCount>& numbers) {
  test::copy_later_in_cluster(
      to, sizeof numbers,
      [=](unsigned char* memory) { std::memcpy(memory, &numbers, sizeof numbers); }, barrier,
      sizeof numbers);
}
inline void store_async(uint32_t to, uint32_t barrier, float a) {
  store_numbers<1>(to, barrier, {a});
}
inline void store_async_4(uint32_t to, uint32_t barrier, float a, float b, float c, float d) {
  store_numbers<4>(to, barrier, {a, b, c, d});
}

inline uint32_t transposed(uint32_t two) {
  const unsigned char* all = test::meet("transposed", &two, sizeof two);
  // The lane has of row lane / 4, which was a column, the numbers 2 * (lane % 4) and the next.
  const uint32_t row = lane_index() / 4, first = lane_index() % 4 * 2;
  const auto number = [&](uint32_t r) {
    return from_lane<uint32_t>(all, r * 4 + row / 2) >> row % 2 * 16 & 0xffffu;
  };
  return number(first) | number(first + 1) << 16;
}

}  // namespace moeblas::cuda::device
