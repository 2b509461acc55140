// What the warps of ffn_one_sm90 multiply with: pieces of codes, their scales from a chunk's rows,
// and activations that a warp takes from memory as they come.
#pragma once

#include "cuda/device/x_columns.cuh"
#include "cuda/ffn_one_sm90/limbs.cuh"
#include "cuda/ffn_one_sm90/ring.cuh"
#include "cuda/qmv_sm90/item.cuh"

namespace moeblas::cuda::device {

constexpr uint32_t kPieceLines = uint32_t{kOnePieceRows} * kQmvSlab;  // bytes

// kOnePieceRows rows of codes x kQmvItemBytes, as one lane sees them: where it finds them in a
// chunk, 16 bytes of eight from `first` on of a line, and 32 bytes further on.
struct PieceLines {
  uint32_t at[2];
  PieceLines() = default;
  __device__ __forceinline__ PieceLines(uint32_t line, uint32_t first, uint32_t lane) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      at[i] = kept(line * kQmvSlab + (((first + 2 * i) ^ (line & 7)) << 4), lane);
    }
  }
};

// The unit of a piece that a lane's sums are of, of the set `set`.
template <class T>
__device__ __forceinline__ uint32_t unit_of_sums(uint32_t lane, int set = 0) {
  if constexpr (OneUnits<T>::kLimbs) return lane % 4 / 2 + 2 * static_cast<uint32_t>(set);
  return 2 * (lane % 4) / T::kTokens / (T::kHalves ? 2 : 1);
}

// A scale (nvfp4: a unit's two) as it lies in memory.
template <class T>
constexpr uint32_t kRawScaleBytes = T::kScale == simt::kF32                ? 4
                                    : T::kHalves || T::kScale != simt::kU8 ? 2
                                                                           : 1;
template <class T>
__device__ __forceinline__ uint32_t load_raw_scale(uint32_t from) {
  if constexpr (kRawScaleBytes<T> == 4) {
    return load_shared_u32(from);
  } else if constexpr (kRawScaleBytes<T> == 2) {
    return load_shared_u16(from);
  } else {
    return load_shared_u8(from);
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
    // e8m0_or_infinity by one operation of the pipe that decodes.
    return fmaxf(__uint_as_float(raw << 23), 0x1p-127f);
  }
}

// Of two pieces of a chunk: how a lane's scales lie, and what of it changes from chunk to chunk
// (`at`, where row g's are). A set: the units whose products are added up in sums of their own.
template <class T>
struct ScalesAt {
  static constexpr int kSets = OneUnits<T>::kLimbs ? 2 : 1;
  uint32_t first[kSets], second[kSets];  // bytes to row g of each piece
  uint32_t rows;                         // to row g + 8
  ScalesAt() = default;

  // Of units `unit` and `second_unit` of a chunk, which begin in its rows `row` and `second_row`.
  __device__ __forceinline__ ScalesAt(const FfnOneProduct& q, uint32_t unit, uint32_t row,
                                      uint32_t second_unit, uint32_t second_row, uint32_t within,
                                      uint32_t lane)
      : rows(8 * q.pitch) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const uint32_t mine = unit_of_sums<T>(lane, set);
      first[set] = kept(row * q.pitch + bytes_to(q, unit + mine) + within, lane);
      second[set] = kept(second_row * q.pitch + bytes_to(q, second_unit + mine) + within, lane);
    }
  }
  static __device__ __forceinline__ uint32_t bytes_to(const FfnOneProduct& q, uint32_t unit) {
    return (T::kHalves ? unit : unit >> q.group_shift) * kRawScaleBytes<T>;
  }
};

// Of a piece's rows g and g + 8: a group's scale and bias.
template <class T>
struct RawScales {
  uint32_t scale[2];
  uint32_t bias[2];
  __device__ __forceinline__ void load(uint32_t at, uint32_t rows, uint32_t to_biases) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      scale[r] = load_raw_scale<T>(at + r * rows);
      if constexpr (T::kAffine) bias[r] = load_raw_scale<T>(at + r * rows + to_biases);
    }
  }
};

// A row of x as a lane of a product's eight columns finds it: its column holds x in one unit of a
// piece (where a unit holds two groups: in a half of it) and zeros in the others.
template <class T>
struct PieceX {
  static constexpr bool kLimbs = OneUnits<T>::kLimbs;
  static constexpr int kHolds = kLimbs ? 2 : T::kUnits;
  uint32_t zeros;
  E2m1Constants e2m1;
  uint32_t holds[kHolds];  // 1 or 0: an address by a product is no work for the pipe that decodes
  __device__ __forceinline__ PieceX(uint32_t zeros_at, uint32_t lane)
      : zeros(kept(zeros_at, lane)), e2m1(E2m1Constants::kept_by(lane)) {
    const uint32_t slot = lane / 4 / (kLimbs ? 4 : T::kTokens);  // of this lane's column
    const bool half = !T::kHalves || lane % 4 / 2 == slot % 2;
#pragma unroll
    for (uint32_t u = 0; u < kHolds; ++u) {
      holds[u] = kept(slot / (T::kHalves ? 2 : 1) == u && half ? 1u : 0u, lane);
    }
  }
  // Of a lane's values from `columns` on, what it adds to the place of a unit.
  static __device__ __forceinline__ uint32_t of_lane(uint32_t lane) {
    return kLimbs ? lane / 4 % 4 * 32 + lane % 4 * 8 : lane % 4 * 16;
  }
  // And of its factors.
  static __device__ __forceinline__ uint32_t of_factors(uint32_t lane) {
    return kLimbs ? unit_of_sums<T>(lane) * OneUnits<T>::kFactorBytes + lane % 2 * 8
                  : unit_of_sums<T>(lane) * OneUnits<T>::kFactorBytes;
  }
  // `columns`: where the lane's values of the first unit are, from the zeros on.
  __device__ __forceinline__ uint4 load(uint32_t columns, int unit) const {
    return load_shared_4(zeros + holds[unit] * columns + static_cast<uint32_t>(unit) * 64);
  }
  // Of limbs: where its column finds units `half`, `half` + 2.
  __device__ __forceinline__ uint32_t limbs_from(uint32_t columns, int half) const {
    return zeros + holds[half] * columns + static_cast<uint32_t>(half) * 128;
  }
};

__device__ __forceinline__ Factor load_factor_of(uint32_t at) {
  const uint2 v = load_shared_2(at);
  return {__uint_as_float(v.x), __uint_as_float(v.y)};
}

// The same as add_pieces below, on limbs.
template <class T, int first, int last>
__device__ __forceinline__ void add_limbs(const FfnOneProduct& q, uint32_t chunk, uint32_t second,
                                          const PieceLines& lines, const PieceX<T>& x,
                                          uint32_t columns, uint32_t factors, uint32_t scales,
                                          const ScalesAt<T>& scales_at, float weight,
                                          float (&y)[2][4]) {
  const uint32_t from[2] = {x.limbs_from(columns, 0), x.limbs_from(columns, 1)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // sets of sums: of two units
    const auto of_set = static_cast<uint32_t>(i);
    RawScales<T> raw[2];
#pragma unroll
    for (int h = first; h <= last; ++h) {
      raw[h].load(scales + (h == 0 ? scales_at.first : scales_at.second)[i], scales_at.rows,
                  q.biases);
    }
    Factor factor = load_factor_of(factors + of_set * 2 * OneUnits<T>::kFactorBytes);
    const int32_t start = T::kAffine ? 0 : static_cast<int32_t>(__float_as_uint(factor.sum));
    factor.scale *= weight;
    factor.sum *= weight;
    const uint2 v[2] = {load_shared_2(from[0] + of_set * 256),
                        load_shared_2(from[1] + of_set * 256)};
#pragma unroll
    for (int h = first; h <= last; ++h) {
      const uint4 w = load_matrices(chunk + (h == 0 ? 0 : second) + lines.at[i]);
      int32_t d[4] = {start, 0, start, 0};
      multiply_limbs<T::kAffine>(d, x.e2m1, w.x, w.y, v[0]);
      multiply_limbs<T::kAffine>(d, x.e2m1, w.z, w.w, v[1]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t sum = d[2 * r] + d[2 * r + 1] * 256;
        // In this order: a scale and the size of x may be far out, in opposite directions.
        y[h][2 * r] += scale_of_raw<T>(raw[h].scale[r]) * (static_cast<float>(sum) * factor.scale);
        if constexpr (T::kAffine) y[h][2 * r] += scale_of_raw<T>(raw[h].bias[r]) * factor.sum;
      }
    }
  }
}

// Pieces `first` to `last` of two, `second` bytes apart from `chunk` on, times the values at
// `columns` from the zeros on, whose factors are at `factors`; weight: of all of it. y: rows g and
// g + 8 of each, two columns, of which nvfp4 uses both.
template <class T, int first, int last>
__device__ __forceinline__ void add_pieces(const FfnOneProduct& q, uint32_t chunk, uint32_t second,
                                           const PieceLines& lines, const PieceX<T>& x,
                                           uint32_t columns, uint32_t factors, uint32_t scales,
                                           const ScalesAt<T>& scales_at, float weight,
                                           float (&y)[2][4]) {
  if constexpr (OneUnits<T>::kLimbs) {
    add_limbs<T, first, last>(q, chunk, second, lines, x, columns, factors, scales, scales_at,
                              weight, y);
    return;
  }
  constexpr int kAtOnce = T::kUnits / 2;  // units whose codes come together
  float d[2][2][4] = {};                  // products of one sum wait for each other
  RawScales<T> raw[2];
#pragma unroll
  for (int h = first; h <= last; ++h) {
    raw[h].load(scales + (h == 0 ? scales_at.first : scales_at.second)[0], scales_at.rows,
                q.biases);
  }
  Factor factor = load_factor_of(factors);
  factor.scale *= weight;
  factor.sum *= weight;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) v[u] = x.load(columns, i * kAtOnce + u);
#pragma unroll
    for (int h = first; h <= last; ++h) {
      const uint4 w = load_matrices(chunk + (h == 0 ? 0 : second) + lines.at[i]);
      if constexpr (kAtOnce == 2) {
        Step::of<T>(w.x, 0, w.y, 0).multiply(d[h][i], v[0]);
        Step::of<T>(w.z, 0, w.w, 0).multiply(d[h][i], v[1]);
      } else {
        Step::of<T>(w.x, w.z, w.y, w.w).multiply(d[h][i], v[0]);
      }
    }
  }
#pragma unroll
  for (int h = first; h <= last; ++h) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t scale = raw[h].scale[r];
      if constexpr (T::kHalves) {
        const uint32_t two = e4m3_pair(scale);
        const float2 s = __half22float2(reinterpret_cast<const __half2&>(two));
        y[h][2 * r] += s.x * factor.scale * (d[h][0][2 * r] + d[h][1][2 * r]);
        y[h][2 * r + 1] += s.y * factor.scale * (d[h][0][2 * r + 1] + d[h][1][2 * r + 1]);
      } else {
        y[h][2 * r] += scale_of_raw<T>(scale) * factor.scale * (d[h][0][2 * r] + d[h][1][2 * r]);
        if constexpr (T::kAffine) y[h][2 * r] += scale_of_raw<T>(raw[h].bias[r]) * factor.sum;
      }
    }
  }
}

// A lane's eight values of a unit, of four lanes.
template <class T>
__device__ __forceinline__ void store_octet(const FfnOneProduct& q, const XColumns& to,
                                            uint32_t unit, uint32_t lane, const RawOctet& raw,
                                            bool bf16) {
  if constexpr (OneUnits<T>::kLimbs) {
    store_limbs<T>(to, unit, lane, raw, bf16);
  } else {
    OctetPlace<FfnOneProduct, typename T::Decode, 4, T::kAffine>{q, to, unit, 0, lane}.store_halves(
        raw, bf16);
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
    store_octet<T>(p.first, to, unit, lane, raw, p.x_type == simt::kBf16);
  }
}

// A lane's eight words of activations.
struct Words {
  uint4 a, b;
};

// `units` units of activations; beyond K there are none. Lanes beyond them repeat the lower ones'.
template <class T>
struct Activations {
  using Decode = typename T::Decode;
  static constexpr int kSecond = Decode::kPerWord == 8 ? 4 : 16;
  const FfnOneParams& p;
  uint32_t at;     // shared address of this warp's
  uint32_t first;  // value of a lane, of its units'
  uint32_t lane;
  __device__ __forceinline__ Activations(const FfnOneParams& params, uint32_t to, uint32_t units,
                                         uint32_t of_lane)
      : p(params),
        at(to),
        first(
            kept((of_lane / 4 & (units - 1)) * kQmvUnit + of_lane % 4 * Decode::kPerWord, of_lane)),
        lane(of_lane) {}
  // `first` known already.
  __device__ __forceinline__ Activations(const FfnOneParams& params, uint32_t to, uint32_t of_first,
                                         uint32_t of_lane, int)
      : p(params), at(to), first(of_first), lane(of_lane) {}

  // Whatever there is by now, of expert `expert` from value k on; for what is beyond K, of the
  // first.
  __device__ __forceinline__ Words look(uint32_t expert, uint32_t k) const {
    const uint32_t of = k + first < p.second.k ? k + first : first % kQmvUnit;
    const uint32_t* from = p.words + (expert * p.second.k + of);
    return {load_words(from), load_words(from + kSecond)};
  }
  static __device__ __forceinline__ bool written(const Words& w) {
    return ((w.a.x & w.a.y & w.a.z & w.a.w & w.b.x & w.b.y & w.b.z & w.b.w) & kOneWritten) != 0;
  }
  // Until all of it is there; then as columns, for this warp alone.
  __device__ __forceinline__ void take(Words now, uint32_t expert, uint32_t k) const {
    while (!written(now)) {
      look_again();
      now = look(expert, k);
    }
    __syncwarp();
    RawOctet raw = {{bytes_of(now.a.x, now.a.y, 0x5410), bytes_of(now.a.z, now.a.w, 0x5410),
                     bytes_of(now.b.x, now.b.y, 0x5410), bytes_of(now.b.z, now.b.w, 0x5410)}};
    if (k + first >= p.second.k) raw = {};
    const XColumns to{at, at + kOneWarpUnits * OneUnits<T>::kBytes};
    store_octet<T>(p.second, to, lane / 4, lane, raw, p.x_type == simt::kBf16);
    __syncwarp();
  }
};

}  // namespace moeblas::cuda::device
