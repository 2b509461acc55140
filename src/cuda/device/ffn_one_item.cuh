// What the warps of ffn_one_sm90 multiply with: an item's codes in two halves that lie apart, and
// activations that a warp takes from memory as they come.
#pragma once

#include "cuda/device/ffn_one_ring.cuh"
#include "cuda/device/qmv_item.cuh"
#include "cuda/device/x_columns.cuh"

namespace moeblas::cuda::device {

// As Item, with 16 rows here and 16 rows there.
struct HalvesItem {
  uint32_t codes, half_bytes;
  uint32_t chunk, swizzle;
  uint32_t scales, biases;
  uint32_t x, factors;
};
__device__ __forceinline__ uint4 load_codes(const HalvesItem& item, int half, int i) {
  return load_matrices(item.codes + static_cast<uint32_t>(half) * item.half_bytes +
                       (((item.chunk + static_cast<uint32_t>(i)) ^ item.swizzle) << 4));
}

// The token's x as a column, by all consumers.
template <class T>
__device__ __forceinline__ void fill_x(const FfnOneParams& p, const FfnOneMemory& memory,
                                       uint32_t warp, uint32_t lane) {
  using Decode = typename T::Decode;
  constexpr uint32_t kSecond = Decode::kPerWord == 8 ? 4 : 16;
  const XColumns to{memory.x, memory.factors};
#pragma unroll 1
  for (uint32_t chunk = warp; chunk < p.units / 8; chunk += kOneConsumers) {
    const uint32_t unit = chunk * 8 + lane / 4;
    const uint32_t k = unit * kQmvUnit + lane % 4 * Decode::kPerWord;
    RawOctet raw = {};
    if (k < p.first.k) {
      const uint2 a = *reinterpret_cast<const uint2*>(p.x + k * 2);
      const uint2 b = *reinterpret_cast<const uint2*>(p.x + (k + kSecond) * 2);
      raw = {a.x, a.y, b.x, b.y};
    }
    OctetPlace<FfnOneProduct, Decode, 4, T::kAffine>{p.first, to, unit, 0, lane}.store_halves(
        raw, p.x_type == simt::kBf16);
  }
}

// A lane's eight words of activations.
struct Words {
  uint4 a, b;
};

// An item's values of activations, from value `k` of expert `expert` on; beyond K there are none.
// The upper half of a warp repeats the lower.
template <class T>
struct Activations {
  using Decode = typename T::Decode;
  static constexpr uint32_t kSecond = Decode::kPerWord == 8 ? 4 : 16;
  const FfnOneParams& p;
  uint32_t at;  // shared address of this warp's
  uint32_t lane;

  __device__ __forceinline__ uint32_t of_lane(uint32_t k) const {
    return k + lane / 4 % T::kUnits * kQmvUnit + lane % 4 * Decode::kPerWord;
  }
  // Whatever there is by now.
  __device__ __forceinline__ Words look(uint32_t expert, uint32_t k) const {
    const uint32_t of = of_lane(k);
    if (of >= p.second.k) {
      const uint4 none = {kOneWritten, kOneWritten, kOneWritten, kOneWritten};
      return {none, none};
    }
    const uint32_t* from = p.words + expert * p.second.k + of;
    return {load_words(from), load_words(from + kSecond)};
  }
  static __device__ __forceinline__ bool written(const Words& w) {
    return ((w.a.x & w.a.y & w.a.z & w.a.w & w.b.x & w.b.y & w.b.z & w.b.w) & kOneWritten) != 0;
  }
  static __device__ __forceinline__ uint32_t pair(uint32_t low, uint32_t high) {
    return (low & 0xffffu) | high << 16;
  }
  // Until all of it is there; then as columns, for this warp alone.
  __device__ __forceinline__ void take(Words words, uint32_t expert, uint32_t k) const {
    while (!written(words)) {
      look_again();
      words = look(expert, k);
    }
    __syncwarp();
    const RawOctet raw = {{pair(words.a.x, words.a.y), pair(words.a.z, words.a.w),
                           pair(words.b.x, words.b.y), pair(words.b.z, words.b.w)}};
    const XColumns to{at, at + kOneWarpUnits * 64};
    OctetPlace<FfnOneProduct, Decode, 4, T::kAffine>{p.second, to, lane / 4, 0, lane}.store_halves(
        raw, p.x_type == simt::kBf16);
    __syncwarp();
  }
};

}  // namespace moeblas::cuda::device
