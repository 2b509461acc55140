// Blocks of 32 neighbouring values, one per lane. Memory is read and written by whole warps, 16
// bytes a lane and neighbours by neighbours; a warp's shared memory turns that into 32 values for
// each lane and back. What blocks there are and where their rows lie: src/simt/packed_rows.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/quantize_cuda_params.h"
#include "simt/packed_rows.h"

namespace moeblas::cuda::device {

constexpr uint32_t kWarps = kConversionThreads / 32;

// The block of a lane.
struct BlockPlace {
  uint32_t row, column;  // column in blocks
  uint32_t count;        // lanes of the warp that have a block; the others repeat the last
  bool valid;
  bool joined = false;  // 32 lanes' blocks, one behind the other in memory

  __device__ BlockPlace(uint32_t r, uint32_t c, bool exists)
      : row(r), column(c), count(32), valid(exists) {}
  __device__ BlockPlace(const ConversionParams& p, uint32_t warp) {
    const uint32_t first = warp * 32, lane = threadIdx.x % 32;
    count = min(p.blocks - first, 32u);
    valid = lane < count;
    const uint32_t block = first + min(lane, count - 1);
    const bool one_row = p.row_blocks == p.blocks;
    joined = one_row && count == 32;
    row = one_row ? 0 : block / p.row_blocks;
    column = block - row * p.row_blocks;
  }
};

// Where rows of several leading dimensions, and swizzled scales, begin: divisions that most calls
// do without.
static __device__ __noinline__ int64_t far_row(const simt::StridedRows& rows, uint32_t row) {
  return simt::row_offset(rows, row);
}
static __device__ __noinline__ int64_t swizzled_scale(const simt::PackedParams& p, uint32_t row,
                                                      uint32_t group) {
  return simt::scale_offset(p, row, group);
}
static __device__ __noinline__ float matrix_scale(const ConversionParams& p, uint32_t row) {
  return simt::load_tensor_scale(p.packed, p.tensor_scale, row);
}
__device__ __forceinline__ int64_t row_offset(const simt::StridedRows& rows, uint32_t row) {
  if (row == 0) return 0;
  return rows.ndim == 1 ? row * rows.stride[0] : far_row(rows, row);
}
__device__ __forceinline__ int64_t scale_offset(const simt::PackedParams& p, uint32_t row,
                                                uint32_t group) {
  return p.padded_rows != 0 ? swizzled_scale(p, row, group) : row_offset(p.scales, row) + group;
}
__device__ __forceinline__ float tensor_scale(const ConversionParams& p, uint32_t row) {
  if (p.tensor_scale == nullptr) return p.packed.host_tensor_scale;
  return p.packed.tensor_scale_stride == 0 ? __ldg(p.tensor_scale) : matrix_scale(p, row);
}

// Chunks of 16 bytes of a warp's blocks in its shared memory: where chunk `part` of lane `owner`
// lies. Eight lanes meet eight different places, by owner and by part.
template <int kChunks>
__device__ __forceinline__ uint32_t chunk_place(uint32_t owner, uint32_t part) {
  return owner * kChunks + (part ^ (kChunks == 4 ? owner / 2 % 4 : owner % 8));
}

// Chunk `part` of another lane's block, from where this lane's lies. Asking that lane costs two
// exchanges and the address's sum.
template <int kChunks, class Pointer>
__device__ __forceinline__ Pointer chunk_of_lane(Pointer mine, bool joined, uint32_t owner,
                                                 uint32_t part) {
  if (joined) {
    const auto blocks = static_cast<int32_t>(owner) - static_cast<int32_t>(threadIdx.x % 32);
    return mine + (blocks * kChunks + static_cast<int32_t>(part));
  }
  return reinterpret_cast<Pointer>(
             __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(mine), owner)) +
         part;
}

// 32 values of type T as they are stored.
template <class T>
struct LaneBlock {
  static constexpr int kChunks = sizeof(T) * kLaneValues / 16;
  static constexpr uint32_t kSharedChunks = 32 * kChunks;  // of a warp

  uint4 chunk[kChunks];

  __device__ uint32_t word(int i) const {
    const uint4& c = chunk[i / 4];
    return i % 4 == 0 ? c.x : i % 4 == 1 ? c.y : i % 4 == 2 ? c.z : c.w;
  }
  __device__ float value(int i) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word(i));
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return __uint_as_float(i % 2 == 0 ? word(i / 2) << 16 : word(i / 2) & 0xffff0000u);
    } else {
      const auto half = static_cast<uint16_t>(i % 2 == 0 ? word(i / 2) : word(i / 2) >> 16);
      return __half2float(__ushort_as_half(half));
    }
  }
  // Each rounded once.
  __device__ void set(const float (&v)[kLaneValues]) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      uint32_t w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (sizeof(T) == 4) {
          w[j] = __float_as_uint(v[i * 4 + j]);
        } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
          asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
              : "=r"(w[j])
              : "f"(v[i * 8 + j * 2 + 1]), "f"(v[i * 8 + j * 2]));
        } else {
          asm("cvt.rn.f16x2.f32 %0, %1, %2;"
              : "=r"(w[j])
              : "f"(v[i * 8 + j * 2 + 1]), "f"(v[i * 8 + j * 2]));
        }
      }
      chunk[i] = {w[0], w[1], w[2], w[3]};
    }
  }

  // By a whole warp; `from`: this lane's block.
  __device__ void load(const uint8_t* from, bool joined, uint4* shared) {
    const uint32_t lane = threadIdx.x % 32, part = lane % kChunks;
    const auto mine = reinterpret_cast<const uint4*>(from);
    uint4 moved[kChunks];
    const auto load_all = [&](bool one_behind_the_other) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const uint32_t owner = i * (32 / kChunks) + lane / kChunks;
        moved[i] = __ldcs(chunk_of_lane<kChunks>(mine, one_behind_the_other, owner, part));
      }
    };
    if (joined) {
      load_all(true);
    } else {
      load_all(false);
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      shared[chunk_place<kChunks>(i * (32 / kChunks) + lane / kChunks, part)] = moved[i];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kChunks; ++i) chunk[i] = shared[chunk_place<kChunks>(lane, i)];
  }
  // Value i of this lane's block, as load left it in shared memory.
  static __device__ float loaded(const uint4* shared, uint32_t i) {
    constexpr int kOfChunk = kLaneValues / kChunks;
    const uint32_t place = chunk_place<kChunks>(threadIdx.x % 32, i / kOfChunk);
    return static_cast<float>(reinterpret_cast<const T*>(shared + place)[i % kOfChunk]);
  }
  // The blocks of `count` lanes.
  __device__ void store(uint8_t* to, bool joined, uint32_t count, uint4* shared) const {
    const uint32_t lane = threadIdx.x % 32, part = lane % kChunks;
    const auto mine = reinterpret_cast<uint4*>(to);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) shared[chunk_place<kChunks>(lane, i)] = chunk[i];
    __syncwarp();
    const auto store_all = [&](bool one_behind_the_other) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const uint32_t owner = i * (32 / kChunks) + lane / kChunks;
        uint4* at = chunk_of_lane<kChunks>(mine, one_behind_the_other, owner, part);
        const uint4 moved = shared[chunk_place<kChunks>(owner, part)];
        if (one_behind_the_other || owner < count) *at = moved;
      }
    };
    if (joined) {
      store_all(true);
    } else {
      store_all(false);
    }
  }
};

// 32 codes as kBits words.
template <int kBits>
__device__ __forceinline__ void load_words(uint32_t (&words)[kBits], const uint8_t* from,
                                           uint32_t alignment) {
  if (kBits % 4 == 0 && alignment == 16) {
#pragma unroll
    for (int i = 0; i < kBits / 4; ++i) {
      const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from) + i);
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  } else if (kBits % 2 == 0 && alignment >= 8) {
#pragma unroll
    for (int i = 0; i < kBits / 2; ++i) {
      const uint2 v = __ldcs(reinterpret_cast<const uint2*>(from) + i);
      words[2 * i] = v.x, words[2 * i + 1] = v.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kBits; ++i) words[i] = __ldcs(reinterpret_cast<const uint32_t*>(from) + i);
  }
}
template <int kBits>
__device__ __forceinline__ void store_words(const uint32_t (&words)[kBits], uint8_t* to,
                                            uint32_t alignment) {
  if (kBits % 4 == 0 && alignment == 16) {
#pragma unroll
    for (int i = 0; i < kBits / 4; ++i) {
      reinterpret_cast<uint4*>(to)[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                         words[4 * i + 3]};
    }
  } else if (kBits % 2 == 0 && alignment >= 8) {
#pragma unroll
    for (int i = 0; i < kBits / 2; ++i) {
      reinterpret_cast<uint2*>(to)[i] = {words[2 * i], words[2 * i + 1]};
    }
  } else {
#pragma unroll
    for (int i = 0; i < kBits; ++i) reinterpret_cast<uint32_t*>(to)[i] = words[i];
  }
}

}  // namespace moeblas::cuda::device
