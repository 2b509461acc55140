// The tile of qmm_sm80 in shared memory, and how it gets there.
//
// Rows of x and of w lie as they are multiplied: 64 k of 16 bits, 128 bytes, whose eight chunks of
// 16 bytes stand at their number xor the row's, so that neither fragments nor copies meet in a
// bank.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm80_shape.h"
#include "simt/code_values.h"
#include "simt/tiles.h"

namespace moeblas::cuda::device {

using simt::ProductBuffers;
using simt::ProductParams;

constexpr uint32_t kStepK = 64, kRowBytes = kStepK * 2;
constexpr uint32_t kXSlotBytes = kQmmSm80Rows * kRowBytes, kWSlotBytes = kQmmSm80Cols * kRowBytes;

// Of a format: steps that are held at a time. Codes pass through registers, so one step ahead is
// decoded; dense w is copied as far ahead as x.
template <class Format>
struct Slots {
  static constexpr bool kDense = int(Format::kMode) == MOEBLAS_DENSE;
  static constexpr uint32_t kX = 3, kW = kDense ? 3 : 2;
  static constexpr uint32_t kBytes = kX * kXSlotBytes + kW * kWSlotBytes;
};
static_assert(Slots<simt::Dense>::kBytes <= kQmmSm80DenseBytes &&
                  Slots<formats::Mxfp4>::kBytes <= kQmmSm80PackedBytes,
              "what the launch asks for");

// The chunk of 16 bytes of a row.
__device__ __forceinline__ uint32_t chunk_at(uint32_t row, uint32_t chunk) {
  return row * kRowBytes + ((chunk ^ (row & 7)) << 4);
}
// One value of a row.
__device__ __forceinline__ uint32_t value_at(uint32_t row, uint32_t k) {
  return chunk_at(row, k / 8) + k % 8 * 2;
}

// Which part of the problem a step is.
struct Step80 {
  int64_t k, k_end;
  int64_t n;            // the tile's first column
  uint32_t rows, cols;  // of the tile that exist
};

__device__ __forceinline__ void store_u16(uint32_t to, uint16_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(v) : "memory");
}

// A quarter of kRows rows of 16-bit values, neighbours along K. Row r begins at row_at(r).
template <uint32_t kRows, class RowAt>
__device__ __forceinline__ void copy_rows(uint32_t to, uint32_t rows, const Step80& s,
                                          uint32_t quarter, RowAt&& row_at) {
  const uint32_t chunk = threadIdx.x % 8;
  const int64_t k = s.k + chunk * 8;
#pragma unroll
  for (uint32_t i = 0; i < kRows / 4; i += kQmmSm80Threads / 8) {
    const uint32_t row = quarter * (kRows / 4) + i + threadIdx.x / 8;
    const bool exists = row < rows && k < s.k_end;
    copy_async<16>(to + chunk_at(row, chunk), row_at(row) + k, exists);
  }
}

// The same of values that lie anywhere: a thread's neighbours are neighbours along K.
template <uint32_t kRows, class RowAt>
__device__ __forceinline__ void store_rows(uint32_t to, const uint16_t* from, uint32_t rows,
                                           int64_t k_stride, const Step80& s, RowAt&& row_at) {
  const uint32_t k = threadIdx.x % kStepK;
  const bool in_k = s.k + k < s.k_end;
#pragma unroll 4
  for (uint32_t row = threadIdx.x / kStepK; row < kRows; row += kQmmSm80Threads / kStepK) {
    const uint16_t v = in_k && row < rows ? from[row_at(row) + (s.k + k) * k_stride] : 0;
    store_u16(to + value_at(row, k), v);
  }
}

// Values that are neighbours along N, eight columns of one k at a time.
__device__ __forceinline__ void store_columns(uint32_t to, const uint16_t* from, int64_t k_stride,
                                              const Step80& s) {
  const uint32_t k = threadIdx.x % 32;
  for (uint32_t i = threadIdx.x / 32; i < kQmmSm80Cols / 8 * 2; i += kQmmSm80Threads / 32) {
    const uint32_t octet = i / 2, row = k + i % 2 * 32;
    uint16_t v[8] = {};
    if (s.k + row < s.k_end && octet * 8 < s.cols) {
      const uint16_t* eight = from + (s.k + row) * k_stride + s.n + octet * 8;
      if (octet * 8 + 8 <= s.cols) {
        const uint4 words = *reinterpret_cast<const uint4*>(eight);
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (uint32_t j = 0; j < 8; ++j) v[j] = static_cast<uint16_t>(word[j / 2] >> j % 2 * 16);
      } else {
#pragma unroll
        for (uint32_t j = 0; j < 8; ++j) v[j] = octet * 8 + j < s.cols ? eight[j] : 0;
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) store_u16(to + value_at(octet * 8 + j, row), v[j]);
  }
}

__device__ __forceinline__ uint32_t two_bfloats(float low, float high) {
  uint32_t two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}

// A column's codes of one step on their way through the registers of a thread, with their scales.
template <class F>
struct ColumnCodes {
  static constexpr bool kAffine = simt::IsAffine<F>::value;
  using Scale = simt::GroupScale<F, kAffine>;

  uint32_t words[2][F::kBits];  // 32 codes each
  Scale scale[2][2];            // of either sixteen of them
  int left;                     // values of the step that exist

  __device__ __forceinline__ void load(const ProductParams& p, const uint8_t* w,
                                       simt::ScaleBuffers scales, const Step80& s) {
    left = threadIdx.x < s.cols ? static_cast<int>(min(s.k_end - s.k, int64_t{kStepK})) : 0;
    const int64_t row = s.n + threadIdx.x;
    const uint8_t* codes = w + row * p.w.n_stride;
    const uint32_t group_bits = ctz(simt::group_size<F>(p.w.group));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t k = s.k + half * 32;
      if (left <= half * 32) break;
      simt::LaneCodes<F::kBits> lane;
      lane.load(codes + k / 8 * F::kBits, p.w.align >= 16, left >= half * 32 + 32);
#pragma unroll
      for (int i = 0; i < F::kBits; ++i) words[half][i] = lane.words[i];
      load_scale_of(p, scales, row, k >> group_bits, scale[half][0]);
      scale[half][1] = scale[half][0];
      if (group_bits == 4 && left > half * 32 + 16) {
        load_scale_of(p, scales, row, (k >> group_bits) + 1, scale[half][1]);
      }
    }
  }

  // A quarter of them, decoded.
  __device__ __forceinline__ void store(uint32_t to, int quarter) const {
#pragma unroll
    for (int octet = quarter * 2; octet < quarter * 2 + 2; ++octet) {
      uint4 two = make_uint4(0, 0, 0, 0);
      if (octet * 8 < left) {
        float v[8];
        simt::octet_values<F>(scale[octet / 4][octet % 4 / 2],
                              simt::octet_of<F::kBits>(words[octet / 4], octet % 4), v);
        two = make_uint4(two_bfloats(v[0], v[1]), two_bfloats(v[2], v[3]), two_bfloats(v[4], v[5]),
                         two_bfloats(v[6], v[7]));
      }
      store_shared_4(to + chunk_at(threadIdx.x, octet), two);
    }
  }

 private:
  static __device__ __forceinline__ uint32_t ctz(uint32_t v) { return __ffs(v) - 1; }
  static __device__ __forceinline__ void load_scale_of(const ProductParams& p,
                                                       simt::ScaleBuffers scales, int64_t row,
                                                       int64_t group, Scale& scale) {
    simt::load_scale<F>(p.w.scale, scales, row * p.w.scale.row_stride + group,
                        row * p.w.bias_row_stride + group, scale);
  }
};

// Codes packed along N: eight columns of one k at a time, as store_columns.
template <class F>
__device__ __forceinline__ void decode_columns(uint32_t to, const ProductParams& p,
                                               const uint8_t* w, simt::ScaleBuffers scales,
                                               const Step80& s) {
  const uint32_t group_bits = __ffs(simt::group_size<F>(p.w.group)) - 1;
  for (uint32_t i = threadIdx.x / 32; i < kQmmSm80Cols / 8 * 2; i += kQmmSm80Threads / 32) {
    const uint32_t octet = i / 2, k = threadIdx.x % 32 + i % 2 * 32;
    const int64_t row = s.k + k, first = s.n + octet * 8;
    float v[8] = {};
    if (row < s.k_end && octet * 8 < s.cols) {
      const int64_t group = first >> group_bits;
      simt::GroupScale<F, simt::IsAffine<F>::value> scale;
      simt::load_scale<F>(p.w.scale, scales, row * p.w.scale.row_stride + group,
                          row * p.w.bias_row_stride + group, scale);
      simt::octet_values<F>(
          scale, simt::load_octet<F::kBits>(w + row * p.w.n_stride, first / 8, p.w.align), v);
    }
#pragma unroll
    for (uint32_t j = 0; j < 8; j += 2) {
      const uint32_t two = two_bfloats(v[j], v[j + 1]);
      store_u16(to + value_at(octet * 8 + j, k), static_cast<uint16_t>(two));
      store_u16(to + value_at(octet * 8 + j + 1, k), static_cast<uint16_t>(two >> 16));
    }
  }
}

}  // namespace moeblas::cuda::device
