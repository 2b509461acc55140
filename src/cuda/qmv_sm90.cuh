// qmv_sm90: decode. quantized_matmul, gather_qmm and gather_qmv for few rows per matrix, w packed
// along K in the checkpoint's own layout; dense and gathered from one device body.
//
// A thread block per multiprocessor takes a share of all blocks of rows of all matrices that the
// ids chose. One warp brings weights by bulk copies into a ring of stages, sixteen consume them:
//
//   stage    codes [slab][row of the tile][128 bytes], swizzled; scales and biases [row][groups]
//            beside them, or a whole tile's in slots of their own where rows are no multiples of 16
//   item     a warp's share of a stage: 32 rows x 64 bytes; row_groups of them lie one above the
//            other, 16 / row_groups side by side along K
//   step     16 rows x 32 values: mma.m16n8k16 with w as the 16-row operand and columns of x as n
//
// Codes become float16 by a few operations on words (decode.cuh), x is float16 in shared memory for
// all of K (x_columns.cuh); products are exact, sums float32. A group's sum is scaled in float32,
// the bias enters by the group sum of x. The eight columns of a product are
//
//   few tokens   2 tokens (8-bit codes: 4, nvfp4: 1) x the units of an item: a column holds x in
//                one unit and zeros in the others, so that one set of sums serves a whole item
//   more tokens  8 tokens, once or twice; sums of a group, then its scale
//
// Parts of K meet in shared memory in the order of K. Sums that are not finite are made again from
// decoded weights, term by term, as 0 * infinity must not come from a code.
//
// The time goes into reading w, once for all rows of a matrix that fit into shared memory as
// columns; below some 20 MB of w, into what happens before the first copy and after the last.
#pragma once

#include "cuda/device/qmv_item.cuh"
#include "cuda/device/qmv_store.cuh"
#include "cuda/device/qmv_tile.cuh"
#include "cuda/device/schedule.cuh"

namespace moeblas::cuda::device {

template <class T>
struct Consumer {
  const QmvParams& p;
  QmvShared& shared;
  const QmvMemory& memory;
  uint32_t lane;
  uint32_t row_group, part;  // which this warp's are
  uint32_t slot = 0, parity = 0, sums_turn = 0, scale_slot = 0;
  uint4 x[T::kUnits] = {};  // few tokens: zero but in this lane's units

  __device__ __forceinline__ uint32_t warp() const { return row_group * p.parts + part; }

  // Waits for the stage, lets f(item, unit of the stage) use it, gives it back. f returns what
  // depends on everything that it read.
  template <class F>
  __device__ __forceinline__ void for_each_stage(const QmvTile& tile, F&& f) {
    const uint32_t row = row_group * kQmvItemRows;  // in a stage
    const uint32_t operand = row_group & p.paired;
    const uint32_t of_operand = (row_group >> p.paired) * kQmvItemRows;
    const bool has_rows = of_operand < tile.rows;
    const uint32_t matrix_row = (lane & 7) + (lane >> 3 & 1) * 8;
    const uint32_t unit = part * T::kUnits;
    Item item;
    item.chunk = part % 2 * 4 + lane / 16 % 2;
    item.swizzle = lane & 7;
    const uint32_t codes = part / 2 * p.slab_bytes + (row + matrix_row) * kQmvSlab;
    const bool by_tile = p.scale_slots > 0;
    const uint32_t scales =
        by_tile ? memory.scales + scale_slot * (T::kAffine ? 2 : 1) * p.scale_bytes +
                      operand * p.scale_operand + (of_operand + lane / 4) * p.scale_pitch
                : p.slabs * p.slab_bytes + (row + lane / 4) * p.scale_pitch;
    uint32_t first_unit = 0, none = 0;
#pragma unroll 1
    for (uint32_t step = 0; step < p.k_steps; ++step) {
      const uint32_t stage = memory.ring + slot * p.stage_bytes;
      barrier_wait(shared_address(&shared.full[slot]), parity);
      uint32_t used = 0;
      if (has_rows) {
        item.codes = stage + codes;
        // A copy begins at a multiple of 16 bytes.
        item.scales = by_tile ? scales : stage + scales + (step * p.scale_step & 15u);
        item.biases = item.scales + p.scale_bytes;
        used = f(item, by_tile ? first_unit + unit : unit, first_unit + unit);
      }
      none = nothing_of(used);
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&shared.empty[slot]) + none);
      if (++slot == p.stages) slot = 0, parity ^= 1;
      first_unit += p.parts * T::kUnits;
    }
    if (by_tile) {
      // By every lane: racecheck takes one lane's arrival for that lane's reads alone.
      barrier_arrive(shared_address(&shared.used[scale_slot]) + none);
      if (++scale_slot == p.scale_slots) scale_slot = 0;
    }
  }

  // Where the sums of the next `columns` go: those of warp w from w * columns on. Two such places
  // take turns, so that whoever writes to one has seen, at the other's share_sums, that all warps
  // of the row group have read it.
  __device__ __forceinline__ float* next_sums(uint32_t columns) {
    float* sums = memory.sums + sums_turn * kQmvConsumers * columns * kQmvSumsPitch;
    sums_turn ^= 1;
    return sums;
  }
  // Between writing sums and reading those of the row group's other warps (paired: row groups').
  __device__ __forceinline__ void share_sums() const {
    named_barrier(2 + (row_group >> p.paired), p.parts * 32 << p.paired);
  }

  __device__ __forceinline__ void run_few(const QmvTile& tile) {
    const uint32_t g = lane / 4, t = lane % 4;
    const uint32_t token = min(g % T::kTokens, tile.tokens - 1);
    const uint32_t pair = min(2 * t % T::kTokens, (tile.tokens - 1) / 2 * 2);
    float y[2][4] = {};
    for_each_stage(tile, [&](Item& item, uint32_t unit, uint32_t of_x) {
      item.x = memory.x.columns + token * p.column_bytes + of_x * 64 + t * 16;
      item.factors =
          memory.x.factors + (of_x * p.columns + pair) * static_cast<uint32_t>(sizeof(Factor));
      add_few<T>(p, item, x, unit, y, lane);
      uint32_t all = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) all ^= __float_as_uint(y[i / 4][i % 4]);
      return all;
    });
    // Columns of one token are of other units: the lanes that hold them add up.
    float* sums = next_sums(T::kTokens);
    float* to = sums + warp() * T::kTokens * kQmvSumsPitch;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float v = y[i / 4][i % 4];
      if constexpr (T::kTokens == 1) v += y[i / 4][i % 4 ^ 1];
      if constexpr (T::kTokens <= 2) v += __shfl_xor_sync(~0u, v, 1);
      v += __shfl_xor_sync(~0u, v, 2);
      const uint32_t column = (2 * t + i % 2) % T::kTokens;
      if (t < (T::kTokens == 4 ? 2 : 1) && (T::kTokens > 1 || i % 2 == 0)) {
        to[column * kQmvSumsPitch + i / 4 * 16 + i % 4 / 2 * 8 + g] = v;
      }
    }
    share_sums();
    store_tile<T>(p, shared.schedule, tile, {sums, T::kTokens}, 0, tile.tokens, part, row_group,
                  lane);
  }

  template <int tiles>
  __device__ __forceinline__ void run_many(const QmvTile& tile) {
    const uint32_t g = lane / 4, t = lane % 4;
    const uint32_t columns = columns_of(p, tile.tokens);
    uint32_t x_at[T::kSums], factors_at[T::kSums];
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
      const uint32_t column = min(8 * j + g, columns - 1),
                     pair = min(8 * j + 2 * t, (columns - 1) / 2 * 2);
      x_at[j] = memory.x.columns + column * p.column_bytes + t * 16;
      factors_at[j] = memory.x.factors + pair * static_cast<uint32_t>(sizeof(Factor));
    }
    float y[2][T::kSums][4] = {};
    for_each_stage(tile, [&](Item& item, uint32_t unit, uint32_t of_x) {
      uint32_t x_now[T::kSums], factors_now[T::kSums];
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        x_now[j] = x_at[j] + of_x * 64;
        factors_now[j] = factors_at[j] + of_x / (T::kFactorUnit / 32) * p.columns *
                                             static_cast<uint32_t>(sizeof(Factor));
      }
      add_many<T, tiles>(p, item, x_now, unit, factors_now, y, lane);
      uint32_t all = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) all ^= __float_as_uint(y[i / 4][0][i % 4]);
      return all;
    });
    const uint32_t tokens_each = kQmvSumsColumns / p.column_step;
#pragma unroll
    for (uint32_t j = 0; j < 2 * tiles; ++j) {
      const uint32_t first_token = j * tokens_each;
      if (first_token >= tile.tokens) break;
      float* sums = next_sums(kQmvSumsColumns);
      float* to = sums + warp() * kQmvSumsColumns * kQmvSumsPitch;
      if (t / 2 == j % 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          to[(2 * t % 4 + i % 2) * kQmvSumsPitch + i / 4 * 16 + i % 4 / 2 * 8 + g] =
              y[i / 4][j / 2][i % 4];
        }
      }
      share_sums();
      store_tile<T>(p, shared.schedule, tile, {sums, kQmvSumsColumns}, first_token,
                    min(tokens_each, tile.tokens - first_token), part, row_group, lane);
    }
  }

  template <class RowAt>
  __device__ __forceinline__ void fill(uint32_t tokens, RowAt&& row_at) {
    fill_columns<typename T::Decode, T::kFactorUnit, T::kAffine>(p, memory.x, tokens, warp(), lane,
                                                                 row_at);
  }

  // Rows of x that are known without a schedule.
  __device__ __forceinline__ void prepare() {
    if (!p.one_x && !p.one_matrix) return;
    fill(p.one_x ? 1 : min(p.tokens, p.rows),
         [&](uint32_t i) { return static_cast<int32_t>(i) * p.x_row_stride; });
  }

  __device__ __forceinline__ void run() {
    for_each_tile(
        p, shared.schedule,
        [&](uint32_t first, uint32_t tokens) {
          if (p.one_x || (p.one_matrix && first == 0)) return;  // there from the beginning
          named_barrier(1, 32 * kQmvConsumers);
          fill(tokens,
               [&](uint32_t i) { return shared.schedule.x[shared.schedule.order[first + i]]; });
          named_barrier(1, 32 * kQmvConsumers);
        },
        [&](const QmvTile& tile) {
          if constexpr (T::kTiles == 0) {
            run_few(tile);
          } else if (T::kTiles == 1 || tile.tokens * p.column_step <= 8) {
            run_many<1>(tile);
          } else {
            run_many<T::kTiles>(tile);
          }
        });
  }
};

__device__ __forceinline__ void init_barriers(const QmvParams& p, QmvShared& shared) {
  for (uint32_t i = 0; i < p.stages; ++i) {
    barrier_init(shared_address(&shared.full[i]), 1);
    barrier_init(shared_address(&shared.empty[i]), kQmvConsumers);
  }
  for (uint32_t i = 0; i < p.scale_slots; ++i) {
    barrier_init(shared_address(&shared.used[i]), 32 * kQmvConsumers);
  }
  barrier_init(shared_address(&shared.done), kQmvConsumers + 1);
  barrier_init_visible();
}

__device__ __forceinline__ void prefetch(const QmvMaps& maps, bool biases) {
  prefetch_tensor_map(&maps.codes);
  prefetch_tensor_map(&maps.scales);
  if (biases) prefetch_tensor_map(&maps.biases);
}

template <class T>
__device__ __forceinline__ void qmv(const QmvParams& p, const QmvMaps& first,
                                    const QmvMaps& second) {
  unsigned char* dynamic = dynamic_shared();
  __shared__ QmvShared shared;
  const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  QmvMemory memory;
  memory.ring = (shared_address(dynamic) + 1023) / 1024 * 1024;
  unsigned char* base = dynamic + (memory.ring - shared_address(dynamic));
  memory.scales = memory.ring + p.stages * p.stage_bytes;
  memory.x.columns = memory.scales + p.scale_slots * (T::kAffine ? 2 : 1) * p.scale_bytes;
  memory.x.factors = memory.x.columns + columns_of(p, p.tokens) * p.column_bytes;
  memory.sums = reinterpret_cast<float*>(base + (memory.x.factors - memory.ring) +
                                         p.units / (T::kFactorUnit / 32) * p.columns *
                                             static_cast<uint32_t>(sizeof(Factor)));
  // A few rows are looked up by the producer, which needs to know first.
  const bool few = p.one_matrix || p.rows <= 32;
  constexpr uint32_t kReady = 6, kReaders = 32 * (kQmvConsumers + 1);
  // Whoever has arrived somewhere stays until all have gone on: synccheck takes it for missing
  // otherwise.
  const auto leave = [&] {
    const uint32_t done = shared_address(&shared.done);
    __syncwarp();
    if (lane == 0) barrier_arrive(done);
    barrier_wait(done, 0);
  };
  if (warp >= kQmvConsumers) {
    leave_registers<kQmvProducerRegisters>();
    if (warp > kQmvConsumers) return;
    if (lane == 0) {
      if (p.paired) let_next_launch_begin();
      prefetch(first, T::kAffine);
      if (p.paired) prefetch(second, T::kAffine);
      init_barriers(p, shared);
    }
    __syncwarp();
    if (p.one_matrix) {
      schedule_one(p, shared.schedule, lane);
    } else if (few) {
      schedule_few(p, shared.schedule, lane);
    }
    if (few) {
      named_barrier_arrive(kReady, kReaders);
    } else {
      named_barrier(kReady, kReaders);
    }
    produce<T>(p, shared, memory, first, second, lane);
    return leave();
  }
  take_registers<kQmvConsumerRegisters>();
  if (!few) schedule_many(p, shared.schedule, reinterpret_cast<uint32_t*>(memory.sums), thread);
  Consumer<T> consumer{p, shared, memory, lane, warp / p.parts, warp % p.parts};
  consumer.prepare();
  named_barrier(kReady, kReaders);
  if (p.combined) wait_for_previous_launch();
  consumer.run();
  if (p.combined) {
    if (p.combine.counters != nullptr) combine(p, shared.schedule, thread);
  } else if (!p.paired) {
    store_zeros(p, shared.schedule, thread);
  } else if (blockIdx.x == 0) {
    for (uint32_t i = thread; i < p.cleared_count; i += 32 * kQmvConsumers) p.cleared[i] = 0;
  }
  leave();
}

}  // namespace moeblas::cuda::device

#if defined(__CUDACC__)
template <class T>
__global__ void __launch_bounds__(moeblas::cuda::kQmvThreads, 1)
    qmv_sm90(const __grid_constant__ moeblas::cuda::QmvParams p,
             const __grid_constant__ CUtensorMap codes, const __grid_constant__ CUtensorMap scales,
             const __grid_constant__ CUtensorMap biases,
             const __grid_constant__ CUtensorMap more_codes,
             const __grid_constant__ CUtensorMap more_scales,
             const __grid_constant__ CUtensorMap more_biases) {
#if __CUDA_ARCH__ >= 900
  moeblas::cuda::device::qmv<T>(p, {codes, scales, biases}, {more_codes, more_scales, more_biases});
#endif
}
#endif
