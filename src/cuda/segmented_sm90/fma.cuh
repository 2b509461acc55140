// The consumers of segmented_sm90 for float32 by IEEE fused multiply-adds, one per product, in
// ascending k. kDown threads share the rows of a tile, kAcross its columns; a thread loads two k of
// its rows and of its columns, up to 16 bytes at a time, and multiplies them.
//
// In wide tiles 128 multiply-adds follow eight or twelve loads, and issuing instructions is the
// limit: nearly every clock has one, or waits since a multiply-add reads two registers of one of
// the two banks. Which do follows from what is written here by what the compiler makes of it, in
// which three things count: where sums begin (begin), in which order operands are loaded and
// multiplied (multiply_pairs), and at which columns rows change (add_products). Columns must lie
// along their lines for that: where they lie along K, others turn them (segmented_sm90/turn.cuh).
// Two blocks share a multiprocessor, so that a scheduler has three other warps while one loads,
// waits or stores.
#pragma once

#include "cuda/segmented_sm90/kernel.cuh"
#include "cuda/segmented_sm90/turn.cuh"

namespace moeblas::cuda {

// Where columns are turned, those who do that look at where tiles are, too.
template <class Tile, bool kTurns>
struct FmaTile : Tile {
  static constexpr uint32_t kTileReaders = Tile::kConsumers + (kTurns ? Tile::kProducers - 32 : 0);
};

template <class TileOf, Along kAlongA, Along kAlongB>
class FmaConsumer {
 public:
  static constexpr Along kA = kAlongA, kB = kAlongB;
  static constexpr bool kTurns = kB == Along::k;
  using Tile = FmaTile<TileOf, kTurns>;
  using Turner = ColumnTurner<Tile>;
  // An operand that lies along its lines comes as one box: rows of all lines per k.
  static constexpr uint32_t kStepK = kStepBytes / 4, kChunk = 256;
  using Tiles = SegmentTiles<Tile, kStepAlign<kA, kB, 4>>;

  // Of 80 a thread that two blocks have, what those of warps that send and turn leave.
  static constexpr uint32_t kRegisters = 104, kLeft = 32;
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
  // Rows along K are loaded by two k of one, others by four neighbours of one k, as columns are.
  static constexpr bool kPairs = kA == Along::k;
  // Which row and column a thread's i-th and j-th are.
  __device__ uint32_t row(uint32_t i) const {
    return kPairs ? y_ + kDown * i : i / 4 * (4 * kDown) + y_ * 4 + i % 4;
  }
  __device__ uint32_t col(uint32_t j) const { return j / 4 * (4 * kAcross) + x_ * 4 + j % 4; }

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
      if constexpr (kTurns) Turner::wait(ring_, step_);
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

  // The compiler keeps in one place what arrives last and multiplies it by all that is there: rows
  // that come by pairs of k are loaded last, one after the other. Rows that come by fours leave it
  // fewer registers that are bound to each other: then half of them, and one k of columns, are
  // loaded for the next two k as soon as they have been multiplied. (By pairs, that would make it
  // read banks twice one multiply-add in four.)
  __device__ void multiply_pairs(float (&sums)[kRowsEach][kColsEach], uint32_t a, uint32_t b,
                                 uint32_t k, uint32_t end) const {
    if (k >= end) return;
    constexpr uint32_t kMore = kRowsEach - 4;
    float x[2][kRowsEach], y[2][kColsEach];
    TwoK at(*this, a, b, k);
    if constexpr (!kPairs) {
      load_b(y[0], at.b());
      load_a<0, 4>(x, at.a(k));
    }
#pragma unroll 1
    for (bool more = true; more;) {
      if constexpr (kPairs) load_b(y[0], at.b());
      load_b(y[1], at.next_b());
      load_a<kPairs ? 0 : 4, kPairs ? kRowsEach : kMore>(x, at.a(k));
      at.advance(k);
      more = k < end;
      if constexpr (kPairs) {
        add_products(sums, x[0], y[0]);
        add_products(sums, x[1], y[1]);
      } else {
        add_products<0, 4>(sums, x[0], y[0]);
        add_products<0, 4>(sums, x[1], y[1]);
        if (more) load_a<0, 4>(x, at.a(k));
        add_products<4, kMore>(sums, x[0], y[0]);
        if (more) load_b(y[0], at.b());
        add_products<4, kMore>(sums, x[1], y[1]);
      }
    }
  }

  __device__ void multiply_one(float (&sums)[kRowsEach][kColsEach], uint32_t a, uint32_t b,
                               uint32_t k) const {
    float x[kRowsEach], y[kColsEach];
    load_b(y, b_at(b, k));
    if constexpr (kPairs) {
#pragma unroll
      for (uint32_t i = 0; i < kRowsEach; ++i) {
        x[i] = device::load_shared_float(a_at(a, k) + i * kDown * kStepBytes);
      }
    } else {
      load_four_of<0, kRowsEach>(x, a_at(a, k));
    }
    add_products(sums, x, y);
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
  template <uint32_t kFirst = 0, uint32_t kCount = kRowsEach>
  __device__ static void add_products(float (&sums)[kRowsEach][kColsEach],
                                      const float (&x)[kRowsEach], const float (&y)[kColsEach]) {
#pragma unroll
    for (uint32_t i = kFirst; i < kFirst + kCount; ++i) {
#pragma unroll
      for (uint32_t n = 0; n < kColsEach; ++n) {
        const uint32_t j = i % 2 == 0 ? n : kColsEach - 1 - n;
        sums[i][j] = __fmaf_rn(x[i], y[j], sums[i][j]);
      }
    }
  }

  // Volatile, that is in the order in which they are written here.
  __device__ static void load_four(float* v, uint32_t from) {
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(from));
  }
  __device__ static float2 load_two(uint32_t from) {
    float2 v;
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from));
    return v;
  }
  // Where this thread's first row, or columns, of k are.
  __device__ uint32_t a_at(uint32_t a, uint32_t k) const {
    if (!kPairs) return a + (k * Tile::kRows + y_ * 4) * 4;
    return (a + y_ * kStepBytes + (y_ % 8 << 4)) ^ k * 4;
  }
  __device__ uint32_t b_at(uint32_t b, uint32_t k) const {
    return b + (kTurns ? TurnOrder::at(x_) ^ TurnOrder::flip(k) : (k * Tile::kCols + x_ * 4) * 4);
  }
  // Both, of even k one after the other, and columns of the k behind each.
  class TwoK {
   public:
    __device__ TwoK(const FmaConsumer& consumer, uint32_t a, uint32_t b, uint32_t k)
        : a_(consumer.a_at(a, kPairs ? 0 : k)),
          b_(consumer.b_at(b, kTurns ? 0 : k)),
          line_(TurnOrder::flip_line(k % 4)),
          flip_(TurnOrder::flip(k)) {}
    __device__ uint32_t a(uint32_t k) const { return kPairs ? a_ ^ k * 4 : a_; }
    __device__ uint32_t b() const { return kTurns ? b_ ^ flip_ : b_; }
    __device__ uint32_t next_b() const {
      return kTurns ? b_ ^ flip_ ^ TurnOrder::flip(1) : b_ + Tile::kCols * 4;
    }
    __device__ void advance(uint32_t& k) {
      k += 2;
      if (!kPairs) a_ += Tile::kRows * 8;
      if (!kTurns) b_ += Tile::kCols * 8;
      line_ ^= TurnOrder::flip_line(2);
      flip_ = line_ ^ TurnOrder::flip_chunk(k / 4);
    }

   private:
    uint32_t a_, b_, line_, flip_;
  };
  // Of one k.
  template <uint32_t kFirst, uint32_t kCount>
  __device__ static void load_four_of(float (&x)[kRowsEach], uint32_t from) {
#pragma unroll
    for (uint32_t i = kFirst; i < kFirst + kCount; i += 4) load_four(&x[i], from + i * kDown * 4);
  }
  // Of an even k and the next.
  template <uint32_t kFirst, uint32_t kCount>
  __device__ static void load_a(float (&x)[2][kRowsEach], uint32_t from) {
    if constexpr (kPairs) {
#pragma unroll
      for (uint32_t i = kFirst; i < kFirst + kCount; ++i) {
        const float2 v = load_two(from + i * kDown * kStepBytes);
        x[0][i] = v.x, x[1][i] = v.y;
      }
    } else {
      load_four_of<kFirst, kCount>(x[1], from + Tile::kRows * 4);
      load_four_of<kFirst, kCount>(x[0], from);
    }
  }
  __device__ static void load_b(float (&y)[kColsEach], uint32_t from) {
#pragma unroll
    for (uint32_t j = 0; j < kColsEach; j += 4) {
      load_four(&y[j], from + j * kAcross * (kTurns ? kStepBytes : 4));
    }
  }

  // Written once, read by none of these kernels: the L2 cache gives it up first.
  __device__ void store(const float (&sums)[kRowsEach][kColsEach], const SegmentTile& tile) const {
    auto* out = reinterpret_cast<float*>(p_.out_data) + tile.segment * p_.out_step;
    const bool wide = p_.wide_out != 0;
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
