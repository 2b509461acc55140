// A warp's share of a stage of qmv_one_sm90: affine codes of any width.
//
// Codes that cross words need no more than a lane's own 32, which begin at a word: what a lane
// loads lies at a few places of a stage that do not change, so that swizzling costs nothing, and
// rows meet lanes in an order in which the loads of eight or sixteen lanes lie on different banks.
// Products and columns of x: qmv_sm80/bytes.cuh.
#pragma once

#include "cuda/device/x_bytes.cuh"
#include "cuda/qmv_one_sm90/params.h"
#include "cuda/qmv_one_sm90/stage.cuh"
#include "cuda/qmv_sm80/bytes.cuh"

namespace moeblas::cuda::device {

template <class T, int kScale>
struct QmvOneShare;

template <int bits, int group, int rows, int batches>
struct QmvOne {
  using Format = formats::Affine<bits>;
  static constexpr QmvOneShape kShape = {bits, group, rows, batches};
  static constexpr bool kAffine = true, kTensorScale = false;
  static constexpr int kBits = bits, kGroup = group, kXGroup = group < 64 ? group : 64;
  static constexpr uint32_t kRows = rows, kBatches = batches;
  static constexpr uint32_t kTileRows = kShape.tile_rows();
  static constexpr uint32_t kStepUnits = kShape.values() / kQmvOneUnit;
  static constexpr uint32_t kSlabs = kShape.slabs();
  static constexpr uint32_t kStepScales = kShape.scale_bytes(1);
  // A lane's codes of a batch come by loads of so many words.
  static constexpr uint32_t kLoadWords = bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
  static constexpr uint32_t kLoads = bits / kLoadWords;
  using X = ByteLane<kXGroup>;

  template <int kType>
  static __device__ __forceinline__ void fill_x(const XRow& row, const XColumns& to, uint32_t warp,
                                                uint32_t lane) {
    fill_bytes<bits, kXGroup, kType>(row, to, warp, lane, kQmvOneConsumers);
  }
  // Which row of eight a lane's row g is, such that what lanes load at a time lies on other banks,
  // swizzled as codes and scales are.
  static __device__ __forceinline__ uint32_t row_of_lane(uint32_t g) {
    return bits == 8 ? g : (g & 1) * 4 + (g & 2) + (g >> 2);
  }
  template <int kScale>
  using Share = QmvOneShare<QmvOne, kScale>;
};

// Where a lane finds its share of a stage, from the stage's begin on: each load of its codes, its
// row's scales.
template <class T>
struct QmvOneLane {
  uint32_t codes[T::kBatches * T::kLoads];
  uint32_t scales, biases;

  template <uint32_t kScaleBytes>
  static __device__ __forceinline__ QmvOneLane of(const QmvOneParams& p, uint32_t row_group,
                                                  uint32_t part, uint32_t lane) {
    const uint32_t t = lane % 4, row = row_group * T::kRows + T::row_of_lane(lane / 4);
    QmvOneLane l;
#pragma unroll
    for (uint32_t i = 0; i < T::kBatches * T::kLoads; ++i) {
      const uint32_t batch = part * T::kBatches + i / T::kLoads;
      const uint32_t at = (batch * 4 + t) * (4 * T::kBits) + i % T::kLoads * (4 * T::kLoadWords);
      l.codes[i] = at / kQmvOneSlab * (T::kTileRows * kQmvOneSlab) +
                   swizzled<kQmvOneSlab>(row, at % kQmvOneSlab);
    }
    const uint32_t first = part * T::kBatches * kQmvOneBatch / T::kGroup;
    constexpr bool kOwn = kScaleBytes == 4 && T::kGroup < 128;
    const uint32_t scales =
        swizzled<T::kStepScales * kScaleBytes>(row, (first + (kOwn ? t / 2 : 0)) * kScaleBytes);
    l.scales = p.scales_at + scales;
    l.biases = p.biases_at + scales;
    return l;
  }
};

// Neighbours, where their address is a multiple of as many bytes.
template <uint32_t kWords>
__device__ __forceinline__ void load_neighbours(uint32_t from, uint32_t (&words)[kWords]) {
  static_assert(kWords == 1 || kWords == 2 || kWords % 4 == 0, "what one load brings, or several");
  if constexpr (kWords == 1) {
    words[0] = load_shared_u32(from);
  } else if constexpr (kWords == 2) {
    const uint2 v = load_shared_2(from);
    words[0] = v.x, words[1] = v.y;
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kWords; i += 4) {
      const uint4 v = load_shared_4(from + 4 * i);
      words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
    }
  }
}

// A row's scales (or biases) of a warp's share: those of the lane's slot.
template <class T, int kScale>
struct QmvOneScales {
  static constexpr uint32_t kBytes = kScale == simt::kF32 ? 4 : 2;
  static constexpr uint32_t kSums = T::kBatches * static_cast<uint32_t>(T::X::kSets);
  // Two neighbours each, of which the lane wants one; of groups of 128 one, in turn.
  static constexpr uint32_t kWords = kBytes == 4        ? kSums
                                     : T::kGroup == 128 ? (kSums + 1) / 2
                                                        : kSums;
  uint32_t word[kWords];

  __device__ __forceinline__ void load(uint32_t at) {
    if constexpr (kBytes == 4) {
#pragma unroll
      for (uint32_t i = 0; i < kSums; ++i) {
        word[i] = load_shared_u32(at + i * (T::kGroup == 128 ? 4 : 8));
      }
    } else if constexpr (T::kGroup == 128 && kSums == 1) {
      word[0] = load_shared_u16(at);
    } else {
      load_neighbours(at, word);
    }
  }
  __device__ __forceinline__ float of(uint32_t sum, uint32_t slot) const {
    if constexpr (kBytes == 4) {
      return __uint_as_float(word[sum]);
    } else {
      const uint32_t two = T::kGroup == 128 ? word[sum / 2] : word[sum];
      const bool second = T::kGroup == 128 ? sum % 2 != 0 : slot != 0;
      if constexpr (kScale == simt::kBf16) {
        return __uint_as_float(bytes_of(two, 0, second ? 0x3244 : 0x1044));
      } else {
        const uint32_t one = bytes_of(two, 0, second ? 0x4432 : 0x4410);
        return __half2float(__ushort_as_half(static_cast<uint16_t>(one)));
      }
    }
  }
};

// A lane's 32 codes of a row.
template <class T>
__device__ __forceinline__ void load_codes(const uint32_t* at, uint32_t stage, uint32_t row,
                                           uint32_t (&bytes)[8]) {
  uint32_t words[T::kBits];
#pragma unroll
  for (uint32_t i = 0; i < T::kLoads; ++i) {
    uint32_t some[T::kLoadWords];
    load_neighbours(stage + at[i] + row * kQmvOneSlab, some);
#pragma unroll
    for (uint32_t j = 0; j < T::kLoadWords; ++j) words[i * T::kLoadWords + j] = some[j];
  }
  ByteDecoder<T::kBits>::decode(words, bytes);
}

// A warp's share of a stage. y: sums of the lane's row of each eight.
template <class T, int kScale>
__device__ __forceinline__ void add_item(const QmvOneLane<T>& from, uint32_t stage,
                                         const typename T::X& at, uint32_t lane,
                                         float (&y)[T::kRows / 8]) {
  using Scales = QmvOneScales<T, kScale>;
  constexpr int kSets = T::X::kSets;
  constexpr uint32_t kScalePitch = T::kStepScales * Scales::kBytes;
  const uint32_t slot = lane % 4 / 2;
  Scales scale[T::kRows / 8], bias[T::kRows / 8];
#pragma unroll
  for (uint32_t r = 0; r < T::kRows / 8; ++r) {
    scale[r].load(stage + from.scales + r * 8 * kScalePitch);
    bias[r].load(stage + from.biases + r * 8 * kScalePitch);
  }
#pragma unroll
  for (uint32_t batch = 0; batch < T::kBatches; ++batch) {
    uint4 x[2];
    if constexpr (kSets == 1) at.load(x, lane, 0, batch);
#pragma unroll
    for (uint32_t h = 0; h < T::kRows / 16; ++h) {
      uint32_t upper[8], lower[8];
      load_codes<T>(from.codes + batch * T::kLoads, stage, 16 * h, upper);
      load_codes<T>(from.codes + batch * T::kLoads, stage, 16 * h + 8, lower);
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        if constexpr (kSets > 1) at.load(x, lane, static_cast<uint32_t>(set), batch);
        int32_t d[4] = {};
        multiply_batch<T::kBits>(upper, lower, x, d);
        const uint32_t sum = batch * kSets + static_cast<uint32_t>(set);
        const Factor factor = load_factor(at.factors + sum * 32);
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t r = 2 * h + i;
          // In this order: a scale and the size of x may be far out, in opposite directions.
          y[r] += scale[r].of(sum, slot) *
                  (static_cast<float>(d[2 * i] + d[2 * i + 1] * 256) * factor.scale);
          y[r] += bias[r].of(sum, slot) * factor.sum;
        }
      }
    }
  }
}

// A warp's share of stages, as a lane sees it.
template <class T, int kScale>
struct QmvOneShare {
  QmvOneLane<T> from;
  typename T::X x;
  uint32_t lane;

  __device__ __forceinline__ QmvOneShare(const QmvOneParams& p, uint32_t row_group, uint32_t part,
                                         uint32_t of_lane)
      : from(QmvOneLane<T>::template of<(kScale == simt::kF32 ? 4 : 2)>(p, row_group, part,
                                                                        of_lane)),
        lane(of_lane) {}
  // x from its first values on, `units` of which are others'.
  __device__ __forceinline__ void begin(const XColumns& columns, uint32_t zeros, uint32_t units) {
    x = T::X::of(columns, zeros, lane, units);
  }
  __device__ __forceinline__ void add(uint32_t stage, float (&y)[T::kRows / 8]) const {
    add_item<T, kScale>(from, stage, x, lane, y);
  }
  __device__ __forceinline__ void advance() { x.advance(lane, T::kStepUnits); }
};

}  // namespace moeblas::cuda::device
