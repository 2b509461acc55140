// segmented_sm90_limbs: float32 on the tensor cores, in the frame of segmented_sm90. A float32 is
// the sum of three bf16 limbs, exactly, and of the nine products of limbs the six largest are as
// good as a float32 product. Used by segmented_mm where sums need not be IEEE multiply-adds.
//
//   warps 0 - 7     multiply; they split the rows of a in their registers, 64 a warpgroup
//   warps 8 - 11    split steps of b into planes
//   warp 12         sends steps
//
// Tensor cores round sums toward zero. So a warpgroup's sums run over one step of 32 k, the
// smallest products first, and are then added to the tile's in float32: what is cut off stays as
// small as a float32 sum's own rounding. At precision `fast`, two limbs and three products: 16
// bits, where tf32 has 11.
//
// Limbs hold everything from 2^-110 on. A tile that meets a smaller number, a sum that is not
// finite (limbs of infinity are none), and a sum of fewer than kFewest products, in which every cut
// shows, are made again by multiply-adds from memory.
//
// The limit is the tensor cores, six products for one.
#pragma once

#include "cuda/device/wgmma.cuh"
#include "cuda/segmented_sm90.cuh"

namespace moeblas::cuda {

// Planes of the limbs of b, two steps side by side: buffers between those who split and those who
// multiply.
class LimbPlanes {
 public:
  using Tile = LimbTile128x128;
  static constexpr uint32_t kBuffers = 2, kSplitWarps = Tile::kSplitters / 32;
  static constexpr uint32_t kOut = Tile::kMultipliers / 128 * Tile::kOutBuffers * kOutBytes;

  __device__ explicit LimbPlanes(uint32_t base)
      : base_(base + SegmentedShape<Tile>::kMore + kOut) {}
  // Where sums stand until bulk copies have read them, by warpgroup.
  __device__ uint32_t out() const { return base_ - kOut; }

  __device__ void init_barriers() const {
    for (uint32_t i = 0; i < kBuffers; ++i) {
      device::barrier_init(full(i), kSplitWarps);
      device::barrier_init(empty(i), Tile::kMultipliers / 32);
    }
    device::barrier_init_visible();
  }
  __device__ uint32_t plane(uint32_t limb) const { return base_ + limb * Tile::kPlaneBytes; }
  __device__ uint32_t full(uint32_t step) const {
    return plane(Tile::kMostLimbs) + step % kBuffers * 8;
  }
  __device__ uint32_t empty(uint32_t step) const { return full(step) + kBuffers * 8; }
  // A word per splitting warp: not 0 if it met a number too small.
  __device__ uint32_t small(uint32_t step) const {
    return plane(Tile::kMostLimbs) + kBuffers * 16 + step % kBuffers * (kSplitWarps * 4);
  }
  __device__ void wait_full(uint32_t step) const {
    device::barrier_wait(full(step), step / kBuffers % 2);
  }
  __device__ void wait_empty(uint32_t step) const {
    device::barrier_wait(empty(step), (step / kBuffers % 2) ^ 1);
  }

 private:
  uint32_t base_;
};

// Those who multiply and those who split.
template <uint32_t kLimbs, class TileOf, Along kAlongA, Along kAlongB>
class LimbConsumer {
 public:
  using Tile = TileOf;
  static constexpr Along kA = kAlongA, kB = kAlongB;
  static constexpr uint32_t kStepK = kStepBytes / 4, kChunk = 256;
  using Tiles = SegmentTiles<Tile, kStepAlign<kA, kB, 4>>;
  static constexpr uint32_t kThreads = Tile::kConsumers + Tile::kProducers;

  __device__ static void run(const SegmentedSm90Params& p) {
    const uint32_t base = begin_block<Tile>(p);
    const SegmentedRing<Tile> ring(base);
    const LimbPlanes planes(base);
    if (threadIdx.x == 0) planes.init_barriers();
    __syncthreads();
    if (threadIdx.x < Tile::kMultipliers) {
      device::take_registers<208>();
      multiply(p, ring, planes);
    } else if (threadIdx.x < Tile::kConsumers) {
      device::leave_registers<72>();
      split(p, ring, planes);
    } else {
      device::leave_registers<24>();
      if (threadIdx.x == Tile::kConsumers) {
        StepSender<LimbConsumer> sender(p, ring);
        while (sender.send()) {
        }
      }
    }
  }

 private:
  static constexpr uint32_t kPlaneChunkBytes = 64 * 128;  // 64 columns of 64 k

  // ---- Splitting b

  __device__ static void split(const SegmentedSm90Params& p, const SegmentedRing<Tile>& ring,
                               const LimbPlanes& planes) {
    Tiles tiles(p, ring.base());
    uint32_t step = 0;
    const uint32_t thread = threadIdx.x % 128, lane = thread % 32;
    for (SegmentTile tile; tiles.next(tile);) {
      for (uint32_t k = tile.begin; k < tile.end; k += kStepK, ++step) {
        const uint32_t begin = k == tile.begin ? tile.head : 0, end = min(tile.end - k, kStepK);
        ring.wait_full(step);
        planes.wait_empty(step);
        uint32_t smallest = ~0u;
        if (end - begin == kStepK) {
          split_columns<false>(ring.b(step), planes.plane(0), step, 0, kStepK, smallest);
        } else {
          split_columns<true>(ring.b(step), planes.plane(0), step, begin, end, smallest);
        }
        device::shared_stores_visible();
        const bool small = __any_sync(0xffffffffu, smallest < kSmall);
        if (lane == 0) {
          asm volatile("st.shared.u32 [%0], %1;" ::"r"(planes.small(step) + thread / 32 * 4),
                       "r"(static_cast<uint32_t>(small))
                       : "memory");
        }
        __syncwarp();
        if (lane == 0) device::barrier_arrive(planes.full(step));
        ring.release(step);
      }
    }
  }

  // 2^-110, twice its bits, less 1: of 0 this is the largest number.
  static constexpr uint32_t kSmall = (127u - 110) << 24;

  // Eight neighbours at a time: k of a column, or columns of a k. The planes hold them as wgmma
  // wants them, in the half that is the step's. kPart: not all k count.
  template <bool kPart>
  __device__ static void split_columns(uint32_t from, uint32_t planes, uint32_t step,
                                       uint32_t begin, uint32_t end, uint32_t& smallest) {
    const uint32_t thread = threadIdx.x % 128, half = step % LimbPlanes::kBuffers;
#pragma unroll
    for (uint32_t i = 0; i < Tile::kCols / 32; ++i) {
      uint4 low, high;
      uint32_t to;
      if constexpr (kB == Along::k) {
        // Columns four apart side by side, so that a warp's stores meet no bank twice.
        const uint32_t col = i * 32 + thread / 32 * 8 + thread / 8 % 4 + thread / 4 % 2 * 4;
        const uint32_t eight = thread % 4;
        const uint32_t at = from + col * kStepBytes;
        low = device::load_shared_4(at + ((eight * 2 ^ col % 8) << 4));
        high = device::load_shared_4(at + (((eight * 2 + 1) ^ col % 8) << 4));
        if (kPart) {
          keep(low, eight * 8, begin, end);
          keep(high, eight * 8 + 4, begin, end);
        }
        to = col * 128 + (((half * 4 + eight) ^ col % 8) << 4);
      } else {
        constexpr uint32_t kEights = Tile::kCols / 8;
        const uint32_t unit = i * 128 + thread, k = unit / kEights, eight = unit % kEights;
        const uint32_t at = from + (k * Tile::kCols + eight * 8) * 4, row = half * kStepK + k;
        low = device::load_shared_4(at);
        high = device::load_shared_4(at + 16);
        if (kPart && (k < begin || k >= end)) low = high = {0, 0, 0, 0};
        to = eight / 8 * kPlaneChunkBytes + row * 128 + ((eight % 8 ^ row % 8) << 4);
      }
      uint4 limbs[kLimbs];
      split_pair(low.x, low.y, &limbs[0].x, smallest);
      split_pair(low.z, low.w, &limbs[0].y, smallest);
      split_pair(high.x, high.y, &limbs[0].z, smallest);
      split_pair(high.z, high.w, &limbs[0].w, smallest);
#pragma unroll
      for (uint32_t l = 0; l < kLimbs; ++l) {
        device::store_shared_4(planes + l * Tile::kPlaneBytes + to, limbs[l]);
      }
    }
  }
  __device__ static void keep(uint4& four, uint32_t k, uint32_t begin, uint32_t end) {
    if (k < begin || k >= end) four.x = 0;
    if (k + 1 < begin || k + 1 >= end) four.y = 0;
    if (k + 2 < begin || k + 2 >= end) four.z = 0;
    if (k + 3 < begin || k + 3 >= end) four.w = 0;
  }
  // The limbs of two numbers, a word each, kApart words apart. Each is the nearest to what those
  // before it leave.
  template <uint32_t kApart = 4>
  __device__ static void split_pair(uint32_t x0, uint32_t x1, uint32_t* limb, uint32_t& smallest) {
    smallest = __vimin3_u32(smallest, x0 * 2 - 1, x1 * 2 - 1);
    float rest0 = __uint_as_float(x0), rest1 = __uint_as_float(x1);
#pragma unroll
    for (uint32_t l = 0; l < kLimbs; ++l) {
      uint32_t pair;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(rest1), "f"(rest0));
      limb[l * kApart] = pair;
      rest0 -= __uint_as_float(pair << 16);
      rest1 -= __uint_as_float(pair & 0xffff0000u);
    }
  }

  // ---- Multiplying

  static constexpr uint32_t kSums = Tile::kCols / 2, kFewest = 8;
  static constexpr uint32_t kProducts = kStepK / 16;  // of each pair of limbs in a step
  // Barriers of the multiplying warpgroups, beside that of all threads.
  static constexpr uint32_t kFirstGroup = 1;

  // A step of this warpgroup's rows as A of wgmma.
  struct Rows {
    uint32_t a[kProducts][4][kLimbs];
  };

  __device__ static void multiply(const SegmentedSm90Params& p, const SegmentedRing<Tile>& ring,
                                  const LimbPlanes& planes) {
    Tiles tiles(p, ring.base());
    uint32_t step = 0;
    for (SegmentTile tile; tiles.next(tile);) {
      float sums[kSums], total[kSums];
#pragma unroll
      for (uint32_t i = 0; i < kSums; ++i) sums[i] = total[i] = 0.0f;
      uint32_t small = 0, smallest = ~0u;
      const uint32_t length = device::uniform(tile.end - tile.begin);
      Rows rows, next;
      if (length > 0) {
        take_rows<true>(rows, ring, step, tile.head, min(length, kStepK), smallest);
      }
      for (uint32_t k = 0; k < length; k += 2 * kStepK) {
        multiply_step(sums, total, rows, next, ring, planes, step++, length - k, small, smallest);
        if (length - k <= kStepK) break;
        multiply_step(sums, total, next, rows, ring, planes, step++, length - k - kStepK, small,
                      smallest);
      }
      const bool too_small = __any_sync(0xffffffffu, small != 0 || smallest < kSmall);
      store(p, planes, total, tile, too_small || (length > 0 && length - tile.head < kFewest));
    }
    if (threadIdx.x % 128 == 0) device::bulk_store_wait_read<0>();
  }

  // One step, of which and behind which there are `left` k; takes the next step's rows meanwhile.
  __device__ static void multiply_step(float (&sums)[kSums], float (&total)[kSums],
                                       const Rows& rows, Rows& next,
                                       const SegmentedRing<Tile>& ring, const LimbPlanes& planes,
                                       uint32_t step, uint32_t left, uint32_t& small,
                                       uint32_t& smallest) {
    planes.wait_full(step);
    begin_products(sums, rows, planes, step);
    // By the lane that then gives the buffer back.
    if (threadIdx.x % 32 == 0) {
      const uint4 flags = device::load_shared_4(planes.small(step));
      small |= flags.x | flags.y | flags.z | flags.w;
    }
    if (left >= 2 * kStepK) {
      take_rows<false>(next, ring, step + 1, 0, kStepK, smallest);
    } else if (left > kStepK) {
      take_rows<true>(next, ring, step + 1, 0, left - kStepK, smallest);
    }
    device::wgmma_wait<0>();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      device::barrier_arrive(planes.empty(step) + device::nothing_of(small));
    }
#pragma unroll
    for (uint32_t i = 0; i < kSums; ++i) total[i] += sums[i];
  }

  // Loads and splits; the slot may then be filled again. kPart: not all k count.
  template <bool kPart>
  __device__ static void take_rows(Rows& rows, const SegmentedRing<Tile>& ring, uint32_t step,
                                   uint32_t begin, uint32_t end, uint32_t& smallest) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = threadIdx.x / 32 * 16 + lane / 4, a = ring.a(step);
    uint32_t read = 0;
    ring.wait_full(step);
#pragma unroll
    for (uint32_t j = 0; j < kProducts; ++j) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t r = row + i % 2 * 8, k = j * 16 + i / 2 * 8 + lane % 4 * 2;
        uint2 two;
        if constexpr (kA == Along::k) {
          two = device::load_shared_2(a + r * kStepBytes + ((k / 4 ^ r % 8) << 4) + k % 4 * 4);
        } else {
          const uint32_t at = a + (k * Tile::kRows + r) * 4;
          two.x = __float_as_uint(device::load_shared_float(at));
          two.y = __float_as_uint(device::load_shared_float(at + Tile::kRows * 4));
        }
        read |= two.x | two.y;
        if (kPart && (k < begin || k >= end)) two.x = 0;
        if (kPart && (k + 1 < begin || k + 1 >= end)) two.y = 0;
        split_pair<1>(two.x, two.y, rows.a[j][i], smallest);
      }
    }
    __syncwarp();
    ring.release(step, device::nothing_of(read));
  }

  __device__ static void begin_products(float (&sums)[kSums], const Rows& rows,
                                        const LimbPlanes& planes, uint32_t step) {
    const uint32_t half = step % LimbPlanes::kBuffers;
    const uint32_t b = planes.plane(0) + half * (kB == Along::k ? kStepK * 2 : kStepK * 128);
    const uint32_t columns =
        device::uniform(kB == Along::k ? device::wgmma_columns_at(b)
                                       : device::wgmma_across_at(b, kPlaneChunkBytes));
    device::wgmma_begin();
    if constexpr (kLimbs == 3) {
      product<1, 1, false>(sums, rows, columns);
      product<0, 2>(sums, rows, columns);
      product<2, 0>(sums, rows, columns);
      product<0, 1>(sums, rows, columns);
    } else {
      product<0, 1, false>(sums, rows, columns);
    }
    product<1, 0>(sums, rows, columns);
    product<0, 0>(sums, rows, columns);
    device::wgmma_commit();
  }

  // The 32 k of a step, one limb of a with one of b.
  template <uint32_t kLimbA, uint32_t kLimbB, bool kAdd = true>
  __device__ static void product(float (&sums)[kSums], const Rows& rows, uint32_t columns) {
    constexpr uint32_t kPlane = device::wgmma_columns_step(Tile::kPlaneBytes);
    constexpr uint32_t kNext =
        device::wgmma_columns_step(kB == Along::k ? 16 * 2 : device::kWgmmaAcrossStep);
    using Wgmma = device::Wgmma<device::Bfloat16, Tile::kCols>;
    constexpr bool kAcross = kB != Along::k;
#pragma unroll
    for (uint32_t j = 0; j < kProducts; ++j) {
      const uint32_t a[4] = {rows.a[j][0][kLimbA], rows.a[j][1][kLimbA], rows.a[j][2][kLimbA],
                             rows.a[j][3][kLimbA]};
      const uint64_t b = device::wgmma_columns(columns + kLimbB * kPlane + j * kNext);
      if (j == 0) {
        Wgmma::template multiply<kAcross, kAdd>(sums, a, b);
      } else {
        Wgmma::template multiply<kAcross>(sums, a, b);
      }
    }
  }

  // ---- Storing

  // Where this thread's first sums belong.
  struct Place {
    uint32_t row, col;

    __device__ explicit Place(const SegmentTile& tile)
        : row(tile.row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
          col(tile.col + threadIdx.x % 4 * 2) {}
  };

  // Bulk copies write a warpgroup's sums while it makes the next; not those of which any has to be
  // made again.
  __device__ static void store(const SegmentedSm90Params& p, const LimbPlanes& planes,
                               const float (&total)[kSums], const SegmentTile& tile, bool small) {
    bool again = small;
#pragma unroll
    for (uint32_t i = 0; i < kSums; ++i) again |= !isfinite(total[i]);
    if (p.bulk_out == 0) return store_by_elements(p, total, tile, again);
    const uint32_t group = device::uniform(threadIdx.x / 128), row = tile.row + group * 64;
    if (row >= p.m) return;
    // Of the last tile, all copies have read.
    if (threadIdx.x % 128 == 0) device::bulk_store_wait_read<0>();
    if (device::named_barrier_any(kFirstGroup + group, 128, again)) {
      return store_by_elements(p, total, tile, again);
    }
    const uint32_t out = planes.out() + group * (Tile::kOutBuffers * kOutBytes);
    const uint32_t r = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (uint32_t i = 0; i < kSums; i += 2) {
      // 16 bytes of a row of 32 columns, in the 128-byte swizzle.
      const uint32_t j = i / 4, part = (j % 4 * 2 + threadIdx.x % 4 / 2) ^ r % 8;
      device::store_shared_2(out + j / 4 * kOutBytes + (r + i % 4 / 2 * 8) * kStepBytes +
                                 part * 16 + threadIdx.x % 2 * 8,
                             {__float_as_uint(total[i]), __float_as_uint(total[i + 1])});
    }
    device::shared_stores_visible();
    device::named_barrier(kFirstGroup + group, 128);
    if (threadIdx.x % 128 == 0) {
      const uint64_t policy = device::evict_first_policy();
#pragma unroll
      for (uint32_t i = 0; i < Tile::kOutBuffers; ++i) {
        const uint32_t col = tile.col + i * (kStepBytes / 4);
        if (col >= p.n) break;
        device::store_box(&p.out, static_cast<int32_t>(col), static_cast<int32_t>(row),
                          static_cast<int32_t>(tile.segment), out + i * kOutBytes, policy);
      }
      device::bulk_store_commit();
    }
  }

  __device__ static void store_by_elements(const SegmentedSm90Params& p,
                                           const float (&total)[kSums], const SegmentTile& tile,
                                           bool again) {
    const Place at(tile);
    float* out = reinterpret_cast<float*>(p.out_data) + tile.segment * p.out_step;
#pragma unroll
    for (uint32_t i = 0; i < kSums; i += 2) {
      const uint32_t r = at.row + i % 4 / 2 * 8, c = at.col + i / 4 * 8;
      if (r >= p.m) continue;
      float* to = out + r * p.out_row_stride + c;
      if (p.wide_out != 0 && c + 2 <= p.n) {
        __stcs(reinterpret_cast<float2*>(to), float2{total[i], total[i + 1]});
      } else {
        if (c < p.n) __stcs(to, total[i]);
        if (c + 1 < p.n) __stcs(to + 1, total[i + 1]);
      }
    }
    if (again) store_again(p, tile, at.row, at.col, out);
  }
  // This thread's elements by multiply-adds.
  __device__ static void store_again(const SegmentedSm90Params& p, const SegmentTile& tile,
                                     uint32_t row, uint32_t col, float* out) {
    const float* a = reinterpret_cast<const float*>(p.a_lines.data);
    const float* b = reinterpret_cast<const float*>(p.b_lines.data);
#pragma unroll 1
    for (uint32_t i = 0; i < kSums; ++i) {
      const uint32_t r = row + i % 4 / 2 * 8, c = col + i / 4 * 8 + i % 2;
      if (r >= p.m || c >= p.n) continue;
      float sum = 0.0f;
      for (uint32_t k = tile.begin + tile.head; k < tile.end; ++k) {
        sum = __fmaf_rn(a[r * p.a_lines.stride + k * p.a_lines.k_stride],
                        b[c * p.b_lines.stride + k * p.b_lines.k_stride], sum);
      }
      out[r * p.out_row_stride + c] = sum;
    }
  }
};

}  // namespace moeblas::cuda
