// A warp's share of a stage of qmv_one_sm90: codes of e2m1, in groups of 32 with scales of e8m0 or
// of 16 with scales of e4m3.
//
//   batch    16 rows x 128 values: load_matrices gives lane t
//            of a row the t-th eight of each 32, so that each
//            of four mma.m16n8k32 has 32 neighbours, a unit
//   columns  the four limbs of x (x_bytes.cuh), for two groups: of mxfp4 of two units, whose
//            products are added up in one set of sums, of nvfp4 of the two halves of a unit. A
//            column holds zeros where codes are not its group's
#pragma once

#include "cuda/device/decode.cuh"
#include "cuda/device/e2m1_bytes.cuh"
#include "cuda/device/x_bytes.cuh"
#include "cuda/qmv_one_sm90/params.h"
#include "cuda/qmv_one_sm90/stage.cuh"

namespace moeblas::cuda::device {

template <class T>
struct QmvOneE2m1Share;

template <class F, int group, int rows, int batches>
struct QmvOneE2m1 {
  using Format = F;
  static constexpr QmvOneShape kShape = {4, group, rows, batches};
  static constexpr bool kAffine = false, kTensorScale = group == 16;
  static constexpr int kBits = 4, kGroup = group;
  static constexpr uint32_t kRows = rows, kBatches = batches;
  static constexpr uint32_t kTileRows = kShape.tile_rows();
  static constexpr uint32_t kStepUnits = kShape.values() / kQmvOneUnit;
  static constexpr uint32_t kSlabs = kShape.slabs();
  static constexpr uint32_t kStepScales = kShape.scale_bytes(1);
  // Units of a batch whose products meet in one set of sums.
  static constexpr uint32_t kSetUnits = group / 16;

  // As bytes of 8 bits come: in their order.
  template <int kType>
  static __device__ __forceinline__ void fill_x(const XRow& row, const XColumns& to, uint32_t warp,
                                                uint32_t lane) {
    fill_bytes<8, group, kType, kE2m1More>(row, to, warp, lane, kQmvOneConsumers);
  }
  static __device__ __forceinline__ uint32_t row_of_lane(uint32_t g) { return g; }
  template <int kScale>
  using Share = QmvOneE2m1Share<QmvOneE2m1>;
};

// A row's scales of a batch: those of the lane's slot, of each set.
template <int kGroup>
struct QmvOneBlockScales;
template <>
struct QmvOneBlockScales<32> {
  uint32_t two;  // as bfloat16
  // Which bytes are those of a slot.
  static __device__ __forceinline__ uint32_t selector(uint32_t slot) {
    return slot == 0 ? 0x4240u : 0x4341u;
  }
  __device__ __forceinline__ void load(uint32_t at, uint32_t which) {
    two = __vmaxu2(bytes_of(load_shared_u32(at), 0, which) * 128, 0x00400040u);
  }
  // As e8m0_or_infinity has them.
  __device__ __forceinline__ float of(uint32_t set) const {
    return __uint_as_float(set != 0 ? two & 0xffff0000u : two << 16);
  }
};
template <>
struct QmvOneBlockScales<16> {
  uint32_t two[2];  // as float16
  static __device__ __forceinline__ uint32_t selector(uint32_t slot) {
    return slot == 0 ? 0x6420u : 0x7531u;
  }
  __device__ __forceinline__ void load(uint32_t at, uint32_t which) {
    const uint2 eight = load_shared_2(at);
    const uint32_t four = bytes_of(eight.x, eight.y, which);
    two[0] = e4m3_pair(four & 0xffffu);
    two[1] = e4m3_pair(four >> 16);
  }
  __device__ __forceinline__ float of(uint32_t set) const {
    const float2 s = __half22float2(reinterpret_cast<const __half2&>(two[set / 2]));
    return set % 2 == 0 ? s.x : s.y;
  }
};

// A warp's share of stages, as a lane sees it.
template <class T>
struct QmvOneE2m1Share {
  static constexpr uint32_t kBatchBytes = kQmvOneBatch / 2;
  static constexpr uint32_t kFactorBytes = kMoreFactorBytes<T::kGroup>;  // of two units
  static constexpr uint32_t kBatchScales = kQmvOneBatch / T::kGroup;
  using Scales = QmvOneBlockScales<T::kGroup>;

  uint32_t
      codes[2 * T::kBatches];  // what the lane names to load_matrices, from the stage's begin on
  uint32_t scales;             // of its row
  uint32_t x[2];               // its limb of the first two units, or zeros
  uint32_t step[2];            // what x advances by
  uint32_t factors, added;     // of its limbs, and of its sums' group of the first set
  uint32_t selector;           // of scales
  uint32_t lane;
  E2m1Constants e2m1;

  __device__ __forceinline__ QmvOneE2m1Share(const QmvOneParams& p, uint32_t row_group,
                                             uint32_t part, uint32_t of_lane)
      : lane(of_lane), e2m1(E2m1Constants::kept_by(of_lane)) {
    const uint32_t line = row_group * T::kRows + lane % 16;
#pragma unroll
    for (uint32_t i = 0; i < 2 * T::kBatches; ++i) {
      const uint32_t at = part * T::kBatches * kBatchBytes + i * 32 + lane / 16 * 16;
      codes[i] = kept(at / kQmvOneSlab * (T::kTileRows * kQmvOneSlab) +
                          swizzled<kQmvOneSlab>(line, at % kQmvOneSlab),
                      lane);
    }
    scales = kept(p.scales_at + swizzled<T::kStepScales>(row_group * T::kRows + lane / 4,
                                                         part * T::kBatches * kBatchScales),
                  lane);
    selector = kept(Scales::selector(lane % 4 / 2), lane);
#pragma unroll
    for (uint32_t parity = 0; parity < 2; ++parity) {
      step[parity] = kept(holds(parity) ? T::kStepUnits * 128 : 0, lane);
    }
  }
  // Whether the lane's column has x in units of this parity, at its place of them.
  __device__ __forceinline__ bool holds(uint32_t parity) const {
    return lane / 16 == (T::kGroup == 32 ? parity : lane % 4 / 2);
  }
  __device__ __forceinline__ void begin(const XColumns& columns, uint32_t zeros, uint32_t units) {
    const uint32_t t = lane % 4;
#pragma unroll
    for (uint32_t parity = 0; parity < 2; ++parity) {
      const uint32_t at = (t / 2 ^ parity) * 64 + lane / 4 % 4 * 16 + t % 2 * 8;
      x[parity] = at + (holds(parity) ? columns.columns + units * 128 : zeros);
    }
    factors = columns.factors + units / 2 * kFactorBytes + t % 2 * 4;
    added = factors + 8 + t / 2 * 8;
  }
  __device__ __forceinline__ void advance() {
    x[0] += step[0];
    x[1] += step[1];
    factors += T::kStepUnits / 2 * kFactorBytes;
    added += T::kStepUnits / 2 * kFactorBytes;
  }

  __device__ __forceinline__ void multiply(int32_t (&sums)[4], uint32_t upper, uint32_t lower,
                                           uint2 with) const {
    const CodeBytes a = bytes_of_e2m1(e2m1, upper), b = bytes_of_e2m1(e2m1, lower);
    multiply_bytes(sums, {a.low, b.low, a.high, b.high}, with);
  }
  // y: sums of the lane's row of each eight.
  __device__ __forceinline__ void add(uint32_t stage, float (&y)[T::kRows / 8]) const {
#pragma unroll
    for (uint32_t batch = 0; batch < T::kBatches; ++batch) {
      Scales scale[T::kRows / 8];
#pragma unroll
      for (uint32_t r = 0; r < T::kRows / 8; ++r) {
        scale[r].load(stage + scales + batch * kBatchScales + r * 8 * T::kStepScales, selector);
      }
#pragma unroll
      for (uint32_t two = 0; two < 2; ++two) {  // units
        constexpr uint32_t kSets = 2 / T::kSetUnits;
        uint2 v[2];
#pragma unroll
        for (uint32_t u = 0; u < 2; ++u) {
          v[u] = load_shared_2(x[u] + (batch * 4 + two * 2 + u) * 128);
        }
        const uint32_t of_two = (batch * 2 + two) * kFactorBytes;
        const float scale_of_x = load_shared_float(factors + of_two);
        float more[kSets];
#pragma unroll
        for (uint32_t set = 0; set < kSets; ++set) {
          more[set] = load_shared_float(added + of_two + set * 16);
        }
#pragma unroll
        for (uint32_t h = 0; h < T::kRows / 16; ++h) {
          const uint4 w = load_matrices(stage + codes[batch * 2 + two] + h * 16 * kQmvOneSlab);
          int32_t d[kSets][4] = {};
          multiply(d[0], w.x, w.y, v[0]);
          multiply(d[kSets - 1], w.z, w.w, v[1]);
#pragma unroll
          for (uint32_t set = 0; set < kSets; ++set) {
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) {
              const int32_t sum = d[set][2 * i] + d[set][2 * i + 1] * 256;
              const uint32_t r = 2 * h + i;
              // Twice the values and 12 more of each, exactly, before its bits are taken. In this
              // order: a scale and the size of x may be far out, in opposite directions.
              y[r] += scale[r].of(two * kSets + set) *
                      fmaf(static_cast<float>(sum), scale_of_x, more[set]);
            }
          }
        }
      }
    }
  }
};

}  // namespace moeblas::cuda::device
