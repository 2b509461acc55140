// The warps of qmv_sm90 that neither multiply nor bring weights: beside those who do, they make the
// next pass's columns of x, and add up and store what the multiplying warps leave in shared memory.
//
//   known   the schedule: the helpers wait for it
//   copied  the next pass's rows of x, as they are, where their columns will be
//   filled  those columns, of every second pass by turns: those who multiply wait for them
//   handed  sums of up to four columns in one of two places: the helpers wait for them
//   free    that place again: those who multiply wait for it, two tiles later
//
// What has been handed over was multiplied: the x of it is nobody's any more. Columns for which
// there is no room beside the last pass's are left to those who multiply, who are faster; and so is
// the last tile of a share. Terms of sums that are not finite take more registers than there are
// here: NaN is stored in their place, and in the end those who multiply find it (mend).
#pragma once

#include "cuda/device/bulk_store.cuh"
#include "cuda/device/hand_over.cuh"
#include "cuda/qmv_sm90/bytes.cuh"
#include "cuda/qmv_sm90/plain.cuh"

namespace moeblas::cuda::device {

// Where the one that brings weights says that there are barriers: a number, and who meets there.
constexpr uint32_t kBegun = 12, kBegunThreads = 32 * (1 + kQmvHelpers);

// Where the sums of up to four columns go: those of place w of the warps from w * columns on.
template <class T>
__device__ __forceinline__ float* sums_at(const QmvMemory& memory, uint32_t place) {
  constexpr uint32_t kColumns = T::kTiles == 0 ? T::kTokens : kQmvSumsColumns;
  return memory.sums + place * kQmvConsumers * kColumns * kQmvSumsPitch;
}

// Four neighbouring rows of w, as a lane stores them: a quarter of the instructions that one by one
// they would take, of which three warps must not run many.
struct HandedRows {
  float v[4];
  __device__ __forceinline__ void turn(float last) {
    v[0] = v[1], v[1] = v[2], v[2] = v[3], v[3] = last;
  }
};

// One of two operands' sums of all parts, in the order of K as in added_parts, ready for what
// follows; what is not finite is NaN. Rows from n on.
template <class T>
__device__ __forceinline__ HandedRows handed_sums(const QmvParams& p, const Schedule& s,
                                                  const QmvTile& tile, const float* from,
                                                  uint32_t step, uint32_t operand, uint32_t n) {
  HandedRows rows = {};
  constexpr uint32_t kAtOnce = 2;
#pragma unroll 1
  for (uint32_t i = 0; i < p.parts; i += kAtOnce, from += kAtOnce * step) {
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const float4 part = *reinterpret_cast<const float4*>(from + j * step);
      rows.v[0] += part.x, rows.v[1] += part.y, rows.v[2] += part.z, rows.v[3] += part.w;
    }
  }
  const QmvWeights& w = p.w[operand];
#pragma unroll
  for (float& v : rows.v) {
    if constexpr (T::kHalves) v *= tensor_scale_of(w, matrix_of(p, s, tile.active));
    if (!formats::is_finite(v)) v = __uint_as_float(0x7fc00000);
  }
  if ((p.added >> operand & 1) != 0) {
#pragma unroll 1
    for (uint32_t i = 0; i < 4; ++i) {
      rows.turn(rows.v[0] + added_to(w, matrix_of(p, s, tile.active), n + i));
    }
  }
  return rows;
}

// To neighbours from a multiple of four on. NaN may become any NaN.
__device__ __forceinline__ void store_handed_rows(const QmvParams& p, int64_t at,
                                                  const HandedRows& rows) {
  const auto& v = rows.v;
  if (p.out_type == simt::kBf16) {
    *reinterpret_cast<uint2*>(p.out + at * 2) = {bfloat16_pair(v[0], v[1]),
                                                 bfloat16_pair(v[2], v[3])};
  } else if (p.out_type == simt::kF16) {
    const __half2 two[] = {__floats2half2_rn(v[0], v[1]), __floats2half2_rn(v[2], v[3])};
    *reinterpret_cast<uint2*>(p.out + at * 2) = {reinterpret_cast<const uint32_t&>(two[0]),
                                                 reinterpret_cast<const uint32_t&>(two[1])};
  } else {
    *reinterpret_cast<float4*>(p.out + at * 4) = {v[0], v[1], v[2], v[3]};
  }
}

// Of a tile's tokens from first_token on, by all helpers' threads. Returns what depends on all sums
// that this one read.
template <class T>
__device__ __forceinline__ uint32_t store_handed(const QmvParams& p, QmvShared& shared,
                                                 const QmvTile& tile, const TileSums& sums,
                                                 uint32_t first_token, uint32_t tokens,
                                                 uint32_t thread) {
  constexpr uint32_t kRows = 4, kLanes = kQmvItemRows / kRows;  // of a thread, of a row group
  const Schedule& s = shared.schedule;
  const uint32_t step = sums.columns * kQmvSumsPitch, rows = p.tile_blocks * p.box_rows;
  // Threads for the rows of a token (of gates).
  const uint32_t threads = (p.row_groups >> p.paired) * kLanes;
  const uint32_t below = (1u << p.operand_shift) - 1;
  uint32_t used = 0;
#pragma unroll 1
  for (uint32_t i = thread; i < tokens * threads; i += 32 * kQmvHelpers) {
    // A power of two.
    const uint32_t token = i >> (7 - p.parts_shift - p.paired), of_token = i & (threads - 1);
    const uint32_t group = of_token / kLanes, of_tile = of_token * kRows;
    const uint32_t n = tile.index * rows + of_tile;
    if (of_tile >= rows || n >= p.n) continue;
    const uint32_t row_group = p.paired ? (group & ~below) << 1 | (group & below) : group;
    const float* from =
        sums.at + row_group * p.parts * step + token * kQmvSumsPitch + of_token % kLanes * kRows;
    HandedRows value = handed_sums<T>(p, s, tile, from, step, 0, n);
    if (p.paired) {
      HandedRows up =
          handed_sums<T>(p, s, tile, from + (p.parts << p.operand_shift) * step, step, 1, n);
#pragma unroll 1
      for (uint32_t j = 0; j < kRows; ++j) {
        value.turn(simt::glu(value.v[0], up.v[0], p.glu));
        up.turn(0.0f);
      }
    }
    bool all = true;
#pragma unroll
    for (float v : value.v) {
      used ^= __float_as_uint(v);
      all = all && v == v;
    }
    if (!all) atomicAdd(&shared.again, 1u);
    const uint32_t row = s.order[tile.first + first_token + token];
    store_handed_rows(p, s.out[row] + static_cast<int32_t>(n), value);
  }
  return used;
}

// The pass behind `first` of active matrix d: its matrix, its first row, how many; 0: there is
// none.
struct NextPass {
  uint32_t d, first, tokens;
  __device__ __forceinline__ NextPass(const QmvParams& p, const Schedule& s, uint32_t d,
                                      uint32_t before)
      : d(d), first(min(before + p.tokens, uint32_t{s.first[d + 1]})) {
    if (first == s.first[d + 1]) ++this->d;
    const bool is = this->d * p.tiles < s.end;
    tokens = is ? min(p.tokens, s.first[this->d + 1] - first) : 0;
  }
};

// Asks for a pass's rows of x, as they are, where their columns will stand; by one thread.
template <class T>
__device__ __forceinline__ void bring_rows(const QmvParams& p, const Schedule& s,
                                           const QmvMemory& memory, uint32_t pass, uint32_t first,
                                           uint32_t tokens, uint32_t copied) {
  const uint32_t column = first_column<T>(p, pass, tokens), step = row_columns<T>(p, tokens);
  barrier_expect(copied, tokens * p.k * 2);
#pragma unroll 1
  for (uint32_t i = 0; i < tokens; ++i) {
    copy_run(memory.x.columns + (column + i * step) * p.column_bytes,
             p.x + int64_t{s.x[s.order[first + i]]} * 2, p.k * 2, copied);
  }
}
template <class T>
__device__ __forceinline__ void bring_first_rows(const QmvParams& p, QmvShared& shared,
                                                 const QmvMemory& memory) {
  const Schedule& s = shared.schedule;
  const uint32_t first = s.first[s.begin_matrix];
  bring_rows<T>(p, s, memory, 0, first, min(p.tokens, s.first[s.begin_matrix + 1] - first),
                shared_address(&shared.first_copied));
}

// What came by such copies, eight units of a row, in its place: columns or, of two columns' step,
// bytes.
template <class T>
__device__ __forceinline__ void convert_chunk(const QmvParams& p, const XColumns& to,
                                              uint32_t chunk, uint32_t column, uint32_t step,
                                              uint32_t lane) {
  if constexpr (T::kBytes) {
    if (step == 2) return convert_to_bytes(p, to, chunk, column, lane);
  }
  convert_in_place<typename T::Decode, T::kFactorUnit, T::kAffine>(p, to, chunk, column, lane);
}

// One of the helpers' threads.
template <class T>
struct Helper {
  const QmvParams& p;
  QmvShared& shared;
  const QmvMemory& memory;
  uint32_t thread;  // of the helpers'
  // The pass whose tiles are stored: its active matrix, its first row, and how many came before it.
  uint32_t active = 0, first = 0, passes = 0;
  uint32_t taken = 0, copies = 0;  // places of sums and passes of x that have been waited for
  // The next pass's columns: this warp's next eight units of them, of which column, and where they
  // end; whether they are being made.
  uint32_t chunk = 0, column = 0, end_column = 0, step = 1;
  bool filling = false;

  __device__ __forceinline__ uint32_t tokens() const {
    return min(p.tokens, shared.schedule.first[active + 1] - first);
  }
  // The pass's tiles in this share end there.
  __device__ __forceinline__ uint32_t end() const {
    return min(p.tiles, shared.schedule.end - active * p.tiles);
  }
  __device__ __forceinline__ NextPass next() const { return {p, shared.schedule, active, first}; }
  __device__ __forceinline__ void arrive_filled() const {
    barrier_arrive(shared_address(&shared.filled[(passes + 1) & 1]));
  }

  // Asks for the next pass's rows of x.
  __device__ __forceinline__ void begin_columns() {
    const NextPass next = this->next();
    if (next.tokens == 0) return;
    const bool beside = room_of<T>(p, tokens()) + room_of<T>(p, next.tokens) <= p.x_room;
    if (thread == 0) shared.by_all[(passes + 1) & 1] = beside ? 0 : 1;
    if (!beside) return arrive_filled();
    const uint32_t copied = shared_address(&shared.copied);
    column = first_column<T>(p, passes + 1, next.tokens);
    step = row_columns<T>(p, next.tokens);
    end_column = column + next.tokens * step;
    chunk = thread / 32;
    filling = true;
    if (thread == 0) {
      shared_stores_visible();
      bring_rows<T>(p, shared.schedule, memory, passes + 1, next.first, next.tokens, copied);
    }
    barrier_wait(copied, copies & 1);
    ++copies;
  }

  // As many as come to each of so many tiles.
  __device__ __forceinline__ void make_columns(uint32_t tiles) {
    if (!filling) return;
    const uint32_t chunks = p.units / 8, left = (end_column - column) / step * chunks;
    uint32_t steps = tiles == 1 ? ~0u : left / (kQmvHelpers * tiles) + 2;
#pragma unroll 1
    for (; steps > 0; --steps, chunk += kQmvHelpers) {
      for (; chunk >= chunks; chunk -= chunks) column += step;
      if (column >= end_column) {
        filling = false;
        return arrive_filled();
      }
      convert_chunk<T>(p, memory.x, chunk, column, step, thread % 32);
    }
  }

  // A pass's tiles; whether they are the last.
  __device__ __forceinline__ bool store_tiles() {
    const Schedule& s = shared.schedule;
#pragma unroll 1
    for (uint32_t i = max(s.begin, active * p.tiles) - active * p.tiles; i != end(); ++i) {
      const QmvTile tile = {active, i, first, tokens()};
      if (ends_share(p, s, tile)) return true;
      const uint32_t columns =
          T::kFew > 0 && columns_of(p, tile.tokens) <= T::kFew ? T::kFew : kQmvSumsColumns;
#pragma unroll 1
      for (uint32_t done = 0; done < tile.tokens; done += columns, ++taken) {
        make_columns(end() - i);
        const uint32_t place = taken & 1;
        barrier_wait(shared_address(&shared.handed[place]), taken >> 1 & 1);
        const uint32_t used = store_handed<T>(p, shared, tile, {sums_at<T>(memory, place), columns},
                                              done, min(columns, tile.tokens - done), thread);
        barrier_arrive(shared_address(&shared.free[place]) + nothing_of(used));
      }
    }
    return false;
  }

  __device__ __forceinline__ void run() {
    const Schedule& s = shared.schedule;
    if (s.begin >= s.end) return;
    active = s.begin_matrix;
    first = s.first[active];
    // Those of the first pass are converted by the threads that wait for them.
    if (p.x_first && p.combined && thread == 0) bring_first_rows<T>(p, shared, memory);
#pragma unroll 1
    for (;; ++passes) {
      begin_columns();
      if (store_tiles()) return;
      const NextPass next = this->next();
      active = next.d;
      first = next.first;
    }
  }
};

// The warps that are left over.
template <class T>
__device__ __forceinline__ void help(const QmvParams& p, QmvShared& shared,
                                     const QmvMemory& memory) {
  // By a warp that has nothing to do yet: this takes 1500 clocks, which the first codes would wait
  // if it were for the one that brings them.
  if (!p.combined && threadIdx.x >= kQmvThreads - 32) {
    wait_for_previous_launch();
    let_next_launch_begin();
  }
  named_barrier(kBegun, kBegunThreads);
  barrier_wait(shared_address(&shared.known), 0);
  wait_for_previous_launch();
  // What is common to all warps is kept in registers of all, of which these have too few.
  const uint32_t thread = forgotten(threadIdx.x) - 32 * (kQmvConsumers + 1);
  Helper<T>{p, shared, memory, thread}.run();
  // Other thread blocks may count these rows.
  if (p.combined) __threadfence();
  barrier_arrive(shared_address(&shared.stored));
}

// Makes the outputs of a share's tiles again, those handed over, that are NaN: by the threads that
// multiply.
template <class T>
__device__ __noinline__ void mend(const QmvParams& p, const Schedule& s, uint32_t thread) {
  for_each_tile(
      p, s, [](uint32_t, uint32_t, uint32_t) {},
      [&](const QmvTile& tile) {
        if (ends_share(p, s, tile)) return;
        const uint32_t rows = rows_of(p, tile.index), matrix = matrix_of(p, s, tile.active);
        for (uint32_t i = thread; i < rows * tile.tokens; i += 32 * kQmvConsumers) {
          const uint32_t token = i / rows, n = first_row_of(p, tile.index) + i % rows;
          const uint32_t row = s.order[tile.first + token];
          const int64_t at = s.out[row] + static_cast<int32_t>(n);
          const float stored = simt::load_float(p.out, p.out_type, at);
          if (stored == stored) continue;
          float gate = 0.0f, value = 0.0f;
#pragma unroll 1
          for (uint32_t operand = 0; operand <= p.paired; ++operand) {
            gate = value;
            value = decoded_sum<T>(p, p.w[operand], matrix, n, p.one_x ? 0 : s.x[row], 0);
            if ((p.added >> operand & 1) != 0) value += added_to(p.w[operand], matrix, n);
          }
          if (p.paired) value = activation(gate, value, p.glu);
          store(p, at, value);
        }
      });
}

}  // namespace moeblas::cuda::device
