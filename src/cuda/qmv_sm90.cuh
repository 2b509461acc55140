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
// next matrix's columns and store what consumers hand over (qmv_helpers.cuh), in instances of their
// own: one for scales that come with the stages as words, in whose text nothing asks how they came,
// and one for all others. The first, of mxfp4, multiplies one or two tokens as bytes
// (qmv_bytes.cuh).
//
// Parts of K meet in shared memory in the order of K. Sums that are not finite are made again from
// decoded weights, term by term, as 0 * infinity must not come from a code.
//
// The time goes into reading w, once for all rows of a matrix that fit into shared memory as
// columns; for experts of few rows, into operations on words, whose pipe runs at half rate, and
// into what all warps do at the same time, the ends of tiles and the next matrix's x; below
// some 20 MB of w, into what happens before the first copy and after the last.
#pragma once

#include "cuda/device/qmv_helpers.cuh"
#include "cuda/device/qmv_item.cuh"
#include "cuda/device/qmv_plain.cuh"
#include "cuda/device/qmv_store.cuh"
#include "cuda/device/qmv_tile.cuh"
#include "cuda/device/schedule.cuh"

namespace moeblas::cuda::device {

// Where consumers and producer meet, each number in one place of the text: what looks at barriers
// for mistakes knows no others.
constexpr uint32_t kReady = 10, kShare = 11, kReaders = 32 * (kQmvConsumers + 1);

template <class T>
struct Consumer {
  const QmvParams& p;
  QmvShared& shared;
  const QmvMemory& memory;
  uint32_t full, stage;  // the next stage's barrier and address
  uint32_t parity = 0;
  // Whose turn it is, of two places of sums (the lowest bit) and of slots of scales (from kSlotBit
  // on): what tiles need in one register. With helpers bit 1 says how often a place has been given
  // back, and bits 2 and 3 count passes.
  uint32_t turns = 0;
  static constexpr uint32_t kPassBit = 2, kSlotBit = T::kHelped ? 4 : 1;
  __device__ __forceinline__ uint32_t pass() const { return turns >> kPassBit & 3; }
  __device__ __forceinline__ uint32_t slot() const { return turns >> kSlotBit; }

  // What a warp can tell from its number is worth no register.
  __device__ __forceinline__ uint32_t warp() const { return threadIdx.x / 32; }
  __device__ __forceinline__ uint32_t lane_of_warp() const { return threadIdx.x % 32; }
  __device__ __forceinline__ uint32_t row_group() const { return warp() >> p.parts_shift; }
  // Turned by a part from row group to row group: where K ends within a stage, each of the four
  // schedulers, which have every fourth warp, has as much to do as the others.
  __device__ __forceinline__ uint32_t part_of_k() const {
    return (warp() + row_group()) & (p.parts - 1);
  }
  // The warp's place among sums.
  __device__ __forceinline__ uint32_t place() const { return row_group() * p.parts + part_of_k(); }

  // Depends on all that these sums were made of: rows g and g + 8, and both columns.
  static __device__ __forceinline__ uint32_t any_of(const float (&y)[4]) {
    return __float_as_uint(y[0]) ^ __float_as_uint(y[3]);
  }

  // Where the codes of this warp's item begin in a stage, as this lane names them.
  __device__ __forceinline__ uint32_t codes_of_item() const {
    const uint32_t lane = lane_of_warp(), group = row_group(), part = part_of_k();
    const uint32_t matrix_row = (lane & 7) + (lane >> 3 & 1) * 8, box = group >> p.box_shift;
    const uint32_t in_box = (group - (box << p.box_shift)) * kQmvItemRows;
    const uint32_t line = part / 2 * p.slab_rows + in_box + matrix_row;
    const uint32_t first_chunk = (part % 2 * 4 + lane / 16) ^ line % 8;
    return box * p.box_bytes + line * kQmvSlab + (first_chunk << 4);
  }
  // `none`: nothing_of what depends on all that was read of it.
  __device__ __forceinline__ void give_back_stage(uint32_t none) {
    __syncwarp();
    if (lane_of_warp() == 0) barrier_arrive(full + kQmvEmpty + none);
    full += 8;
    stage += p.stage_bytes;
    if (stage == memory.scales) {
      full -= 8 * p.stages;
      stage -= p.stages * p.stage_bytes;
      parity ^= 1;
    }
  }

  // What of a stage is this warp's, of tiles whose matrix does not end in them.
  struct Share {
    uint32_t codes, scales;  // as this lane names them: in a stage or, of scales, in a slot
    uint32_t unit;           // the first
  };
  __device__ __forceinline__ bool by_tile() const { return !T::kWords && p.scale_slots > 0; }
  __device__ __forceinline__ Share share_of_stage() const {
    const uint32_t lane = lane_of_warp(), group = row_group();
    const uint32_t of_operand = rows_in_operand(p, group) * kQmvItemRows;
    const uint32_t scales =
        by_tile()
            ? operand_of_rows(p, group) * p.scale_operand + (of_operand + lane / 4) * p.scale_pitch
            : p.scales_at + (group * kQmvItemRows + lane / 4) * p.scale_pitch;
    return {codes_of_item(), scales, part_of_k() * T::kUnits};
  }
  __device__ __forceinline__ bool has_rows(uint32_t tile) const {
    return rows_in_operand(p, row_group()) * kQmvItemRows < rows_of(p, tile);
  }

  // Waits for the stage, lets f(item, unit in its scales, unit in x, where x begins that came with
  // it) use it, gives it back. f returns what depends on everything that it read.
  template <class F>
  __device__ __forceinline__ void for_each_stage(uint32_t tile, const Share& share, F&& f) {
    const bool here = has_rows(tile);
    Item item;
    uint32_t scales = share.scales;
    if (by_tile()) scales += memory.scales + slot() * (T::kAffine ? 2 : 1) * p.scale_bytes;
    uint32_t first_unit = 0, none = 0;
#pragma unroll 1
    for (uint32_t step = 0; step < p.k_steps; ++step) {
      barrier_wait(full, parity);
      uint32_t used = 0;
      if (here && first_unit + share.unit < p.filled_units) {
        item.codes = stage + share.codes;
        // A copy begins at a multiple of 16 bytes.
        item.scales =
            T::kWords ? stage + scales
                      : stage * p.scales_in_stage + scales + (step * p.scale_step & p.scale_odd);
        item.biases = item.scales + p.scale_bytes;
        used = f(item, T::kWords ? share.unit : first_unit * p.scales_of_tile + share.unit,
                 (T::kHelped ? first_unit : first_unit * p.x_whole) + share.unit,
                 T::kHelped ? 0 : stage * p.x_in_stage);
      }
      none = nothing_of(used);
      give_back_stage(none);
      first_unit += p.parts * T::kUnits;
    }
    if (by_tile()) {
      // By every lane: racecheck takes one lane's arrival for that lane's reads alone.
      barrier_arrive(shared_address(&shared.used[slot()]) + none);
      turns += 1 << kSlotBit;
      if (slot() == p.scale_slots) turns &= (1 << kSlotBit) - 1;
    }
  }

  // Where the sums of the next `columns` go: those of place w from w * columns on. Two such places
  // take turns, so that whoever writes to one has seen, at the other's share_sums, that all warps
  // of the row group have read it; or the helpers have, who give it back.
  __device__ __forceinline__ float* next_sums() {
    const uint32_t place = turns & 1;
    if constexpr (T::kHelped) {
      barrier_wait(shared_address(&shared.free[place]), (turns >> 1 & 1) ^ 1);
      turns = (turns & ~3u) | ((turns + 1) & 3);
    } else {
      turns ^= 1;
    }
    return sums_at<T>(memory, place);
  }
  // Between writing sums and reading those of the row group's other warps (paired: row groups').
  __device__ __forceinline__ void share_sums() const {
    named_barrier(2 + rows_of_gate(p, row_group()), p.parts * 32 << p.paired);
  }

  __device__ __forceinline__ void share_and_store(const QmvTile& tile, const TileSums& sums,
                                                  uint32_t first_token, uint32_t tokens) const {
    const Schedule& s = shared.schedule;
    if constexpr (T::kHelped) {
      // Behind the last one all of these warps are faster.
      if (!ends_share(p, s, tile)) {
        // By every lane, as each wrote some.
        return barrier_arrive(shared_address(&shared.handed[~turns & 1]));
      }
    }
    const uint32_t part = part_of_k(), group = row_group(), lane = lane_of_warp();
    const uint32_t warp = part + operand_of_rows(p, group) * p.parts;
    const RowOut first = first_row_out(s, tile, first_token + warp);
    share_sums();
    if (stores_plainly(p)) {
      store_plain<T>(p, s, tile, sums, first_token, tokens, warp, group, lane, first);
    } else {
      store_tile<T>(p, s, tile, sums, first_token, tokens, part, group, lane);
    }
  }

  // At most kColumns columns.
  template <int kColumns>
  __device__ __forceinline__ void run_few(const QmvTiles& tiles) {
    const uint32_t lane = lane_of_warp(), g = lane / 4, t = lane % 4;
    const uint32_t columns = columns_of(p, tiles.tokens);
    const uint32_t column = min(g % kColumns, columns - 1);
    const uint32_t pair = min(2 * t % kColumns, (columns - 1) / 2 * 2);
    const uint32_t first = first_column<T>(p, pass(), tiles.tokens);
    const uint32_t x_at = memory.x.columns + (first + column) * p.column_bytes + t * 16;
    const uint32_t factors_at =
        memory.x.factors + (first + pair) * static_cast<uint32_t>(sizeof(Factor));
    uint4 x[T::kUnits] = {};  // zero but in this lane's units
    const Share share = share_of_stage();
#pragma unroll 1
    for (uint32_t index = tiles.begin; index != tiles.end; ++index) {
      float y[2][4] = {};
      for_each_stage(index, share, [&](Item& item, uint32_t unit, uint32_t of_x, uint32_t stage) {
        item.x = stage + x_at + of_x * 64;
        item.factors =
            stage + factors_at +
            of_x / (T::kFactorUnit / 32) * p.columns * static_cast<uint32_t>(sizeof(Factor));
        add_few<T, kColumns>(p, item, x, unit, y, lane);
        return any_of(y[0]) ^ any_of(y[1]);
      });
      // Columns of one row of x are of other units: the lanes that hold them add up.
      float* sums = next_sums();
      float* to = sums + place() * kColumns * kQmvSumsPitch;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float v = y[i / 4][i % 4];
        if constexpr (kColumns == 1) v += y[i / 4][i % 4 ^ 1];
        if constexpr (kColumns <= 2) v += __shfl_xor_sync(~0u, v, 1);
        v += __shfl_xor_sync(~0u, v, 2);
        const uint32_t of = (2 * t + i % 2) % kColumns;
        if (t < (kColumns == 4 ? 2 : 1) && (kColumns > 1 || i % 2 == 0)) {
          to[of * kQmvSumsPitch + i / 4 * 16 + i % 4 / 2 * 8 + g] = v;
        }
      }
      share_and_store(tiles.at(index), {sums, kColumns}, 0, tiles.tokens);
    }
  }

  template <int tiles>
  __device__ __forceinline__ void run_many(const QmvTiles& all) {
    const uint32_t lane = lane_of_warp(), g = lane / 4, t = lane % 4;
    const uint32_t columns = columns_of(p, all.tokens);
    const uint32_t first = first_column<T>(p, pass(), all.tokens);
    uint32_t x_at[T::kSums], factors_at[T::kSums];
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
      const uint32_t column = min(8 * j + g, columns - 1),
                     pair = min(8 * j + 2 * t, (columns - 1) / 2 * 2);
      x_at[j] = memory.x.columns + (first + column) * p.column_bytes + t * 16;
      factors_at[j] = memory.x.factors + (first + pair) * static_cast<uint32_t>(sizeof(Factor));
    }
    const Share share = share_of_stage();
#pragma unroll 1
    for (uint32_t index = all.begin; index != all.end; ++index) {
      float y[2][T::kSums][4] = {};
      for_each_stage(index, share, [&](Item& item, uint32_t unit, uint32_t of_x, uint32_t stage) {
        uint32_t x_now[T::kSums], factors_now[T::kSums];
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
          x_now[j] = stage + x_at[j] + of_x * 64;
          factors_now[j] =
              stage + factors_at[j] +
              of_x / (T::kFactorUnit / 32) * p.columns * static_cast<uint32_t>(sizeof(Factor));
        }
        add_many<T, tiles>(p, item, x_now, unit, factors_now, y, lane);
        uint32_t any = 0;
#pragma unroll
        for (int i = 0; i < 2 * tiles; ++i) any ^= any_of(y[i % 2][i / 2]);
        return any;
      });
      const uint32_t tokens_each = p.column_step == 1 ? kQmvSumsColumns : 1;
      // One copy of what follows: kernels of this size wait for their own text.
#pragma unroll 1
      for (uint32_t j = 0; j * tokens_each < all.tokens; ++j) {
        float* sums = next_sums();
        float* to = sums + place() * kQmvSumsColumns * kQmvSumsPitch;
        if (t / 2 == j % 2) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            float v = y[i / 4][0][i % 4];
            if (tiles == 2 && j >= 2) v = y[i / 4][tiles - 1][i % 4];
            to[(2 * t % 4 + i % 2) * kQmvSumsPitch + i / 4 * 16 + i % 4 / 2 * 8 + g] = v;
          }
        }
        const uint32_t first_token = j * tokens_each;
        share_and_store(all.at(index), {sums, kQmvSumsColumns}, first_token,
                        min(tokens_each, all.tokens - first_token));
      }
    }
  }

  // Of a pass that has them as bytes, kRows of them. As for_each_stage; what is known of x is
  // loaded before the stage is there.
  template <int kRows>
  __device__ __forceinline__ void run_bytes(const QmvTiles& tiles) {
    static_assert(T::kUnits == 4 && T::kGroup == kQmvUnit, "a word of scales of one byte");
    const uint32_t lane = lane_of_warp(), g = lane / 4, t = lane % 4;
    const uint32_t all_units = T::kUnits << p.parts_shift;
    const Share share = share_of_stage();
    const uint32_t scales = share.scales + share.unit;
    const ByteRowsLane<kRows> first(p, memory.x, shared_address(shared.zeros),
                                    first_column<T>(p, pass(), tiles.tokens), share.unit, lane);
    const uint32_t factors_step = all_units * p.columns * static_cast<uint32_t>(sizeof(Factor));
    // Steps in which the warp has values.
    const uint32_t filled = (p.filled_units + all_units - 1 - share.unit) >> (p.parts_shift + 2);
    const E2m1Constants e2m1 = E2m1Constants::kept_by(lane);
#pragma unroll 1
    for (uint32_t index = tiles.begin; index != tiles.end; ++index) {
      const uint32_t steps = has_rows(index) ? filled : 0;
      auto at = first;
      float y[2][2] = {};
#pragma unroll 1
      for (uint32_t step = 0; step < p.k_steps; ++step) {
        ByteX<kRows> x;
        x.load(p, at);
        barrier_wait(full, parity);
        uint32_t used = 0;
        if (step < steps) {
          add_bytes<T, kRows>(p, stage + share.codes, stage + scales, x, e2m1, lane, y);
          used = __float_as_uint(y[0][0]) ^ __float_as_uint(y[0][1]) ^ __float_as_uint(y[1][0]) ^
                 __float_as_uint(y[1][1]);
        }
        give_back_stage(nothing_of(used));
        at.advance(all_units, factors_step, lane);
      }
      // The lanes that have limbs or slots of one row add up.
      float* sums = next_sums();
      float* to = sums + (place() * kQmvSumsColumns + (kRows == 1 ? 0 : t / 2)) * kQmvSumsPitch + g;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float v = y[i / 2][i % 2];
        v += __shfl_xor_sync(~0u, v, 1);
        if constexpr (kRows == 1) v += __shfl_xor_sync(~0u, v, 2);
        if (t % (4 / kRows) == 0) to[i * 8] = v;
      }
      share_and_store(tiles.at(index), {sums, kQmvSumsColumns}, 0, tiles.tokens);
    }
  }

  template <class RowAt>
  __device__ __forceinline__ void fill(uint32_t tokens, uint32_t section, RowAt&& row_at) {
    if constexpr (T::kBytes) {
      if (has_bytes<T>(p, tokens)) {
        return fill_bytes(p, memory.x, tokens, warp(), lane_of_warp(), row_at, kQmvConsumers,
                          first_column<T>(p, pass(), tokens));
      }
    }
    fill_columns<typename T::Decode, T::kFactorUnit, T::kAffine, true>(
        p, memory.x, section * p.units, p.units, tokens, warp(), lane_of_warp(), row_at,
        kQmvConsumers, first_column<T>(p, pass(), tokens));
  }

  // Rows of x that are known without a schedule.
  __device__ __forceinline__ void prepare() {
    if (p.x_bytes > 0 || (!p.one_x && !p.one_matrix)) return;
    fill(p.one_x ? 1 : min(p.tokens, p.rows), 0,
         [&](uint32_t i) { return static_cast<int32_t>(i) * p.x_row_stride; });
  }

  // Of the first pass, whose rows have been asked for.
  __device__ __forceinline__ void convert_first(uint32_t tokens) const {
    barrier_wait(shared_address(&shared.first_copied), 0);
    const uint32_t chunks = p.units / 8, step = row_columns<T>(p, tokens);
    uint32_t column = 0, chunk = warp();
#pragma unroll 1
    for (;; chunk += kQmvConsumers) {
      for (; chunk >= chunks; chunk -= chunks) column += step;
      if (column >= tokens * step) break;
      convert_chunk<T>(p, memory.x, chunk, column, step, lane_of_warp());
    }
    named_barrier(1, 32 * kQmvConsumers);
  }

  // Of the next pass, made by the helpers, unless they say that there was no room beside the last
  // one's.
  __device__ __forceinline__ bool await_columns() {
    turns = (turns & ~(3u << kPassBit)) | ((turns + (1 << kPassBit)) & (3 << kPassBit));
    const uint32_t odd = pass() & 1;
    barrier_wait(shared_address(&shared.filled[odd]), (pass() - 1) >> 1 & 1);
    return shared.by_all[odd] != 0;
  }

  // A pass's section of x.
  __device__ __forceinline__ void make_x(uint32_t first, uint32_t tokens, uint32_t section) {
    // There from the beginning, or to come with the stages.
    if (p.one_x || (p.one_matrix && first == 0) || p.x_bytes > 0) return;
    const Schedule& s = shared.schedule;
    if constexpr (T::kHelped) {
      if (first != s.first[s.begin_matrix]) {
        if (!await_columns()) return;
      } else if (p.x_first) {
        return convert_first(tokens);
      }
    }
    named_barrier(1, 32 * kQmvConsumers);
    fill(tokens, section, [&](uint32_t i) { return s.x[s.order[first + i]]; });
    named_barrier(1, 32 * kQmvConsumers);
  }

  __device__ __forceinline__ void run() {
    for_each_tiles(p, shared.schedule, [&](const QmvTiles& tiles) {
      make_x(tiles.first, tiles.tokens, section_of(p, tiles.begin));
      if constexpr (T::kTiles == 0) {
        run_few<T::kTokens>(tiles);
      } else {
        if constexpr (T::kBytes) {
          if (has_bytes<T>(p, tiles.tokens)) {
            if (tiles.tokens == 1) return run_bytes<1>(tiles);
            return run_bytes<2>(tiles);
          }
        }
        const uint32_t columns = columns_of(p, tiles.tokens);
        if constexpr (T::kFew > 0) {
          if (columns <= T::kFew) return run_few<T::kFew>(tiles);
        }
        if (T::kTiles == 1 || columns <= 8) return run_many<1>(tiles);
        run_many<T::kTiles>(tiles);
      }
    });
    if constexpr (T::kHelped) {
      barrier_wait(shared_address(&shared.stored), 0);
      if (shared.again != 0) mend<T>(p, shared.schedule, threadIdx.x);
    }
  }
};

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

// What the ring will hold first, on its way into the L2 cache, where it can do no harm however old
// it is: the previous launch may have yet to write it. One matrix; by several threads. Not too much
// of it: copies come after it.
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
  for (uint32_t r = 0; r < min(p.box_rows, p.n - row); ++r, from += codes.row_stride) {
    for (uint32_t i = thread; i < lines; i += threads) prefetch_line(from + i * kQmvSlab);
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
        let_next_launch_begin();
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
    } else if constexpr (T::kHelped) {
      help<T>(p, shared, memory);
    } else if (p.one_matrix) {
      prefetch_codes<T::Decode::kBits>(p, thread - 32 * (kQmvConsumers + 1), 96);
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
