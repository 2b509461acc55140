// segmented_sm90_limbs: float32 on the tensor cores, in the frame of segmented_sm90, from the
// float16 limbs that segmented_limbs made of a and b (segmented_limbs/params.h). Used by
// segmented_mm where sums need not be IEEE multiply-adds.
//
//   warps 0 - 7   multiply: a warpgroup has 64 rows of the tile, both factors from shared memory;
//                 one alone where tiles are few
//   the next      sends steps of 32 k: records of limbs lie there as wgmma wants them
//   the next      finds the places of tiles, ahead of all others
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
// Rings are given back by every lane that read there, or wrote.
//
// Where segments are short the L2 cache is the limit: each tile reads its records from there.
#pragma once

#include "cuda/device/bulk_store.cuh"
#include "cuda/device/limbs.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/segmented_sm90/kernel.cuh"

namespace moeblas::cuda {

template <class TileOf>
class LimbConsumer {
 public:
  using Tile = TileOf;
  using Shape = SegmentedShape<Tile>;
  static constexpr uint32_t kThreads = Tile::kConsumers + Tile::kProducers;

  __device__ static void run(const SegmentedSm90Params& p) {
    // Nobody makes it again from where the block's memory is.
    const uint32_t base = device::forgotten(begin_block<Tile>(p));
    const SegmentedRing<Tile> ring(base);
    const ScaleRing scales(base + kScalesAt);
    const TileRing<Tile> tiles(base);
    if (threadIdx.x == 0) {
      if (p.bulk_out != 0) device::prefetch_tensor_map(&p.out);
      scales.init_barriers();
    }
    __syncthreads();
    if (threadIdx.x < Tile::kConsumers) {
      // A warpgroup alone has as many as there are.
      if constexpr (kGroups > 1) device::take_registers<232>();
      LimbConsumer(p, ring).consume();
    } else {
      if constexpr (kGroups > 1) device::leave_registers<40>();
      if (threadIdx.x == Tile::kConsumers) send_all(p, ring, scales, tiles);
      if (threadIdx.x == Tile::kConsumers + 32) find_all(p, ring, tiles);
    }
  }

 private:
  static constexpr uint32_t kStepK = kLimbHalfK;
  using Tiles = SegmentTiles<Tile, kStepK>;
  static constexpr uint32_t kGroups = Tile::kConsumers / 128;
  static constexpr uint32_t kOutAt = Shape::kMore, kScalesAt = kOutAt + Tile::kOutOfAll;

  // The scales of records, those of rows first. This block's alone, and its consumers' longer than
  // the records themselves.
  class ScaleRing {
   public:
    __device__ explicit ScaleRing(uint32_t base) : base_(base) {}
    __device__ uint32_t at(uint32_t record) const {
      return base_ + record % kLimbScaleSlots * Tile::kScaleBytes;
    }
    __device__ uint32_t full(uint32_t record) const {
      return base_ + kLimbScaleSlots * Tile::kScaleBytes + record % kLimbScaleSlots * 16;
    }
    __device__ uint32_t empty(uint32_t record) const { return full(record) + 8; }
    __device__ void init_barriers() const {
      for (uint32_t i = 0; i < kLimbScaleSlots; ++i) {
        device::barrier_init(full(i), 1);
        device::barrier_init(empty(i), Tile::kConsumers);
      }
      device::barrier_init_visible();
    }
    __device__ void wait_full(uint32_t record) const {
      device::barrier_wait(full(record), record / kLimbScaleSlots % 2);
    }
    __device__ void send(uint32_t record, const float* rows, const float* columns) const {
      device::barrier_wait(empty(record), (record / kLimbScaleSlots % 2) ^ 1);
      device::barrier_expect(full(record), Tile::kScaleBytes);
      const uint64_t policy = device::evict_normal_policy();
      constexpr uint32_t kRowBytes = Tile::kRows * 4, kColBytes = Tile::kCols * 4;
      device::copy_run(at(record), rows, kRowBytes, full(record), policy);
      device::copy_run(at(record) + kRowBytes, columns, kColBytes, full(record), policy);
    }

   private:
    uint32_t base_;
  };

  // Where the steps of a tile end: too few products take none.
  __device__ static uint32_t steps_end(const SegmentTile& tile) {
    return tile.end - tile.begin < tile.head + device::kFewestByLimbs ? tile.begin : tile.end;
  }

  // ---- Finding and sending, by a thread each

  __device__ static void find_all(const SegmentedSm90Params& p, const SegmentedRing<Tile>& ring,
                                  const TileRing<Tile>& tiles) {
    const Tiles all(p, ring.base());
    uint32_t index = 0;
    for (SegmentTile tile; all.find(index, tile); ++index) tiles.write(index, tile);
    tiles.write_end(index);
  }

  __device__ static void send_all(const SegmentedSm90Params& p, const SegmentedRing<Tile>& ring,
                                  const ScaleRing& scales, const TileRing<Tile>& tiles) {
    uint32_t step = 0, record = 0;
    device::wait_for_previous_launch();
    SegmentTile tile;
    for (uint32_t index = 0; tiles.take(index, tile); ++index) {
      const uint32_t rows = tile.row / kLimbLines * p.k_records, first = tile.row % kLimbLines;
      const uint32_t columns = tile.col / kLimbLines * p.k_records;
      const uint32_t end = steps_end(tile);
      for (uint32_t k = tile.begin; k < end; k += kStepK, ++step) {
        const uint32_t of_k = k / kLimbK, half = k / kStepK % 2;
        ring.wait_empty(step);
        device::barrier_expect(ring.full(step), Shape::kSlotBytes);
        send<Tile::kRows>(ring, step, p.a_limbs, rows + of_k, half, first, ring.a(step));
        send<Tile::kCols>(ring, step, p.b_limbs, columns + of_k, half, 0, ring.b(step));
        if (half == 0 && end - k > kStepK) continue;
        scales.send(record++, p.a_limbs.scales + uint64_t{rows + of_k} * kLimbLines + first,
                    p.b_limbs.scales + uint64_t{columns + of_k} * kLimbLines);
      }
    }
  }
  // Of half a record so many lines.
  template <uint32_t kLines>
  __device__ static void send(const SegmentedRing<Tile>& ring, uint32_t step, const Limbs& limbs,
                              uint32_t record, uint32_t half, uint32_t first, uint32_t to) {
    const uint8_t* from = limbs.records + uint64_t{record} * kLimbRecordBytes +
                          half * kLimbHalfBytes + first * kStepBytes;
    device::copy_run(to, from, kLines * kStepBytes, ring.full(step), device::evict_normal_policy());
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
        place_(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) {}

  __device__ void consume() {
    const TileRing<Tile> tiles(ring_.base());
    SegmentTile tile;
    for (uint32_t index = 0; tiles.take(index, tile); ++index) {
      float total[kSums];
#pragma unroll
      for (uint32_t i = 0; i < kSums; ++i) total[i] = 0.0f;
      const uint32_t end = steps_end(tile);
      multiply(total, device::uniform(tile.begin), tile.head, device::uniform(end));
      const device::LimbSums at{tile.row + device::limb_row(place_),
                                tile.col + device::limb_column(threadIdx.x % 4 * 2)};
      device::make_again(total, lines(p_.a_lines, p_.m), lines(p_.b_lines, p_.n), at,
                         tile.begin + tile.head, tile.end, end < tile.end);
      if (p_.bulk_out != 0) {
        store_in_bulk(total, tile);
      } else {
        store(total, tile, at);
      }
    }
    if (thread_ == 0) device::bulk_store_wait_read<0>();
  }

  __device__ static device::FloatLines lines(const SegmentedLines& l, uint32_t count) {
    return {reinterpret_cast<const float*>(l.data), l.stride, l.k_stride, count};
  }

  // The k from `begin` to `end`, of which the first `head` do not count.
  __device__ void multiply(Sums total, uint32_t begin, uint32_t head, uint32_t end) {
    for (uint32_t k = begin; k < end; k += kStepK, ++step_, head = 0) {
      float first[kSums], second[kSums];
      multiply_step<false>(first, second, head, end - k);
      if (k % kLimbK == 0 && end - k > kStepK) {
        k += kStepK, ++step_;
        multiply_step<true>(first, second, 0, end - k);
        device::wgmma_wait<1>();
        release(step_ - 1);
      }
      device::wgmma_wait<0>();
      release(step_);
      add_scaled(total, first, second);
    }
  }

  // By every lane that may have cleared something there.
  __device__ void release(uint32_t step) const { device::barrier_arrive(ring_.empty(step)); }
  // All threads of a warpgroup.
  __device__ void meet() const { device::named_barrier(kFirstGroup + group_, 128); }

  // Of the next step's 32 k those from `begin` and before `end`. Without kAdd, sums begin anew.
  template <bool kAdd>
  __device__ void multiply_step(Sums first, Sums second, uint32_t begin, uint32_t end) {
    using Wgmma = device::WgmmaShared<device::Float16, Tile::kCols, false>;
    const uint32_t a = device::uniform(ring_.a(step_)) + group_ * (64 * kStepBytes);
    ring_.wait_full(step_);
    if (begin > 0 || end < kStepK) {
      device::clear_limbs(a, 64, begin, end, thread_, 128);
      device::shared_stores_visible();
      meet();
    }
    const uint32_t rows = device::wgmma_columns_at(a);
    const uint32_t columns =
        device::wgmma_columns_at(a - group_ * (64 * kStepBytes) + Tile::kRows * kStepBytes);
    constexpr uint32_t kNext = device::wgmma_columns_step(16 * 2);
    constexpr uint32_t kSecond = device::wgmma_columns_step(kStepK * 2);
    device::wgmma_begin();
#pragma unroll
    for (uint32_t i = 0; i < kStepK / 16; ++i) {
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
    const ScaleRing scales(ring_.base() + kScalesAt);
    const uint32_t at = scales.at(record_);
    const uint32_t columns = at + (Tile::kRows + threadIdx.x % 4 * 2) * 4;
    scales.wait_full(record_);
    const float of_row[2] = {device::load_shared_float(at + place_ * 4),
                             device::load_shared_float(at + (place_ + 8) * 4)};
    uint32_t read = __float_as_uint(of_row[0]) | __float_as_uint(of_row[1]);
#pragma unroll
    for (uint32_t j = 0; j < kSums / 4; ++j) {
      const uint2 two = device::load_shared_2(columns + j * 32);
      read |= two.x | two.y;
      const float of_col[2] = {__uint_as_float(two.x), __uint_as_float(two.y)};
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float sum = __fmaf_rn(second[4 * j + i], kSecondLimb, first[4 * j + i]);
        total[4 * j + i] = __fmaf_rn(sum, of_row[i / 2] * of_col[i % 2], total[4 * j + i]);
      }
    }
    device::barrier_arrive(scales.empty(record_) + device::nothing_of(read));
    ++record_;
  }

  // ---- Storing

  // Bulk copies write a warpgroup's sums while it makes the next: 16 bytes of a row of 32 columns
  // at a time, in the 128-byte swizzle. Eight lanes that store side by side have two rows whose
  // parts lie in different banks (limb_row).
  __device__ void store_in_bulk(ConstSums total, const SegmentTile& tile) const {
    const uint32_t row = tile.row + group_ * 64;
    if (row >= p_.m) return;
    // Of the last tile, all copies have read.
    if (thread_ == 0) device::bulk_store_wait_read<0>();
    meet();
    const uint32_t out = ring_.base() + kOutAt + group_ * (Tile::kOutBuffers * kOutBytes);
    const uint32_t r = device::limb_row(place_ % 64), to = out + r * kStepBytes;
#pragma unroll
    for (uint32_t i = 0; i < kSums; i += 8) {
      const uint32_t at = to + i / 16 * kOutBytes + ((i / 8 % 2 * 4 + thread_ % 4) ^ r % 8) * 16;
      const auto bits = [&](uint32_t j) { return __float_as_uint(total[i + j]); };
      device::store_shared_4(at, {bits(0), bits(1), bits(4), bits(5)});
      device::store_shared_4(at + 8 * kStepBytes, {bits(2), bits(3), bits(6), bits(7)});
    }
    device::shared_stores_visible();
    meet();
    if (thread_ != 0) return;
    const uint64_t policy = device::evict_first_policy();
#pragma unroll
    for (uint32_t i = 0; i < Tile::kOutBuffers; ++i) {
      const uint32_t col = tile.col + i * (kStepBytes / 4);
      if (col >= p_.n) break;
      device::store_box(&p_.out, static_cast<int32_t>(col), static_cast<int32_t>(row),
                        static_cast<int32_t>(tile.segment), out + i * kOutBytes, policy);
    }
    device::bulk_store_commit();
  }

  // Written once, read by none of these kernels: the L2 cache gives it up first. Four lanes write
  // 64 bytes of a row.
  __device__ void store(ConstSums total, const SegmentTile& tile,
                        const device::LimbSums& at) const {
    float* to = reinterpret_cast<float*>(p_.out_data) + tile.segment * p_.out_step +
                at.row * p_.out_row_stride + at.col;
    float* below = to + 8 * p_.out_row_stride;
    if (p_.wide_out != 0 && tile.row + Tile::kRows <= p_.m && tile.col + Tile::kCols <= p_.n) {
#pragma unroll
      for (uint32_t i = 0; i < kSums; i += 8) {
        const float* s = &total[i];
        __stcs(reinterpret_cast<float4*>(to + i * 2), float4{s[0], s[1], s[4], s[5]});
        __stcs(reinterpret_cast<float4*>(below + i * 2), float4{s[2], s[3], s[6], s[7]});
      }
      return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kSums; ++i) {
      const uint32_t right = i / 8 * 16 + i / 4 % 2 * 2 + i % 2;
      if (at.row + i % 4 / 2 * 8 < p_.m && at.col + right < p_.n) {
        __stcs((i % 4 / 2 == 0 ? to : below) + right, total[i]);
      }
    }
  }

  const SegmentedSm90Params& p_;
  const SegmentedRing<Tile> ring_;
  uint32_t thread_, group_;
  uint32_t place_;  // in records, of this thread's first row
  uint32_t step_ = 0, record_ = 0;
};

}  // namespace moeblas::cuda
