// ffn_one_sm90: an expert layer of one token in one launch, by as many thread blocks as there are
// multiprocessors, all of which run at the same time.
//
//   gates and ups  tiles of 16 gates and their 16 ups are dealt out to the thread blocks in turn
//   hand-over      each activation as a word of memory that says whether it has been written; all
//                  words are emptied first, and nobody writes or reads one before all thread blocks
//                  have said that they have emptied theirs, long after they did
//   down           a thread block has some rows of the output, of every expert, and takes the
//                  experts one behind the other along K, so that the weighted sums need no one else
//
// Three or seven warps bring codes and scales of both products through one ring of chunks of 8 KB
// of codes without a break (down's first ones are there before the last activations). Four teams of
// four warps take the chunks in turn, a warp two pieces of 16 rows by 64 bytes of each; no warp
// waits for another before the end. One more warp empties words, and then makes activations of each
// tile's sums. A warp converts the activations that its pieces need by itself, looking at them a
// chunk ahead.
//
// The time goes into reading w and, in four bits, as much into the instructions that decode it; for
// small experts into the start, and into the way of the last activations from one multiprocessor to
// all others.
#pragma once

#include "cuda/device/prefetch.cuh"
#include "cuda/ffn_one_sm90/activator.cuh"
#include "cuda/ffn_one_sm90/item.cuh"
#include "cuda/qmv_sm90/store.cuh"

namespace moeblas::cuda::device {

// Term by term, as infinities and NaN may come from no code: an output.
template <class T>
__device__ __noinline__ float decoded_output(const FfnOneParams& p, const FfnOneShared& shared,
                                             uint32_t n) {
  const QmvWeights& w = p.w[2];
  float sum = 0.0f;
  for (uint32_t e = 0; e < shared.active; ++e) {
    const auto matrix = static_cast<uint32_t>(shared.matrix[e]);
    const uint32_t* words = p.words + e * p.second.k;
    float row = decoded_terms<T>(p.second, w, matrix, n, 0, p.second.k, [&](uint32_t k) {
      const uint32_t bits = load_word(words + k) & 0xffffu;
      return p.x_type == simt::kBf16 ? formats::bfloat16_to_float(bits)
                                     : formats::float16_to_float(bits);
    });
    if (w.added != nullptr) row += added_to(w, matrix, n);
    sum = formats::add(sum, formats::mul(shared.weight[e], row));
  }
  return sum;
}

template <class T>
struct FfnOneConsumer {
  const FfnOneParams& p;
  FfnOneShared& shared;
  const FfnOneMemory& memory;
  uint32_t warp, lane;
  Turn chunk{warp / kOneTeam, 0};
  // Of shared.full, kept, as the compiler would make it anew for each chunk.
  uint32_t full = kept(shared_address(shared.full), lane);
  using Units = OneUnits<T>;

  __device__ __forceinline__ uint32_t team() const { return warp / kOneTeam; }
  __device__ __forceinline__ uint32_t member() const { return member_of_team(warp); }
  // The line of a piece, of those from `first` on, that this lane names to load_matrices.
  __device__ __forceinline__ uint32_t line_from(uint32_t first) const {
    return first + (lane & 7) + (lane >> 3 & 1) * 8;
  }
  __device__ __forceinline__ uint32_t wait_for_chunk() const {
    barrier_wait(full + chunk.at * 8, chunk.parity);
    return memory.ring + chunk.at * kOneChunkBytes;
  }
  __device__ __forceinline__ uint32_t scales_of_chunk() const {
    return memory.scales + chunk.at * p.scale_bytes;
  }
  // `y` depends on all that was read of the chunk by this lane.
  __device__ __forceinline__ void give_chunk_back(const float (&y)[2][4]) {
    const uint32_t none = nothing_of(__float_as_uint(y[0][0]) ^ __float_as_uint(y[0][2]) ^
                                     __float_as_uint(y[1][0]) ^ __float_as_uint(y[1][2]));
    __syncwarp();
    constexpr uint32_t kEmpty = offsetof(FfnOneShared, empty) - offsetof(FfnOneShared, full);
    // By every lane: racecheck takes an arrival for that lane's accesses alone.
    barrier_arrive(full + kEmpty + chunk.at * 8 + none);
    chunk.advance(p.chunks, kOneTeams);
  }

  // The warp's 32 sums to their place: the lanes of a row's units add up.
  static __device__ __forceinline__ void write_sums(float* place, uint32_t lane,
                                                    const float (&y)[2][4]) {
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // piece i / 2, row g or g + 8
      float v = y[i / 2][i % 2 * 2];
      if constexpr (T::kTokens == 1) v += y[i / 2][i % 2 * 2 + 1];
      if constexpr (T::kTokens <= 2) v += __shfl_xor_sync(~0u, v, 1);
      v += __shfl_xor_sync(~0u, v, 2);
      if (t == 0) place[static_cast<uint32_t>(i) * 8 + g] = v;
    }
  }

  // What of down a lane can know while it waits for the first codes. It is kept in shared memory:
  // products of gates leave no registers, and until it is made again nothing of down would begin.
  struct SetUp {
    PieceLines lines;
    uint32_t second;
    ScalesAt<T> scales_at;
    uint32_t values;  // of activations, the first one of this lane
    uint32_t unit;    // in a chunk
    uint32_t has;     // chunks of an expert that have values for this warp
    uint32_t columns, factors;
  };
  static constexpr uint32_t kSetUpStride = 32 * kOneConsumers * 16;
  __device__ __forceinline__ uint32_t set_up_at() const { return memory.set_up + threadIdx.x * 16; }
  // Two pieces: the halves of a slab, or one half of two blocks of 16 rows.
  __device__ __forceinline__ bool side_by_side() const { return p.down_pieces == 1; }
  // Activations of as many chunks are taken at once as keep all lanes busy: where a warp has half
  // a slab of each, of two, the next one by the upper lanes.
  __device__ __forceinline__ uint32_t at_once() const { return side_by_side() ? 1 : 2; }
  __device__ __forceinline__ uint32_t down_units() const { return p.down_slabs * 2 * T::kUnits; }

  __device__ __forceinline__ void set_up_down() const {
    const FfnOneProduct& q = p.second;
    constexpr uint32_t kSlabUnits = 2 * T::kUnits;
    const uint32_t slab = side_by_side() ? member() : p.down_pieces == 2 ? member() / 2 : 0;
    const uint32_t half = side_by_side() ? 0 : member() % 2;
    const uint32_t above = p.down_pieces == 4 ? member() / 2 * 2 : 0;  // blocks of 16 rows
    const uint32_t unit = slab * kSlabUnits + half * T::kUnits;
    const uint32_t lines_of_slab = has_fewer_rows(p) ? uint32_t{kOnePieceRows} : q.lines;
    const uint32_t line = line_from(slab * lines_of_slab + above * kOnePieceRows);
    const PieceLines lines(line, half * 4 + lane / 16 % 2, lane);
    // To the other half of a slab the same lane has to go up or down.
    const uint32_t second = !side_by_side() ? kPieceLines : (line & 4) == 0 ? 64u : ~63u;
    const uint32_t row = above * kOnePieceRows + lane / 4;
    const uint32_t of_row = first_row_of_this(p) + row;
    const ScalesAt<T> scales_at(q, unit, row, unit + (side_by_side() ? T::kUnits : 0),
                                side_by_side() ? row : row + kOnePieceRows,
                                of_row * static_cast<uint32_t>(p.scales[2].row_stride) & 3, lane);
    const Activations<T> activations(p, memory.activations + warp * Units::kWarpBytes,
                                     side_by_side() ? kSlabUnits : T::kUnits, lane);
    const uint32_t units_of_k = (q.k + kQmvUnit - 1) / kQmvUnit;
    const uint32_t has = slab >= p.down_slabs || unit >= units_of_k
                             ? 0
                             : (units_of_k - unit + down_units() - 1) / down_units();
    constexpr int kLast = ScalesAt<T>::kSets - 1;
    store_shared_4(set_up_at(), {lines.at[0], lines.at[1], second, activations.first});
    store_shared_4(set_up_at() + kSetUpStride, {scales_at.first[0], scales_at.first[kLast],
                                                scales_at.second[0], scales_at.second[kLast]});
    store_shared_4(set_up_at() + 2 * kSetUpStride,
                   {unit, has, activations.at - memory.zeros + PieceX<T>::of_lane(lane),
                    activations.at + kOneWarpUnits * Units::kBytes + PieceX<T>::of_factors(lane)});
  }
  __device__ __forceinline__ SetUp set_up_of_down() const {
    const uint4 a = load_shared_4(set_up_at()), b = load_shared_4(set_up_at() + kSetUpStride),
                c = load_shared_4(set_up_at() + 2 * kSetUpStride);
    SetUp s;
    s.lines.at[0] = a.x, s.lines.at[1] = a.y;
    s.second = a.z, s.values = a.w;
    s.scales_at.first[0] = b.x, s.scales_at.first[ScalesAt<T>::kSets - 1] = b.y;
    s.scales_at.second[0] = b.z, s.scales_at.second[ScalesAt<T>::kSets - 1] = b.w;
    s.scales_at.rows = 8 * p.second.pitch;
    s.unit = c.x, s.has = c.y, s.columns = c.z, s.factors = c.w;
    return s;
  }

  // A chunk of down, of which expert; and what there is by now of its activations.
  struct Ahead {
    uint32_t e, c;
    Words words;
  };
  __device__ __forceinline__ void settle(uint32_t& e, uint32_t& c) const {
    while (c >= p.second.chunks) c -= p.second.chunks, ++e;
  }
  // Where there are no more, any that there will be.
  __device__ __forceinline__ uint32_t first_value(const SetUp& s, uint32_t experts,
                                                  const Ahead& at) const {
    return at.e < experts ? (at.c * down_units() + s.unit) * kQmvUnit : p.second.k;
  }
  __device__ __forceinline__ void look(const SetUp& s, uint32_t experts, const Activations<T>& from,
                                       Ahead& at) const {
    settle(at.e, at.c);
    at.words = from.look(min(at.e, experts - 1), first_value(s, experts, at));
  }

  __device__ __forceinline__ void run() {
    const FfnOneProduct& q = p.first;
    const uint32_t tiles = tiles_in_all(p, shared.active);
    constexpr uint32_t kSlabUnits = 2 * T::kUnits, kChunkUnits = kOneTileSlabs * kSlabUnits;
    const uint32_t slab = member() / 2, half = member() % 2;
    const uint32_t unit = slab * kSlabUnits + half * T::kUnits;  // in a chunk
    const PieceLines lines(line_from(slab * (kOneBlockRows << p.turns)), half * 4 + lane / 16 % 2,
                           lane);
    const uint32_t second = p.turns ? kPieceLines : kOneChunkBytes / 2;
    const uint32_t columns =
        kept(memory.x - memory.zeros + unit * Units::kBytes + PieceX<T>::of_lane(lane), lane);
    const uint32_t factors =
        kept(memory.factors + unit * Units::kFactorBytes + PieceX<T>::of_factors(lane), lane);
    const PieceX<T> x(memory.zeros, lane);
    const uint32_t g = lane / 4;
    const ScalesAt<T> scales_at(q, unit, g, unit, kOneBlockRows + g,
                                g * static_cast<uint32_t>(p.scales[0].row_stride) & 3, lane);

    // Chunks of a tile that have values for this warp.
    const uint32_t units_of_k = (q.k + kQmvUnit - 1) / kQmvUnit;
    const uint32_t has =
        kept((units_of_k + kChunkUnits - 1 - min(unit, units_of_k)) / kChunkUnits, lane);
    set_up_down();
    uint32_t c = team();
    Turn sums{0, 0};
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      float y[2][4] = {};
#pragma unroll 1
      for (; c < q.chunks; c += kOneTeams) {
        const uint32_t codes = wait_for_chunk();
        if (c < has) {
          add_pieces<T, 0, 1>(q, codes, second, lines, x, columns + c * kChunkUnits * Units::kBytes,
                              factors + c * kChunkUnits * Units::kFactorBytes, scales_of_chunk(),
                              scales_at, 1.0f, y);
        }
        give_chunk_back(y);
      }
      c -= q.chunks;
      barrier_wait(shared_address(&shared.taken[sums.at]), sums.parity ^ 1);
      write_sums(memory.sums + (sums.at * kOneConsumers + warp) * 32, lane, y);
      // By every lane that wrote: racecheck takes an arrival for that lane's accesses alone.
      if (lane % 4 == 0) barrier_arrive(shared_address(&shared.summed[sums.at]));
      sums.advance(kOneTileSums);
    }
    down(c, x);
  }

  // From its chunk `c` on.
  __device__ __forceinline__ void down(uint32_t c, const PieceX<T>& x) {
    const FfnOneProduct& q = p.second;
    const SetUp s = set_up_of_down();
    const uint32_t own_rows = rows_of_this(p), experts = own_rows == 0 ? 0 : shared.active;
    const Activations<T> activations(p, memory.activations + warp * Units::kWarpBytes, s.values,
                                     lane, 0);
    barrier_wait(shared_address(&shared.words_are_empty), 0);
    Ahead ahead{0, c + (lane / (4 * T::kUnits) & (at_once() - 1)) * kOneTeams, {}};
    if (experts > 0) look(s, experts, activations, ahead);
    const bool both = !side_by_side() && !(p.down_pieces == 2 && own_rows <= kOnePieceRows);
    float y[2][4] = {};
    uint32_t e = 0;
    settle(e, c);

    uint32_t turn = 0;
#pragma unroll 1
    while (e < experts) {
      uint32_t next_e = e, next_c = c + kOneTeams;
      settle(next_e, next_c);
      if (turn == 0) {
        activations.take(ahead.words, min(ahead.e, experts - 1), first_value(s, experts, ahead));
        ahead.c += at_once() * kOneTeams;
        if (next_e < experts) look(s, experts, activations, ahead);
      }
      const uint32_t of_units = turn * T::kUnits;
      const uint32_t values = s.columns + of_units * Units::kBytes;
      const uint32_t their_factors = s.factors + of_units * Units::kFactorBytes;
      turn = (turn + 1) & (at_once() - 1);
      const uint32_t codes = wait_for_chunk();
      if (c < s.has) {
        const float weight = shared.down_weight[e];
        const uint32_t scales = scales_of_chunk();
        if (both) {
          add_pieces<T, 0, 1>(q, codes, s.second, s.lines, x, values, their_factors, scales,
                              s.scales_at, weight, y);
        } else {
          add_pieces<T, 0, 0>(q, codes, s.second, s.lines, x, values, their_factors, scales,
                              s.scales_at, weight, y);
        }
        if (side_by_side()) {
          add_pieces<T, 1, 1>(q, codes, s.second, s.lines, x, values + T::kUnits * Units::kBytes,
                              their_factors + T::kUnits * Units::kFactorBytes, scales, s.scales_at,
                              weight, y);
        }
      }
      give_chunk_back(y);
      e = next_e;
      c = next_c;
    }
    // Those of a block of rows stand together.
    float* sums = memory.sums + kOneTileSums * 32 * kOneConsumers;
    write_sums(sums + (member() * kOneTeams + team()) * 32, lane, y);
    const uint32_t of_rows = warp * 32 + lane, n = first_row_of_this(p) + of_rows;
    named_barrier(kOneDownSums, 32 * (kOneConsumers + 1));
    if (warp * 32 < own_rows) store_row(sums + lane, of_rows, n, own_rows);
  }

  // Of the first warps: 32 rows each.
  __device__ __forceinline__ void store_row(const float* sums, uint32_t of_rows, uint32_t n,
                                            uint32_t own_rows) const {
    constexpr uint32_t kHalf = kOneConsumers / 2;
    float sum = 0.0f;
    if (p.down_pieces == 4) {
      sum = sum_of<kHalf>(sums + warp * kHalf * 32);
    } else {
      sum = sum_of<kHalf>(sums) + sum_of<kHalf>(sums + kHalf * 32);
    }
    if (p.down_pieces == 1) sum += __shfl_xor_sync(~0u, sum, 16);
    if (of_rows >= own_rows) return;
    if (!formats::is_finite(sum)) {
      sum = decoded_output<T>(p, shared, n);
    } else if (p.w[2].added != nullptr) {
      sum += shared.added[of_rows];
    }
    simt::store_float(p.out, p.x_type, n, sum);
  }
};

// This thread block's share of the words, by one warp; then it tells the others. Returns what
// wait_for_everybody needs.
__device__ __forceinline__ uint32_t empty_words(const FfnOneParams& p, uint32_t* meeting,
                                                uint32_t lane) {
  const uint32_t count = p.top_k * p.first.n / 4, each = (count + gridDim.x - 1) / gridDim.x;
  const uint32_t end = min(count, (blockIdx.x + 1) * each);
  for (uint32_t i = blockIdx.x * each + lane; i < end; i += 32) {
    reinterpret_cast<uint4*>(p.words)[i] = {0, 0, 0, 0};
  }
  __syncwarp();
  // The highest bit turns over once every thread block has been here, and stays as it is until
  // they come again.
  if (lane != 0) return 0;
  return add_release(meeting, blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u);
}
__device__ __forceinline__ void wait_for_everybody(const uint32_t* meeting, uint32_t before) {
  while (((load_acquire(meeting) ^ before) & 0x80000000u) == 0) look_again();
}

// What an expert's rows of down are multiplied by, by one warp.
template <class T>
__device__ __forceinline__ void weigh_down(const FfnOneParams& p, FfnOneShared& shared,
                                           uint32_t lane) {
  if (lane < shared.active) {
    float weight = shared.weight[lane];
    if constexpr (T::kHalves) {
      weight *= tensor_scale_of(p.w[2], static_cast<uint32_t>(shared.matrix[lane]));
    }
    shared.down_weight[lane] = weight;
  }
  __syncwarp();
}

// By one thread: where each lane makes one, the compiler makes a loop with a fence in every turn.
__device__ __forceinline__ void make_barriers(FfnOneShared& shared) {
#pragma unroll
  for (uint32_t i = 0; i < kOneMostChunks; ++i) {
    barrier_init(shared_address(&shared.full[i]), 1 + 32);
    barrier_init(shared_address(&shared.empty[i]), 32 * kOneTeam);
  }
#pragma unroll
  for (uint32_t i = 0; i < kOneTileSums; ++i) {
    barrier_init(shared_address(&shared.summed[i]), 8 * kOneConsumers);
    barrier_init(shared_address(&shared.taken[i]), 32);
  }
  barrier_init(shared_address(&shared.words_are_empty), 32);
  barrier_init_visible();
}

// `meeting`: a number that belongs to the kernels of a file, whose launches follow each other.
template <class T, class W>
__device__ __forceinline__ void ffn_one(const FfnOneParams& p, const FfnOneMaps& maps,
                                        uint32_t* meeting) {
  unsigned char* dynamic = dynamic_shared();
  __shared__ FfnOneShared shared;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  FfnOneMemory memory;
  memory.ring = (shared_address(dynamic) + 1023) / 1024 * 1024;
  memory.scales = memory.ring + p.chunks * kOneChunkBytes;
  memory.x = memory.scales + p.chunks * p.scale_bytes;
  memory.factors = memory.x + p.units * OneUnits<T>::kBytes;
  memory.activations = memory.factors + p.units * OneUnits<T>::kFactorBytes;
  memory.sums = reinterpret_cast<float*>(dynamic + (memory.activations - shared_address(dynamic)) +
                                         kOneConsumers * OneUnits<T>::kWarpBytes);
  memory.zeros = shared_address(shared.zeros);
  memory.set_up = memory.activations + kOneConsumers * OneUnits<T>::kWarpBytes +
                  (kOneTileSums + 1) * 32 * kOneConsumers * sizeof(float);
  if (warp < kOneConsumers) {
    take_registers<W::kConsumerRegisters>();
    wait_for_previous_launch();
    fill_x<T>(p, memory, warp, lane);
    if (threadIdx.x < kZeroBytes / 16) shared.zeros[threadIdx.x] = {0, 0, 0, 0};
    named_barrier(kOneReady, 32 * (kOneConsumers + 2));
    FfnOneConsumer<T> consumer{p, shared, memory, warp, lane};
    consumer.run();
  } else {
    // (A token of Qwen3-30B in affine 4 bits 10.9 us for 11.3, in mxfp4 11.8 for 11.6.)
    if (T::kAffine && warp > kOneConsumers + 1 && warp < kOneConsumers + 4) {
      fetch_parameters(p, &shared.parameters[warp % 2]);
    }
    leave_registers<W::kOtherRegisters>();
    constexpr uint32_t kOthers = 32 * (W::kProducers + 1);
    if (warp == kOneConsumers) {
      if (lane < kOneMaps) prefetch_tensor_map(&maps.map[lane]);
      wait_for_previous_launch();
      let_next_launch_begin();
      find_experts(p, shared, lane);
      named_barrier_arrive(kOneReady, 32 * (kOneConsumers + 2));
    } else if (warp == kOneConsumers + 1) {
      // Meanwhile, as one thread takes as long as it takes to find experts.
      if (lane == 0) make_barriers(shared);
      __syncwarp();
      named_barrier_arrive(kOneReady, 32 * (kOneConsumers + 2));
    }
    const uint32_t producer = uniform(warp == kOneConsumers ? 0 : warp - kOneConsumers - 1);
    const FfnOneBlock block(p);
    FfnOneProducer<T, W> by{p,
                            shared,
                            memory,
                            maps,
                            evict_first_policy(),
                            producer,
                            lane,
                            uniform(shared_address(shared.full)),
                            {producer, 1},
                            {producer, 0},
                            (W::kUnderWay + W::kProducers - 1 - producer) / W::kProducers};
    if (warp <= kOneConsumers + W::kProducers) named_barrier(kOneKnown, kOthers);
    if (warp > kOneConsumers + W::kProducers) {
    } else if (warp != kOneConsumers + 1) {
      by.bring_down(by.bring_gates_and_ups(by.bring_first(block, producer)));
    } else {
      wait_for_previous_launch();
      const uint32_t before = empty_words(p, meeting, lane);
      weigh_down<T>(p, shared, lane);
      if (lane == 0) wait_for_everybody(meeting, before);
      __syncwarp();
      // By every lane: racecheck takes an arrival for that lane's accesses alone.
      barrier_arrive(shared_address(&shared.words_are_empty));
      FfnOneActivator<T>{p, shared, memory, lane}.run();
    }
  }
  // Nobody leaves before: synccheck takes warps that have left for missing at other barriers.
  named_barrier(kOneAll, W::kThreads);
}

}  // namespace moeblas::cuda::device

#if defined(__CUDACC__)
static __device__ uint32_t ffn_one_meeting;

template <class T, class W>
__global__ void __launch_bounds__(W::kThreads, 1)
    ffn_one_sm90(const __grid_constant__ moeblas::cuda::FfnOneParams p,
                 const __grid_constant__ moeblas::cuda::device::FfnOneMaps maps) {
#if __CUDA_ARCH__ >= 900
  moeblas::cuda::device::ffn_one<T, W>(p, maps, &ffn_one_meeting);
#endif
}
#endif
