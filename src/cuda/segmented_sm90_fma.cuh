// The consumers of segmented_sm90 for float32 by IEEE fused multiply-adds, one per product, in
// ascending k. kDown threads share the rows of a tile, kAcross its columns; a thread loads two k of
// its rows and of its columns, up to 16 bytes at a time, and multiplies them.
//
// In wide tiles 128 multiply-adds follow twelve loads, and issuing instructions is the limit:
// nearly every clock has one, or waits since a multiply-add reads two registers of one of the two
// banks. Which do follows from what is written here by what the compiler makes of it, in which
// three things count: where sums begin (begin), that columns are loaded before rows
// (multiply_pairs), and at which columns rows change (add_products). Two blocks share a
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

  // Of 80 a thread that two blocks have, what 24 of each thread that sends leave.
  static constexpr uint32_t kRegisters = 104;
  static constexpr uint32_t kThreads = Tile::kConsumers + Tile::kProducers;
  __device__ static void run(const SegmentedSm90Params& p) { run_segmented<FmaConsumer>(p); }

  __device__ FmaConsumer(const SegmentedSm90Params& p, const SegmentedRing<Tile>& ring, uint32_t)
      : p_(p), ring_(ring) {
    // A warp is 4 threads down and 8 across. Lanes whose numbers differ in bit 0 have the same
    // rows, those that differ in bit 1 the same columns: shared memory then answers loads of 8 and
    // of 16 bytes in half as many clocks.
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x_ = warp % (kAcross / 8) * 8 + lane / 4 % 4 * 2 + lane % 2;
    y_ = warp / (kAcross / 8) * 4 + lane / 16 * 2 + lane / 2 % 2;
  }

  __device__ void consume() {
    const TileRing<Tile> tiles(ring_.base());
    SegmentTile tile;
    // Read again where it is stored, and not kept meanwhile: registers are short.
    for (uint32_t index = 0; tiles.read(index, tile); ++index) {
      float sums[kRowsEach][kColsEach];
      begin(sums);
      multiply(sums, tile.head, tile.end - tile.begin);
      tiles.read(index, tile);
      store(sums, tile);
      tiles.release(index, tile);
    }
  }

 private:
  static constexpr uint32_t kDown = Tile::kDown, kAcross = Tile::kConsumers / kDown;
  static constexpr uint32_t kRowsEach = Tile::kRows / kDown, kColsEach = Tile::kCols / kAcross;
  // Which row and column a thread's i-th and j-th are: neighbours where they are loaded as such.
  __device__ uint32_t row(uint32_t i) const {
    return kA == Along::k ? y_ + kDown * i : i / 4 * (4 * kDown) + y_ * 4 + i % 4;
  }
  __device__ uint32_t col(uint32_t j) const {
    return kB == Along::k ? x_ + kAcross * j : j / 4 * (4 * kAcross) + x_ * 4 + j % 4;
  }

  // Zeros, loaded two at a time so that the second of two neighbours lies in an even register and
  // the first behind it: columns, loaded four at a time, lie the other way around, and a
  // multiply-add reads one register of either bank per clock.
  __device__ void begin(float (&sums)[kRowsEach][kColsEach]) const {
#pragma unroll
    for (uint32_t i = 0; i < kRowsEach; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < kColsEach; j += 2) {
        const float2 v = load_two(ring_.base() + SegmentedShape<Tile>::kZeros);
        sums[i][j + 1] = v.x, sums[i][j] = v.y;
      }
    }
  }

  // `length` k from the ring's next step on, of which the first `k` do not count.
  __device__ void multiply(float (&sums)[kRowsEach][kColsEach], uint32_t k, uint32_t length) {
    for (uint32_t left = length; left > 0; ++step_, k = 0) {
      const uint32_t end = min(left, kStepK);
      left -= end;
      ring_.wait_full(step_);
      const uint32_t a = ring_.a(step_), b = ring_.b(step_);
      if (k % 2 != 0 && k < end) multiply_one(sums, a, b, k++);
      const uint32_t odd = (end - k) % 2;
      multiply_pairs(sums, a, b, k, end - odd);
      if (odd != 0) multiply_one(sums, a, b, end - 1);
      const uint32_t nothing = nothing_of(sums);
      __syncwarp();
      ring_.release(step_, nothing);
    }
  }

  // Columns are loaded before rows, which then arrive one after the other: the compiler multiplies
  // what is there by all columns, and keeps it for that, so that of the other two registers that a
  // multiply-add reads one lies in either bank. Nothing is loaded ahead, for which the block beside
  // this one multiplies.
  __device__ void multiply_pairs(float (&sums)[kRowsEach][kColsEach], uint32_t a, uint32_t b,
                                 uint32_t k, uint32_t end) const {
    const uint32_t first_a = a_at(a, 0), first_b = b_at(b, 0);
#pragma unroll 1
    for (; k < end; k += 2) {
      const uint32_t from_a = kA == Along::k ? first_a ^ k * 4 : first_a + k * (Tile::kRows * 4);
      const uint32_t from_b = kB == Along::k ? first_b ^ k * 4 : first_b + k * (Tile::kCols * 4);
      float x[kRowsEach][2], y[2][kColsEach];
      load_b(y[0], from_b, 0);
      load_b(y[1], from_b, 1);
      load_a(x, from_a);
      add_products(sums, x, 0, y[0]);
      add_products(sums, x, 1, y[1]);
    }
  }
  __device__ void multiply_one(float (&sums)[kRowsEach][kColsEach], uint32_t a, uint32_t b,
                               uint32_t k) const {
    const uint32_t from_a = a_at(a, k);
    float x[kRowsEach][2], y[kColsEach];
    load_b(y, b_at(b, k), 0);
#pragma unroll
    for (uint32_t i = 0; i < kRowsEach; ++i) {
      x[i][0] =
          device::load_shared_float(from_a + (row(i) - row(0)) * (kA == Along::k ? kStepBytes : 4));
    }
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

  // Row by row, columns back and forth, so that where rows change the column stays: of a thread's
  // first k, which lies in even registers, in an odd one (begin), and the other way around.
  __device__ static void add_products(float (&sums)[kRowsEach][kColsEach],
                                      const float (&x)[kRowsEach][2], uint32_t k,
                                      const float (&y)[kColsEach]) {
#pragma unroll
    for (uint32_t i = 0; i < kRowsEach; ++i) {
#pragma unroll
      for (uint32_t n = 0; n < kColsEach; ++n) {
        const uint32_t along = i % 2 == 0 ? n : kColsEach - 1 - n;
        const bool turned = k == 0 ? along >= kColsEach - 2 : along < 2;
        const uint32_t j = turned ? along ^ 1 : along;
        sums[i][j] = __fmaf_rn(x[i][k], y[j], sums[i][j]);
      }
    }
  }

  // Volatile, that is in the order in which they are written here.
  __device__ static float4 load_four(uint32_t from) {
    float4 v;
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from));
    return v;
  }
  __device__ static float2 load_two(uint32_t from) {
    float2 v;
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from));
    return v;
  }
  // Along K, the 16 bytes of a line's four k stand in the 128-byte swizzle.
  __device__ static uint32_t at_k(uint32_t operand, uint32_t line, uint32_t k) {
    return (operand + line * kStepBytes + (line % 8 << 4)) ^ k * 4;
  }

  // Where this thread's first row, or column, of k is.
  __device__ uint32_t a_at(uint32_t a, uint32_t k) const {
    return kA == Along::k ? at_k(a, row(0), k) : a + (k * Tile::kRows + row(0)) * 4;
  }
  __device__ uint32_t b_at(uint32_t b, uint32_t k) const {
    return kB == Along::k ? at_k(b, col(0), k) : b + (k * Tile::kCols + col(0)) * 4;
  }

  // An even k and the next.
  __device__ void load_a(float (&x)[kRowsEach][2], uint32_t from) const {
    if constexpr (kA == Along::k) {
#pragma unroll
      for (uint32_t i = 0; i < kRowsEach; ++i) {
        const float2 v = load_two(from + i * kDown * kStepBytes);
        x[i][0] = v.x, x[i][1] = v.y;
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < kRowsEach; i += 4) {
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
          const float4 v = load_four(from + (j * Tile::kRows + i * kDown) * 4);
          x[i][j] = v.x, x[i + 1][j] = v.y, x[i + 2][j] = v.z, x[i + 3][j] = v.w;
        }
      }
    }
  }
  // One k, `further` than `from`, which is even.
  __device__ void load_b(float (&y)[kColsEach], uint32_t from, uint32_t further) const {
    if constexpr (kB == Along::k) {
#pragma unroll
      for (uint32_t j = 0; j < kColsEach; ++j) {
        y[j] = device::load_shared_float(from + j * kAcross * kStepBytes + further * 4);
      }
    } else {
#pragma unroll
      for (uint32_t j = 0; j < kColsEach; j += 4) {
        const float4 v = load_four(from + (further * Tile::kCols + j * kAcross) * 4);
        y[j] = v.x, y[j + 1] = v.y, y[j + 2] = v.z, y[j + 3] = v.w;
      }
    }
  }

  // Written once, read by none of these kernels: the L2 cache gives it up first.
  __device__ void store(const float (&sums)[kRowsEach][kColsEach], const SegmentTile& tile) const {
    auto* out = reinterpret_cast<float*>(p_.out_data) + tile.segment * p_.out_step;
    const bool wide = kB == Along::lines && p_.wide_out != 0;
    if (wide && tile.row + Tile::kRows <= p_.m && tile.col + Tile::kCols <= p_.n) {
      float* to = out + (tile.row + row(0)) * p_.out_row_stride + tile.col + col(0);
#pragma unroll
      for (uint32_t i = 0; i < kRowsEach; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < kColsEach; j += 4) store_four(to + j * kAcross, &sums[i][j]);
        if (i + 1 < kRowsEach) to += (row(i + 1) - row(i)) * p_.out_row_stride;
      }
      return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kRowsEach; ++i) {
      const uint32_t r = tile.row + row(i);
      if (r >= p_.m) continue;
      float* to = out + r * p_.out_row_stride;
#pragma unroll
      for (uint32_t j = 0; j < kColsEach; j += 4) {
        const uint32_t c = tile.col + col(j);
        if (wide && c + 4 <= p_.n) {
          store_four(to + c, &sums[i][j]);
          continue;
        }
#pragma unroll
        for (uint32_t e = 0; e < 4; ++e) {
          if (tile.col + col(j + e) < p_.n) __stcs(to + tile.col + col(j + e), sums[i][j + e]);
        }
      }
    }
  }
  // By registers of their own: where sums themselves are stored four at a time, they lie as they
  // are stored.
  __device__ void store_four(float* to, const float* sums) const {
    const float one = __uint_as_float(0x3f800000u | p_.m >> 31);  // m has no such bit
    float moved[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      asm volatile("mul.rn.f32 %0, %1, %2;" : "=f"(moved[i]) : "f"(sums[i]), "f"(one));
    }
    __stcs(reinterpret_cast<float4*>(to), float4{moved[0], moved[1], moved[2], moved[3]});
  }

  const SegmentedSm90Params& p_;
  const SegmentedRing<Tile> ring_;
  uint32_t x_, y_;
  uint32_t step_ = 0;  // of the ring
};

}  // namespace moeblas::cuda
