// segmented_sm80_limbs: float32 products over ranges of K by mma.sync, from the float16 limbs that
// segmented_limbs made of a and b. Used by segmented_mm on devices without wgmma where sums need
// not be IEEE multiply-adds.
//
// A block of 256 threads makes one tile of 128 x 128 of one segment, a warp 64 x 32 of it. Steps of
// 32 k, half a record of each operand, come by asynchronous copies into a ring of three and lie
// there as they did: parts of 16 bytes that are read at once stand in different banks. Which
// products are made, how their sums are scaled and which are made again is as in
// segmented_sm90/limbs.cuh.
//
// The time is that of the tensor cores: 24 loads of fragments for 96 products.
#include "cuda/device/cluster.cuh"
#include "cuda/device/limbs.cuh"
#include "cuda/segmented_sm80/kernel.cuh"
#include "simt/portable_kernel.h"

namespace moeblas::cuda {
namespace {

constexpr uint32_t kSlots = kSegmentedSm80LimbSlots, kStepK = kLimbHalfK;
constexpr uint32_t kScaleBytes = kLimbLines * 4;

// Steps of the ring.
class LimbRing80 {
 public:
  __device__ LimbRing80(const SegmentedSm80LimbsParams& p, const Tile80& tile)
      : a_(p.a), b_(p.b), base_(device::shared_address(device::dynamic_shared())) {
    first_a_ = tile.row / kLimbLines * p.k_records;
    first_b_ = tile.col / kLimbLines * p.k_records;
  }
  __device__ uint32_t a(uint32_t step) const {
    return base_ + step % kSlots * kSegmentedSm80LimbSlotBytes;
  }
  __device__ uint32_t b(uint32_t step) const { return a(step) + kLimbHalfBytes; }
  __device__ uint32_t scales(uint32_t step) const { return b(step) + kLimbHalfBytes; }

  // The 32 k from k on.
  __device__ void send(uint32_t step, uint32_t k) const {
    send(a_, first_a_, k, a(step), scales(step), threadIdx.x);
    send(b_, first_b_, k, b(step), scales(step) + kScaleBytes, threadIdx.x - 32);
  }

 private:
  __device__ static void send(const Limbs& limbs, uint32_t first, uint32_t k, uint32_t to,
                              uint32_t to_scales, uint32_t scale_thread) {
    const uint64_t record = first + k / kLimbK;
    const uint8_t* from =
        limbs.records + record * kLimbRecordBytes + k / kStepK % 2 * kLimbHalfBytes;
#pragma unroll
    for (uint32_t i = 0; i < kLimbHalfBytes; i += kSegmentedSm80Threads * 16) {
      device::copy_async<16>(to + i + threadIdx.x * 16, from + i + threadIdx.x * 16, true);
    }
    if (scale_thread < kScaleBytes / 16) {
      device::copy_async<16>(to_scales + scale_thread * 16,
                             limbs.scales + record * kLimbLines + scale_thread * 4, true);
    }
  }

  const Limbs &a_, &b_;
  uint32_t base_, first_a_, first_b_;
};

// A warp's sums: rows 16i and columns 8j on, as the tensor cores leave them.
using Sums80 = float[4][16];

class LimbProducts80 {
 public:
  __device__ LimbProducts80() : row_(threadIdx.x / 32 / 4 * 64), col_(threadIdx.x / 32 % 4 * 32) {}

  // First and last: of a record.
  __device__ void multiply(const LimbRing80& ring, uint32_t step, bool first, bool last) {
    if (first) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < 16; ++j) first_[i][j] = second_[i][j] = 0.0f;
      }
    }
    const uint32_t a = ring.a(step), b = ring.b(step);
#pragma unroll
    for (uint32_t k = 0; k < kStepK; k += 16) {
      uint4 columns[2][2];
#pragma unroll
      for (uint32_t l = 0; l < 2; ++l) {
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) columns[l][j] = load<false>(b, col_ + j * 16, k, l);
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint4 rows = load<true>(a, row_ + i * 16, k, 0);
        product(first_[i], rows, columns[0]);
        product(second_[i], rows, columns[1]);
        product(second_[i], load<true>(a, row_ + i * 16, k, 1), columns[0]);
      }
    }
    if (last) add_scaled(ring.scales(step));
  }

  __device__ void store(const SegmentedSm80LimbsParams& p, const Tile80& tile, bool all) {
    const device::FloatLines a = lines(p.operands.a), b = lines(p.operands.b);
    const uint32_t lane = threadIdx.x % 32;
    float* out = reinterpret_cast<float*>(p.operands.out) + tile.out;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const device::LimbSums at{tile.row + device::limb_row(row_ + i * 16 + lane / 4),
                                tile.col + device::limb_column(col_ + lane % 4 * 2)};
      device::make_again(total_[i], a, b, at, tile.begin, tile.end, all);
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t row = at.row + j % 2 * 8, col = at.col + j / 2 * 16;
        if (row >= a.count) continue;
        const float* s = &total_[i][j / 2 * 8 + j % 2 * 2];
        float* to = out + row * p.operands.out_row_stride + col;
        if (p.operands.wide_out != 0 && col + 4 <= b.count) {
          __stcs(reinterpret_cast<float4*>(to), float4{s[0], s[1], s[4], s[5]});
        } else {
#pragma unroll
          for (uint32_t k = 0; k < 4; ++k) {
            if (col + k < b.count) to[k] = s[k / 2 * 4 + k % 2];
          }
        }
      }
    }
  }

 private:
  __device__ static device::FloatLines lines(const SegmentedOperand& o) {
    return {reinterpret_cast<const float*>(o.data), o.line_stride, o.k_stride, o.lines};
  }
  // Four matrices of eight lines x eight k of this limb: lines first, or k.
  template <bool kLinesFirst>
  __device__ static uint4 load(uint32_t half, uint32_t line, uint32_t k, uint32_t limb) {
    const uint32_t lane = threadIdx.x % 32, matrix = lane / 8;
    line += (kLinesFirst ? matrix % 2 : matrix / 2) * 8 + lane % 8;
    const uint32_t part = limb * 4 + k / 8 + (kLinesFirst ? matrix / 2 : matrix % 2);
    return device::load_matrices(half + line * 128 + ((part ^ line % 8) << 4));
  }
  __device__ static void product(float (&sums)[16], uint4 rows, const uint4 (&columns)[2]) {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      device::multiply_f16(*reinterpret_cast<float(*)[4]>(&sums[8 * j]), rows,
                           {columns[j].x, columns[j].y});
      device::multiply_f16(*reinterpret_cast<float(*)[4]>(&sums[8 * j + 4]), rows,
                           {columns[j].z, columns[j].w});
    }
  }
  __device__ void add_scaled(uint32_t scales) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t of_rows = scales + (row_ + lane / 4) * 4;
    const uint32_t of_cols = scales + kScaleBytes + (col_ + lane % 4 * 2) * 4;
    uint2 cols[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) cols[j] = device::load_shared_2(of_cols + j * 32);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float rows[2] = {device::load_shared_float(of_rows + i * 64),
                             device::load_shared_float(of_rows + i * 64 + 32)};
#pragma unroll
      for (uint32_t j = 0; j < 16; ++j) {
        const float col = __uint_as_float(j % 2 == 0 ? cols[j / 4].x : cols[j / 4].y);
        const float sum = __fmaf_rn(second_[i][j], kSecondLimb, first_[i][j]);
        total_[i][j] = __fmaf_rn(sum, rows[j % 4 / 2] * col, total_[i][j]);
      }
    }
  }

  uint32_t row_, col_;  // the warp's first of the tile
  Sums80 first_, second_, total_ = {};
};

__global__ void __launch_bounds__(kSegmentedSm80Threads, 1)
    segmented_sm80_limbs(const __grid_constant__ SegmentedSm80LimbsParams p) {
  const Tile80 tile(p.operands);
  const LimbRing80 ring(p, tile);
  LimbProducts80 products;
  const bool few = tile.end - tile.begin < device::kFewestByLimbs;
  const uint32_t begin = tile.begin / kStepK * kStepK;
  const uint32_t steps = few ? 0 : (tile.end - begin + kStepK - 1) / kStepK;
#pragma unroll
  for (uint32_t i = 0; i + 1 < kSlots; ++i) {
    if (i < steps) ring.send(i, begin + i * kStepK);
    device::copies_end_group();
  }
  for (uint32_t step = 0; step < steps; ++step) {
    device::copies_wait<kSlots - 2>();
    __syncthreads();
    const uint32_t ahead = step + kSlots - 1, k = begin + step * kStepK;
    if (ahead < steps) ring.send(ahead, begin + ahead * kStepK);
    device::copies_end_group();
    const uint32_t head = k < tile.begin ? tile.begin - k : 0, end = tile.end - k;
    if (head > 0 || end < kStepK) {
      device::clear_limbs(ring.a(step), kLimbLines, head, end, threadIdx.x, kSegmentedSm80Threads);
      __syncthreads();
    }
    products.multiply(ring, step, step == 0 || k % kLimbK == 0,
                      step + 1 == steps || k % kLimbK != 0);
  }
  products.store(p, tile, few && tile.end > tile.begin);
}

MB_CUDA_ROW(segmented_sm80_limbs, segmented_sm80_limbs);

}  // namespace
}  // namespace moeblas::cuda
