// The warp of ffn_one_sm90 that makes activations of what the others have summed up.
#pragma once

#include "cuda/ffn_one_sm90/item.cuh"
#include "cuda/qmv_sm90/store.cuh"

namespace moeblas::cuda::device {

enum {
  kOneAll = 0,    // barriers by number
  kOneReady = 1,  // x is there, the token's experts are known, and barriers are made
  kOneKnown = 2,  // for those who do not multiply: but for x
  kOneDownSums = 3,
};

// Term by term, as infinities and NaN may come from no code: a gate or an up.
template <class T>
__device__ __noinline__ float decoded_gate(const FfnOneParams& p, const QmvWeights& w,
                                           uint32_t matrix, uint32_t n) {
  return decoded_terms<T>(p.first, w, matrix, n, 0, p.first.k,
                          [&](uint32_t k) { return simt::load_float(p.x, p.x_type, k); });
}

// Of what `count` warps have summed up, in few steps.
template <uint32_t count>
__device__ __forceinline__ float sum_of(const float* from) {
  if constexpr (count == 1) {
    return *from;
  } else {
    return sum_of<count / 2>(from) + sum_of<count / 2>(from + count / 2 * 32);
  }
}

template <class T>
struct FfnOneActivator {
  const FfnOneParams& p;
  FfnOneShared& shared;
  const FfnOneMemory& memory;
  uint32_t lane;

  // Of a tile's sums this lane's: of which operand, and of which row.
  __device__ __forceinline__ uint32_t is_up() const { return p.turns ? lane % 2 : lane / 16; }
  __device__ __forceinline__ uint32_t row_of(const FfnOneBlock& block) const {
    return block.row() + (p.turns ? lane / 2 : lane % 16);
  }
  __device__ __forceinline__ float added(const FfnOneBlock& block) const {
    const QmvWeights& w = p.w[is_up()];
    const uint32_t n = row_of(block);
    if (w.added == nullptr || n >= p.first.n) return 0.0f;
    return added_to(w, static_cast<uint32_t>(shared.matrix[block.expert]), n);
  }
  // What of a tile can be known before its sums are: others wait for what follows from those.
  struct Prepared {
    float bias, scale;
    uint32_t* word;  // this lane's activation, if it has one
  };
  __device__ __forceinline__ Prepared prepare(const FfnOneBlock& block) const {
    Prepared known{added(block), 1.0f, nullptr};
    if constexpr (T::kHalves) {
      known.scale =
          tensor_scale_of(p.w[is_up()], static_cast<uint32_t>(shared.matrix[block.expert]));
    }
    if (lane < block.rows(p)) known.word = p.words + block.expert * p.first.n + block.row() + lane;
    return known;
  }
  // Both of the tile's halves are in this lane and another: the activations to their words. Rows
  // that there are not have no codes, and sums of 0.
  __device__ __forceinline__ void store_activations(const FfnOneBlock& block, const Prepared& known,
                                                    float total) const {
    float value = total;
    if constexpr (T::kHalves) value *= known.scale;
    if (!formats::is_finite(value) && row_of(block) < p.first.n) {
      const auto matrix = static_cast<uint32_t>(shared.matrix[block.expert]);
      value = decoded_gate<T>(p, p.w[is_up()], matrix, row_of(block));
    }
    value += known.bias;
    const uint32_t of_gate = p.turns ? 2 * lane : lane, of_up = p.turns ? 2 * lane + 1 : lane + 16;
    const float gate = __shfl_sync(~0u, value, of_gate % 32);
    const float up = __shfl_sync(~0u, value, of_up % 32);
    if (known.word == nullptr) return;
    const float h = activation(gate, up, p.glu);
    const uint32_t bits =
        p.x_type == simt::kBf16 ? formats::float_to_bfloat16(h) : formats::float_to_float16(h);
    store_word(known.word, kOneWritten | bits);
  }

  __device__ __forceinline__ void run() const {
    const uint32_t tiles = tiles_in_all(p, shared.active);
    Turn sums{0, 0};
    FfnOneBlock block(p);
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < tiles;
         tile += gridDim.x, sums.advance(kOneTileSums), block.advance(p)) {
      const Prepared known = prepare(block);
      barrier_wait(shared_address(&shared.summed[sums.at]), sums.parity);
      const float* from = memory.sums + sums.at * 32 * kOneConsumers + lane;
      const float sum = sum_of<kOneConsumers>(from);
      store_activations(block, known, sum);
      barrier_arrive(shared_address(&shared.taken[sums.at]) + nothing_of(__float_as_uint(sum)));
    }
    add_up_biases();
    named_barrier_arrive(kOneDownSums, 32 * (kOneConsumers + 1));
  }

  // What the biases of down add to this thread block's rows: long before they are needed, as each
  // of them comes from memory.
  __device__ __forceinline__ void add_up_biases() const {
    if (p.w[2].added == nullptr) return;
    const uint32_t own_rows = rows_of_this(p), first_row = first_row_of_this(p);
#pragma unroll 1
    for (uint32_t r = lane; r < own_rows; r += 32) {
      float sum = 0.0f;
#pragma unroll 1
      for (uint32_t e = 0; e < shared.active; ++e) {
        sum += shared.weight[e] *
               added_to(p.w[2], static_cast<uint32_t>(shared.matrix[e]), first_row + r);
      }
      shared.added[r] = sum;
    }
    __syncwarp();
  }
};

}  // namespace moeblas::cuda::device
