// qmv_one_sm90: decode on Hopper. One row of x times one matrix (quantized_matmul) or several that
// ids choose (gather_qmm), of affine codes of any width or of e2m1, packed along K, in the
// checkpoint's own layout.
//
// A thread block per multiprocessor takes a share of all tiles of rows. One warp brings them by
// bulk copies into a ring of stages, sixteen consume them:
//
//   stage    codes [slab][row of the tile][128 bytes], scales [row][groups], biases; all swizzled
//   share    a warp's: 32 rows (or 16) by one batch of 128 values or two; eight of them side by
//            side along K, two one above the other
//   batch    16 rows: mma.m16n8k32 with codes as the 16-row operand, x as four limbs of a byte
//            (x_bytes.cuh)
//
// What a lane makes of its share: qmv_one_sm90/affine.cuh, qmv_one_sm90/e2m1.cuh. Of several
// matrices each thread block looks up which there are, and takes its share of all their tiles.
//
// Sums of a group's products are exact, then float32; parts of K meet in shared memory in their
// order. Sums that are not finite are made again from decoded weights.
//
// The time goes into reading w; below some 20 MB of it, into what happens before the first copy and
// after the last.
#pragma once

#include "cuda/device/decoded_output.cuh"
#include "cuda/device/prefetch.cuh"
#include "cuda/device/schedule.cuh"
#include "cuda/qmv_one_sm90/affine.cuh"
#include "cuda/qmv_one_sm90/e2m1.cuh"

namespace moeblas::cuda::device {

struct QmvOneMaps {
  CUtensorMap codes, scales, biases;
};

struct QmvOneShared {
  uint64_t full[kQmvOneMostStages], empty[kQmvOneMostStages];
  // Of pairs: first those that have a matrix, `active` of them.
  int32_t matrix[kQmvOneMostPairs], out[kQmvOneMostPairs];
  uint32_t active, begin, end;  // and this thread block's tiles of theirs
  uint32_t parameters;          // fetch_parameters
};

// Where a tile begins: in which of the matrices, and in which of its rows.
struct QmvOneTile {
  uint32_t active, row;
  __device__ __forceinline__ void advance(const QmvOneParams& p) {
    row += p.box_rows;
    if (p.pairs != 0 && row >= static_cast<uint32_t>(p.product.n)) {
      row = 0;
      ++active;
    }
  }
};

template <class T>
class QmvOneBlock {
 public:
  __device__ __forceinline__ QmvOneBlock(const QmvOneParams& p, const simt::ProductBuffers& b,
                                         const QmvOneMaps& maps, QmvOneShared& shared)
      : p_(p), b_(b), maps_(maps), shared_(shared) {}

  __device__ __forceinline__ void run() {
    if (warp() >= kQmvOneConsumers) {
      leave_registers<kQmvOneProducerRegisters>();
      if (warp() == kQmvOneConsumers) {
        if (lane() == 0) make_barriers();
        wait_for_previous_launch();
        let_next_launch_begin();
        if (p_.pairs != 0) choose();
        if (lane() == 0) produce();
        __syncwarp();
        named_barrier_arrive(kReady, kReaders);
        if (lane() == 0) produce_rest();
        __syncwarp();
      } else {
        // In front of what is prefetched, which takes longer to ask for where it is more: 4096^2 in
        // affine 4 bits 4.61 us for 4.72, behind it nothing. Kernels of 2 bits would spill.
        const bool little = p_.pairs != 0 || p_.x_lines != 0;
        if (T::kBits > 2 && little && warp() == kQmvOneConsumers + 3) {
          fetch_parameters(p_, &shared_.parameters);
        }
        if (p_.pairs == 0) prefetch(threadIdx.x - kReaders);
      }
    } else {
      take_registers<kQmvOneConsumerRegisters>();
      wait_for_previous_launch();
      fill_x();
      named_barrier(kReady, kReaders);
      const int32_t type = p_.product.w.scale.type;
      if constexpr (!T::kAffine) {
        consume<simt::kU8>();
      } else if (type == simt::kBf16) {
        consume<simt::kBf16>();
      } else if (type == simt::kF16) {
        consume<simt::kF16>();
      } else {
        consume<simt::kF32>();
      }
      if (p_.pairs != 0 && p_.pairs > shared_.active) store_zeros();
    }
    // Nobody leaves before: synccheck takes warps that have left for missing at other barriers.
    named_barrier(0, kQmvOneThreads);
  }

 private:
  static constexpr uint32_t kReady = 1, kSums = 2, kReaders = 32 * (kQmvOneConsumers + 1);

  __device__ __forceinline__ uint32_t warp() const { return threadIdx.x / 32; }
  __device__ __forceinline__ uint32_t lane() const { return threadIdx.x % 32; }
  __device__ __forceinline__ uint32_t part() const { return warp() % kQmvOneParts; }
  __device__ __forceinline__ uint32_t row_group() const { return warp() / kQmvOneParts; }
  __device__ __forceinline__ uint32_t base() const {
    return (shared_address(dynamic_shared()) + 1023) / 1024 * 1024;
  }
  __device__ __forceinline__ uint32_t ring() const { return base() + p_.ring_at; }
  __device__ __forceinline__ XColumns x_columns() const { return {base(), base() + p_.factors_at}; }
  __device__ __forceinline__ uint32_t zeros() const { return base() + p_.units * 128; }
  __device__ __forceinline__ uint32_t tiles() const {
    if (p_.pairs != 0) return shared_.end - shared_.begin;
    return p_.share + (blockIdx.x < p_.remainder ? 1 : 0);
  }
  __device__ __forceinline__ QmvOneTile first_tile() const {
    if (p_.pairs == 0) {
      return {0, (blockIdx.x * p_.share + min(blockIdx.x, p_.remainder)) * p_.box_rows};
    }
    const uint32_t active = shared_.begin / p_.tiles_each;
    return {active, (shared_.begin - active * p_.tiles_each) * p_.box_rows};
  }
  __device__ __forceinline__ int32_t matrix_of(const QmvOneTile& tile) const {
    return p_.pairs != 0 ? shared_.matrix[tile.active] : 0;
  }

  // ---- the warp that brings weights, by one lane

  __device__ __forceinline__ void bring(uint32_t stage, uint32_t slot, int32_t matrix,
                                        uint32_t first_row, uint32_t step, uint64_t policy) const {
    const auto row = static_cast<int32_t>(first_row);
    const uint32_t full = shared_address(&shared_.full[slot]);
    barrier_expect(full, p_.box_bytes);
    constexpr uint32_t kElements = kQmvOneSlab / 4;
#pragma unroll
    for (uint32_t i = 0; i < T::kSlabs; ++i) {
      copy_box(stage + i * (T::kTileRows * kQmvOneSlab), &maps_.codes,
               static_cast<int32_t>((step * T::kSlabs + i) * kElements), row, matrix, full, policy);
    }
    const auto at = static_cast<int32_t>(step * T::kStepScales);
    copy_box(stage + p_.scales_at, &maps_.scales, at, row, matrix, full, policy);
    if constexpr (T::kAffine) {
      copy_box(stage + p_.biases_at, &maps_.biases, at, row, matrix, full, policy);
    }
  }
  __device__ __forceinline__ void make_barriers() const {
#pragma unroll 1
    for (uint32_t i = 0; i < p_.stages; ++i) {
      barrier_init(shared_address(&shared_.full[i]), 1);
      barrier_init(shared_address(&shared_.empty[i]), kQmvOneConsumers);
    }
    barrier_init_visible();
  }
  // Which matrices there are, and which tiles of them are this thread block's: by all lanes.
  __device__ __forceinline__ void choose() const {
    const QmvPairs& q = p_.places;
    int32_t matrix = -1, out = 0;
    if (lane() < p_.pairs) {
      const PairPlace at(q, p_.ids, lane());
      matrix = at.matrix;
      out = at.outer * q.out_step[0] + at.inner * q.out_step[1];
    }
    const uint32_t have = __ballot_sync(~0u, matrix >= 0), below = (1u << lane()) - 1;
    const uint32_t active = __popc(have), total = active * p_.tiles_each;
    const uint32_t place = matrix >= 0 ? __popc(have & below) : active + __popc(~have & below);
    if (lane() < p_.pairs) {
      shared_.matrix[place] = matrix;
      shared_.out[place] = out;
    }
    if (lane() == 0) {
      shared_.active = active;
      shared_.begin = total * blockIdx.x / gridDim.x;
      shared_.end = total * (blockIdx.x + 1) / gridDim.x;
    }
    __syncwarp();
  }
  // The first stages, for which nobody has to be waited for.
  __device__ __forceinline__ void produce() const {
    if (p_.pairs != 0 && tiles() == 0) return;
    const uint64_t policy = evict_first_policy();
    const QmvOneTile tile = first_tile();
    const int32_t matrix = matrix_of(tile);
    const uint32_t first = min(p_.stages, p_.k_steps);
#pragma unroll 1
    for (uint32_t i = 0; i < first; ++i) {
      bring(ring() + i * p_.stage_bytes, i, matrix, tile.row, i, policy);
    }
  }
  // Whole lines of a row alone: what lies behind it may be nobody's.
  __device__ __forceinline__ void prefetch(uint32_t thread) const {
    const simt::WParams& w = p_.product.w;
    const uint32_t row = first_tile().row, n = static_cast<uint32_t>(p_.product.n);
    const uint32_t rows = min(p_.box_rows, n - row);
    if (p_.x_lines != 0) {
      // In front of codes, behind whose lines they would stand in memory's queue. Of x a line by
      // each thread block, as all need the same.
      if (blockIdx.x + thread * gridDim.x < p_.x_lines) {
        prefetch_line(b_.x + (blockIdx.x + thread * gridDim.x) * kMemoryLine);
      }
      const int64_t size = !T::kAffine ? 1 : w.scale.type == simt::kF32 ? 4 : 2;
      prefetch(b_.w_scales, w.scale.row_stride * size, row, rows, p_.scale_lines, thread);
      if constexpr (T::kAffine) {
        prefetch(b_.w_biases, w.bias_row_stride * size, row, rows, p_.scale_lines, thread);
      }
    }
    const auto row_lines = static_cast<uint32_t>(p_.product.k * T::kBits / (8 * kMemoryLine));
    const uint32_t lines = min(kQmvOneMostPrefetch / p_.box_rows, row_lines);
    prefetch(b_.w, w.n_stride, row, rows, lines, thread);
  }
  static __device__ __forceinline__ void prefetch(const uint8_t* from, int64_t stride, uint32_t row,
                                                  uint32_t rows, uint32_t lines, uint32_t thread) {
    prefetch_lines(from + row * stride, stride, rows, lines, thread, kQmvOneThreads - kReaders);
  }
  __device__ __forceinline__ void produce_rest() const {
    const uint64_t policy = evict_first_policy();
    uint32_t step = min(p_.stages, p_.k_steps);
    QmvOneTile tile = first_tile();
    const uint32_t count = tiles() * p_.k_steps;
    uint32_t slot = step == p_.stages ? 0 : step, parity = 0;
    bool reused = step == p_.stages;
#pragma unroll 1
    for (uint32_t i = step; i < count; ++i) {
      if (step == p_.k_steps) {
        step = 0;
        tile.advance(p_);
      }
      if (reused) barrier_wait(shared_address(&shared_.empty[slot]), parity);
      bring(ring() + slot * p_.stage_bytes, slot, matrix_of(tile), tile.row, step, policy);
      ++step;
      if (++slot == p_.stages) {
        slot = 0;
        if (reused) parity ^= 1;
        reused = true;
      }
    }
  }

  // ---- the others

  __device__ __forceinline__ void fill_x() const {
    const simt::ProductParams& q = p_.product;
    for (uint32_t at = threadIdx.x * 16; at < kQmvOneZeroBytes; at += kQmvOneConsumers * 512) {
      store_shared_4(zeros() + at, uint4{0, 0, 0, 0});
    }
    const XRow row = {b_.x,    q.x.col_stride, q.x.type, p_.x_runs, static_cast<uint32_t>(q.k),
                      p_.units};
    if (p_.x_runs != 0 && q.x.type == simt::kBf16) {
      T::template fill_x<simt::kBf16>(row, x_columns(), warp(), lane());
    } else if (p_.x_runs != 0 && q.x.type == simt::kF32) {
      T::template fill_x<simt::kF32>(row, x_columns(), warp(), lane());
    } else {
      T::template fill_x<kAnyValues>(row, x_columns(), warp(), lane());
    }
  }

  template <int kScale>
  __device__ __forceinline__ void consume() const {
    constexpr uint32_t kSumRows = kQmvOneConsumers * T::kRows;
    const uint32_t t = lane() % 4, units = part() * T::kBatches * 4;
    const uint32_t row = row_group() * T::kRows;  // in a tile
    const bool has_rows = row < p_.box_rows;
    typename T::template Share<kScale> share(p_, row_group(), part(), lane());
    // Kept, as the compiler would make them anew for each stage; where no more registers are left,
    // it may.
    constexpr bool kRoom = T::kBits > 2 || T::kGroup > 16;
    const auto keep = [&](uint32_t v) { return kRoom ? kept(v, lane()) : v; };
    const uint32_t begin = keep(ring()), first_full = keep(shared_address(shared_.full));
    const uint32_t end = keep(ring() + p_.stages * p_.stage_bytes);
    uint32_t stage = begin, full = first_full, parity = 0;
    auto* sums = reinterpret_cast<float*>(dynamic_shared() +
                                          (base() + p_.sums_at - shared_address(dynamic_shared())));
    const uint32_t count = tiles();
    QmvOneTile at = first_tile();
#pragma unroll 1
    for (uint32_t tile = 0; tile < count; ++tile, at.advance(p_)) {
      float y[T::kRows / 8] = {};
      share.begin(x_columns(), zeros(), units);
#pragma unroll 1
      for (uint32_t step = 0; step < p_.k_steps; ++step) {
        barrier_wait(full, parity);
        uint32_t used = 0;
        if (has_rows) {
          share.add(stage, y);
#pragma unroll
          for (uint32_t r = 0; r < T::kRows / 8; ++r) used ^= __float_as_uint(y[r]);
        }
        share.advance();
        const uint32_t none = nothing_of(used);
        __syncwarp();
        if (lane() == 0) barrier_arrive(full + sizeof shared_.full + none);
        full += 8;
        stage += p_.stage_bytes;
        if (stage == end) {
          stage = begin;
          full = first_full;
          parity ^= 1;
        }
      }
      // Two places take turns: whoever writes to one has seen, where the other was read, that it
      // has been read.
      float* place = sums + (tile % 2) * kSumRows + row_group() * kQmvOneParts * T::kRows;
#pragma unroll
      for (uint32_t r = 0; r < T::kRows / 8; ++r) {
        float sum = y[r];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (t == 0) place[part() * T::kRows + 8 * r + T::row_of_lane(lane() / 4)] = sum;
      }
      named_barrier(kSums + row_group(), 32 * kQmvOneParts);
      if (part() == 0) store(place, at, row + lane());
    }
  }

  // A row's parts in their order.
  __device__ __forceinline__ void store(const float* sums, const QmvOneTile& tile,
                                        uint32_t row) const {
    const simt::ProductParams& q = p_.product;
    const int64_t n = int64_t{tile.row} + row;
    if (lane() >= T::kRows || row >= p_.box_rows || n >= q.n) return;
    float total = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < kQmvOneParts; ++i) total += sums[i * T::kRows + lane()];
    const int32_t matrix = matrix_of(tile);
    float of_tensor = 1.0f;
    if constexpr (T::kTensorScale) {
      of_tensor = simt::tensor_scale_at(q.w.scale, b_.w_tensor_scale, matrix);
      total *= of_tensor;
    }
    if (!formats::is_finite(total)) {
      const simt::ScaleBuffers scales = {b_.w_scales, b_.w_biases, matrix * p_.scales_step,
                                         matrix * p_.biases_step, of_tensor};
      const uint8_t* codes = b_.w + matrix * p_.codes_step + n * q.w.n_stride;
      total = decoded_output<typename T::Format>(q, codes, scales, n, b_.x, 0);
    }
    const int64_t out = p_.pairs != 0 ? shared_.out[tile.active] : 0;
    simt::store_sum(q.out, b_, {out, 0, 0, q.out.plain != 0}, n, total);
  }
  // The rows of pairs that have no matrix.
  __device__ __forceinline__ void store_zeros() const {
    const simt::ProductParams& q = p_.product;
    for (uint32_t i = shared_.active; i < p_.pairs; ++i) {
      for (int64_t n = blockIdx.x * 32 * kQmvOneConsumers + threadIdx.x; n < q.n;
           n += gridDim.x * 32 * kQmvOneConsumers) {
        simt::store_sum(q.out, b_, {shared_.out[i], 0, 0, true}, n, 0.0f);
      }
    }
  }

  const QmvOneParams& p_;
  const simt::ProductBuffers& b_;
  const QmvOneMaps& maps_;
  QmvOneShared& shared_;
};

template <class T>
__device__ __forceinline__ void qmv_one(const QmvOneParams& p, const simt::ProductBuffers& b,
                                        const QmvOneMaps& maps) {
  __shared__ QmvOneShared shared;
  QmvOneBlock<T>(p, b, maps, shared).run();
}

}  // namespace moeblas::cuda::device

#if defined(__CUDACC__)
template <class T>
__global__ void __launch_bounds__(moeblas::cuda::kQmvOneThreads, 1)
    qmv_one_sm90(MB_PRODUCT_POINTERS, const __grid_constant__ moeblas::cuda::QmvOneParams p,
                 const __grid_constant__ moeblas::cuda::device::QmvOneMaps maps) {
#if __CUDA_ARCH__ >= 900
  const moeblas::simt::ProductBuffers b = MB_PRODUCT_BUFFERS;
  moeblas::cuda::device::qmv_one<T>(p, b, maps);
#endif
}
#endif
