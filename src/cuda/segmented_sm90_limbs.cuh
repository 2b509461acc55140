// segmented_sm90_limbs: float32 on the tensor cores, in the frame of segmented_sm90, from the
// float16 limbs that segmented_limbs made of a and b (segmented_limbs_params.h). Used by
// segmented_mm where sums need not be IEEE multiply-adds.
//
//   warps 0 - 7    multiply: a warpgroup has 64 rows of the tile, both factors from shared memory
//   warps 8 - 10   send the records of a, those of b, and scales, for one thread is too slow for
//   all
//
// Of the four products of limbs the smallest is left out. The first limbs' products have sums of
// their own, beside those of the two that are 2^-12 of them, so that neither cuts off what the
// other brings; tensor cores round sums toward zero, so both run over one record of 64 k and are
// then scaled and added to the tile's in float32. A product is off by at most 2^-21 of itself, the
// last bit of eight that a float32 sum of as many products may miss: segments of fewer than
// kFewestByLimbs are made by multiply-adds from memory. So is every sum that is not finite: there a
// scale says that limbs do not hold a line, or infinities met, or the sum is none. Which elements
// those are depends on their own row and column alone.
//
// The time is that of writing out and of the tensor cores, three products for one.
#pragma once

#include "cuda/device/limbs.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/segmented_sm90.cuh"

namespace moeblas::cuda {

class LimbConsumer {
 public:
  using Tile = LimbTile128x128;
  using Shape = SegmentedShape<Tile>;
  static constexpr uint32_t kThreads = Tile::kConsumers + Tile::kProducers;

  __device__ static void run(const SegmentedSm90Params& p) {
    const uint32_t base = begin_block<Tile>(p);
    const SegmentedRing<Tile> ring(base);
    const ScaleRing scales(base + Shape::kMore);
    if (threadIdx.x == 0) scales.init_barriers();
    __syncthreads();
    if (threadIdx.x < Tile::kConsumers) {
      device::take_registers<232>();
      LimbConsumer(p, ring).consume();
    } else {
      device::leave_registers<40>();
      const uint32_t what = (threadIdx.x - Tile::kConsumers) / 32;
      if (threadIdx.x % 32 != 0) return;
      if (what == 0) send_records<true>(p, ring, p.a_limbs);
      if (what == 1) send_records<false>(p, ring, p.b_limbs);
      if (what == 2) send_scales(p, scales);
    }
  }

 private:
  using Tiles = SegmentTiles<Tile, kLimbHalfK>;

  // The scales of records, those of rows first. This block's alone, and its consumers' longer than
  // the records themselves.
  class ScaleRing {
   public:
    __device__ explicit ScaleRing(uint32_t base) : base_(base) {}
    __device__ uint32_t base() const { return base_; }
    __device__ uint32_t at(uint32_t record) const {
      return base_ + record % kLimbScaleSlots * kLimbScaleBytes;
    }
    __device__ uint32_t full(uint32_t record) const {
      return base_ + kLimbScaleSlots * kLimbScaleBytes + record % kLimbScaleSlots * 16;
    }
    __device__ uint32_t empty(uint32_t record) const { return full(record) + 8; }
    __device__ void init_barriers() const {
      for (uint32_t i = 0; i < kLimbScaleSlots; ++i) {
        device::barrier_init(full(i), 1);
        device::barrier_init(empty(i), Tile::kConsumers / 32);
      }
      device::barrier_init_visible();
    }
    __device__ void wait_full(uint32_t record) const {
      device::barrier_wait(full(record), record / kLimbScaleSlots % 2);
    }
    __device__ void send(uint32_t record, const float* rows, const float* columns) const {
      constexpr uint32_t kBytes = kLimbScaleBytes / 2;
      device::barrier_wait(empty(record), (record / kLimbScaleSlots % 2) ^ 1);
      device::barrier_expect(full(record), kLimbScaleBytes);
      const uint64_t policy = device::evict_normal_policy();
      device::copy_run(at(record), rows, kBytes, full(record), policy);
      device::copy_run(at(record) + kBytes, columns, kBytes, full(record), policy);
    }

   private:
    uint32_t base_;
  };

  // Where the records of a tile begin, where its k end, and what of a record they meet. Too few
  // products take none.
  struct Records {
    uint32_t begin, end;

    __device__ explicit Records(const SegmentTile& tile)
        : begin(tile.begin),
          end(tile.end - tile.begin < tile.head + device::kFewestByLimbs ? 0 : tile.end) {}
    __device__ uint32_t first() const { return begin / kLimbK * kLimbK; }
    __device__ bool has_first_half(uint32_t k) const { return begin < k + kLimbHalfK; }
    __device__ bool has_second_half(uint32_t k) const { return end > k + kLimbHalfK; }
  };

  // ---- Sending, by one thread each

  // Of the halves that count. kRows: those of a, which says how many bytes of both there will be.
  template <bool kRows>
  __device__ static void send_records(const SegmentedSm90Params& p, const SegmentedRing<Tile>& ring,
                                      const Limbs& limbs) {
    Tiles tiles(p, ring.base());
    const uint64_t policy = device::evict_normal_policy();
    uint32_t slot = 0;
    device::wait_for_previous_launch();
    for (SegmentTile tile; tiles.next(tile);) {
      const Records records(tile);
      const uint64_t number = uint64_t{(kRows ? tile.row : tile.col) / kLimbLines} * p.k_records;
      for (uint32_t k = records.first(); k < records.end; k += kLimbK, ++slot) {
        const uint32_t first = records.has_first_half(k) ? 0 : kLimbHalfBytes;
        const uint32_t end = records.has_second_half(k) ? kLimbRecordBytes : kLimbHalfBytes;
        ring.wait_empty(slot);
        if (kRows) device::barrier_expect(ring.full(slot), 2 * (end - first));
        device::copy_run((kRows ? ring.a(slot) : ring.b(slot)) + first,
                         limbs.records + (number + k / kLimbK) * kLimbRecordBytes + first,
                         end - first, ring.full(slot), policy);
      }
    }
  }

  __device__ static void send_scales(const SegmentedSm90Params& p, const ScaleRing& scales) {
    Tiles tiles(p, scales.base() - Shape::kMore);
    uint32_t slot = 0;
    device::wait_for_previous_launch();
    for (SegmentTile tile; tiles.next(tile);) {
      const Records records(tile);
      const uint64_t rows = uint64_t{tile.row / kLimbLines} * p.k_records;
      const uint64_t columns = uint64_t{tile.col / kLimbLines} * p.k_records;
      for (uint32_t k = records.first(); k < records.end; k += kLimbK, ++slot) {
        scales.send(slot, p.a_limbs.scales + (rows + k / kLimbK) * kLimbLines,
                    p.b_limbs.scales + (columns + k / kLimbK) * kLimbLines);
      }
    }
  }

  // ---- Multiplying

  static constexpr uint32_t kSums = Tile::kCols / 2;
  // Barriers of the warpgroups, beside that of all threads.
  static constexpr uint32_t kFirstGroup = 1;
  using Sums = float (&)[kSums];
  using ConstSums = const float (&)[kSums];

  __device__ LimbConsumer(const SegmentedSm90Params& p, const SegmentedRing<Tile>& ring)
      : p_(p),
        ring_(ring),
        thread_(threadIdx.x % 128),
        group_(device::uniform(threadIdx.x / 128)),
        row_(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
        col_(threadIdx.x % 4 * 2) {}

  __device__ void consume() {
    Tiles tiles(p_, ring_.base());
    for (SegmentTile tile; tiles.next(tile);) {
      float total[kSums];
#pragma unroll
      for (uint32_t i = 0; i < kSums; ++i) total[i] = 0.0f;
      const Records records(tile);
      multiply(total, records, tile.head);
      device::make_again(total, lines(p_.a_lines, p_.m), lines(p_.b_lines, p_.n), tile.row + row_,
                         tile.col + col_, tile.begin + tile.head, tile.end, records.end < tile.end);
      store(total, tile);
    }
  }

  __device__ static device::FloatLines lines(const SegmentedLines& l, uint32_t count) {
    return {reinterpret_cast<const float*>(l.data), l.stride, l.k_stride, count};
  }

  // The first `head` k do not count.
  __device__ void multiply(Sums total, const Records& records, uint32_t head) {
    const uint32_t end = device::uniform(records.end);
    for (uint32_t k = device::uniform(records.first()); k < end; k += kLimbK, ++record_) {
      float first[kSums], second[kSums];
      ring_.wait_full(record_);
      if (records.has_first_half(k)) {
        multiply_half<false>(first, second, 0, head, end - k);
        if (records.has_second_half(k)) {
          multiply_half<true>(first, second, 1, 0, end - k - kLimbHalfK);
        }
      } else {
        multiply_half<false>(first, second, 1, head, end - k - kLimbHalfK);
      }
      head = 0;
      device::wgmma_wait<0>();
      __syncwarp();
      ring_.release(record_);
      add_scaled(total, first, second);
    }
  }

  // Of the 32 k of a half of the record those from `begin` and before `end`. Without kAdd, sums
  // begin anew.
  template <bool kAdd>
  __device__ void multiply_half(Sums first, Sums second, uint32_t half, uint32_t begin,
                                uint32_t end) {
    using Wgmma = device::WgmmaShared<device::Float16, Tile::kCols, false>;
    const uint32_t at = half * kLimbHalfBytes;
    const uint32_t a = ring_.a(record_) + at + group_ * (64 * kStepBytes);
    if (begin > 0 || end < kLimbHalfK) {
      device::clear_limbs(a, 64, begin, end, thread_, 128);
      device::shared_stores_visible();
      device::named_barrier(kFirstGroup + group_, 128);
    }
    const uint32_t rows = device::uniform(device::wgmma_columns_at(a));
    const uint32_t columns = device::uniform(device::wgmma_columns_at(ring_.b(record_) + at));
    constexpr uint32_t kNext = device::wgmma_columns_step(16 * 2);
    constexpr uint32_t kSecond = device::wgmma_columns_step(kLimbHalfK * 2);
    device::wgmma_begin();
#pragma unroll
    for (uint32_t i = 0; i < kLimbHalfK / 16; ++i) {
      const uint64_t a0 = device::wgmma_columns(rows + i * kNext);
      const uint64_t a1 = device::wgmma_columns(rows + i * kNext + kSecond);
      const uint64_t b0 = device::wgmma_columns(columns + i * kNext);
      const uint64_t b1 = device::wgmma_columns(columns + i * kNext + kSecond);
      if (i == 0) {
        Wgmma::template multiply<false, kAdd>(first, a0, b0);
        Wgmma::template multiply<false, kAdd>(second, a0, b1);
      } else {
        Wgmma::template multiply<false>(first, a0, b0);
        Wgmma::template multiply<false>(second, a0, b1);
      }
      Wgmma::template multiply<false>(second, a1, b0);
    }
    device::wgmma_commit();
  }

  __device__ void add_scaled(Sums total, ConstSums first, ConstSums second) {
    const ScaleRing scales(ring_.base() + Shape::kMore);
    const uint32_t at = scales.at(record_);
    scales.wait_full(record_);
    const float of_row[2] = {device::load_shared_float(at + row_ * 4),
                             device::load_shared_float(at + (row_ + 8) * 4)};
    uint32_t read = __float_as_uint(of_row[0]) | __float_as_uint(of_row[1]);
#pragma unroll
    for (uint32_t j = 0; j < kSums / 4; ++j) {
      const uint2 two = device::load_shared_2(at + (kLimbLines + col_ + j * 8) * 4);
      read |= two.x | two.y;
      const float of_col[2] = {__uint_as_float(two.x), __uint_as_float(two.y)};
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float sum = __fmaf_rn(second[4 * j + i], kSecondLimb, first[4 * j + i]);
        total[4 * j + i] = __fmaf_rn(sum, of_row[i / 2] * of_col[i % 2], total[4 * j + i]);
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      device::barrier_arrive(scales.empty(record_) + device::nothing_of(read));
    }
  }

  // ---- Storing

  // Written once, read by none of these kernels: the L2 cache gives it up first. Four lanes write
  // 32 bytes of a row.
  __device__ void store(ConstSums total, const SegmentTile& tile) const {
    float* out = reinterpret_cast<float*>(p_.out_data) + tile.segment * p_.out_step;
    if (p_.wide_out != 0 && tile.row + Tile::kRows <= p_.m && tile.col + Tile::kCols <= p_.n) {
      float* to = out + (tile.row + row_) * p_.out_row_stride + tile.col + col_;
      float* below = to + 8 * p_.out_row_stride;
#pragma unroll
      for (uint32_t i = 0; i < kSums; i += 4) {
        __stcs(reinterpret_cast<float2*>(to + 2 * i), float2{total[i], total[i + 1]});
        __stcs(reinterpret_cast<float2*>(below + 2 * i), float2{total[i + 2], total[i + 3]});
      }
      return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kSums; i += 2) {
      const uint32_t r = tile.row + row_ + i % 4 / 2 * 8, c = tile.col + col_ + i / 4 * 8;
      if (r >= p_.m) continue;
      float* to = out + r * p_.out_row_stride + c;
      if (c < p_.n) __stcs(to, total[i]);
      if (c + 1 < p_.n) __stcs(to + 1, total[i + 1]);
    }
  }

  const SegmentedSm90Params& p_;
  const SegmentedRing<Tile> ring_;
  uint32_t thread_, group_;
  uint32_t row_, col_;  // of this thread's first sums in the tile
  uint32_t record_ = 0;
};

}  // namespace moeblas::cuda
