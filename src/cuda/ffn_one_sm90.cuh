// ffn_one_sm90: an expert layer of one token in one launch, by as many thread blocks as there are
// multiprocessors, all of which run at the same time.
//
//   gates and ups  blocks of 16 gates and their 16 ups are dealt out to the thread blocks in turn;
//                  an item of qmv_sm90 (qmv_item.cuh) holds both, so that their activation is made
//                  where their sums meet
//   hand-over      each activation as a word of memory that says whether it has been written; all
//                  words are emptied first, and nobody writes or reads one before all thread blocks
//                  have said that they have emptied theirs, long after they did
//   down           a thread block has some rows of the output, of every expert, and takes the
//                  experts one behind the other along K, so that the weighted sums need no one else
//
// One warp brings codes of both products through one ring of stages without a break (down's first
// ones are there before the last activations), sixteen consume them, one empties words. A warp
// converts the activations that its item needs by itself, looking at them an item ahead.
//
// The time goes into reading w; for small experts into the start, and into the way of the last
// activations from one multiprocessor to all others.
#pragma once

#include "cuda/device/ffn_one_item.cuh"
#include "cuda/device/qmv_store.cuh"

namespace moeblas::cuda::device {

enum {
  kOneAll = 0,       // barriers by number
  kOneReady = 1,     // x is there, the token's experts are known, and barriers are made
  kOneTileSums = 2,  // of each row group
  kOneDownSums = 6,
};

// Term by term, as infinities and NaN may come from no code: a gate or an up,
template <class T>
__device__ __noinline__ float decoded_gate(const FfnOneParams& p, const QmvWeights& w,
                                           uint32_t matrix, uint32_t n) {
  return decoded_terms<T>(p.first, w, matrix, n,
                          [&](uint32_t k) { return simt::load_float(p.x, p.x_type, k); });
}
// and an output.
template <class T>
__device__ __noinline__ float decoded_output(const FfnOneParams& p, const FfnOneShared& shared,
                                             uint32_t n) {
  const QmvWeights& w = p.w[2];
  float sum = 0.0f;
  for (uint32_t e = 0; e < shared.active; ++e) {
    const auto matrix = static_cast<uint32_t>(shared.matrix[e]);
    const uint32_t* words = p.words + e * p.second.k;
    float row = decoded_terms<T>(p.second, w, matrix, n, [&](uint32_t k) {
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
  Turn stage{0};
  uint32_t slot = 0;
  uint4 x[T::kUnits] = {};  // zero but in this lane's units

  __device__ __forceinline__ void wait_for_stage() const {
    barrier_wait(shared_address(&shared.full[stage.at]), stage.parity);
  }
  // `used` depends on all that was read of the stage.
  __device__ __forceinline__ uint32_t give_stage_back(uint32_t used) {
    const uint32_t none = nothing_of(used);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[stage.at]) + none);
    stage.advance(p.stages);
    return none;
  }
  // By every lane: racecheck takes one lane's arrival for that lane's reads alone.
  __device__ __forceinline__ void give_slot_back(uint32_t none) {
    barrier_arrive(shared_address(&shared.used[slot]) + none);
    if (++slot == p.slots) slot = 0;
  }
  static __device__ __forceinline__ uint32_t all_of(const float (&y)[2][4]) {
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) all ^= __float_as_uint(y[i / 4][i % 4]);
    return all;
  }
  // The rows of this lane to ldmatrix, in an item's first half.
  __device__ __forceinline__ uint32_t matrix_row() const {
    return (lane & 7) + (lane >> 3 & 1) * 8;
  }

  // The warp's 32 sums to their place, in which the parts meet.
  __device__ __forceinline__ float* write_sums(float* place, const float (&y)[2][4]) const {
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // half i / 2, row g or g + 8
      float v = y[i / 2][i % 2 * 2];
      // Columns of one token are of other units: the lanes that hold them add up.
      if constexpr (T::kTokens == 1) v += y[i / 2][i % 2 * 2 + 1];
      if constexpr (T::kTokens <= 2) v += __shfl_xor_sync(~0u, v, 1);
      v += __shfl_xor_sync(~0u, v, 2);
      if (t == 0)
        place[warp * 32 + static_cast<uint32_t>(i) / 2 * 16 + static_cast<uint32_t>(i) % 2 * 8 +
              g] = v;
    }
    return place;
  }
  __device__ __forceinline__ float sum_of_parts(const float* place, uint32_t first,
                                                uint32_t parts) const {
    float sum = 0.0f;
#pragma unroll 4
    for (uint32_t i = 0; i < parts; ++i) sum += place[(first + i) * 32 + lane];
    return sum;
  }

  // Both of block `block`'s halves are in this lane and another: the activations to their words.
  __device__ __forceinline__ void store_activations(const FfnOneBlock& block, float total) const {
    const auto matrix = static_cast<uint32_t>(shared.matrix[block.expert]);
    const uint32_t is_up = p.turns ? lane % 2 : lane / 16;
    const uint32_t n = block.row + (p.turns ? lane / 2 : lane % 16);
    float value = 0.0f;
    if (n < p.first.n) {
      const QmvWeights& w = p.w[is_up];
      value = total;
      if constexpr (T::kHalves) value *= tensor_scale_of(w, matrix);
      if (!formats::is_finite(value)) value = decoded_gate<T>(p, w, matrix, n);
      if (w.added != nullptr) value += added_to(w, matrix, n);
    }
    const uint32_t of_gate = p.turns ? 2 * lane : lane, of_up = p.turns ? 2 * lane + 1 : lane + 16;
    const float gate = __shfl_sync(~0u, value, of_gate % 32);
    const float up = __shfl_sync(~0u, value, of_up % 32);
    if (lane >= block.rows) return;
    const float h = activation(gate, up, p.glu);
    const uint32_t bits =
        p.x_type == simt::kBf16 ? formats::float_to_bfloat16(h) : formats::float_to_float16(h);
    barrier_wait(shared_address(&shared.words_are_empty), 0);
    store_word(p.words + block.expert * p.first.n + block.row + lane, kOneWritten | bits);
  }

  __device__ __forceinline__ void gates_and_ups() {
    const FfnOneProduct& q = p.first;
    const uint32_t row_group = warp / q.parts, part = warp % q.parts;
    const uint32_t count = blocks_of_this(p, shared.active);
    const uint32_t of_box = kOneBlockRows << p.turns;
    HalvesItem item;
    item.half_bytes = p.half_bytes;
    item.chunk = part % 2 * 4 + lane / 16 % 2;
    item.swizzle = lane & 7;
    const uint32_t codes =
        row_group * (2 - p.turns) * p.box_bytes + (part / 2 * of_box + matrix_row()) * kQmvSlab;
    const uint32_t of_scales = (row_group * kQmvItemRows + lane / 4) * q.scale_pitch;
    uint32_t tile = 0;
    for (uint32_t first = 0; first < count; first += q.row_groups, ++tile) {
      const bool has = first + row_group < count;
      float y[2][4] = {};
      uint32_t unit = part * T::kUnits, none = 0;
      item.scales = memory.scales + slot * p.slot_bytes + of_scales;
      item.biases = item.scales + q.scale_kind;
#pragma unroll 1
      for (uint32_t step = 0; step < p.steps; ++step, unit += q.parts * T::kUnits) {
        wait_for_stage();
        if (has) {
          item.codes = memory.ring + stage.at * kOneStageBytes + codes;
          item.x = memory.x + unit * 64 + lane % 4 * 16;
          item.factors = memory.factors + unit * kOneFactorBytes;
          add_few<T>(q, item, x, unit, y, lane);
        }
        none = give_stage_back(all_of(y));
      }
      give_slot_back(none);
      float* sums = write_sums(memory.sums + tile % 2 * 32 * kOneConsumers, y);
      // Whoever writes there again has seen, at the next tile's barrier, that it was read.
      named_barrier(kOneTileSums + row_group, q.parts * 32);
      if (has && part == tile % q.parts) {
        store_activations(FfnOneBlock(p, first + row_group),
                          sum_of_parts(sums, row_group * q.parts, q.parts));
      }
    }
  }

  __device__ __forceinline__ void down() {
    const FfnOneProduct& q = p.second;
    const uint32_t rows = rows_of_this(p), active = shared.active;
    if (rows == 0) return;
    const uint32_t row_group = warp / q.parts, part = warp % q.parts;
    const uint32_t count = active * q.row_slabs;
    constexpr uint32_t kItemUnits = T::kUnits, kSlabUnits = 2 * kItemUnits;
    HalvesItem item;
    item.half_bytes = kQmvItemRows / 2 * kQmvSlab;
    item.chunk = part % 2 * 4 + lane / 16 % 2;
    item.swizzle = lane & 7;
    const uint32_t codes =
        ((part / 2 * q.row_groups + row_group) * kQmvItemRows + matrix_row()) * kQmvSlab;
    const uint32_t of_scales = (row_group * kQmvItemRows + lane / 4) * q.scale_pitch;
    const Activations<T> activations{p, memory.activations + warp * kOneWarpBytes, lane};
    item.x = activations.at + lane % 4 * 16;
    item.factors = activations.at + kOneWarpUnits * 64;

    // This warp's slab of the stage: which expert's, and which of its row.
    uint32_t at = part / 2, expert = 0, of_row = at;
    const auto settle = [&] {
      while (of_row >= q.row_slabs) of_row -= q.row_slabs, ++expert;
    };
    const auto unit_here = [&] { return of_row * kSlabUnits + part % 2 * kItemUnits; };
    settle();
    barrier_wait(shared_address(&shared.words_are_empty), 0);
    Words words = {};
    if (at < count) words = activations.look(expert, unit_here() * kQmvUnit);

    float total[2][4] = {}, y[2][4] = {};
    uint32_t of_y = 0, given_back = 0;  // experts
    const uint32_t first_slot = slot;
    const auto add_expert = [&] {
      const float weight = shared.weight[of_y];
      float scale = 1.0f;
      if constexpr (T::kHalves) {
        scale = tensor_scale_of(p.w[2], static_cast<uint32_t>(shared.matrix[of_y]));
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        total[i / 4][i % 4] += weight * (scale * y[i / 4][i % 4]);
        y[i / 4][i % 4] = 0.0f;
      }
    };
#pragma unroll 1
    for (uint32_t first = 0; first < count; first += q.slabs) {
      const bool has = at < count;
      if (has) {
        if (expert != of_y) {
          add_expert();
          of_y = expert;
        }
        const uint32_t unit = unit_here();
        activations.take(words, expert, unit * kQmvUnit);
        uint32_t s = first_slot + expert;
        while (s >= p.slots) s -= p.slots;
        item.scales = memory.scales + s * p.slot_bytes + of_scales;
        item.biases = item.scales + q.scale_kind;
        at += q.slabs;
        of_row += q.slabs;
        settle();
        if (at < count) words = activations.look(expert, unit_here() * kQmvUnit);
        wait_for_stage();
        item.codes = memory.ring + stage.at * kOneStageBytes + codes;
        add_few<T>(q, item, x, unit, y, lane);
      } else {
        wait_for_stage();
      }
      const uint32_t none = give_stage_back(all_of(y));
      while (given_back < active && (given_back + 1) * q.row_slabs <= first + q.slabs) {
        give_slot_back(none);
        ++given_back;
      }
    }
    if (active > 0) add_expert();
    const float* sums = write_sums(memory.sums + 2 * 32 * kOneConsumers, total);
    named_barrier(kOneDownSums + row_group, q.parts * 32);
    const uint32_t of_rows = row_group * kQmvItemRows + lane;
    if (part != 0 || of_rows >= rows) return;
    const uint32_t n = blockIdx.x * p.rows + of_rows;
    float sum = sum_of_parts(sums, row_group * q.parts, q.parts);
    if (!formats::is_finite(sum)) {
      sum = decoded_output<T>(p, shared, n);
    } else if (p.w[2].added != nullptr) {
      for (uint32_t e = 0; e < active; ++e) {
        sum += shared.weight[e] * added_to(p.w[2], static_cast<uint32_t>(shared.matrix[e]), n);
      }
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

// `meeting`: a number that belongs to the kernels of a file, whose launches follow each other.
template <class T>
__device__ __forceinline__ void ffn_one(const FfnOneParams& p, const FfnOneMaps& maps,
                                        uint32_t* meeting) {
  unsigned char* dynamic = dynamic_shared();
  __shared__ FfnOneShared shared;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  FfnOneMemory memory;
  memory.ring = (shared_address(dynamic) + 1023) / 1024 * 1024;
  memory.scales = memory.ring + p.stages * kOneStageBytes;
  memory.x = memory.scales + p.slots * p.slot_bytes;
  memory.factors = memory.x + p.units * 64;
  memory.activations = memory.factors + p.units * kOneFactorBytes;
  memory.sums = reinterpret_cast<float*>(dynamic + (memory.activations - shared_address(dynamic)) +
                                         kOneConsumers * kOneWarpBytes);
  if (warp == kOneConsumers) {
    if (lane < kOneMaps) prefetch_tensor_map(&maps.map[lane]);
    if (lane == 0) {
#pragma unroll
      for (uint32_t i = 0; i < kOneMostStages; ++i) {
        barrier_init(shared_address(&shared.full[i]), 1);
        barrier_init(shared_address(&shared.empty[i]), kOneConsumers);
      }
#pragma unroll
      for (uint32_t i = 0; i < kOneMostSlots; ++i) {
        barrier_init(shared_address(&shared.used[i]), 32 * kOneConsumers);
      }
      barrier_init(shared_address(&shared.words_are_empty), 1);
      barrier_init_visible();
    }
    __syncwarp();
    wait_for_previous_launch();
    let_next_launch_begin();
    find_experts(p, shared, lane);
    named_barrier_arrive(kOneReady, kOneThreads);
    FfnOneProducer<T> producer{p, shared, memory, maps, lane, evict_first_policy()};
    producer.bring_gates_and_ups();
    producer.bring_down();
  } else {
    const bool consumes = warp < kOneConsumers;
    uint32_t before = 0;
    wait_for_previous_launch();
    if (consumes) {
      fill_x<T>(p, memory, warp, lane);
    } else {
      before = empty_words(p, meeting, lane);
    }
    // One place to wait, or synccheck takes those at the other for missing.
    named_barrier(kOneReady, kOneThreads);
    if (consumes) {
      FfnOneConsumer<T> consumer{p, shared, memory, warp, lane};
      consumer.gates_and_ups();
      consumer.down();
    } else if (lane == 0) {
      wait_for_everybody(meeting, before);
      barrier_arrive(shared_address(&shared.words_are_empty));
    }
  }
  // Nobody leaves before: synccheck takes warps that have left for missing at other barriers.
  named_barrier(kOneAll, kOneThreads);
}

}  // namespace moeblas::cuda::device

#if defined(__CUDACC__)
static __device__ uint32_t ffn_one_meeting;

template <class T>
__global__ void __launch_bounds__(moeblas::cuda::kOneThreads, 1)
    ffn_one_sm90(const __grid_constant__ moeblas::cuda::FfnOneParams p,
                 const __grid_constant__ moeblas::cuda::device::FfnOneMaps maps) {
#if __CUDA_ARCH__ >= 900
  moeblas::cuda::device::ffn_one<T>(p, maps, &ffn_one_meeting);
#endif
}
#endif
