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
#include "cuda/device/schedule.cuh"

namespace moeblas::cuda::device {

struct QmvShared {
  uint64_t full[kQmvMostStages];
  uint64_t empty[kQmvMostStages];
  uint64_t used[kQmvMostSlots];  // slots of scales
  Schedule schedule;
};

// Addresses in the dynamic part.
struct QmvMemory {
  uint32_t ring;
  uint32_t scales;  // slots
  XColumns x;
  float* sums;  // [two in turn][warp][column][32 rows]
};

// Columns up to the last one of so many rows of x.
__device__ __forceinline__ uint32_t columns_of(const QmvParams& p, uint32_t tokens) {
  return (tokens - 1) * p.column_step + p.limbs;
}

// Rows from `row` on of matrix `matrix`, times the pass's columns.
struct QmvTile {
  uint32_t matrix, row, boxes;
  uint32_t rows;           // that exist
  uint32_t first, tokens;  // in the schedule's order
};

// The same in every warp: passes over the rows of a matrix, and the tiles of each.
template <class OnPass, class OnTile>
__device__ __forceinline__ void for_each_tile(const QmvParams& p, const Schedule& s,
                                              OnPass&& on_pass, OnTile&& on_tile) {
  for (uint32_t at = s.begin; at < s.end;) {
    const uint32_t d = at / p.blocks, end = min(s.end, (d + 1) * p.blocks);
    const uint32_t rows = s.first[d + 1] - s.first[d];
    for (uint32_t first = 0; first < rows; first += p.tokens) {
      const uint32_t tokens = min(p.tokens, rows - first);
      on_pass(s.first[d] + first, tokens);
      for (uint32_t b = at; b < end; b += p.tile_boxes) {
        const uint32_t boxes = min(p.tile_boxes, end - b), row = (b - d * p.blocks) * p.box_rows;
        on_tile(QmvTile{static_cast<uint32_t>(s.matrix[d]) * p.matrix_step, row, boxes,
                        min(boxes * p.box_rows, p.n - row), s.first[d] + first, tokens});
      }
    }
    at = end;
  }
}

// One warp: a lane per copy.
template <class T>
__device__ __forceinline__ void produce(const QmvParams& p, QmvShared& shared,
                                        const QmvMemory& memory, const CUtensorMap& codes,
                                        const CUtensorMap& scales, const CUtensorMap& biases,
                                        uint32_t lane) {
  constexpr uint32_t kScales = T::kAffine ? 2 : 1;
  const uint64_t policy = evict_first_policy();
  const bool by_tile = p.scale_slots > 0;
  const uint32_t per_box = p.slabs + (by_tile ? 0 : kScales);
  const uint32_t box = (lane >= per_box) + (lane >= 2 * per_box) + (lane >= 3 * per_box) +
                       (lane >= 4 * per_box);  // of at most four
  const uint32_t which = lane - box * per_box;
  const bool brings_codes = which < p.slabs;
  const uint32_t other = brings_codes ? 0 : which - p.slabs;
  const CUtensorMap* map = brings_codes ? &codes : other == 0 ? &scales : &biases;
  const uint32_t to = brings_codes ? which * p.slab_bytes + box * p.box_rows * kQmvSlab
                                   : p.slabs * p.slab_bytes + other * p.scale_bytes +
                                         box * p.box_rows * p.scale_pitch;
  const uint32_t first = brings_codes ? which * kQmvSlab : 0;
  const uint32_t each = brings_codes ? p.slabs * kQmvSlab : p.scale_step;
  const uint32_t box_bytes =
      p.box_rows * (p.slabs * kQmvSlab + (by_tile ? 0 : kScales * p.scale_pitch));
  uint32_t slot = 0, parity = 1, scale_slot = 0, scale_parity = 1;
  for_each_tile(
      p, shared.schedule, [](uint32_t, uint32_t) {},
      [&](const QmvTile& tile) {
        const auto row = static_cast<int32_t>(tile.row + box * p.box_rows);
        const auto matrix = static_cast<int32_t>(tile.matrix);
        const uint32_t run = by_tile ? tile.rows * p.scale_pitch : 0;
        uint32_t at = first;
#pragma unroll 1
        for (uint32_t step = 0; step < p.k_steps; ++step, at += each) {
          const bool brings_run = by_tile && step == 0;
          const uint32_t full = shared_address(&shared.full[slot]);
          barrier_wait(shared_address(&shared.empty[slot]), parity);
          if (brings_run) barrier_wait(shared_address(&shared.used[scale_slot]), scale_parity);
          if (lane == 0) {
            barrier_expect(full, tile.boxes * box_bytes + (brings_run ? kScales * run : 0));
          }
          __syncwarp();
          if (box < tile.boxes) {
            copy_box(memory.ring + slot * p.stage_bytes + to, map, static_cast<int32_t>(at & ~15u),
                     row, matrix, full, policy);
          }
          if (brings_run && lane < kScales) {
            const QmvTensor& from = lane == 0 ? p.scales : p.biases;
            copy_run(memory.scales + (scale_slot * kScales + lane) * p.scale_bytes,
                     from.data + tile.matrix * from.matrix_stride + tile.row * from.row_stride, run,
                     full, policy);
          }
          if (++slot == p.stages) slot = 0, parity ^= 1;
        }
        if (++scale_slot == p.scale_slots) scale_slot = 0, scale_parity ^= 1;
      });
}

// One output from decoded weights, term by term.
template <class T>
__device__ __noinline__ float decoded_sum(const QmvParams& p, uint32_t matrix, uint32_t n,
                                          int64_t x) {
  using F = typename T::Format;
  const unsigned char* codes =
      p.codes.data + matrix * p.codes.matrix_stride + n * p.codes.row_stride;
  const unsigned char* scales =
      p.scales.data + matrix * p.scales.matrix_stride + n * p.scales.row_stride;
  const unsigned char* biases =
      p.biases.data + matrix * p.biases.matrix_stride + n * p.biases.row_stride;
  const float tensor_scale = p.tensor_scale != nullptr
                                 ? p.tensor_scale[matrix * p.tensor_scale_step]
                                 : p.tensor_scale_number;
  float sum = 0.0f;
  for (uint32_t k = 0; k < p.k; ++k) {
    const uint32_t byte = codes[static_cast<uint64_t>(k) * T::Decode::kBits / 8];
    const uint32_t code = T::Decode::kBits == 8 ? byte : byte >> k % 2 * 4 & 15u;
    const uint32_t group = k / p.group;
    float value;
    if constexpr (T::kAffine) {
      const formats::AffineParams params = {simt::load_float(scales, p.scale_type, group),
                                            simt::load_float(biases, p.scale_type, group)};
      value = F::decode(code, params);
    } else {
      value = formats::mul(F::decode_code(code),
                           formats::mul(F::decode_scale(scales[group]), tensor_scale));
    }
    sum = fmaf(value, simt::load_float(p.x, p.x_type, x + k * p.x_col_stride), sum);
  }
  return sum;
}

__device__ __forceinline__ void store(const QmvParams& p, int64_t at, float value) {
  simt::store_float(p.out, p.out_type, at, value);
}

// The sums of a tile's parts of K, added in the order of K, go to the output. `columns` of 32 rows
// each are in `sums`; a part is one warp's.
template <class T>
__device__ __forceinline__ void store_tile(const QmvParams& p, const QmvShared& shared,
                                           const QmvTile& tile, const float* sums, uint32_t columns,
                                           uint32_t first_token, uint32_t tokens, uint32_t parts,
                                           uint32_t part, uint32_t row_group, uint32_t lane) {
  const uint32_t n = tile.row + row_group * kQmvItemRows + lane;
  const bool exists = row_group * kQmvItemRows + lane < tile.rows;
#pragma unroll 1
  for (uint32_t token = part; token < tokens; token += parts) {
    const float* from =
        sums + (row_group * parts * columns + token * p.column_step) * kQmvSumsPitch + lane;
    float total = 0.0f;
#pragma unroll 1
    for (uint32_t limb = 0; limb < p.limbs; ++limb, from += kQmvSumsPitch) {
      float sum = 0.0f;
#pragma unroll 4
      for (uint32_t i = 0; i < parts; ++i) sum += from[i * columns * kQmvSumsPitch];
      total += sum;
    }
    if (!exists) continue;
    const uint32_t row = shared.schedule.order[tile.first + first_token + token];
    if constexpr (T::kHalves) {
      total *= p.tensor_scale != nullptr ? p.tensor_scale[tile.matrix * p.tensor_scale_step]
                                         : p.tensor_scale_number;
    }
    if (!formats::is_finite(total)) {
      total = decoded_sum<T>(p, tile.matrix, n, p.one_x ? 0 : shared.schedule.x[row]);
    }
    store(p, static_cast<int64_t>(shared.schedule.out[row]) + n, total);
  }
}

template <class T>
struct Consumer {
  const QmvParams& p;
  QmvShared& shared;
  const QmvMemory& memory;
  uint32_t warp, lane;
  uint32_t parts, row_group, part;  // of K; which this warp's are
  uint32_t slot = 0, parity = 0, sums_turn = 0, scale_slot = 0;
  uint4 x[T::kUnits] = {};  // few tokens: zero but in this lane's units

  // Waits for the stage, lets f(item, unit of the stage) use it, gives it back. f returns what
  // depends on everything that it read.
  template <class F>
  __device__ __forceinline__ void for_each_stage(const QmvTile& tile, F&& f) {
    const uint32_t row = row_group * kQmvItemRows;
    const bool has_rows = row < tile.rows;
    const uint32_t matrix_row = (lane & 7) + (lane >> 3 & 1) * 8;
    const uint32_t unit = part * T::kUnits;
    Item item;
    item.chunk = part % 2 * 4 + lane / 16 % 2;
    item.swizzle = lane & 7;
    const uint32_t codes = part / 2 * p.slab_bytes + (row + matrix_row) * kQmvSlab;
    const bool by_tile = p.scale_slots > 0;
    const uint32_t scale_row = (row + lane / 4) * p.scale_pitch;
    const uint32_t scales =
        by_tile ? memory.scales + scale_slot * (T::kAffine ? 2 : 1) * p.scale_bytes + scale_row
                : p.slabs * p.slab_bytes + scale_row;
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
      first_unit += parts * T::kUnits;
    }
    if (by_tile) {
      if (lane == 0) barrier_arrive(shared_address(&shared.used[scale_slot]) + none);
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
  // Between writing sums and reading those of the row group's other warps.
  __device__ __forceinline__ void share_sums() const { named_barrier(2 + row_group, parts * 32); }

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
    float* to = sums + warp * T::kTokens * kQmvSumsPitch;
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
    store_tile<T>(p, shared, tile, sums, T::kTokens, 0, tile.tokens, parts, part, row_group, lane);
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
      float* to = sums + warp * kQmvSumsColumns * kQmvSumsPitch;
      if (t / 2 == j % 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          to[(2 * t % 4 + i % 2) * kQmvSumsPitch + i / 4 * 16 + i % 4 / 2 * 8 + g] =
              y[i / 4][j / 2][i % 4];
        }
      }
      share_sums();
      store_tile<T>(p, shared, tile, sums, kQmvSumsColumns, first_token,
                    min(tokens_each, tile.tokens - first_token), parts, part, row_group, lane);
    }
  }

  template <class RowAt>
  __device__ __forceinline__ void fill(uint32_t tokens, RowAt&& row_at) {
    fill_columns<typename T::Decode, T::kFactorUnit, T::kAffine>(p, memory.x, tokens, warp, lane,
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

// Rows that no matrix is for.
__device__ __forceinline__ void store_zeros(const QmvParams& p, const Schedule& s,
                                            uint32_t thread) {
  if (s.placed == p.rows) return;
  for (uint32_t r = 0; r < p.rows; ++r) {
    if (s.key[r] >= 0) continue;
    const int64_t to = s.out[r];
    for (uint32_t n = blockIdx.x * 32 * kQmvConsumers + thread; n < p.n;
         n += gridDim.x * 32 * kQmvConsumers) {
      store(p, to + n, 0.0f);
    }
  }
}

__device__ __forceinline__ void init_barriers(const QmvParams& p, QmvShared& shared) {
  for (uint32_t i = 0; i < p.stages; ++i) {
    barrier_init(shared_address(&shared.full[i]), 1);
    barrier_init(shared_address(&shared.empty[i]), kQmvConsumers);
  }
  for (uint32_t i = 0; i < p.scale_slots; ++i) {
    barrier_init(shared_address(&shared.used[i]), kQmvConsumers);
  }
  barrier_init_visible();
}

template <class T>
__device__ __forceinline__ void qmv(const QmvParams& p, const CUtensorMap& codes,
                                    const CUtensorMap& scales, const CUtensorMap& biases) {
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
  constexpr uint32_t kReady = 6, kDone = 7, kReaders = 32 * (kQmvConsumers + 1);
  if (warp >= kQmvConsumers) {
    leave_registers<kQmvProducerRegisters>();
    if (warp > kQmvConsumers) return;
    if (lane == 0) {
      prefetch_tensor_map(&codes);
      prefetch_tensor_map(&scales);
      if (T::kAffine) prefetch_tensor_map(&biases);
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
    produce<T>(p, shared, memory, codes, scales, biases, lane);
    // Who has arrived stays until all have gone on: synccheck takes it for missing otherwise.
    named_barrier(kDone, kReaders);
    return;
  }
  take_registers<kQmvConsumerRegisters>();
  if (!few) schedule_many(p, shared.schedule, reinterpret_cast<uint32_t*>(memory.sums), thread);
  const uint32_t parts = kQmvConsumers / p.row_groups;
  Consumer<T> consumer{p, shared, memory, warp, lane, parts, warp / parts, warp % parts};
  consumer.prepare();
  named_barrier(kReady, kReaders);
  consumer.run();
  store_zeros(p, shared.schedule, thread);
  named_barrier(kDone, kReaders);
}

}  // namespace moeblas::cuda::device

#if defined(__CUDACC__)
template <class T>
__global__ void __launch_bounds__(moeblas::cuda::kQmvThreads, 1)
    qmv_sm90(const __grid_constant__ moeblas::cuda::QmvParams p,
             const __grid_constant__ CUtensorMap codes, const __grid_constant__ CUtensorMap scales,
             const __grid_constant__ CUtensorMap biases) {
#if __CUDA_ARCH__ >= 900
  moeblas::cuda::device::qmv<T>(p, codes, scales, biases);
#endif
}
#endif
