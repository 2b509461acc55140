// qmm_sm80: any product of many rows with 16-bit x, on the tensor cores of sm_80 and newer
// (mma.m16n8k16). quantized_matmul, gather_qmm and grouped_qmm with w in any format, packed along K
// or N, and with dense w gather_mm and grouped_mm; where no kernel of one architecture takes it.
//
// A block of 256 threads, one a multiprocessor, makes 256 rows x 128 columns, or 128 x 256 where
// matrices have no more rows than that. Its rows are consecutive in the order by matrix
// (simt/pairs.metal), so all of them need one matrix of w; each warp has 64 x 64. A step is 64 of
// K, 16 bits a value in shared memory, two of them:
//
//   x   gathered by asynchronous copies a step ahead
//   w   decoded once to bfloat16, a step ahead (qmm_sm80/weights.cuh); dense w is copied as x is
//
// with one __syncthreads a step. Of the two warps that share a tensor core one decodes before its
// products and one after them, so that each has the products while the other decodes.
//
// Affine weights are rounded to bfloat16 once, as is the sum scale * code + bias; those of the
// block formats are exact, and their tensor_scale multiplies the sums. Sums are float32, in
// ascending k by sixteens, whatever M, the routing and the other rows are. Rows, columns and k that
// do not exist are zeros and are read from nowhere. Warps without rows skip the products.
//
// The time: a product costs a tensor core 6.8 clocks, and beside it a warp has 0.25 loads of
// fragments, 0.6 to 1.2 instructions of decoding and 0.4 of copies. docs/performance-log.md says
// what came out.
#pragma once

#include "cuda/qmm_sm80/weights.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {
namespace device {
namespace {

template <class T>
__device__ __forceinline__ void multiply_halves(float (&sums)[4], uint4 a, uint2 b) {
  if constexpr (int(simt::TypeOf<T>::value) == int(simt::kF16)) {
    multiply_f16(sums, a, b);
  } else {
    multiply_bf16(sums, a, b);
  }
}

// This warp's 64 x 64 of one step.
template <class T>
__device__ __forceinline__ void multiply_step(float (&sums)[4][8][4], uint32_t x, uint32_t w) {
  const uint32_t lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
#pragma unroll
  for (uint32_t k = 0; k < kStepK / 16; ++k) {
    uint4 b[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      b[j] = load_matrices(w + chunk_at(j * 16 + matrix / 2 * 8 + row, k * 2 + matrix % 2));
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint4 a =
          load_matrices(x + chunk_at(i * 16 + matrix % 2 * 8 + row, k * 2 + matrix / 2));
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        multiply_halves<T>(sums[i][2 * j], a, make_uint2(b[j].x, b[j].y));
        multiply_halves<T>(sums[i][2 * j + 1], a, make_uint2(b[j].z, b[j].w));
      }
    }
  }
}

template <class F, class T, class Size>
__device__ __forceinline__ void make_part(const ProductParams& p, const ProductBuffers& b,
                                          const simt::Tile& tile, const Part80& part,
                                          int64_t* places, uint32_t memory) {
  constexpr bool kDense = int(F::kMode) == MOEBLAS_DENSE;
  constexpr uint32_t kXBytes = Size::kRows * kRowBytes, kWBytes = Size::kCols * kRowBytes;
  constexpr uint32_t kAcross = Size::kCols / 64;
  static_assert(kQmmSm80Steps * (kXBytes + kWBytes) == kQmmSm80Bytes, "what the launch asks for");
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t first_row = warp / kAcross * 64, first_col = warp % kAcross * 64;
  const bool some = first_row < part.rows && first_col < part.cols;
  const simt::MatrixPlace matrix = simt::matrix_at(p.w, tile.w);
  const auto k = static_cast<int32_t>(tile.w < 0 ? 0 : p.k);
  const auto left = [&](int32_t step) { return k - step * static_cast<int32_t>(kStepK); };
  const auto x_slot = [&](int32_t step) { return memory + (uint32_t(step) & 1) * kXBytes; };
  const auto w_slot = [&](int32_t step) {
    return memory + 2 * kXBytes + (uint32_t(step) & 1) * kWBytes;
  };

  // First where rows of x lie, then where those of the output do.
  simt::RowPlace place = {};
  __syncthreads();
  if (threadIdx.x < part.rows) {
    place = simt::row_at(p, b, tile, threadIdx.x);
    places[threadIdx.x] = place.x;
  }
  __syncthreads();
  RowCopies<Size::kRows> x(reinterpret_cast<const uint16_t*>(b.x), part.rows,
                           [&](uint32_t row) { return places[row] / 8; });
  __syncthreads();
  if (threadIdx.x < part.rows) places[threadIdx.x] = place.out;

  float sums[4][8][4] = {};
  // All steps: bring(step) begins copies of w and make(step) writes its rows of w, both one ahead.
  // Beyond the last step they write zeros to slots that are free.
  const auto for_each_step = [&](auto&& bring, auto&& make) {
    x.copy(x_slot(0), left(0));
    bring(0);
    copies_end_group();
    make(0);
    for (int32_t step = 0; left(step) > 0; ++step) {
      copies_wait<0>();
      __syncthreads();
      x.copy(x_slot(step + 1), left(step + 1));
      bring(step + 1);
      copies_end_group();
      // Warps 0 to 3 lie on different tensor cores, and so do 4 to 7.
      if (warp < 4) make(step + 1);
      if (some) {
        multiply_step<T>(sums, x_slot(step) + first_row * kRowBytes,
                         w_slot(step) + first_col * kRowBytes);
      }
      if (warp >= 4) make(step + 1);
    }
    copies_wait<0>();
  };
  const auto nothing = [](int32_t) {};
  if constexpr (kDense) {
    const auto* values = reinterpret_cast<const uint16_t*>(b.w) + matrix.values;
    if (p.w.k_stride == 1) {
      RowCopies<Size::kCols> columns(values + part.n * p.w.n_stride, part.cols,
                                     [&](uint32_t row) { return row * (p.w.n_stride / 8); });
      for_each_step([&](int32_t step) { columns.copy(w_slot(step), left(step)); }, nothing);
    } else {
      for_each_step(nothing, [&](int32_t step) {
        store_columns<Size::kCols>(w_slot(step), values + int64_t{step} * kStepK * p.w.k_stride,
                                   p.w.k_stride, part, left(step));
      });
    }
  } else {
    const Codes codes = Codes::of<F>(p, b, matrix);
    if (p.w.transpose != 0) {
      HalfColumn<F> first(threadIdx.x / 2), second(128 + threadIdx.x / 2);
      const auto load = [&](int32_t step) {
        const auto at = static_cast<uint32_t>(step) * kStepK;
        first.load(p, codes, part, at, left(step));
        if constexpr (Size::kCols == 256) second.load(p, codes, part, at, left(step));
      };
      load(0);
      for_each_step(nothing, [&](int32_t step) {
        first.store(w_slot(step), codes);
        if constexpr (Size::kCols == 256) second.store(w_slot(step), codes);
        load(step + 1);
      });
    } else {
      for_each_step(nothing, [&](int32_t step) {
        decode_columns<F, Size::kCols>(w_slot(step), p, codes, part, int64_t{step} * kStepK,
                                       left(step));
      });
    }
  }
  __syncthreads();
  if (!some) return;
  const float factor = kDense ? 1.0f : simt::tensor_scale_at(p.w.scale, b.w_tensor_scale, tile.w);
  store_sums<T>(p, b, tile, places, part, matrix.added, first_row, first_col,
                memory + warp * kPatchBytes<64>, factor, sums, [](uint32_t, uint32_t) {});
}

}  // namespace
}  // namespace device

template <class F, class T, class Size>
__global__ void __launch_bounds__(kQmmSm80Threads, 1) qmm_sm80(MB_PRODUCT_ARGUMENTS) {
  using namespace device;
  __shared__ int64_t places[Size::kRows];
  const ProductBuffers b = MB_PRODUCT_BUFFERS;
  const uint32_t memory = shared_address(dynamic_shared());
  const auto col_tiles = static_cast<uint32_t>((p.n + Size::kCols - 1) / Size::kCols);
  for (uint32_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const simt::Tile tile = simt::tile_at(p, b, index);
    if (tile.rows == 0) return;
    for (uint32_t col = blockIdx.y; col < col_tiles; col += gridDim.y) {
      const int64_t n = int64_t{col} * Size::kCols;
      const auto cols = static_cast<uint32_t>(min(p.n - n, int64_t{Size::kCols}));
      make_part<F, T, Size>(p, b, tile, {n, tile.rows, cols}, places, memory);
    }
  }
}

#define MB_QMM_SM80(name, Format, Type)                                   \
  MB_CUDA_ROW(qmm_sm80_tall_##name, qmm_sm80<Format, Type, QmmSm80Tall>); \
  MB_CUDA_ROW(qmm_sm80_wide_##name, qmm_sm80<Format, Type, QmmSm80Wide>)

}  // namespace moeblas::cuda
