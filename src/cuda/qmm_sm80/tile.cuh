// The tile of qmm_sm80 in shared memory, how rows of values get there, and how sums leave.
//
// Rows of x and of w lie as they are multiplied: 64 k of 16 bits, 128 bytes, whose eight chunks of
// 16 bytes stand at their number xor the row's, so that neither fragments nor copies meet in a
// bank.
#pragma once

#include "cuda/device/copy_async.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm80/shape.h"
#include "simt/tiles.h"

namespace moeblas::cuda::device {

using simt::ProductBuffers;
using simt::ProductParams;

constexpr uint32_t kStepK = kQmmSm80Step, kRowBytes = kStepK * 2;

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

// Rows of 16-bit values, neighbours along K, on their way step by step: a thread has a chunk of
// every 32nd row. All rows begin a multiple of eight values from `base`.
template <uint32_t kRows>
class RowCopies {
 public:
  // Row r begins at base + 8 * octets_at(r).
  template <class OctetsAt>
  __device__ __forceinline__ RowCopies(const uint16_t* base, uint32_t rows, OctetsAt&& octets_at)
      : base_(base + threadIdx.x % 8 * 8) {
#pragma unroll
    for (uint32_t i = 0; i < kRows / 32; ++i) {
      const uint32_t row = i * 32 + threadIdx.x / 8;
      exists_ |= static_cast<uint32_t>(row < rows) << i;
      octets_[i] = static_cast<int32_t>(octets_at(row < rows ? row : 0));
    }
  }
  // The next step, of which `k_left` values exist.
  __device__ __forceinline__ void copy(uint32_t to, int32_t k_left) {
    const uint32_t exists = int(threadIdx.x % 8 * 8) < k_left ? exists_ : 0;
    to += chunk_at(threadIdx.x / 8, threadIdx.x % 8);
    if (exists == kAll) {
#pragma unroll
      for (uint32_t i = 0; i < kRows / 32; ++i) {
        copy_async<16>(to + i * 32 * kRowBytes, row(i), true);
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < kRows / 32; ++i) {
        copy_async<16>(to + i * 32 * kRowBytes, row(i), (exists >> i & 1) != 0);
      }
    }
    base_ += kStepK;
  }

 private:
  static constexpr uint32_t kAll = (1u << kRows / 32) - 1;
  __device__ __forceinline__ const uint16_t* row(uint32_t i) const {
    return base_ + int64_t{octets_[i]} * 8;
  }

  const uint16_t* base_;
  int32_t octets_[kRows / 32];
  uint32_t exists_ = 0;
};
static_assert(kQmmSm80Threads == 256 && kStepK == 64, "eight chunks a row");

__device__ __forceinline__ uint32_t two_bfloats(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
#else
  return formats::float_to_bfloat16(low) | uint32_t{formats::float_to_bfloat16(high)} << 16;
#endif
}

// ---- sums

// Sixteen rows of a warp's sums on their way out: fragments go in, rows come out.
template <uint32_t kCols>
constexpr uint32_t kPatchRow = (kCols + 8) * 4;
template <uint32_t kCols>
constexpr uint32_t kPatchBytes = 16 * kPatchRow<kCols>;
static_assert(kQmmSm80Threads / 32 * kPatchBytes<64> <= kQmmSm80Bytes, "a patch for each warp");

template <class T>
__device__ __forceinline__ uint32_t two_halves(float low, float high) {
  if constexpr (int(simt::TypeOf<T>::value) == int(simt::kF16)) {
    return formats::float_to_float16(low) | uint32_t{formats::float_to_float16(high)} << 16;
  } else {
    return two_bfloats(low, high);
  }
}

// A row of x's type from its sums in a patch: 32 columns of float32, 64 of 16 bits.
template <class T>
__device__ __forceinline__ void store_row(uint32_t from, uint8_t* row, int64_t at, uint32_t cols) {
  if constexpr (int(simt::TypeOf<T>::value) == int(simt::kF32)) {
    const uint32_t col = threadIdx.x % 32;
    if (col < cols) reinterpret_cast<float*>(row)[at + col] = load_shared_float(from + col * 4);
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(row) + at;
  const uint32_t col = threadIdx.x % 32 * 2;
  const uint2 two = load_shared_2(from + col * 4);
  const uint32_t halves = two_halves<T>(__uint_as_float(two.x), __uint_as_float(two.y));
  if (col + 1 < cols) {
    *reinterpret_cast<uint32_t*>(to + col) = halves;
  } else if (col < cols) {
    to[col] = static_cast<uint16_t>(halves);
  }
}

// This warp's sums times `factor`: kDown * 16 rows x kAcross * 8 columns from first_row and
// first_col of the part on, of x's type T. Row r goes to out[r]; `added`: element 0 of the matrix's
// bias; `patch`: of this warp's own. mend(i, rows): may change sums of the part's rows from
// first_row + 16 * i on while they stand in the patch.
template <class T, uint32_t kDown, uint32_t kAcross, class Mend>
__device__ __forceinline__ void store_sums(const ProductParams& p, const ProductBuffers& b,
                                           const simt::Tile& tile, const int64_t* out,
                                           const Part80& part, int64_t added, uint32_t first_row,
                                           uint32_t first_col, uint32_t patch, float factor,
                                           const float (&sums)[kDown][kAcross][4], Mend&& mend) {
  constexpr uint32_t kCols = kAcross * 8, kRow = kPatchRow<kCols>;
  constexpr int kType = simt::TypeOf<T>::value;
  static_assert(kCols == (kType == int(simt::kF32) ? 32 : 64), "what store_row stores");
  const uint32_t lane = threadIdx.x % 32, cols = min(part.cols - first_col, kCols);
  const bool plain = p.out.plain != 0 || tile.w < 0;
  const bool direct = plain && p.out.type == kType && p.out.align >= 4;
#pragma unroll
  for (uint32_t i = 0; i < kDown; ++i) {
    const uint32_t first = first_row + i * 16;
    if (first >= part.rows) break;
    const uint32_t some = min(part.rows - first, 16u);
    __syncwarp();
#pragma unroll
    for (uint32_t j = 0; j < kAcross; ++j) {
      const uint32_t to = patch + lane / 4 * kRow + (j * 8 + lane % 4 * 2) * 4;
      const float(&v)[4] = sums[i][j];
      store_shared_2(to, make_uint2(__float_as_uint(formats::mul(v[0], factor)),
                                    __float_as_uint(formats::mul(v[1], factor))));
      store_shared_2(to + 8 * kRow, make_uint2(__float_as_uint(formats::mul(v[2], factor)),
                                               __float_as_uint(formats::mul(v[3], factor))));
    }
    __syncwarp();
    mend(i, some);
    if (direct) {
#pragma unroll 4
      for (uint32_t row = 0; row < some; ++row) {
        store_row<T>(patch + row * kRow, b.out, out[first + row] + part.n + first_col, cols);
      }
      continue;
    }
    // Where c has these rows, a row a lane.
    int64_t c = 0;
    if (!plain && p.out.c_type != simt::kNoIndex && lane < some) {
      c = simt::row_at(p, b, tile, first + lane).c;
    }
#pragma unroll 1
    for (uint32_t row = 0; row < some; ++row) {
      const simt::StorePlace to = {out[first + row], __shfl_sync(0xffffffffu, c, row), added,
                                   plain};
#pragma unroll 1
      for (uint32_t at = lane; at < cols; at += 32) {
        simt::store_sum(p.out, b, to, part.n + first_col + at,
                        load_shared_float(patch + row * kRow + at * 4));
      }
    }
  }
}

}  // namespace moeblas::cuda::device
