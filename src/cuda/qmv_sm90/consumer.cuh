// A warp of qmv_sm90 that multiplies: its share of every stage of the thread block's tiles, and
// what becomes of their sums.
#pragma once

#include "cuda/qmv_sm90/helpers.cuh"
#include "cuda/qmv_sm90/item.cuh"
#include "cuda/qmv_sm90/plain.cuh"
#include "cuda/qmv_sm90/store.cuh"
#include "cuda/qmv_sm90/tile.cuh"

namespace moeblas::cuda::device {

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
  // By what costs no register where there are none to spare.
  __device__ __forceinline__ bool is_ring_end() const {
    if constexpr (T::kByTile) return full == shared_address(shared.full) + 8 * p.stages;
    return stage == memory.scales;
  }
  // `none`: nothing_of what depends on all that was read of it.
  __device__ __forceinline__ void give_back_stage(uint32_t none) {
    __syncwarp();
    if (lane_of_warp() == 0) barrier_arrive(full + kQmvEmpty + none);
    full += 8;
    stage += p.stage_bytes;
    if (is_ring_end()) {
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
  __device__ __forceinline__ bool by_tile() const {
    return T::kByTile || (!T::kWords && p.scale_slots > 0);
  }
  // Where this tile's scales begin that came at once.
  __device__ __forceinline__ uint32_t slot_address() const {
    return memory.scales + slot() * (T::kAffine ? 2 : 1) * p.scale_bytes;
  }
  __device__ __forceinline__ void give_back_slot(uint32_t none) {
    if (!by_tile()) return;
    // By every lane: racecheck takes one lane's arrival for that lane's reads alone.
    barrier_arrive(shared_address(&shared.used[slot()]) + none);
    turns += 1 << kSlotBit;
    if (slot() == p.scale_slots) turns &= (1 << kSlotBit) - 1;
  }
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
    if (by_tile()) scales += slot_address();
    uint32_t first_unit = 0, none = 0;
#pragma unroll 1
    for (uint32_t step = 0; step < p.k_steps; ++step) {
      barrier_wait(full, parity);
      uint32_t used = 0;
      if (here && first_unit + share.unit < p.filled_units) {
        item.codes = stage + share.codes;
        // A copy begins at a multiple of 16 bytes.
        item.scales =
            T::kWords    ? stage + scales
            : T::kByTile ? scales
                         : stage * p.scales_in_stage + scales + (step * p.scale_step & p.scale_odd);
        item.biases = item.scales + p.scale_bytes;
        used = f(
            item,
            T::kWords ? share.unit : first_unit * (T::kByTile ? 1 : p.scales_of_tile) + share.unit,
            (T::kHelped ? first_unit : first_unit * p.x_whole) + share.unit,
            T::kHelped ? 0 : stage * p.x_in_stage);
      }
      none = nothing_of(used);
      give_back_stage(none);
      first_unit += p.parts * T::kUnits;
    }
    give_back_slot(none);
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
    const uint32_t of_item = share.scales + share.unit;
    const ByteRowsLane<kRows> first(p, memory.x, shared_address(shared.zeros),
                                    first_column<T>(p, pass(), tiles.tokens), share.unit, lane);
    const uint32_t factors_step = all_units * p.columns * static_cast<uint32_t>(sizeof(Factor));
    // Steps in which the warp has values.
    const uint32_t filled = (p.filled_units + all_units - 1 - share.unit) >> (p.parts_shift + 2);
    // Whether K ends within the last of them.
    const bool ends = T::kByTile && p.filled_units % T::kUnits != 0 &&
                      share.unit == (p.filled_units & (all_units - T::kUnits));
    const E2m1Constants e2m1 = E2m1Constants::kept_by(lane);
#pragma unroll 1
    for (uint32_t index = tiles.begin; index != tiles.end; ++index) {
      const uint32_t steps = has_rows(index) ? filled : 0;
      uint32_t scales = of_item + (T::kByTile ? slot_address() : 0);
      uint32_t none = 0;
      auto at = first;
      float y[2][2] = {};
#pragma unroll 1
      for (uint32_t step = 0; step < p.k_steps; ++step) {
        ByteX<kRows> x;
        x.load(p, at);
        barrier_wait(full, parity);
        uint32_t used = 0;
        if (step < steps) {
          const uint32_t second = ends && step + 1 == steps ? 0 : 2;
          add_bytes<T, kRows>(p, stage + share.codes, T::kByTile ? scales : stage + scales, second,
                              x, e2m1, lane, y);
          used = __float_as_uint(y[0][0]) ^ __float_as_uint(y[0][1]) ^ __float_as_uint(y[1][0]) ^
                 __float_as_uint(y[1][1]);
        }
        none = nothing_of(used);
        give_back_stage(none);
        at.advance(all_units, factors_step, lane);
        if (T::kByTile) scales += all_units;
      }
      give_back_slot(none);
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

}  // namespace moeblas::cuda::device
