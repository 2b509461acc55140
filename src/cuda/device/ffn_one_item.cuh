// What the warps of ffn_one_sm90 multiply with: pieces of codes, their scales straight from memory,
// and activations that a warp takes from memory as they come.
#pragma once

#include "cuda/device/ffn_one_ring.cuh"
#include "cuda/device/qmv_item.cuh"
#include "cuda/device/x_columns.cuh"

namespace moeblas::cuda::device {

constexpr uint32_t kPieceLines = uint32_t{kOnePieceRows} * kQmvSlab;  // bytes

// kOnePieceRows rows of codes x kQmvItemBytes, as one lane sees them.
struct Piece {
  uint32_t codes;           // shared address of the line that this lane names to load_matrices
  uint32_t first, swizzle;  // 16 bytes of eight, and which these are in this line
  uint32_t x;               // of this lane, in the piece's first unit
  uint32_t factors;         // of the unit that this lane's sums are of
};
__device__ __forceinline__ uint4 load_codes(const Piece& piece, int, int i) {
  return load_matrices(piece.codes +
                       (((piece.first + static_cast<uint32_t>(i)) ^ piece.swizzle) << 4));
}

// The unit of a piece that a lane's sums are of.
template <class T>
__device__ __forceinline__ uint32_t unit_of_sums(uint32_t lane) {
  return 2 * (lane % 4) / T::kTokens / (T::kHalves ? 2 : 1);
}

// A scale (nvfp4: a unit's two) as it lies in memory.
template <class T>
__device__ __forceinline__ uint32_t load_raw_scale(const unsigned char* row, uint32_t group) {
  if constexpr (T::kScale == simt::kF32) {
    return reinterpret_cast<const uint32_t*>(row)[group];
  } else if constexpr (T::kHalves || T::kScale == simt::kBf16 || T::kScale == simt::kF16) {
    return reinterpret_cast<const uint16_t*>(row)[group];
  } else {
    return row[group];
  }
}
template <class T>
__device__ __forceinline__ float scale_of_raw(uint32_t raw) {
  if constexpr (T::kScale == simt::kF32) {
    return __uint_as_float(raw);
  } else if constexpr (T::kScale == simt::kBf16) {
    return __uint_as_float(raw << 16);
  } else if constexpr (T::kScale == simt::kF16) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(raw)));
  } else {
    return e8m0_or_infinity(raw);
  }
}

// Of a warp's two pieces, rows g and g + 8 of each: scales and biases of one group.
struct RawScales {
  uint32_t scale[2][2];
  uint32_t bias[2][2];
};
// Where rows of scales begin.
struct ScaleRows {
  const unsigned char* row[2][2];
  template <class T>
  __device__ __forceinline__ void load(const FfnOneProduct& q, uint32_t piece, uint32_t unit,
                                       int64_t to_biases, RawScales& raw) const {
    const uint32_t group = min(T::kHalves ? unit : unit >> q.group_shift, q.last_group);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      raw.scale[piece][r] = load_raw_scale<T>(row[piece][r], group);
      if constexpr (T::kAffine) {
        raw.bias[piece][r] = load_raw_scale<T>(row[piece][r] + to_biases, group);
      }
    }
  }
};

// A piece times a row of x. y: rows g and g + 8, two columns each, of which nvfp4 uses both.
template <class T>
__device__ __forceinline__ void add_piece(const Piece& piece, uint4 (&x)[T::kUnits],
                                          const uint32_t (&scale)[2], const uint32_t (&bias)[2],
                                          float (&y)[4], uint32_t lane) {
  const uint32_t t = lane % 4, slot = lane / 4 / T::kTokens;  // of this lane's column
  const bool half = !T::kHalves || t / 2 == slot % 2;
#pragma unroll
  for (int u = 0; u < T::kUnits; ++u) {
    load_shared_4_if(slot / (T::kHalves ? 2 : 1) == static_cast<uint32_t>(u) && half, x[u],
                     piece.x + u * 64);
  }
  const uint2 v = load_shared_2(piece.factors);
  const Factor f = {__uint_as_float(v.x), __uint_as_float(v.y)};
  // Products of one sum wait for each other: two sums take turns.
  float d[4] = {}, odd[4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 w = load_codes(piece, 0, 2 * i);
    if constexpr (T::kUnits == 4) {
      Step::of<T>(w.x, 0, w.y, 0).multiply(d, x[2 * i]);
      Step::of<T>(w.z, 0, w.w, 0).multiply(odd, x[2 * i + 1]);
    } else {
      Step::of<T>(w.x, w.z, w.y, w.w).multiply(i == 0 ? d : odd, x[i]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if constexpr (T::kHalves) {
      const uint32_t two = e4m3_pair(scale[r]);
      const float2 s = __half22float2(reinterpret_cast<const __half2&>(two));
      y[2 * r] += s.x * f.scale * (d[2 * r] + odd[2 * r]);
      y[2 * r + 1] += s.y * f.scale * (d[2 * r + 1] + odd[2 * r + 1]);
    } else {
      y[2 * r] += scale_of_raw<T>(scale[r]) * f.scale * (d[2 * r] + odd[2 * r]);
      if constexpr (T::kAffine) y[2 * r] += scale_of_raw<T>(bias[r]) * f.sum;
    }
  }
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

// `units` units of activations, from value `k` of expert `expert` on; beyond K there are none.
// Lanes beyond them repeat the lower ones'.
template <class T>
struct Activations {
  using Decode = typename T::Decode;
  static constexpr uint32_t kSecond = Decode::kPerWord == 8 ? 4 : 16;
  const FfnOneParams& p;
  uint32_t at;  // shared address of this warp's
  uint32_t units;
  uint32_t lane;

  __device__ __forceinline__ uint32_t of_lane(uint32_t k) const {
    return k + (lane / 4 & (units - 1)) * kQmvUnit + lane % 4 * Decode::kPerWord;
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
