// Blocks of 32 neighbouring values, one per lane or two side by side. Memory is read and written by
// whole warps, 16 bytes a lane and neighbours by neighbours; a warp's shared memory turns that into
// 32 values for each lane and back. What blocks there are and where their rows lie:
// src/simt/packed_rows.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>

#include "cuda/quantize_cuda/params.h"
#include "simt/packed_rows.h"

namespace moeblas::cuda::device {

constexpr uint32_t kWarps = kConversionThreads / 32;

// The first block of a lane.
struct BlockPlace {
  uint32_t row, column;  // column in blocks
  uint32_t blocks = 1;   // of the lane, in this row from this one on
  uint32_t count = 32;   // lanes of the warp that have blocks; the others repeat the last
  bool valid;
  bool joined = false;  // 32 lanes' blocks, one behind the other in memory

  __device__ BlockPlace(uint32_t r, uint32_t c, bool exists) : row(r), column(c), valid(exists) {}
  __device__ BlockPlace(const ConversionParams& p, uint32_t warp, uint32_t of_lane) {
    const uint32_t first = warp * 32, lane = threadIdx.x % 32;
    count = min(p.lanes - first, 32u);
    valid = lane < count;
    const uint32_t of_all = first + min(lane, count - 1);
    const bool one_row = p.row_lanes == p.lanes;
    joined = one_row && (first + 32) * of_lane <= p.row_blocks;
    row = one_row ? 0 : of_all / p.row_lanes;
    column = (of_all - row * p.row_lanes) * of_lane;
    if (of_lane > 1) blocks = min(of_lane, p.row_blocks - column);
    if (!one_row) {
      const bool beside = row == __shfl_sync(0xffffffffu, row, 0) && blocks == of_lane;
      joined = __all_sync(0xffffffffu, valid && beside);
    }
  }
  // Block b of the lane.
  __device__ BlockPlace at(uint32_t b) const {
    return BlockPlace(row, column + b, valid && b < blocks);
  }
};

// Where rows of several leading dimensions, and swizzled scales, begin: divisions that most calls
// do without.
static __device__ __noinline__ int64_t far_row(const simt::StridedRows& rows, uint32_t row) {
  return simt::row_offset(rows, row);
}
// Where the first of a row's four scales lies in their tile.
__device__ __forceinline__ uint32_t in_scale_tile(uint32_t row) {
  return row % 32 * 16 + row / 32 % 4 * 4;
}
// formats::swizzled_128x4; fewer than 2^31 blocks have fewer than 2^32 such tiles of 512 bytes.
__device__ __forceinline__ int64_t swizzled_in_matrix(const simt::PackedParams& p, uint32_t row,
                                                      uint32_t group) {
  const auto tiles = static_cast<uint32_t>(p.padded_groups) / 4;
  return int64_t{row / 128 * tiles + group / 4} * 512 + in_scale_tile(row) + group % 4;
}
// Where a matrix's swizzled scales begin.
static __device__ __noinline__ int64_t far_scales(const simt::PackedParams& p, uint32_t matrix) {
  return simt::row_offset(p.scales, uint64_t{matrix} * static_cast<uint64_t>(p.padded_rows));
}
__device__ __forceinline__ int64_t matrix_scales(const simt::PackedParams& p, uint32_t matrix) {
  return matrix == 0 ? 0 : far_scales(p, matrix);
}
// As simt::scale_offset, whose divisions of 64-bit numbers take longer than the rest.
static __device__ __noinline__ int64_t swizzled_in_stack(const simt::PackedParams& p, uint32_t row,
                                                         uint32_t group) {
  const auto rows = static_cast<uint32_t>(p.rows_per_matrix);
  const uint32_t matrix = row / rows;
  return far_scales(p, matrix) + swizzled_in_matrix(p, row - matrix * rows, group);
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
  if (p.padded_rows == 0) return row_offset(p.scales, row) + group;
  return row < p.rows_per_matrix ? swizzled_in_matrix(p, row, group)
                                 : swizzled_in_stack(p, row, group);
}
__device__ __forceinline__ float tensor_scale(const ConversionParams& p, uint32_t row) {
  if (p.tensor_scale == nullptr) return p.packed.host_tensor_scale;
  return p.packed.tensor_scale_stride == 0 ? __ldg(p.tensor_scale) : matrix_scale(p, row);
}

// Chunks of 16 bytes in a warp's shared memory, so many of each lane.
template <int kOfLane>
struct WarpChunks {
  static constexpr uint32_t kPad = kOfLane == 8 ? 1 : 0;
  static constexpr uint32_t kAll = 32 * (kOfLane + kPad);

  // Where chunk `part` of lane `owner` lies. Eight lanes meet eight different places, by owner and
  // by part.
  static __device__ __forceinline__ uint32_t place(uint32_t owner, uint32_t part) {
    return owner * (kOfLane + kPad) + (kOfLane == 4 ? part ^ owner / 2 % 4 : part);
  }

  // What another lane calls its first chunk.
  template <class Chunk>
  static __device__ __forceinline__ Chunk* first_of(Chunk* mine, uint32_t owner) {
    return reinterpret_cast<Chunk*>(
        __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(mine), owner));
  }

  // From memory, by a whole warp; there once `arrived` returns. `from`: this lane's first chunk;
  // `own`: how many chunks it has there, a power of two, after which they are repeated.
  static __device__ __forceinline__ void bring(const uint8_t* from, const BlockPlace& at,
                                               uint32_t own, uint4* shared) {
    each<const uint4>(from, at, own,
                      [=](const uint4* first, uint32_t owner, uint32_t part, uint32_t chunks) {
                        __pipeline_memcpy_async(shared + place(owner, part),
                                                first + (part & (chunks - 1)), sizeof(uint4));
                      });
    __pipeline_commit();
  }
  static __device__ __forceinline__ void arrived() {
    __pipeline_wait_prior(0);
    __syncwarp();
  }
  // To memory, by a whole warp, what lanes with blocks have put here.
  static __device__ __forceinline__ void send(uint8_t* to, const BlockPlace& at, uint32_t own,
                                              const uint4* shared) {
    __syncwarp();
    each<uint4>(to, at, at.valid ? own : 0,
                [=](uint4* first, uint32_t owner, uint32_t part, uint32_t chunks) {
                  if (part < chunks) first[part] = shared[place(owner, part)];
                });
  }

 private:
  // move(a lane's first chunk, the lane, which of its chunks, how many it has) for what this lane
  // moves. Where blocks are joined their lanes need not be asked, which costs three exchanges and
  // the address's sum.
  template <class Chunk, class Byte, class Move>
  static __device__ __forceinline__ void each(Byte* bytes, const BlockPlace& at, uint32_t own,
                                              Move move) {
    const uint32_t lane = threadIdx.x % 32, part = lane % kOfLane;
    const auto mine = reinterpret_cast<Chunk*>(bytes);
    if (at.joined) {
      Chunk* const first = mine - (lane - lane / kOfLane) * kOfLane;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        move(first + 32 * i, i * (32 / kOfLane) + lane / kOfLane, part, uint32_t{kOfLane});
      }
    } else {
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        const uint32_t owner = i * (32 / kOfLane) + lane / kOfLane;
        move(first_of(mine, owner), owner, part, __shfl_sync(0xffffffffu, own, owner));
      }
    }
  }
};

// 32 values of type T as they are stored.
template <class T>
struct LaneBlock {
  static constexpr int kChunks = sizeof(T) * kLaneValues / 16;

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

  // By a whole warp; `from`: this lane's block, which stays in shared memory as well.
  __device__ void load(const uint8_t* from, uint4* shared) {
    using Chunks = WarpChunks<kChunks>;
    const uint32_t lane = threadIdx.x % 32, part = lane % kChunks;
    uint4 moved[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint32_t owner = i * (32 / kChunks) + lane / kChunks;
      moved[i] = __ldcs(Chunks::first_of(reinterpret_cast<const uint4*>(from), owner) + part);
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      shared[Chunks::place(i * (32 / kChunks) + lane / kChunks, part)] = moved[i];
    }
    __syncwarp();
    get<kChunks>(shared, 0);
  }
  // Block b of this lane's, in its warp's shared memory.
  template <int kOfLane>
  __device__ void get(const uint4* shared, uint32_t b) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      chunk[i] = shared[WarpChunks<kOfLane>::place(threadIdx.x % 32, b * kChunks + i)];
    }
  }
  template <int kOfLane>
  __device__ void put(uint4* shared, uint32_t b) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      shared[WarpChunks<kOfLane>::place(threadIdx.x % 32, b * kChunks + i)] = chunk[i];
    }
  }
  // One value of it.
  template <int kOfLane>
  static __device__ float value_in(const uint4* shared, uint32_t b, uint32_t i) {
    constexpr int kOfChunk = kLaneValues / kChunks;
    const uint4* from =
        shared + WarpChunks<kOfLane>::place(threadIdx.x % 32, b * kChunks + i / kOfChunk);
    return static_cast<float>(reinterpret_cast<const T*>(from)[i % kOfChunk]);
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

// Codes of a warp's lanes, two blocks of each and one behind the other, on their way to memory:
// lanes whose codes do not fill sectors would write each of them in parts. Until they are sent a
// lane's codes lie where the first of its blocks was.
template <int kBits, class T>
class WarpCodes {
  using Values = WarpChunks<2 * LaneBlock<T>::kChunks>;
  static_assert(Values::kPad == 1, "a lane's chunks lie in order");
  using Chunk = std::conditional_t<kBits % 2 == 0, uint4, uint2>;

 public:
  static constexpr uint32_t kOfLane = 8 * kBits / sizeof(Chunk);

  // Chunk i of the warp's.
  static __device__ __forceinline__ Chunk chunk(uint4* shared, uint32_t i) {
    return reinterpret_cast<const Chunk*>(lane(shared, i / kOfLane))[i % kOfLane];
  }
  static __device__ __forceinline__ bool take(const BlockPlace& at, uint32_t alignment) {
    return at.joined && alignment >= sizeof(Chunk);
  }
  // Codes of this lane's block b, of whose values, and those of the first block, no more is needed.
  static __device__ __forceinline__ void put(const uint32_t (&words)[kBits], uint32_t b,
                                             uint4* shared) {
    store_words<kBits>(words, lane(shared, threadIdx.x % 32) + b * (4 * kBits),
                       kBits % 4 == 0   ? 16
                       : kBits % 2 == 0 ? 8
                                        : 4);
  }
  // By a whole warp; `to`: where this lane's codes belong.
  static __device__ __forceinline__ void send(uint8_t* to, uint4* shared) {
    __syncwarp();
    auto* const first = reinterpret_cast<Chunk*>(to - threadIdx.x % 32 * (8 * kBits));
#pragma unroll
    for (uint32_t n = 0; n < kOfLane; ++n) {
      const uint32_t i = n * 32 + threadIdx.x % 32;
      first[i] = chunk(shared, i);
    }
  }

 private:
  static __device__ __forceinline__ uint8_t* lane(uint4* shared, uint32_t lane) {
    return reinterpret_cast<uint8_t*>(shared + Values::place(lane, 0));
  }
};

}  // namespace moeblas::cuda::device
