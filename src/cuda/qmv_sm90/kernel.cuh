// qmv_sm90: decode. quantized_matmul, gather_qmm and gather_qmv for few rows per matrix, w packed
// along K in the checkpoint's own layout; dense and gathered from one device body.
//
// A thread block per multiprocessor takes a share of all tiles of rows of all matrices that the
// ids chose. One warp brings weights by bulk copies into a ring of stages, sixteen consume them:
//
//   stage    codes [slab][row of the tile][128 bytes], swizzled; scales and biases [row][groups]
//            beside them, or a whole tile's in slots of their own where rows are no multiples of 16
//   item     a warp's share of a stage: 32 rows x 64 bytes; row_groups of them lie one above the
//            other, 16 / row_groups side by side along K
//   step     16 rows x 32 values: mma.m16n8k16 with w as the 16-row operand and columns of x as n
//
// Codes become float16 by a few operations on words (decode.cuh), x is float16 in shared memory for
// all of K, or a stage's section of it (x_columns.cuh); products are exact, sums float32. A group's
// sum is scaled in float32, the bias enters by the group sum of x. The columns of a product are
//
//   few tokens   2 tokens (8-bit codes: 4, nvfp4: 1) x the units of an item: a column holds x in
//                one unit and zeros in the others, so that one set of sums serves a whole item
//   up to four   (nvfp4: 2; not 8-bit codes in groups of 64) x the item's first two units and its
//                others, a set of sums each (groups of 64: x two groups, a set each, and no zeros)
//   more tokens  8 tokens, once or twice; sums of a group, then its scale
//
// Where thread blocks have several tiles of few rows, the producer's other three warps make the
// next matrix's columns and store what consumers hand over (qmv_sm90/helpers.cuh), in instances of
// their own: one for scales that come with the stages as words, in whose text nothing asks how they
// came, and one for all others. Of mxfp4 both multiply one or two tokens as bytes
// (qmv_sm90/bytes.cuh), and the second knows that scales come by tiles and are loaded two at a
// time.
//
// Parts of K meet in shared memory in the order of K. Sums that are not finite are made again from
// decoded weights, term by term, as 0 * infinity must not come from a code.
//
// The time goes into reading w, once for all rows of a matrix that fit into shared memory as
// columns; for experts of few rows, into operations on words, whose pipe runs at half rate, and
// into what all warps do at the same time, the ends of tiles and the next matrix's x; below
// some 20 MB of w, into what happens before the first copy and after the last.
#pragma once

#include "cuda/device/prefetch.cuh"
#include "cuda/device/schedule.cuh"
#include "cuda/qmv_sm90/consumer.cuh"
#include "cuda/qmv_sm90/helpers.cuh"
#include "cuda/qmv_sm90/store.cuh"
#include "cuda/qmv_sm90/tile.cuh"

namespace moeblas::cuda::device {

// Where consumers and producer meet, each number in one place of the text: what looks at barriers
// for mistakes knows no others.
constexpr uint32_t kReady = 10, kShare = 11, kReaders = 32 * (kQmvConsumers + 1);

template <class T>
__device__ __forceinline__ void clear_zeros(QmvShared& shared, uint32_t lane) {
  if constexpr (T::kBytes) {
    static_assert(sizeof shared.zeros == 32 * 8, "a lane's part");
    store_shared_2(shared_address(shared.zeros) + lane * 8, {0, 0});
  }
}
// In loops: text that runs once takes longer to come than to run.
template <bool kHelped>
__device__ __forceinline__ void init_barriers(const QmvParams& p, QmvShared& shared) {
  uint32_t full = shared_address(shared.full), used = shared_address(shared.used);
#pragma unroll 1
  for (uint32_t i = 0; i < p.stages; ++i, full += 8) {
    barrier_init(full, 1);
    barrier_init(full + kQmvEmpty, kQmvConsumers);
  }
#pragma unroll 1
  for (uint32_t i = 0; i < p.scale_slots; ++i, used += 8) barrier_init(used, 32 * kQmvConsumers);
  if constexpr (kHelped) {
#pragma unroll 1
    for (uint32_t i = 0; i < 7; ++i) {
      barrier_init(shared_address(shared.free) + 8 * i, 32 * (i < 5 ? kQmvHelpers : kQmvConsumers));
    }
    barrier_init(shared_address(&shared.known), kReaders);
    barrier_init(shared_address(&shared.copied), 1);
    barrier_init(shared_address(&shared.first_copied), 1);
    shared.again = 0;
  }
  barrier_init_visible();
}

// What the ring will hold first. One matrix; by several threads. Not too much of it: copies come
// after it.
template <int kBits>
__device__ __forceinline__ void prefetch_codes(const QmvParams& p, uint32_t thread,
                                               uint32_t threads) {
  const uint32_t row = first_row(p);
  const uint32_t stages = min(p.stages, p.k_steps) * p.slabs;
  // Whole lines of the row alone: what lies behind it may be nobody's.
  const uint32_t lines =
      min(min(stages, kQmvMostPrefetch / p.box_rows), p.k * kBits / (8 * kQmvSlab));
  const QmvTensor& codes = p.w[0].codes;
  const unsigned char* from = codes.data + row * codes.row_stride;
  prefetch_lines(from, codes.row_stride, min(p.box_rows, p.n - row), lines, thread, threads);
}

// Of many matrices, before ids say which: the rows at which this thread block begins if each has as
// much to do as any other. If another one is to read them, they are there for that one.
__device__ __forceinline__ void prefetch_likely(const QmvParams& p, uint32_t thread,
                                                uint32_t threads) {
  const uint32_t tiles = p.pairs.matrices * p.tiles;
  const auto at = static_cast<uint32_t>(uint64_t{tiles} * blockIdx.x / gridDim.x);
  const uint32_t matrix = at / p.tiles, row = first_row_of(p, at - matrix * p.tiles);
  const uint32_t rows = min(p.likely_rows, p.n - row);
#pragma unroll 1
  for (uint32_t i = 0; i <= p.paired; ++i) {
    const auto prefetch = [&](const QmvTensor& t, uint32_t bytes) {
      prefetch_rows(t.data + matrix * t.matrix_stride + row * t.row_stride, t.row_stride, rows,
                    bytes, thread, threads);
    };
    prefetch(p.w[i].codes, p.likely_codes);
    prefetch(p.w[i].scales, p.likely_scales);
    if (p.w[i].biases.data != nullptr) prefetch(p.w[i].biases, p.likely_scales);
  }
}

template <class T>
__device__ __forceinline__ void qmv(const QmvParams& p, const QmvMaps& maps) {
  unsigned char* dynamic = dynamic_shared();
  __shared__ QmvShared shared;
  const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const QmvMemory memory = memory_from<T>(p, dynamic, shared_address(dynamic));
  // A few rows are looked up by the producer, which needs to know first.
  const bool few = p.one_matrix || p.rows <= 32;
  if (thread == 0) {
#pragma unroll 1
    for (uint32_t i = 0; i < uint32_t{kQmvMaps} << p.paired; ++i) prefetch_tensor_map(&maps.map[i]);
  }
  if (!few && warp <= kQmvConsumers) {
    if (!p.combined) wait_for_previous_launch();
    if (warp < kQmvConsumers) {
      schedule_many(p, shared.schedule, reinterpret_cast<uint32_t*>(memory.sums), thread);
    } else {
      if (lane == 0) init_barriers<T::kHelped>(p, shared);
      clear_zeros<T>(shared, lane);
      __syncwarp();
    }
    named_barrier(kShare, kReaders);
  }
  if (warp >= kQmvConsumers) {
    leave_registers<T::kOtherRegisters>();
    if (warp == kQmvConsumers) {
      if (few && lane == 0) init_barriers<T::kHelped>(p, shared);
      if (few) clear_zeros<T>(shared, lane);
      __syncwarp();
      if constexpr (T::kHelped) named_barrier_arrive(kBegun, kBegunThreads);
      // The launch that makes columns of x has waited for all before it.
      if (!p.combined && p.x_bytes == 0) {
        wait_for_previous_launch();
        if constexpr (!T::kHelped) let_next_launch_begin();
      }
      if (p.one_matrix) {
        if (lane == 0) bring_first<T>(p, shared, memory, maps, 0, first_row(p), 1, 0);
        if (p.x_bytes > 0) {
          wait_for_previous_launch();
          let_next_launch_begin();
          if (lane == 0) bring_first_x(p, shared, memory, maps);
        }
        schedule_one(p, shared.schedule, lane);
        named_barrier_arrive(kReady, kReaders);
      } else {
        if (few) schedule_few(p, shared.schedule, lane);
        named_barrier_arrive(kReady, kReaders);
        const Schedule& s = shared.schedule;
        if (lane == 0 && s.begin < s.end) {
          const uint32_t d = s.begin_matrix, tile = s.begin - d * p.tiles;
          bring_first<T>(p, shared, memory, maps, matrix_of(p, s, d), first_row_of(p, tile),
                         blocks_of(p, tile), section_of(p, tile) * p.k_steps);
        }
      }
      __syncwarp();
      if constexpr (T::kHelped) {
        const uint32_t known = shared_address(&shared.known);
        barrier_arrive(known);
        // In front of what fills the ring, behind which x would take as long to come as all of it.
        if (p.x_first && !p.combined && shared.schedule.begin < shared.schedule.end) {
          barrier_wait(known, 0);
          if (lane == 0) bring_first_rows<T>(p, shared, memory);
          __syncwarp();
        }
      }
      produce<T>(p, shared, memory, maps, lane);
    } else {
      const uint32_t other = thread - 32 * (kQmvConsumers + 1);
      constexpr uint32_t kOthers = 32 * kQmvHelpers;
      if (p.likely_rows != 0) prefetch_likely(p, other, kOthers);
      if constexpr (T::kHelped) {
        help<T>(p, shared, memory);
      } else if (p.one_matrix) {
        prefetch_codes<T::Decode::kBits>(p, other, kOthers);
      }
    }
  } else {
    take_registers<T::kRegisters>();
    if (!p.combined && p.x_bytes == 0) wait_for_previous_launch();
    Consumer<T> consumer{p, shared, memory, shared_address(shared.full), memory.ring};
    if (!few) order_rows(p, shared.schedule, warp, lane);
    consumer.prepare();
    named_barrier(kReady, kReaders);
    // By every lane that had a part in it.
    if constexpr (T::kHelped) barrier_arrive(shared_address(&shared.known));
    if (p.combined) {
      wait_for_previous_launch();
      let_next_launch_begin();
    }
    consumer.run();
    if (p.combined) {
      if (p.combine.counters != nullptr) combine(p, shared.schedule, thread);
    } else if (!p.paired) {
      store_zeros(p, shared.schedule, thread);
    } else if (blockIdx.x == 0) {
      for (uint32_t i = thread; i < p.cleared_count; i += 32 * kQmvConsumers) p.cleared[i] = 0;
    }
  }
  // Nobody leaves before: synccheck takes warps that have left for missing at other barriers.
  named_barrier(0, kQmvThreads);
}

// A stage's part of x by each thread block, of kQmvConsumers warps.
template <class T>
__device__ __forceinline__ void stage_columns(const QmvParams& p) {
  wait_for_previous_launch();
  let_next_launch_begin();
  const uint32_t thread = threadIdx.x, base = (shared_address(dynamic_shared()) + 127) / 128 * 128;
  const uint32_t pass = blockIdx.x / p.k_steps, step = blockIdx.x - pass * p.k_steps;
  const uint32_t first = pass * p.tokens;
  fill_columns<typename T::Decode, T::kFactorUnit, T::kAffine>(
      p, columns_at(p, base), step * p.step_units, p.step_units, min(p.tokens, p.rows - first),
      thread / 32, thread % 32,
      [&](uint32_t i) { return static_cast<int32_t>(first + i) * p.x_row_stride; });
  named_barrier(1, 32 * kQmvConsumers);
  auto* to = reinterpret_cast<uint4*>(p.staged_x + uint64_t{blockIdx.x} * p.x_bytes);
  for (uint32_t i = thread; i < p.x_bytes / 16; i += 32 * kQmvConsumers) {
    to[i] = load_shared_4(base + i * 16);
  }
}

}  // namespace moeblas::cuda::device

#if defined(__CUDACC__)
template <class T>
__global__ void __launch_bounds__(moeblas::cuda::kQmvThreads, 1)
    qmv_sm90(const __grid_constant__ moeblas::cuda::QmvParams p,
             const __grid_constant__ moeblas::cuda::device::QmvMaps maps) {
#if __CUDA_ARCH__ >= 900
  moeblas::cuda::device::qmv<T>(p, maps);
#endif
}
template <class T>
__global__ void __launch_bounds__(32 * moeblas::cuda::kQmvConsumers)
    qmv_sm90_columns(const __grid_constant__ moeblas::cuda::QmvParams p) {
#if __CUDA_ARCH__ >= 900
  moeblas::cuda::device::stage_columns<T>(p);
#endif
}
#endif
