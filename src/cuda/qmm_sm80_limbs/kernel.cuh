// qmm_sm80_limbs: products of many rows of float32 x with packed weights of any format, on the
// tensor cores of sm_80 and newer (mma.m16n8k16 of bfloat16). quantized_matmul, gather_qmm and
// grouped_qmm, with w packed along K, where sums need not be IEEE multiply-adds.
//
// x comes as three bfloat16 limbs, together exact, that a launch before has made once
// (qmm_sm80_limbs/rows.cuh). Weights are exact as well: of the block formats code times scale, of
// affine codes alone, whose sums over a group or 64 k are multiplied by its scale in float32, and
// its bias enters through the sum of x. Sums over such units, 64 k for block formats, begin anew,
// since tensor cores round toward zero; they are added up in float32, in ascending k, whatever M,
// the routing and the other rows are. What is not finite - x or weights that are not, numbers that
// limbs do not hold, sums of codes beyond float32 - is made again from decoded weights, element by
// element, by whole warps.
//
// A block of 256 threads makes 128 rows x 128 columns, a warp 64 x 32 of them, or 64 x 128, two
// blocks a multiprocessor, where matrices have no more rows. As in qmm_sm80 rows are gathered by
// asynchronous copies, 32 k of three limbs at a time, and w is decoded once into shared memory, 64
// k at a time and one such step ahead, half of the warps in each half of the step, so that of two
// warps that share a tensor core one has products.
//
// The time: three products a weight. Beside each a warp has 0.29 loads of fragments, 0.4
// instructions of decoding, and 0.7 multiply-adds of sums where groups are of 64 and affine.
#pragma once

#include <type_traits>

#include "cuda/qmm_sm80/weights.cuh"
#include "cuda/qmm_sm80_limbs/params.h"
#include "simt/decoded_sum.h"

namespace moeblas::cuda::device {

// In the limbs of a half step, of which two rows share 128 bytes: a row's chunk of 16 bytes, at
// another bank for each of eight rows.
__device__ __forceinline__ uint32_t limb_chunk_at(uint32_t row, uint32_t chunk) {
  return row / 2 * 128 + ((row % 2 * 4 + (chunk ^ row / 2 % 4)) << 4);
}

// This thread's part of x on its way: a chunk of each limb of every 64th row, and a row's sums.
template <class Size>
class LimbCopies {
 public:
  // Row r is the row_of(r)-th whose limbs were made.
  template <class RowOf>
  __device__ __forceinline__ LimbCopies(const QmmSm80LimbsParams& p, uint32_t rows, RowOf&& row_of)
      : p_(p) {
#pragma unroll
    for (uint32_t i = 0; i < kOfThread; ++i) {
      const uint32_t row = i * 64 + threadIdx.x / 4;
      exists_[i] = row < rows;
      from_[i] = p.limbs + (exists_[i] ? row_of(row) : 0) * p.steps * int64_t{kXStepBytes} +
                 threadIdx.x % 4 * 16;
    }
    has_sums_ = threadIdx.x < rows;
    sums_ = p.sums + (has_sums_ ? row_of(threadIdx.x) : 0) * p.steps * int64_t{kXUnits};
  }
  // This half.
  __device__ __forceinline__ void copy(uint32_t to) const {
    to += limb_chunk_at(threadIdx.x / 4, threadIdx.x % 4);
#pragma unroll
    for (uint32_t i = 0; i < kOfThread; ++i) {
#pragma unroll
      for (uint32_t l = 0; l < kXLimbs; ++l) {
        copy_async<16>(to + l * Size::kRows * kXLimbBytes + i * 64 * kXLimbBytes,
                       from_[i] + l * kXLimbBytes, exists_[i]);
      }
    }
  }
  // Of this step.
  __device__ __forceinline__ void copy_sums(uint32_t to) const {
    if (threadIdx.x >= Size::kRows) return;
    copy_async<16>(to + threadIdx.x * kXUnitsBytes, sums_, has_sums_);
  }
  // To the next half, some time after the copies: they read where they are from late.
  __device__ __forceinline__ void advance(bool to_next_step) {
#pragma unroll
    for (uint32_t i = 0; i < kOfThread; ++i) from_[i] += kXHalfBytes;
    if (to_next_step) sums_ += kXUnits;
  }

 private:
  static constexpr uint32_t kOfThread = Size::kRows / 64;

  const QmmSm80LimbsParams& p_;
  const uint8_t* from_[kOfThread];
  const float* sums_;
  bool exists_[kOfThread], has_sums_;
};
static_assert(kQmmSm80Threads == 256 && kXLimbBytes == 64, "four chunks of a limb");

// Where a step of shared memory is.
template <class Size>
struct LimbsMemory {
  uint32_t base;

  __device__ uint32_t x(uint32_t half) const { return base + half % 2 * Size::kXBytes; }
  __device__ uint32_t w(uint32_t step) const {
    return base + 2 * Size::kXBytes + step % 2 * Size::kWBytes;
  }
  __device__ uint32_t scales(uint32_t step) const {
    return base + 2 * (Size::kXBytes + Size::kWBytes) + step % 2 * Size::kScaleBytes;
  }
  __device__ uint32_t sums(uint32_t step) const {
    return base + 2 * (Size::kXBytes + Size::kWBytes + Size::kScaleBytes) +
           step % 2 * Size::kSumBytes;
  }
};

// Puts 16 of the 32 codes of a column where the products take them: exact codes and, as floats,
// their scale and bias; or exact weights.
template <class F, class Size, uint32_t kSixteen>
__device__ __forceinline__ void store_exact(const HalfColumn<F>& column, const Codes& codes,
                                            uint32_t unit_bits, uint32_t w, uint32_t scales) {
  StoredScale stored = column.scale(codes, kSixteen);
  if constexpr (simt::IsAffine<F>::value) {
    column.template store_octets<kSixteen * 2, kSixteen * 2 + 2>(
        w, [](uint32_t, const uint32_t(&pairs)[4]) {
          return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        });
    const uint32_t k = threadIdx.x % 2 * 32 + kSixteen * 16, unit = k >> unit_bits;
    if (unit << unit_bits != k) return;
    const OctetScale<F, false> scale(stored, codes.type);
    store_shared_2(scales + (unit * Size::kCols + column.column()) * 8,
                   make_uint2(scale.scale, scale.bias));
  } else {
    // With these bfloat16 does not hold the smallest weights: NaN, so that sums are made again.
    if (int(F::kMode) == MOEBLAS_MXFP8 && stored.scale < 3) stored.scale = 255;
    const OctetScale<F, true> scale(stored, codes.type);
    column.template store_octets<kSixteen * 2, kSixteen * 2 + 2>(
        w, [&](uint32_t, const uint32_t(&pairs)[4]) { return scale.apply(pairs); });
  }
}

// A warp's sums: rows 16 * i and columns 8 * j on, as the tensor cores leave them.
template <uint32_t kDown>
using LimbSums = float[kDown][4][4];

// This warp's products of kChunks * 16 k, of the first `down` sixteens of its rows (kAll: of all,
// which leaves loads and products free to be put in order). x and w: its first row and column;
// chunks of 8 k from x_chunk and w_chunk on.
template <class Size, bool kAll, uint32_t kChunks>
__device__ __forceinline__ void multiply_limbs(LimbSums<Size::kRows / 32>& sums, uint32_t x,
                                               uint32_t x_chunk, uint32_t w, uint32_t w_chunk,
                                               uint32_t down) {
  const uint32_t lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
  uint4 b[kChunks][2];
#pragma unroll
  for (uint32_t c = 0; c < kChunks; ++c) {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      b[c][j] =
          load_matrices(w + chunk_at(j * 16 + matrix / 2 * 8 + row, w_chunk + c * 2 + matrix % 2));
    }
  }
  // The smallest first: a sum is rounded, toward zero, whenever something is added.
#pragma unroll
  for (uint32_t l = kXLimbs; l-- > 0;) {
#pragma unroll
    for (uint32_t c = 0; c < kChunks; ++c) {
#pragma unroll
      for (uint32_t i = 0; i < Size::kRows / 32; ++i) {
        if (!kAll && i >= down) break;
        const uint4 a = load_matrices(
            x + l * Size::kRows * kXLimbBytes +
            limb_chunk_at(i * 16 + matrix % 2 * 8 + row, x_chunk + c * 2 + matrix / 2));
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
          multiply_bf16(sums[i][2 * j], a, make_uint2(b[c][j].x, b[c][j].y));
          multiply_bf16(sums[i][2 * j + 1], a, make_uint2(b[c][j].z, b[c][j].w));
        }
      }
    }
  }
}

// Adds sums to the totals. Of affine codes times the scale, and, at the end of a unit, the bias
// times the sum of x: scales and x_sums are of the unit, for this warp's first column and row.
template <class F, uint32_t kDown>
__device__ __forceinline__ void add_sums(LimbSums<kDown>& totals, const LimbSums<kDown>& sums,
                                         uint32_t scales, uint32_t x_sums, bool ends) {
  if constexpr (!simt::IsAffine<F>::value) {
#pragma unroll
    for (uint32_t i = 0; i < kDown; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < 16; ++j) totals[i][j / 4][j % 4] += sums[i][j / 4][j % 4];
    }
    return;
  }
  const uint32_t lane = threadIdx.x % 32;
  uint4 of_cols[4];  // scale and bias of two columns
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
    of_cols[j] = load_shared_4(scales + (j * 8 + lane % 4 * 2) * 8);
  }
#pragma unroll
  for (uint32_t i = 0; i < kDown; ++i) {
#pragma unroll
    for (uint32_t j = 0; j < 16; ++j) {
      const uint32_t scale = j % 2 == 0 ? of_cols[j / 4].x : of_cols[j / 4].z;
      float& total = totals[i][j / 4][j % 4];
      total = __fmaf_rn(__uint_as_float(scale), sums[i][j / 4][j % 4], total);
    }
  }
  if (!ends) return;
#pragma unroll
  for (uint32_t i = 0; i < kDown; ++i) {
    const uint32_t of_row = x_sums + (i * 16 + lane / 4) * kXUnitsBytes;
    const float of_rows[2] = {load_shared_float(of_row),
                              load_shared_float(of_row + 8 * kXUnitsBytes)};
#pragma unroll
    for (uint32_t j = 0; j < 16; ++j) {
      const uint32_t bias = j % 2 == 0 ? of_cols[j / 4].y : of_cols[j / 4].w;
      float& total = totals[i][j / 4][j % 4];
      total = __fmaf_rn(__uint_as_float(bias), of_rows[j % 4 / 2], total);
    }
  }
}

// Of `rows` rows of a patch makes again what is not finite, from decoded weights. Lane r: where row
// r begins in x. Of the matrix: codes and scales from column first_n on, of which there are `cols`.
template <class F>
__device__ __noinline__ void make_again(const ProductParams& p, const uint8_t* codes,
                                        simt::ScaleBuffers scales, const float* x, uint32_t rows,
                                        int64_t first_n, uint32_t cols, uint32_t patch) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
  for (uint32_t row = 0; row < rows; ++row) {
    const uint32_t mine = patch + row * kPatchRow<32> + lane * 4;
    const bool finite = formats::is_finite(load_shared_float(mine));
    const auto* x_row = reinterpret_cast<const float*>(
        __shfl_sync(0xffffffffu, reinterpret_cast<uintptr_t>(x), row));
    for (uint32_t wrong = __ballot_sync(0xffffffffu, lane < cols && !finite); wrong != 0;
         wrong &= wrong - 1) {
      const auto col = static_cast<uint32_t>(__ffs(static_cast<int32_t>(wrong)) - 1);
      const int64_t n = first_n + col;
      float sum = simt::decoded_sum<F, float>(p, codes + n * p.w.n_stride, scales, n, x_row,
                                              static_cast<int>(lane), 32);
#pragma unroll
      for (uint32_t apart = 16; apart > 0; apart /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, apart);
      }
      if (lane == col) store_shared_u32(mine, __float_as_uint(sum));
    }
  }
  __syncwarp();
}

template <class F, class Size>
__device__ __forceinline__ void make_limbs_part(const QmmSm80LimbsParams& params,
                                                const ProductBuffers& b, const simt::Tile& tile,
                                                const Part80& part, int64_t* places) {
  constexpr uint32_t kDown = Size::kRows / 32;
  static_assert(kQmmSm80Threads / 32 * kPatchBytes<32> <= Size::kBytes, "a patch for each warp");
  const ProductParams& p = params.product;
  const LimbsMemory<Size> memory{shared_address(dynamic_shared())};
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t first_row = warp / 4 * (Size::kRows / 2), first_col = warp % 4 * 32;
  const bool some = first_row < part.rows && first_col < part.cols;
  const uint32_t down = some ? min((part.rows - first_row + 15) / 16, kDown) : 0;
  const simt::MatrixPlace matrix = simt::matrix_at(p.w, tile.w);
  const uint32_t steps = tile.w < 0 ? 0 : params.steps;
  const auto left = [&](uint32_t step) {
    return static_cast<int32_t>(p.k) - static_cast<int32_t>(step * kStepK);
  };

  // First which rows of limbs, then where those of the output lie.
  simt::RowPlace place = {};
  named_barrier(0, kQmmSm80Threads);
  if (threadIdx.x < part.rows) {
    place = simt::row_at(p, b, tile, threadIdx.x);
    places[threadIdx.x] = place.x_scale + place.row;
  }
  named_barrier(0, kQmmSm80Threads);
  LimbCopies<Size> x(params, part.rows, [&](uint32_t row) { return places[row]; });
  named_barrier(0, kQmmSm80Threads);
  if (threadIdx.x < part.rows) places[threadIdx.x] = place.out;

  const Codes codes = Codes::of<F>(p, b, matrix);
  HalfColumn<F> column(threadIdx.x / 2);
  // Of each thread's codes of a step the first 16 or the last, after which come the next step's.
  const auto make = [&](uint32_t step, bool last) {
    if (!last) {
      store_exact<F, Size, 0>(column, codes, params.unit_bits, memory.w(step), memory.scales(step));
    } else {
      store_exact<F, Size, 1>(column, codes, params.unit_bits, memory.w(step), memory.scales(step));
      column.load(p, codes, part, (step + 1) * kStepK, left(step + 1));
    }
  };
  const auto bring = [&](uint32_t half) {
    if (half < 2 * steps) {
      x.copy(memory.x(half));
      if (simt::IsAffine<F>::value && half % 2 == 0) x.copy_sums(memory.sums(half / 2));
    }
    copies_end_group();
  };
  LimbSums<kDown> totals = {};
  // The products of a half step.
  const auto multiply = [&](uint32_t half, auto all) {
    const uint32_t step = half / 2, first = half % 2 * 2;  // of its sixteens of k
    const uint32_t of_x = memory.x(half) + first_row * kXLimbBytes;
    const uint32_t of_w = memory.w(step) + first_col * kRowBytes;
    const auto add = [&](const LimbSums<kDown>& sums, uint32_t end) {
      const uint32_t unit = (end * 16 - 1) >> params.unit_bits;
      add_sums<F, kDown>(totals, sums, memory.scales(step) + (unit * Size::kCols + first_col) * 8,
                         memory.sums(step) + first_row * kXUnitsBytes + unit * 4,
                         (unit + 1) << params.unit_bits == end * 16);
    };
    if (simt::IsAffine<F>::value && params.unit_bits == 4) {
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        LimbSums<kDown> sums = {};
        multiply_limbs<Size, all.value, 1>(sums, of_x, c * 2, of_w, (first + c) * 2, down);
        add(sums, first + c + 1);
      }
    } else {
      LimbSums<kDown> sums = {};
      multiply_limbs<Size, all.value, 2>(sums, of_x, 0, of_w, first * 2, down);
      add(sums, first + 2);
    }
  };
  bring(0);
  x.advance(false);
  if (steps > 0) {
    column.load(p, codes, part, 0, left(0));
    make(0, false);
    make(0, true);
  }
#pragma unroll 1
  for (uint32_t half = 0; half < 2 * steps; ++half) {
    copies_wait<0>();
    named_barrier(0, kQmmSm80Threads);
    bring(half + 1);
    // Warps 0 to 3 lie on different tensor cores, and so do 4 to 7.
    if (warp < 4) make(half / 2 + 1, half % 2 == 1);
    if (down == kDown) {
      multiply(half, std::true_type());
    } else if (some) {
      multiply(half, std::false_type());
    }
    if (warp >= 4) make(half / 2 + 1, half % 2 == 1);
    x.advance(half % 2 == 0);
  }
  named_barrier(0, kQmmSm80Threads);
  if (!some) return;
  uint32_t wrong = 0;  // sixteens of rows with sums that are not finite
#pragma unroll
  for (uint32_t i = 0; i < kDown; ++i) {
    float none = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) none = __fmaf_rn(totals[i][j][e], 0.0f, none);
    }
    wrong |= static_cast<uint32_t>(__ballot_sync(0xffffffffu, none != 0.0f) != 0) << i;
  }
  const uint32_t patch = memory.base + warp * kPatchBytes<32>;
  const float factor = simt::tensor_scale_at(p.w.scale, b.w_tensor_scale, tile.w);
  const auto mend = [&](uint32_t i, uint32_t rows) {
    if ((wrong >> i & 1) == 0) return;
    const uint32_t row = first_row + i * 16 + min(threadIdx.x % 32, rows - 1);
    make_again<F>(p, b.w + matrix.values,
                  {b.w_scales, b.w_biases, matrix.scales, matrix.biases, factor},
                  reinterpret_cast<const float*>(b.x) + simt::row_at(p, b, tile, row).x, rows,
                  part.n + first_col, part.cols - first_col, patch);
  };
  store_sums<float>(p, b, tile, places, part, matrix.added, first_row, first_col, patch, factor,
                    totals, mend);
}

template <class F, class Size>
__device__ __forceinline__ void make_limbs_parts(const QmmSm80LimbsParams& params,
                                                 const ProductBuffers& b, int64_t* places) {
  const ProductParams& p = params.product;
  const auto col_tiles = static_cast<uint32_t>((p.n + Size::kCols - 1) / Size::kCols);
  for (uint32_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const simt::Tile tile = simt::tile_at(p, b, index);
    if (tile.rows == 0) return;
    for (uint32_t col = blockIdx.y; col < col_tiles; col += gridDim.y) {
      const int64_t n = int64_t{col} * Size::kCols;
      const auto cols = static_cast<uint32_t>(min(p.n - n, int64_t{Size::kCols}));
      make_limbs_part<F, Size>(params, b, tile, {n, tile.rows, cols}, places);
    }
  }
}

}  // namespace moeblas::cuda::device

#if defined(__CUDACC__)
namespace moeblas::cuda {

template <class F, class Size>
__global__ void __launch_bounds__(kQmmSm80Threads, Size::kRows == 64 ? 2 : 1)
    qmm_sm80_limbs(MB_PRODUCT_POINTERS, const __grid_constant__ QmmSm80LimbsParams p) {
  __shared__ int64_t places[Size::kRows];
  const simt::ProductBuffers b = MB_PRODUCT_BUFFERS;
  device::make_limbs_parts<F, Size>(p, b, places);
}

#define MB_QMM_SM80_LIMBS(name, Format)                                              \
  MB_CUDA_ROW(qmm_sm80_limbs_tall_##name, qmm_sm80_limbs<Format, QmmSm80LimbsTall>); \
  MB_CUDA_ROW(qmm_sm80_limbs_short_##name, qmm_sm80_limbs<Format, QmmSm80LimbsShort>)

}  // namespace moeblas::cuda
#endif
