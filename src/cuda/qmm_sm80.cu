// qmm_sm80: any product of many rows with 16-bit x, on the tensor cores of sm_80 and newer
// (mma.m16n8k16). quantized_matmul, gather_qmm and grouped_qmm with w in any format, packed along K
// or N, and with dense w gather_mm and grouped_mm; where no kernel of one architecture takes it.
//
// A block of 256 threads makes 128 rows x 128 columns, and a multiprocessor has two of them. Its
// rows are consecutive in the order by matrix (simt/pairs.metal), so all of them need one matrix of
// w; each warp has 64 x 32. A step is 64 of K, 16 bits a value in shared memory:
//
//   x   gathered by asynchronous copies, two steps ahead
//   w   half a column per thread: its codes and scales are loaded two steps ahead, decoded to
//       bfloat16 and stored one step ahead; dense w is copied as x is
//
// with one __syncthreads a step. Copies and decoding stand in quarters between the products of
// sixteen k, so that a warp's share of them fills the other's waits.
//
// Affine weights are rounded to bfloat16 once, as is the sum scale * code + bias; those of the
// block formats are exact, and their tensor_scale multiplies the sums. Sums are float32, in
// ascending k by sixteens, whatever M, the routing and the other rows are. Rows, columns and k that
// do not exist are zeros and are read from nowhere. Warps without rows skip the products. The time
// goes into the products and, about half as much, into decoding.
#include "cuda/qmm_sm80_tile.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {
namespace device {
namespace {

struct Place80 {
  int64_t x[kQmmSm80Rows], out[kQmmSm80Rows], c[kQmmSm80Rows];
};

template <class T>
__device__ __forceinline__ void multiply_halves(float (&sums)[4], uint4 a, uint2 b) {
  if constexpr (int(simt::TypeOf<T>::value) == int(simt::kF16)) {
    multiply_f16(sums, a, b);
  } else {
    multiply_bf16(sums, a, b);
  }
}

// This warp's 64 x 32 of one step, if it has `some`; between(quarter) after each sixteen k.
template <class T, class Between>
__device__ __forceinline__ void multiply_step(float (&sums)[4][4][4], uint32_t x, uint32_t w,
                                              uint32_t lane, bool some, Between&& between) {
  const uint32_t matrix = lane / 8, row = lane % 8;
#pragma unroll
  for (uint32_t k = 0; k < kStepK / 16; ++k) {
    if (some) {
      uint4 b[2];
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        b[j] = load_matrices(w + chunk_at(j * 16 + matrix / 2 * 8 + row, k * 2 + matrix % 2));
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint4 a =
            load_matrices(x + chunk_at(i * 16 + matrix % 2 * 8 + row, k * 2 + matrix / 2));
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
          multiply_halves<T>(sums[i][2 * j], a, make_uint2(b[j].x, b[j].y));
          multiply_halves<T>(sums[i][2 * j + 1], a, make_uint2(b[j].z, b[j].w));
        }
      }
    }
    between(k);
  }
}

// Two neighbouring columns of a row.
template <class T>
__device__ __forceinline__ void store_two(const ProductParams& p, const ProductBuffers& b,
                                          const simt::StorePlace& to, int64_t n, bool both,
                                          bool paired, float low, float high) {
  if (paired && both) {
    uint32_t two;
    if constexpr (int(simt::TypeOf<T>::value) == int(simt::kF16)) {
      two = formats::float_to_float16(low) | uint32_t{formats::float_to_float16(high)} << 16;
    } else {
      two = formats::float_to_bfloat16(low) | uint32_t{formats::float_to_bfloat16(high)} << 16;
    }
    *reinterpret_cast<uint32_t*>(b.out + (to.out + n) * 2) = two;
    return;
  }
  simt::store_sum(p.out, b, to, n, low);
  if (both) simt::store_sum(p.out, b, to, n + 1, high);
}

template <class Format, class T>
__device__ __forceinline__ void tile80(const ProductParams& p, const ProductBuffers& b,
                                       const simt::Tile& tile, const Place80& rows,
                                       const Part80& part, uint32_t memory) {
  using Has = Slots<Format>;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t first_row = warp / 4 * 64, first_col = warp % 4 * 32;
  const bool some = first_row < part.rows && first_col < part.cols;
  const simt::MatrixPlace matrix = simt::matrix_at(p.w, tile.w);
  const uint32_t w_memory = memory + Has::kX * kXSlotBytes;
  const uint8_t* w = b.w + (Has::kDense ? matrix.values * 2 : matrix.values);
  const auto k = static_cast<int32_t>(tile.w < 0 ? 0 : p.k);
  const auto left = [&](int32_t step) { return k - step * static_cast<int32_t>(kStepK); };
  const auto x_slot = [&](int32_t step) { return memory + uint32_t(step) % Has::kX * kXSlotBytes; };
  const auto w_slot = [&](int32_t step) {
    return w_memory + uint32_t(step) % Has::kW * kWSlotBytes;
  };
  RowCopies x(part.rows,
              [&](uint32_t row) { return reinterpret_cast<const uint16_t*>(b.x) + rows.x[row]; });
  float sums[4][4][4] = {};
  // All steps: bring(step, quarter) two ahead, decode(step) just before the products of a step and
  // decode_next(step, quarter) one ahead. Beyond the last step they bring zeros to slots that are
  // free.
  const auto for_each_step = [&](auto&& bring, auto&& decode, auto&& decode_next) {
    for (int32_t step = 0; step < 2; ++step) {
#pragma unroll
      for (uint32_t quarter = 0; quarter < 4; ++quarter) bring(step, quarter);
      copies_end_group();
    }
    for (int32_t step = 0; left(step) > 0; ++step) {
      decode(step);
      copies_wait<1>();
      __syncthreads();
      const uint32_t x_here = x_slot(step), w_here = w_slot(step);
      multiply_step<T>(sums, x_here + first_row * kRowBytes, w_here + first_col * kRowBytes, lane,
                       some, [&](uint32_t quarter) {
                         bring(step + 2, quarter);
                         decode_next(step + 1, quarter);
                       });
      copies_end_group();
    }
    copies_wait<0>();
  };
  const auto bring_x = [&](int32_t step, uint32_t quarter) {
    x.copy(x_slot(step), quarter, left(step));
  };
  const auto nothing = [](int32_t, uint32_t = 0) {};
  if constexpr (Has::kDense) {
    const auto* values = reinterpret_cast<const uint16_t*>(w);
    if (p.w.k_stride == 1) {
      RowCopies columns(part.cols,
                        [&](uint32_t row) { return values + (part.n + row) * p.w.n_stride; });
      for_each_step(
          [&](int32_t step, uint32_t quarter) {
            bring_x(step, quarter);
            columns.copy(w_slot(step), quarter, left(step));
          },
          nothing, nothing);
    } else {
      for_each_step(
          bring_x,
          [&](int32_t step) {
            store_columns(w_slot(step), values + int64_t{step} * kStepK * p.w.k_stride,
                          p.w.k_stride, part, left(step));
          },
          nothing);
    }
  } else {
    const simt::ScaleBuffers scales = {b.w_scales, b.w_biases, matrix.scales, matrix.biases, 1.0f};
    if (p.w.transpose != 0) {
      ColumnCodes<Format> codes(p, w, scales, part);
      codes.load(0, k);
      codes.convert();
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) codes.store(w_slot(0), quarter);
      codes.load(kStepK, left(1));
      for_each_step(bring_x, nothing, [&](int32_t step, uint32_t quarter) {
        if (quarter == 0) codes.convert();
        codes.store(w_slot(step), static_cast<int>(quarter));
        if (quarter == 3) codes.load(static_cast<uint32_t>(step + 1) * kStepK, left(step + 1));
      });
    } else {
      for_each_step(
          bring_x,
          [&](int32_t step) {
            decode_columns<Format>(w_slot(step), p, w, scales, part, int64_t{step} * kStepK,
                                   left(step));
          },
          nothing);
    }
  }
  __syncthreads();  // the next tile's first steps take the place of the last
  if (!some) return;
  const float factor =
      Has::kDense ? 1.0f : simt::tensor_scale_at(p.w.scale, b.w_tensor_scale, tile.w);
  const bool plain = p.out.plain != 0 || tile.w < 0;
  const bool paired = plain && p.out.type == int(simt::TypeOf<T>::value) && p.out.align >= 4;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t row = first_row + i / 2 * 16 + i % 2 * 8 + lane / 4;
    if (row >= part.rows) continue;
    const simt::StorePlace to = {rows.out[row], rows.c[row], matrix.added, plain};
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t col = first_col + j * 8 + lane % 4 * 2;
      if (col >= part.cols) continue;
      const float low = sums[i / 2][j][i % 2 * 2], high = sums[i / 2][j][i % 2 * 2 + 1];
      store_two<T>(p, b, to, part.n + col, col + 1 < part.cols, paired, formats::mul(low, factor),
                   formats::mul(high, factor));
    }
  }
}

}  // namespace
}  // namespace device

template <class Format, class T>
__global__ void __launch_bounds__(kQmmSm80Threads, 2) qmm_sm80(MB_PRODUCT_ARGUMENTS) {
  using namespace device;
  __shared__ Place80 rows;
  const ProductBuffers b = MB_PRODUCT_BUFFERS;
  const uint32_t memory = shared_address(dynamic_shared());
  const auto col_tiles = static_cast<uint32_t>((p.n + kQmmSm80Cols - 1) / kQmmSm80Cols);
  for (uint32_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const simt::Tile tile = simt::tile_at(p, b, index);
    if (tile.rows == 0) return;
    __syncthreads();
    if (threadIdx.x < tile.rows) {
      const simt::RowPlace place = simt::row_at(p, b, tile, threadIdx.x);
      rows.x[threadIdx.x] = place.x;
      rows.out[threadIdx.x] = place.out;
      rows.c[threadIdx.x] = place.c;
    }
    __syncthreads();
    for (uint32_t col = blockIdx.y; col < col_tiles; col += gridDim.y) {
      const int64_t n = int64_t{col} * kQmmSm80Cols;
      const auto cols = static_cast<uint32_t>(min(p.n - n, int64_t{kQmmSm80Cols}));
      tile80<Format, T>(p, b, tile, rows, {n, tile.rows, cols}, memory);
    }
  }
}

#define MB_QMM_SM80(name, Format) MB_CUDA_ROW(qmm_sm80_##name, qmm_sm80<Format, ::bfloat>)
MB_QMM_SM80(affine2, formats::Affine<2>);
MB_QMM_SM80(affine3, formats::Affine<3>);
MB_QMM_SM80(affine4, formats::Affine<4>);
MB_QMM_SM80(affine5, formats::Affine<5>);
MB_QMM_SM80(affine6, formats::Affine<6>);
MB_QMM_SM80(affine8, formats::Affine<8>);
MB_QMM_SM80(mxfp4, formats::Mxfp4);
MB_QMM_SM80(mxfp8, formats::Mxfp8);
MB_QMM_SM80(nvfp4, formats::Nvfp4);
MB_QMM_SM80(dense_bf16, simt::Dense);
MB_CUDA_ROW(qmm_sm80_dense_f16, qmm_sm80<simt::Dense, ::half>);

}  // namespace moeblas::cuda
