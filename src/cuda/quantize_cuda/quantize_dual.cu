// quantize_dual_cuda_<format>_<dtype>: a matrix to packed codes along both of its axes, from one
// read, for quantize_dual.
//
//        128 columns           A block brings a tile of 128 x 128 values to shared memory.
//      +---+---+---+---+       Its lanes then take blocks of 32 values of a row, and after
//  128 | 0 | 1 | 2 | 3 | row 0 those blocks of 32 of a column, four lanes side by side in
// rows |   |   |   |   | ...   either case, so that a group of up to 128 values is theirs
//      +---+---+---+---+       alone and their codes are neighbours.
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

// Swizzled scales of a tile's values in one direction: one tile of scales, or two of groups of 16,
// which are whole only here. Zeros where the matrix has none.
template <class Format, class T>
struct ScaleTiles {
  static constexpr int kTiles = LaneGroups<Format, T>::kHalves;
  uint4 chunks[32 * kTiles];

  // By every lane with a block in the tile, valid or not.
  __device__ void put(uint32_t row, uint32_t block, uint32_t bytes) {
    const uint32_t group = block * kTiles;
    device::put_bytes<kTiles>(reinterpret_cast<uint8_t*>(chunks) + group / 4 * 512 +
                                  device::in_scale_tile(row) + group % 4,
                              bytes);
  }
  // By all threads after all have put; `row` and `column` in values.
  __device__ void send(const ConversionParams& p, uint32_t matrix, uint32_t row,
                       uint32_t column) const {
    const uint32_t i = threadIdx.x, tile = column / kTile * kTiles + i / 32;
    const auto across = static_cast<uint32_t>(p.packed.padded_groups) / 4;
    if (i >= 32 * kTiles || tile >= across) return;
    uint8_t* const to = p.scales + device::matrix_scales(p.packed, matrix) +
                        int64_t{row / kTile * across + tile} * 512 + i % 32 * 16;
    if (reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = chunks[i];
    } else {
      const auto* bytes = reinterpret_cast<const uint8_t*>(chunks + i);
      for (int b = 0; b < 16; ++b) to[b] = bytes[b];
    }
  }
};
template <int kBits, class T>
struct ScaleTiles<formats::Affine<kBits>, T> {};  // have rows

// Of a lane's block, whose row and number in the tile are `row` and `block`.
template <class Format, class T, class Look>
__device__ __forceinline__ void quantize_block(const ConversionParams& p, const BlockPlace& at,
                                               const LaneBlock<T>& x, Look look,
                                               ScaleTiles<Format, T>& scales, uint32_t row,
                                               uint32_t block) {
  LaneGroups<Format, T> groups;
  groups.start(p, at);
  groups.fit(x, p, device::NoSecond{});
  uint32_t words[Format::kBits];
  device::encode<Format, T>(x, groups, look, words);
  if constexpr (!device::kAffine<Format>) {
    if (p.packed.padded_rows != 0) scales.put(row, block, at.valid ? groups.bytes() : 0);
  }
  if (!at.valid) return;
  if (device::kAffine<Format> || p.packed.padded_rows == 0) groups.store(p, at);
  device::store_words<Format::kBits>(words, device::codes_at<Format>(p, at), p.code_alignment);
}

template <class Format, class T>
__global__ void __launch_bounds__(kConversionThreads, 3)
    quantize_dual_cuda(const __grid_constant__ DualParams p) {
  extern __shared__ uint4 memory[];
  __shared__ ScaleTiles<Format, T> row_scales, column_scales;
  const Tile<T> tile{memory};
  const uint32_t across = (p.columns + kTile - 1) / kTile, down = (p.rows + kTile - 1) / kTile;
  const uint32_t matrix = blockIdx.x / (across * down), rest = blockIdx.x % (across * down);
  const uint32_t first_row = rest / across * kTile, first_column = rest % across * kTile;
  const uint32_t lane_block = threadIdx.x % kTileBlocks;

  // Chunks beyond the matrix are whole blocks, which no lane stores.
  constexpr uint32_t kChunks = kTile * Tile<T>::kRowChunks / kConversionThreads;
  constexpr uint32_t kRows = kConversionThreads / Tile<T>::kRowChunks;  // at a time
  const uint32_t chunk = threadIdx.x % Tile<T>::kRowChunks;
  const uint32_t column = first_column + chunk * Tile<T>::kOfChunk;
  const uint8_t* const values =
      p.by_rows.values +
      (device::row_offset(p.by_rows.packed.values, matrix * p.rows) + column) * int64_t{sizeof(T)};
#pragma unroll
  for (uint32_t i = 0; i < kChunks; ++i) {
    const uint32_t row = i * kRows + threadIdx.x / Tile<T>::kRowChunks;
    const bool exists = first_row + row < p.rows && column < p.columns;
    const uint8_t* from = exists ? values + (first_row + row) * p.value_stride : p.by_rows.values;
    __pipeline_memcpy_async(tile.chunks + Tile<T>::place(row, chunk), from, sizeof(uint4),
                            exists ? 0 : sizeof(uint4));
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
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
    quantize_block<Format, T>(
        p.by_rows, at, x,
        [=](uint32_t i) { return static_cast<float>(*tile.value(row, column + i)); }, row_scales,
        row, lane_block);
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
      quantize_block<Format, T>(
          p.by_columns, at, block_of<T>(words[c]),
          [=](uint32_t i) { return static_cast<float>(*tile.value(row + i, of)); }, column_scales,
          of, lane_block);
    }
  }
  if constexpr (!device::kAffine<Format>) {
    if (p.by_rows.packed.padded_rows == 0 && p.by_columns.packed.padded_rows == 0) return;
    __syncthreads();
    if (p.by_rows.packed.padded_rows != 0) {
      row_scales.send(p.by_rows, matrix, first_row, first_column);
    }
    if (p.by_columns.packed.padded_rows != 0) {
      column_scales.send(p.by_columns, matrix, first_column, first_row);
    }
  }
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
