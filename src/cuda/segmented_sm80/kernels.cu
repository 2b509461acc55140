// The kernels of segmented_sm80.
//
//   16-bit floats   mma.m16n8k16, a warp 64 x 32, steps of 32 k. Lines along K give their fragments
//                   as they lie, lines that lie across by the turning load of matrices.
//   float32         IEEE fused multiply-adds, a thread 8 x 8, steps of 16 k, both operands as rows
//                   of 128 lines per k.
//
// The time: in 16 bits that of the tensor cores, one load of fragments for 2.7 products, and of
// writing out where segments are short; in float32 that of multiply-adds, 16 for a load.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/segmented_sm80/kernel.cuh"
#include "simt/portable_kernel.h"

namespace moeblas::cuda {
namespace {

constexpr uint32_t kTile = kSegmentedSm80Tile;

__device__ __forceinline__ uint4 load_matrices_turned(uint32_t row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row)
               : "memory");
  return v;
}

// A step of an operand in shared memory, and its fragments. Chunks of 16 bytes stand at their
// number xor what keeps eight that are read at once in different banks.
template <Lies80 kLies, uint32_t kStep>
struct Half16 {
  static constexpr uint32_t kBytes = kTile * kStep * 2;
  static constexpr uint32_t kRow = kLies == Lies80::k ? kStep * 2 : kTile * 2;

  __device__ static uint32_t at(uint32_t line, uint32_t k) {
    const uint32_t row = kLies == Lies80::k ? line : k, column = kLies == Lies80::k ? k : line;
    const uint32_t turn = kLies == Lies80::k ? row / 2 % 4 : row % 8;
    return row * kRow + ((column / 8 ^ turn) << 4);
  }
  // Matrices of eight lines x eight k: lines of i, then of i + 8 if kLinesFirst, else k of j + 8.
  template <bool kLinesFirst>
  __device__ static uint4 load(uint32_t base, uint32_t line, uint32_t k) {
    const uint32_t lane = threadIdx.x % 32, matrix = lane / 8, within = lane % 8;
    line += (kLinesFirst ? matrix % 2 : matrix / 2) * 8;
    k += (kLinesFirst ? matrix / 2 : matrix % 2) * 8;
    if constexpr (kLies == Lies80::k) return device::load_matrices(base + at(line + within, k));
    return load_matrices_turned(base + at(line, k + within));
  }
};

template <class T, Lies80 kA, Lies80 kB>
class HalfMultiplier {
 public:
  static constexpr uint32_t kBytes = 2, kStep = 32;
  using A = Half16<kA, kStep>;
  using B = Half16<kB, kStep>;
  static constexpr uint32_t kShared = 2 * (A::kBytes + B::kBytes);

  __device__ explicit HalfMultiplier(uint32_t base)
      : base_(base), row_(threadIdx.x / 32 / 4 * 64), col_(threadIdx.x / 32 % 4 * 32) {}

  __device__ void store_a(const Step80<kA, 2, kStep>& s, uint32_t slot) const {
    put<A>(s, base_ + slot * A::kBytes);
  }
  __device__ void store_b(const Step80<kB, 2, kStep>& s, uint32_t slot) const {
    put<B>(s, base_ + 2 * A::kBytes + slot * B::kBytes);
  }
  __device__ void multiply(uint32_t slot) {
    const uint32_t a = base_ + slot * A::kBytes, b = base_ + 2 * A::kBytes + slot * B::kBytes;
#pragma unroll
    for (uint32_t k = 0; k < kStep; k += 16) {
      uint4 columns[2];
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        columns[j] = B::template load<false>(b, col_ + j * 16, k);
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint4 rows = A::template load<true>(a, row_ + i * 16, k);
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
          product(sums_[i][2 * j], rows, {columns[j].x, columns[j].y});
          product(sums_[i][2 * j + 1], rows, {columns[j].z, columns[j].w});
        }
      }
    }
  }

  // Through shared memory, 16 rows of the warp's at a time, so that whole sectors are written.
  __device__ void store(const SegmentedSm80Params& p, const Tile80& tile) const {
    constexpr uint32_t kRow = 32 * 2 + 16;  // bytes
    const uint32_t lane = threadIdx.x % 32, mine = base_ + threadIdx.x / 32 * (16 * kRow);
    const uint32_t first_row = tile.row + row_, first_col = tile.col + col_;
    auto* out = reinterpret_cast<uint16_t*>(p.out) + tile.out;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      __syncwarp();
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t to = mine + lane / 4 * kRow + j * 16 + lane % 4 * 4;
        put_word(to, rounded(sums_[i][j][0], sums_[i][j][1]));
        put_word(to + 8 * kRow, rounded(sums_[i][j][2], sums_[i][j][3]));
      }
      __syncwarp();
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        const uint32_t r = h * 8 + lane / 4, row = first_row + i * 16 + r;
        const uint32_t col = first_col + lane % 4 * 8;
        const uint4 v = device::load_shared_4(mine + r * kRow + lane % 4 * 16);
        if (row >= p.a.lines) continue;
        uint16_t* to = out + row * p.out_row_stride + col;
        if (p.wide_out != 0 && col + 8 <= p.b.lines) {
          __stcs(reinterpret_cast<uint4*>(to), v);
          continue;
        }
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (uint32_t e = 0; e < 8; ++e) {
          if (col + e < p.b.lines) to[e] = static_cast<uint16_t>(words[e / 2] >> e % 2 * 16);
        }
      }
    }
  }

 private:
  static constexpr bool kHalf = std::is_same_v<T, __half>;

  template <class Place, class Step>
  __device__ static void put(const Step& s, uint32_t base) {
#pragma unroll
    for (uint32_t i = 0; i < Step::kChunks; ++i) {
      device::store_shared_4(base + Place::at(Step::line(i), Step::k(i)), s.chunk(i));
    }
  }
  __device__ static void product(float (&sums)[4], uint4 a, uint2 b) {
    kHalf ? device::multiply_f16(sums, a, b) : device::multiply_bf16(sums, a, b);
  }
  __device__ static uint32_t rounded(float low, float high) {
    uint32_t r;
    if constexpr (kHalf) {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    }
    return r;
  }
  __device__ static void put_word(uint32_t to, uint32_t word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
  }

  uint32_t base_, row_, col_;  // the warp's first row and column of the tile
  float sums_[4][4][4] = {};
};

template <Lies80 kA, Lies80 kB>
class FmaMultiplier {
 public:
  static constexpr uint32_t kBytes = 4, kStep = 16;
  static constexpr uint32_t kRow = (kTile + 4) * 4, kOperand = kStep * kRow;
  static constexpr uint32_t kShared = 4 * kOperand;

  __device__ explicit FmaMultiplier(uint32_t base)
      : base_(base), y_(threadIdx.x / 16 * 4), x_(threadIdx.x % 16 * 4) {}

  __device__ void store_a(const Step80<kA, 4, kStep>& s, uint32_t slot) const {
    put<kA>(s, base_ + slot * kOperand);
  }
  __device__ void store_b(const Step80<kB, 4, kStep>& s, uint32_t slot) const {
    put<kB>(s, base_ + (2 + slot) * kOperand);
  }
  __device__ void multiply(uint32_t slot) {
    const uint32_t a = base_ + slot * kOperand + y_ * 4, b = base_ + (2 + slot) * kOperand + x_ * 4;
#pragma unroll 2
    for (uint32_t k = 0; k < kStep; ++k) {
      float rows[8], columns[8];
      load(rows, a + k * kRow);
      load(columns, b + k * kRow);
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < 8; ++j) sums_[i][j] = __fmaf_rn(rows[i], columns[j], sums_[i][j]);
      }
    }
  }
  __device__ void store(const SegmentedSm80Params& p, const Tile80& tile) const {
    auto* out = reinterpret_cast<float*>(p.out) + tile.out;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t row = tile.row + i / 4 * 64 + y_ + i % 4;
      if (row >= p.a.lines) continue;
#pragma unroll
      for (uint32_t j = 0; j < 8; j += 4) {
        const uint32_t col = tile.col + j / 4 * 64 + x_;
        float* to = out + row * p.out_row_stride + col;
        if (p.wide_out != 0 && col + 4 <= p.b.lines) {
          __stcs(reinterpret_cast<float4*>(to),
                 float4{sums_[i][j], sums_[i][j + 1], sums_[i][j + 2], sums_[i][j + 3]});
          continue;
        }
#pragma unroll
        for (uint32_t e = 0; e < 4; ++e) {
          if (col + e < p.b.lines) to[e] = sums_[i][j + e];
        }
      }
    }
  }

 private:
  template <Lies80 kLies, class Step>
  __device__ static void put(const Step& s, uint32_t base) {
#pragma unroll
    for (uint32_t i = 0; i < Step::kChunks; ++i) {
      const uint32_t to = base + Step::k(i) * kRow + Step::line(i) * 4;
      const uint4 v = s.chunk(i);
      if constexpr (kLies == Lies80::lines) {
        device::store_shared_4(to, v);
      } else {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (uint32_t e = 0; e < 4; ++e) {
          asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + e * kRow), "r"(words[e]) : "memory");
        }
      }
    }
  }
  __device__ static void load(float (&v)[8], uint32_t from) {
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      const uint4 four = device::load_shared_4(from + h * (64 * 4));
      v[4 * h] = __uint_as_float(four.x), v[4 * h + 1] = __uint_as_float(four.y);
      v[4 * h + 2] = __uint_as_float(four.z), v[4 * h + 3] = __uint_as_float(four.w);
    }
  }

  uint32_t base_, y_, x_;
  float sums_[8][8] = {};
};

template <Lies80 kA, Lies80 kB, class Multiplier>
__global__ void __launch_bounds__(kSegmentedSm80Threads, 2)
    segmented_sm80(const __grid_constant__ SegmentedSm80Params p) {
  __shared__ __align__(128) uint8_t memory[Multiplier::kShared];
  const Tile80 tile(p);
  Multiplier m(device::shared_address(memory));
  multiply_steps<kA, kB>(p, tile, m);
  m.store(p, tile);
}

template <Lies80 kA, Lies80 kB>
using Bfloat16Multiplier = HalfMultiplier<__nv_bfloat16, kA, kB>;
template <Lies80 kA, Lies80 kB>
using Float16Multiplier = HalfMultiplier<__half, kA, kB>;

// By how a and b lie: k along K, t turned, a before b.
#define MB_SEGMENTED_SM80_ONE(name, lies, A, B, Multiplier) \
  MB_CUDA_ROW(segmented_sm80_##name##_##lies, segmented_sm80<A, B, Multiplier<A, B>>)
#define MB_SEGMENTED_SM80(name, Multiplier)                              \
  MB_SEGMENTED_SM80_ONE(name, kk, Lies80::k, Lies80::k, Multiplier);     \
  MB_SEGMENTED_SM80_ONE(name, kt, Lies80::k, Lies80::lines, Multiplier); \
  MB_SEGMENTED_SM80_ONE(name, tk, Lies80::lines, Lies80::k, Multiplier); \
  MB_SEGMENTED_SM80_ONE(name, tt, Lies80::lines, Lies80::lines, Multiplier)

MB_SEGMENTED_SM80(bf16, Bfloat16Multiplier);
MB_SEGMENTED_SM80(f16, Float16Multiplier);
MB_SEGMENTED_SM80(f32, FmaMultiplier);

}  // namespace
}  // namespace moeblas::cuda
