// The consumers of segmented_sm90 for float32 by IEEE fused multiply-adds, one per product, in
// ascending k. kDown threads share the rows of a tile, kAcross its columns; a thread loads two k of
// its rows and of its columns, up to 16 bytes at a time, and multiplies them. One thread of them
// also sends the steps.
//
// In wide tiles 128 multiply-adds follow twelve loads, and the multiply-adds are the limit: of
// three registers that one reads, two should not lie in one of the two banks. Two blocks share a
// multiprocessor, so that a scheduler has three other warps while one loads, waits or stores.
#pragma once

#include "cuda/segmented_sm90.cuh"

namespace moeblas::cuda {

template <class TileOf, Along kAlongA, Along kAlongB>
class FmaConsumer {
 public:
  using Tile = TileOf;
  static constexpr Along kA = kAlongA, kB = kAlongB;
  // An operand that lies along its lines comes as one box: rows of all lines per k.
  static constexpr uint32_t kStepK = kStepBytes / 4, kChunk = 256;
  using Tiles = SegmentTiles<Tile, kStepAlign<kA, kB, 4>>;

  static constexpr uint32_t kThreads = Tile::kConsumers + Tile::kProducers;
  __device__ static void run(const SegmentedSm90Params& p) { run_segmented<FmaConsumer>(p); }

  __device__ FmaConsumer(const SegmentedSm90Params& p, const SegmentedRing<Tile>& ring, uint32_t)
      : p_(p), ring_(ring), sender_(p, ring) {
    // A warp is 4 threads down and 8 across.
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x_ = warp % (kAcross / 8) * 8 + lane % 8;
    y_ = warp / (kAcross / 8) * 4 + lane / 8;
  }

  __device__ void consume() {
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (uint32_t i = 0; i + 1 < Tile::kSlots; ++i) sender_.send();
    }
    Tiles tiles(p_, ring_.base());
    for (SegmentTile tile; tiles.next(tile);) {
      float sums[kRowsEach][kColsEach];
#pragma unroll
      for (uint32_t i = 0; i < kRowsEach; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < kColsEach; ++j) sums[i][j] = 0.0f;
      }
      multiply(sums, tile.head, tile.end - tile.begin);
      store(sums, tile);
    }
  }

 private:
  static constexpr uint32_t kDown = 16, kAcross = Tile::kConsumers / kDown;
  static constexpr uint32_t kRowsEach = Tile::kRows / kDown, kColsEach = Tile::kCols / kAcross;
  // Which row and column a thread's i-th and j-th are: neighbours where they are loaded as such.
  __device__ uint32_t row(uint32_t i) const {
    return kA == Along::k ? y_ + kDown * i : i / 4 * (4 * kDown) + y_ * 4 + i % 4;
  }
  __device__ uint32_t col(uint32_t j) const {
    return kB == Along::k ? x_ + kAcross * j : j / 4 * (4 * kAcross) + x_ * 4 + j % 4;
  }

  // `length` k from the ring's next step on, of which the first `k` do not count.
  __device__ void multiply(float (&sums)[kRowsEach][kColsEach], uint32_t k, uint32_t length) {
    for (uint32_t left = length; left > 0; ++step_, k = 0) {
      const uint32_t end = min(left, kStepK);
      left -= end;
      ring_.wait_full(step_);
      const uint32_t a = ring_.a(step_), b = ring_.b(step_);
      if (k % 2 != 0 && k < end) multiply_one(sums, a, b, k++);
      multiply_pairs(sums, a, b, k, end);
      if (k < end) multiply_one(sums, a, b, k++);
      // Of the slot before, which by now all warps have left.
      if (threadIdx.x == 0) sender_.send();
      const uint32_t nothing = nothing_of(sums);
      __syncwarp();
      ring_.release(step_, nothing);
    }
  }

  // Nothing is loaded ahead, for which the block beside this one multiplies: of fewer registers,
  // the compiler finds more triples that do not lie in one bank.
  __device__ void multiply_pairs(float (&sums)[kRowsEach][kColsEach], uint32_t a, uint32_t b,
                                 uint32_t& k, uint32_t end) const {
#pragma unroll 1
    for (; k + 2 <= end; k += 2) {
      float x[kRowsEach][2], y[2][kColsEach];
      load_a(x, a, k);
      load_b(y[0], b, k);
      load_b(y[1], b, k + 1);
      add_products(sums, x, 0, y[0]);
      add_products(sums, x, 1, y[1]);
    }
  }
  __device__ void multiply_one(float (&sums)[kRowsEach][kColsEach], uint32_t a, uint32_t b,
                               uint32_t k) const {
    float x[kRowsEach][2], y[kColsEach];
#pragma unroll
    for (uint32_t i = 0; i < kRowsEach; ++i) {
      x[i][0] =
          device::load_shared_float(kA == Along::k ? at_k(a, row(0), k) + i * kDown * kStepBytes
                                                   : a + (k * Tile::kRows + row(i)) * 4);
    }
    load_b(y, b, k);
    add_products(sums, x, 0, y);
  }

  // 0, but not before everything that these sums are made of is loaded.
  __device__ static uint32_t nothing_of(const float (&sums)[kRowsEach][kColsEach]) {
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t i = 0; i < kRowsEach || i < kColsEach; ++i) {
      bits |= __float_as_uint(sums[i % kRowsEach][i % kColsEach]);
    }
    return device::nothing_of(bits);
  }

  // Blocks of sums, back and forth, so that neighbours have a factor in common, which is then read
  // once.
  __device__ static void add_products(float (&sums)[kRowsEach][kColsEach],
                                      const float (&x)[kRowsEach][2], uint32_t k,
                                      const float (&y)[kColsEach]) {
    constexpr uint32_t kRows = 4, kCols = kColsEach < 8 ? kColsEach : 8;
#pragma unroll
    for (uint32_t at = 0; at < kRowsEach * kColsEach; at += kRows * kCols) {
      const uint32_t first = at / (kRows * kColsEach) * kRows, left = at / kRows % kColsEach;
#pragma unroll
      for (uint32_t n = 0; n < kRows * kCols; ++n) {
        const uint32_t i = first + n / kCols, along = n % kCols;
        const uint32_t j = left + (i % 2 == 0 ? along : kCols - 1 - along);
        sums[i][j] = __fmaf_rn(x[i][k], y[j], sums[i][j]);
      }
    }
  }

  __device__ static float4 load_four(uint32_t from) {
    const uint4 v = device::load_shared_4(from);
    return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
  }
  // Along K, the 16 bytes of a line's four k stand in the 128-byte swizzle.
  __device__ static uint32_t at_k(uint32_t operand, uint32_t line, uint32_t k) {
    return operand + line * kStepBytes + ((k / 4 ^ line % 8) << 4) + k % 4 * 4;
  }

  // Two k, the first even.
  __device__ void load_a(float (&x)[kRowsEach][2], uint32_t a, uint32_t k) const {
    if constexpr (kA == Along::k) {
#pragma unroll
      for (uint32_t i = 0; i < kRowsEach; ++i) {
        const uint2 v = device::load_shared_2(at_k(a, row(0), k) + i * kDown * kStepBytes);
        x[i][0] = __uint_as_float(v.x), x[i][1] = __uint_as_float(v.y);
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < kRowsEach; i += 4) {
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
          const float4 v = load_four(a + ((k + j) * Tile::kRows + row(i)) * 4);
          x[i][j] = v.x, x[i + 1][j] = v.y, x[i + 2][j] = v.z, x[i + 3][j] = v.w;
        }
      }
    }
  }
  __device__ void load_b(float (&y)[kColsEach], uint32_t b, uint32_t k) const {
    if constexpr (kB == Along::k) {
#pragma unroll
      for (uint32_t j = 0; j < kColsEach; ++j) {
        y[j] = device::load_shared_float(at_k(b, col(0), k) + j * kAcross * kStepBytes);
      }
    } else {
#pragma unroll
      for (uint32_t j = 0; j < kColsEach; j += 4) {
        const float4 v = load_four(b + (k * Tile::kCols + col(j)) * 4);
        y[j] = v.x, y[j + 1] = v.y, y[j + 2] = v.z, y[j + 3] = v.w;
      }
    }
  }

  // The same number in another register: where sums themselves are stored four at a time, their
  // registers lie as the columns' that were loaded four at a time, both in the same bank, and a
  // multiply-add reads one of a bank per clock.
  __device__ static float elsewhere(float sum, float one) {
    float moved;
    asm volatile("mul.rn.f32 %0, %1, %2;" : "=f"(moved) : "f"(sum), "f"(one));
    return moved;
  }

  // Written once, read by none of these kernels: the L2 cache gives it up first.
  __device__ void store(const float (&sums)[kRowsEach][kColsEach], const SegmentTile& tile) const {
    auto* out = reinterpret_cast<float*>(p_.out_data) + tile.segment * p_.out_step;
    const float one = __uint_as_float(0x3f800000u | p_.m >> 31);  // m has no such bit
#pragma unroll
    for (uint32_t i = 0; i < kRowsEach; ++i) {
      const uint32_t r = tile.row + row(i);
      if (r >= p_.m) continue;
      float* to = out + r * p_.out_row_stride;
#pragma unroll
      for (uint32_t j = 0; j < kColsEach; j += 4) {
        const uint32_t c = tile.col + col(j);
        if (kB == Along::lines && p_.wide_out != 0 && c + 4 <= p_.n) {
          __stcs(reinterpret_cast<float4*>(to + c),
                 float4{elsewhere(sums[i][j], one), elsewhere(sums[i][j + 1], one),
                        elsewhere(sums[i][j + 2], one), elsewhere(sums[i][j + 3], one)});
          continue;
        }
#pragma unroll
        for (uint32_t e = 0; e < 4; ++e) {
          if (tile.col + col(j + e) < p_.n) __stcs(to + tile.col + col(j + e), sums[i][j + e]);
        }
      }
    }
  }

  const SegmentedSm90Params& p_;
  const SegmentedRing<Tile> ring_;
  StepSender<FmaConsumer> sender_;
  uint32_t x_, y_;
  uint32_t step_ = 0;  // of the ring
};

}  // namespace moeblas::cuda
