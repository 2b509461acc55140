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

// What a block makes: the tile's columns from n on, and the rows and columns that exist.
struct Part80 {
  int64_t n;
  uint32_t rows, cols;
};

__device__ __forceinline__ void store_u16(uint32_t to, uint16_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(v) : "memory");
}

// 128 rows of 16-bit values, neighbours along K, on their way step by step: a thread has a chunk of
// every 32nd row.
class RowCopies {
 public:
  // Row r begins at row_at(r).
  template <class RowAt>
  __device__ __forceinline__ RowCopies(uint32_t rows, RowAt&& row_at) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = i * 32 + threadIdx.x / 8;
      exists_ |= static_cast<uint32_t>(row < rows) << i;
      from_[i] = row_at(row < rows ? row : 0) + threadIdx.x % 8 * 8;
    }
  }
  // A quarter of the next step, of which `k_left` values exist.
  __device__ __forceinline__ void copy(uint32_t to, uint32_t quarter, int32_t k_left) {
    const bool exists = (exists_ >> quarter & 1) != 0 && int(threadIdx.x % 8 * 8) < k_left;
    copy_async<16>(to + quarter * 32 * kRowBytes + chunk_at(threadIdx.x / 8, threadIdx.x % 8),
                   from_[quarter], exists);
    from_[quarter] += kStepK;
  }

 private:
  const uint16_t* from_[4];
  uint32_t exists_ = 0;
};
static_assert(kQmmSm80Rows == 128 && kQmmSm80Cols == 128 && kQmmSm80Threads == 256,
              "four chunks of each operand a thread");

// Values that are neighbours along N, eight columns of one k at a time.
__device__ __forceinline__ void store_columns(uint32_t to, const uint16_t* from, int64_t k_stride,
                                              const Part80& part, int32_t k_left) {
  const uint32_t k = threadIdx.x % 32;
  for (uint32_t i = threadIdx.x / 32; i < kQmmSm80Cols / 8 * 2; i += kQmmSm80Threads / 32) {
    const uint32_t octet = i / 2, row = k + i % 2 * 32;
    uint16_t v[8] = {};
    if (int(row) < k_left && octet * 8 < part.cols) {
      const uint16_t* eight = from + row * k_stride + part.n + octet * 8;
      if (octet * 8 + 8 <= part.cols) {
        const uint4 words = *reinterpret_cast<const uint4*>(eight);
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (uint32_t j = 0; j < 8; ++j) v[j] = static_cast<uint16_t>(word[j / 2] >> j % 2 * 16);
      } else {
#pragma unroll
        for (uint32_t j = 0; j < 8; ++j) v[j] = octet * 8 + j < part.cols ? eight[j] : 0;
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

// The values of eight codes, two in a word.
template <class F>
__device__ __forceinline__ uint4 decode_octet(simt::GroupScale<F, simt::IsAffine<F>::value> scale,
                                              formats::uint64 octet) {
  float v[8];
#pragma unroll
  for (int quad = 0; quad < 2; ++quad) {
    const simt::Quad codes = simt::CodeValues<F>::four(octet, quad);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& value = v[simt::CodeValues<F>::code_at(quad * 4 + i)];
      if constexpr (simt::IsAffine<F>::value) {
        value = __fmaf_rn(codes[i], scale.factor(), scale.offset());
      } else {
        value = codes[i] * scale.factor();
      }
    }
  }
  return make_uint4(two_bfloats(v[0], v[1]), two_bfloats(v[2], v[3]), two_bfloats(v[4], v[5]),
                    two_bfloats(v[6], v[7]));
}

// Half a column of w on its way step by step: codes and scales wait in registers as they are stored
// until they are decoded. The two threads of a column are neighbours, so that a warp touches as few
// lines of memory as can be.
template <class F>
class ColumnCodes {
 public:
  __device__ __forceinline__ ColumnCodes(const ProductParams& p, const uint8_t* w,
                                         const simt::ScaleBuffers& scales, const Part80& part)
      : type_(p.w.scale.type), group_bits_(__ffs(simt::group_size<F>(p.w.group)) - 1) {
    const int64_t row = part.n + column();
    exists_ = column() < part.cols;
    codes_ = w + row * p.w.n_stride + first() / 8 * F::kBits;
    const uint32_t size = kAffine ? (type_ == simt::kF32 ? 4 : 2) : 1;
    scales_ = scales.scales + (scales.scale_at + row * p.w.scale.row_stride) * size;
    if (kAffine) biases_ = scales.biases + (scales.bias_at + row * p.w.bias_row_stride) * size;
  }

  // The step that begins at k, of which `k_left` values exist.
  __device__ __forceinline__ void load(uint32_t k, int32_t k_left) {
    here_ = exists_ && int(first()) < k_left;
    if (here_) {
      codes_now_.load(codes_, F::kBits % 4 == 0, true);
      load_scales((k + first()) >> group_bits_, 0);
      if (kMayHaveSixteens && group_bits_ == 4) load_scales((k + first() + 16) >> 4, 1);
    }
    codes_ += kStepK / 8 * F::kBits;
  }
  // What the last load brought is ready to be decoded.
  __device__ __forceinline__ void convert() {
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      if constexpr (kAffine) {
        stored_[i].floats(type_, &scale_[i].params.scale);
        stored_biases_[i].floats(type_, &scale_[i].params.bias);
      } else {
        scale_[i].scale = F::decode_scale(stored_[i].bits[0]);
      }
    }
    if (kMayHaveSixteens && group_bits_ != 4) scale_[1] = scale_[0];
  }
  // A quarter of them.
  __device__ __forceinline__ void store(uint32_t to, int quarter) const {
    const uint4 eight = decode_octet<F>(scale_[kMayHaveSixteens ? quarter / 2 : 0],
                                        simt::octet_of<F::kBits>(codes_now_.words, quarter));
    store_shared_4(to + chunk_at(column(), first() / 8 + static_cast<uint32_t>(quarter)),
                   here_ ? eight : make_uint4(0, 0, 0, 0));
  }

 private:
  static constexpr bool kAffine = simt::IsAffine<F>::value;
  static constexpr bool kMayHaveSixteens = kAffine || int(F::kMode) == MOEBLAS_NVFP4;
  static constexpr int kScales = kMayHaveSixteens ? 2 : 1;

  static __device__ __forceinline__ uint32_t column() { return threadIdx.x / 2; }
  static __device__ __forceinline__ uint32_t first() { return threadIdx.x % 2 * 32; }

  __device__ __forceinline__ void load_scales(uint32_t group, int i) {
    if constexpr (kAffine) {
      const uint32_t at = group << (type_ == simt::kF32 ? 2 : 1);
      stored_[i].load(scales_ + at, 0, type_);
      stored_biases_[i].load(biases_ + at, 0, type_);
    } else {
      stored_[i].bits[0] = scales_[group];
    }
  }

  int type_;
  uint32_t group_bits_;
  bool exists_, here_ = false;
  const uint8_t *codes_, *scales_, *biases_ = nullptr;
  simt::LaneCodes<F::kBits> codes_now_;
  simt::StoredScales<1> stored_[kScales], stored_biases_[kScales];
  simt::GroupScale<F, kAffine> scale_[2];
};

// Codes packed along N: eight columns of one k at a time, as store_columns.
template <class F>
__device__ __forceinline__ void decode_columns(uint32_t to, const ProductParams& p,
                                               const uint8_t* w, simt::ScaleBuffers scales,
                                               const Part80& part, int64_t k, int32_t k_left) {
  const uint32_t group_bits = __ffs(simt::group_size<F>(p.w.group)) - 1;
  for (uint32_t i = threadIdx.x / 32; i < kQmmSm80Cols / 8 * 2; i += kQmmSm80Threads / 32) {
    const uint32_t octet = i / 2, high = threadIdx.x % 32 + i % 2 * 32;
    const int64_t row = k + high, first = part.n + octet * 8;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (int(high) < k_left && octet * 8 < part.cols) {
      const int64_t group = first >> group_bits;
      simt::GroupScale<F, simt::IsAffine<F>::value> scale;
      simt::load_scale<F>(p.w.scale, scales, row * p.w.scale.row_stride + group,
                          row * p.w.bias_row_stride + group, scale);
      eight = decode_octet<F>(
          scale, simt::load_octet<F::kBits>(w + row * p.w.n_stride, first / 8, p.w.align));
    }
    const uint32_t two[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) {
      store_u16(to + value_at(octet * 8 + j, high),
                static_cast<uint16_t>(two[j / 2] >> j % 2 * 16));
    }
  }
}

}  // namespace moeblas::cuda::device
