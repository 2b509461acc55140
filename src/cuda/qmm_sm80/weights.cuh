// How qmm_sm80 brings w into rows of bfloat16 (or of w's own 16-bit floats) in shared memory.
//
// Codes along K: a thread has half a column, or two, of each step. Its codes and scales wait in
// registers as they are stored, a step ahead, and the threads of a column are neighbours, so that a
// warp touches as few lines of memory as can be. What lies along N is read when it is needed, eight
// columns of one k at a time.
//
// Codes become bfloat16 exactly (device/code_pairs.cuh); scales that are bfloat16 are applied by
// one fused multiply-add of pairs, others by way of float32.
#pragma once

#include "cuda/device/code_pairs.cuh"
#include "cuda/qmm_sm80/tile.cuh"
#include "simt/packed.h"

namespace moeblas::cuda::device {

__device__ __forceinline__ uint32_t twice(uint32_t half) { return __byte_perm(half, 0, 0x1010); }

// A group's scale and bias as they are stored: their bits.
struct StoredScale {
  uint32_t scale, bias;
};

// How a group's scale is applied to octets of exact codes. kBfloats: it is twice a bfloat16, or one
// of a block format's, which have at most eight significant bits and keep products exact.
template <class F, bool kBfloats>
struct OctetScale {
  static constexpr bool kAffine = simt::IsAffine<F>::value;
  uint32_t scale, bias;

  __device__ __forceinline__ OctetScale(StoredScale stored, int type) {
    bias = 0;
    if constexpr (kAffine) {
      scale = kBfloats ? twice(stored.scale) : single(stored.scale, type);
      bias = kBfloats ? twice(stored.bias) : single(stored.bias, type);
    } else if constexpr (int(F::kMode) == MOEBLAS_NVFP4) {
      scale = twice(e4m3_values(stored.scale));
    } else {
      scale = twice(e8m0_bfloat(stored.scale));
    }
  }
  __device__ __forceinline__ uint4 apply(const uint32_t (&pairs)[4]) const {
    uint32_t v[4];
    const float s = __uint_as_float(scale), b = __uint_as_float(bias);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (!kAffine) {
        v[i] = multiply_bfloats(pairs[i], scale);
      } else if constexpr (kBfloats) {
        v[i] = fma_bfloats(pairs[i], scale, bias);
      } else {
        v[i] = two_bfloats(__fmaf_rn(__uint_as_float(pairs[i] << 16), s, b),
                           __fmaf_rn(__uint_as_float(pairs[i] & 0xffff0000u), s, b));
      }
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
  }

 private:
  static __device__ __forceinline__ uint32_t single(uint32_t stored, int type) {
    if (type == simt::kF16) {
      return __float_as_uint(formats::float16_to_float(static_cast<uint16_t>(stored)));
    }
    return type == simt::kBf16 ? stored << 16 : stored;
  }
};

// Codes and scales of a packed w, of one matrix.
struct Codes {
  const uint8_t *codes, *scales, *biases;  // of this matrix
  int64_t stride, scale_stride, bias_stride;
  uint32_t group_bits;
  int type;

  template <class F>
  static __device__ __forceinline__ Codes of(const ProductParams& p, const ProductBuffers& b,
                                             const simt::MatrixPlace& matrix) {
    const int type = p.w.scale.type;
    const uint32_t size = simt::IsAffine<F>::value ? (type == simt::kF32 ? 4 : 2) : 1;
    return {b.w + matrix.values,
            b.w_scales + matrix.scales * size,
            b.w_biases + matrix.biases * size,
            p.w.n_stride,
            p.w.scale.row_stride * size,
            p.w.bias_row_stride * size,
            static_cast<uint32_t>(__ffs(simt::group_size<F>(p.w.group)) - 1),
            type};
  }
  template <class F>
  __device__ __forceinline__ StoredScale scale(int64_t row, uint32_t group) const {
    const uint8_t* s = scales + row * scale_stride;
    if constexpr (!simt::IsAffine<F>::value) return {s[group], 0};
    const uint8_t* b = biases + row * bias_stride;
    if (type == simt::kF32) {
      return {reinterpret_cast<const uint32_t*>(s)[group],
              reinterpret_cast<const uint32_t*>(b)[group]};
    }
    return {reinterpret_cast<const uint16_t*>(s)[group],
            reinterpret_cast<const uint16_t*>(b)[group]};
  }
};

// 32 codes of a column on their way, half tid % 2 of each step.
template <class F>
class HalfColumn {
 public:
  __device__ __forceinline__ explicit HalfColumn(uint32_t column) : column_(column) {}

  // Of the step that begins at k, of which `k_left` values exist.
  __device__ __forceinline__ void load(const ProductParams& p, const Codes& from,
                                       const Part80& part, uint32_t k, int32_t k_left) {
    here_ = column_ < part.cols && int(first()) < k_left;
    if (!here_) return;
    const int64_t row = part.n + column_;
    k += first();
    codes_.load(from.codes + row * from.stride + k / 8 * F::kBits, p.w.align >= 16, true);
    scale_[0] = from.scale<F>(row, k >> from.group_bits);
    if (kMayHaveSixteens && from.group_bits == 4) {
      scale_[1] = from.scale<F>(row, (k + 16) >> 4);
    }
  }
  __device__ __forceinline__ uint32_t column() const { return column_; }
  // Of the first or second 16 of the codes that the last load brought; zeros where none are.
  __device__ __forceinline__ StoredScale scale(const Codes& from, uint32_t sixteen) const {
    const bool second = kMayHaveSixteens && from.group_bits == 4 && sixteen == 1;
    const StoredScale none = {0, 0}, one = second ? scale_[kMayHaveSixteens ? 1 : 0] : scale_[0];
    return here_ ? one : none;
  }
  // Of what the last load brought octets from kFirst to kEnd, as bfloat16: apply(octet, pairs of
  // its codes) for each.
  template <uint32_t kFirst = 0, uint32_t kEnd = 4, class Apply>
  __device__ __forceinline__ void store_octets(uint32_t to, Apply&& apply) const {
#pragma unroll
    for (uint32_t q = kFirst; q < kEnd; ++q) {
      uint32_t pairs[4];
      OctetPairs<F>::decode(codes_.words, q, pairs);
      uint4 eight = apply(q, pairs);
      // What is not there meets zeros of x, so that it only has to be finite.
      if (int(F::kMode) == MOEBLAS_MXFP8 && !here_) eight = make_uint4(0, 0, 0, 0);
      store_shared_4(to + chunk_at(column_, first() / 8 + q), eight);
    }
  }
  // As weights.
  __device__ __forceinline__ void store(uint32_t to, const Codes& from) const {
    if (!simt::IsAffine<F>::value || from.type == simt::kBf16) {
      store_as<true>(to, from);
    } else {
      store_as<false>(to, from);
    }
  }

 private:
  static constexpr bool kMayHaveSixteens =
      simt::IsAffine<F>::value || int(F::kMode) == MOEBLAS_NVFP4;
  static __device__ __forceinline__ uint32_t first() { return threadIdx.x % 2 * 32; }

  template <bool kBfloats>
  __device__ __forceinline__ void store_as(uint32_t to, const Codes& from) const {
    const OctetScale<F, kBfloats> low(scale(from, 0), from.type), high(scale(from, 1), from.type);
    store_octets(to, [&](uint32_t octet, const uint32_t(&pairs)[4]) {
      return (octet < 2 ? low : high).apply(pairs);
    });
  }

  uint32_t column_;
  bool here_ = false;
  simt::LaneCodes<F::kBits> codes_;
  StoredScale scale_[kMayHaveSixteens ? 2 : 1];
};

__device__ __forceinline__ void store_u16(uint32_t to, uint16_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(v) : "memory");
}
__device__ __forceinline__ void store_across(uint32_t to, uint32_t octet, uint32_t k, uint4 eight) {
  const uint32_t two[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (uint32_t j = 0; j < 8; ++j) {
    store_u16(to + value_at(octet * 8 + j, k), static_cast<uint16_t>(two[j / 2] >> j % 2 * 16));
  }
}

// Floats that are neighbours along N.
template <uint32_t kCols>
__device__ __forceinline__ void store_columns(uint32_t to, const uint16_t* from, int64_t k_stride,
                                              const Part80& part, int32_t k_left) {
  for (uint32_t i = threadIdx.x / 32; i < kCols / 8 * 2; i += kQmmSm80Threads / 32) {
    const uint32_t octet = i / 2, k = threadIdx.x % 32 + i % 2 * 32;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (int(k) < k_left && octet * 8 < part.cols) {
      const uint16_t* eight = from + k * k_stride + part.n + octet * 8;
      if (octet * 8 + 8 <= part.cols) {
        v = *reinterpret_cast<const uint4*>(eight);
      } else {
        uint32_t two[4] = {};
#pragma unroll
        for (uint32_t j = 0; j < 7; ++j) {
          if (octet * 8 + j < part.cols) two[j / 2] |= uint32_t{eight[j]} << j % 2 * 16;
        }
        v = make_uint4(two[0], two[1], two[2], two[3]);
      }
    }
    store_across(to, octet, k, v);
  }
}

// Codes packed along N.
template <class F, uint32_t kCols>
__device__ __forceinline__ void decode_columns(uint32_t to, const ProductParams& p,
                                               const Codes& from, const Part80& part, int64_t k,
                                               int32_t k_left) {
  for (uint32_t i = threadIdx.x / 32; i < kCols / 8 * 2; i += kQmmSm80Threads / 32) {
    const uint32_t octet = i / 2, high = threadIdx.x % 32 + i % 2 * 32;
    const int64_t row = k + high, first = part.n + octet * 8;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (int(high) < k_left && octet * 8 < part.cols) {
      const OctetScale<F, !simt::IsAffine<F>::value> scale(
          from.scale<F>(row, static_cast<uint32_t>(first >> from.group_bits)), from.type);
      const formats::uint64 codes =
          simt::load_octet<F::kBits>(from.codes + row * from.stride, first / 8, p.w.align);
      uint32_t words[F::kBits] = {static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32)};
      uint32_t pairs[4];
      OctetPairs<F>::decode(words, 0, pairs);
      eight = scale.apply(pairs);
    }
    store_across(to, octet, high, eight);
  }
}

}  // namespace moeblas::cuda::device
