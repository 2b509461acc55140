// quantize_dual_cuda_<format>_<dtype>: a matrix to packed codes along both of its axes, from one
// read, for quantize_dual.
//
//        128 columns            A block brings a tile of 128 x 128 values to shared memory. Its
//        lanes
//      +---+---+---+---+        then take blocks of 32 values of a row, and after those blocks of
//      32
//  128 | 0 | 1 | 2 | 3 | row 0  of a column, four lanes side by side in either case, so that a
//  group rows|   |   |   |   | ...    of up to 128 values is theirs alone and their codes are
//  neighbours.
//      +---+---+---+---+
//
// Lanes that read rows and lanes that read columns meet different banks: a row's chunks of 16 bytes
// are exchanged by the row's number. The time is that of reading values and writing codes twice.
#include "cuda/device/encode_block.cuh"

namespace moeblas::cuda {
namespace {

using device::BlockPlace;
using device::LaneBlock;
using device::LaneGroups;

constexpr uint32_t kTile = kDualTile, kTileBlocks = kTile / kLaneValues;

// A tile in shared memory.
template <class T>
struct Tile {
  static constexpr uint32_t kRowChunks = kTile * sizeof(T) / 16, kOfChunk = 16 / sizeof(T);
  uint4* chunks;

  static __device__ uint32_t place(uint32_t row, uint32_t chunk) {
    return row * kRowChunks + (chunk ^ (chunk >> 3 & 3) << 1 ^ (row & 1) ^ (row >> 5) << 1);
  }
  __device__ const T* value(uint32_t row, uint32_t column) const {
    const uint4* chunk = chunks + place(row, column / kOfChunk);
    return reinterpret_cast<const T*>(chunk) + column % kOfChunk;
  }
  __device__ uint32_t word(uint32_t row, uint32_t column) const {
    return *reinterpret_cast<const uint32_t*>(value(row, column));
  }
};

// The four chunks or eight that words make up.
template <class T>
__device__ LaneBlock<T> block_of(const uint32_t (&words)[kLaneValues * sizeof(T) / 4]) {
  LaneBlock<T> x;
#pragma unroll
  for (int i = 0; i < LaneBlock<T>::kChunks; ++i) {
    x.chunk[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
  }
  return x;
}

template <class Format, class T, class Look>
__device__ __forceinline__ void quantize_block(const ConversionParams& p, const BlockPlace& at,
                                               const LaneBlock<T>& x, Look look) {
  LaneGroups<Format, T> groups;
  groups.start(p, at);
  groups.fit(x, p, device::NoSecond{});
  uint32_t words[Format::kBits];
  device::encode<Format, T>(x, groups, look, words);
  device::store_block<Format, T>(p, at, groups, words);
}

template <class Format, class T>
__global__ void __launch_bounds__(kConversionThreads)
    quantize_dual_cuda(const __grid_constant__ DualParams p) {
  extern __shared__ uint4 memory[];
  const Tile<T> tile{memory};
  const uint32_t across = (p.columns + kTile - 1) / kTile, down = (p.rows + kTile - 1) / kTile;
  const uint32_t matrix = blockIdx.x / (across * down), rest = blockIdx.x % (across * down);
  const uint32_t first_row = rest / across * kTile, first_column = rest % across * kTile;
  const uint32_t lane_block = threadIdx.x % kTileBlocks;

  // Chunks beyond the matrix are whole blocks, which no lane stores.
  constexpr uint32_t kChunks = kTile * Tile<T>::kRowChunks / kConversionThreads;
#pragma unroll 8
  for (uint32_t i = 0; i < kChunks; ++i) {
    const uint32_t at = i * kConversionThreads + threadIdx.x;
    const uint32_t row = at / Tile<T>::kRowChunks, chunk = at % Tile<T>::kRowChunks;
    const uint32_t column = first_column + chunk * Tile<T>::kOfChunk;
    uint4 v{};
    if (first_row + row < p.rows && column < p.columns) {
      const int64_t offset =
          device::row_offset(p.by_rows.packed.values, matrix * p.rows + first_row + row);
      v = __ldcs(reinterpret_cast<const uint4*>(p.by_rows.values +
                                                (offset + column) * int64_t{sizeof(T)}));
    }
    tile.chunks[Tile<T>::place(row, chunk)] = v;
  }
  __syncthreads();

#pragma unroll 1
  for (uint32_t row = threadIdx.x / kTileBlocks; row < kTile;
       row += kConversionThreads / kTileBlocks) {
    const uint32_t column = lane_block * kLaneValues;
    LaneBlock<T> x;
#pragma unroll
    for (uint32_t i = 0; i < LaneBlock<T>::kChunks; ++i) {
      x.chunk[i] = tile.chunks[Tile<T>::place(row, lane_block * LaneBlock<T>::kChunks + i)];
    }
    const BlockPlace at(matrix * p.rows + first_row + row, first_column / kLaneValues + lane_block,
                        first_row + row < p.rows && first_column + column < p.columns);
    quantize_block<Format, T>(p.by_rows, at, x, [=](uint32_t i) {
      return static_cast<float>(*tile.value(row, column + i));
    });
  }

  // A word holds as many columns as values.
  constexpr uint32_t kColumns = 4 / sizeof(T);
#pragma unroll 1
  for (uint32_t column = threadIdx.x / kTileBlocks * kColumns; column < kTile;
       column += kConversionThreads / kTileBlocks * kColumns) {
    const uint32_t row = lane_block * kLaneValues;
    uint32_t words[kColumns][kLaneValues / kColumns];
#pragma unroll
    for (uint32_t i = 0; i < kLaneValues / kColumns; ++i) {
      const uint32_t word = tile.word(row + i * kColumns, column);
      if constexpr (kColumns == 1) {
        words[0][i] = word;
      } else {
        const uint32_t below = tile.word(row + i * kColumns + 1, column);
        words[0][i] = __byte_perm(word, below, 0x5410);
        words[1][i] = __byte_perm(word, below, 0x7632);
      }
    }
#pragma unroll
    for (uint32_t c = 0; c < kColumns; ++c) {
      const uint32_t of = column + c;
      const BlockPlace at(matrix * p.columns + first_column + of,
                          first_row / kLaneValues + lane_block,
                          first_column + of < p.columns && first_row + row < p.rows);
      quantize_block<Format, T>(p.by_columns, at, block_of<T>(words[c]), [=](uint32_t i) {
        return static_cast<float>(*tile.value(row + i, of));
      });
    }
  }
  if (p.by_rows.padding > 0) device::clear_padding(p.by_rows);
  if (p.by_columns.padding > 0) device::clear_padding(p.by_columns);
}

#define MB_QUANTIZE_DUAL(name, ...)                                                      \
  MB_CUDA_ROW(quantize_dual_cuda_##name##_f32, quantize_dual_cuda<__VA_ARGS__, float>);  \
  MB_CUDA_ROW(quantize_dual_cuda_##name##_f16, quantize_dual_cuda<__VA_ARGS__, __half>); \
  MB_CUDA_ROW(quantize_dual_cuda_##name##_bf16, quantize_dual_cuda<__VA_ARGS__, __nv_bfloat16>)

MB_QUANTIZE_DUAL(affine2, formats::Affine<2>);
MB_QUANTIZE_DUAL(affine3, formats::Affine<3>);
MB_QUANTIZE_DUAL(affine4, formats::Affine<4>);
MB_QUANTIZE_DUAL(affine5, formats::Affine<5>);
MB_QUANTIZE_DUAL(affine6, formats::Affine<6>);
MB_QUANTIZE_DUAL(affine8, formats::Affine<8>);
MB_QUANTIZE_DUAL(mxfp4, formats::Mxfp4);
MB_QUANTIZE_DUAL(mxfp8, formats::Mxfp8);
MB_QUANTIZE_DUAL(nvfp4, formats::Nvfp4);

}  // namespace
}  // namespace moeblas::cuda
