// What becomes of the sums of qmv_sm90: outputs, activations of gates and ups, and the weighted
// sums of an expert layer.
#pragma once

#include "cuda/device/decode.cuh"
#include "cuda/qmv_sm90/tile.cuh"
#include "simt/glu.h"

namespace moeblas::cuda::device {

__device__ __forceinline__ float tensor_scale_of(const QmvWeights& w, uint32_t matrix) {
  return w.tensor_scale != nullptr ? w.tensor_scale[matrix * w.tensor_scale_step]
                                   : w.tensor_scale_number;
}

// What is added to an output: w.added is not null.
__device__ __forceinline__ float added_to(const QmvWeights& w, uint32_t matrix, uint32_t n) {
  return simt::load_float(w.added, w.added_type, matrix * w.added_matrix_stride + n * w.added_step);
}

// One output from decoded weights, term by term, of [first, end) of K. Of p: group and scale_type;
// x_at(k): the row of x.
template <class T, class Params, class At>
__device__ __forceinline__ float decoded_terms(const Params& p, const QmvWeights& w,
                                               uint32_t matrix, uint32_t n, uint32_t first,
                                               uint32_t end, At&& x_at) {
  using F = typename T::Format;
  const auto row = [&](const QmvTensor& t) {
    return t.data + matrix * t.matrix_stride + n * t.row_stride;
  };
  const unsigned char *codes = row(w.codes), *scales = row(w.scales), *biases = row(w.biases);
  const float tensor_scale = tensor_scale_of(w, matrix);
  float sum = 0.0f;
  for (uint32_t k = first; k < end; ++k) {
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
    sum = fmaf(value, x_at(k), sum);
  }
  return sum;
}
template <class T>
__device__ __noinline__ float decoded_sum(const QmvParams& p, const QmvWeights& w, uint32_t matrix,
                                          uint32_t n, int64_t x, uint32_t section) {
  const uint32_t values = p.units * kQmvUnit, first = section * values;
  return decoded_terms<T>(p, w, matrix, n, first, min(first + values, p.k), [&](uint32_t k) {
    return simt::load_float(p.x, p.x_type, x + k * p.x_col_stride);
  });
}

__device__ __forceinline__ void store(const QmvParams& p, int64_t at, float value) {
  simt::store_float(p.out, p.out_type, at, value);
}

static __device__ __noinline__ float activation(float gate, float up, const simt::GluParams& glu) {
  return simt::glu(gate, up, glu);
}

// A tile's sums in shared memory: of each row group and part of K a warp's, `columns` of 32 rows.
struct TileSums {
  const float* at;
  uint32_t columns;
};

// The sums of all parts of K, in the order of K: `step` floats lie from one to the next.
__device__ __forceinline__ float added_parts(const QmvParams& p, const float* from, uint32_t step) {
  constexpr uint32_t kAtOnce = 4;  // there are 2, 4, 8 or 16
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t i = 0; i < p.parts; i += kAtOnce, from += kAtOnce * step) {
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      if (j < 2 || j < p.parts) sum += from[j * step];
    }
  }
  return sum;
}

// Row n of an operand's matrix times row `row` of x, over the tile's section of K, from the sum of
// the parts: of what is not finite the terms are added up again.
template <class T>
__device__ __forceinline__ float settled(const QmvParams& p, const Schedule& s, uint32_t operand,
                                         const QmvTile& tile, uint32_t n, uint32_t row,
                                         float total) {
  const QmvWeights& w = p.w[operand];
  if constexpr (T::kHalves) total *= tensor_scale_of(w, matrix_of(p, s, tile.active));
  if (!formats::is_finite(total)) {
    total = decoded_sum<T>(p, w, matrix_of(p, s, tile.active), n, p.one_x ? 0 : s.x[row],
                           section_of(p, tile.index));
  }
  return total;
}

// The same, its parts and limbs added, and what is added to it. `column`: the row's first.
template <class T>
__device__ __forceinline__ float finished(const QmvParams& p, const Schedule& s, uint32_t operand,
                                          const QmvTile& tile, uint32_t n, uint32_t row,
                                          const TileSums& sums, uint32_t row_group, uint32_t column,
                                          uint32_t lane) {
  const float* from =
      sums.at + (row_group * p.parts * sums.columns + column) * kQmvSumsPitch + lane;
  const uint32_t step = sums.columns * kQmvSumsPitch;
  float total = 0.0f;
#pragma unroll 1
  for (uint32_t limb = 0; limb < p.limbs; ++limb, from += kQmvSumsPitch) {
    total += added_parts(p, from, step);
  }
  total = settled<T>(p, s, operand, tile, n, row, total);
  if ((p.added >> operand & 1) != 0 && section_of(p, tile.index) == 0) {
    total += added_to(p.w[operand], matrix_of(p, s, tile.active), n);
  }
  return total;
}

// The outputs of a tile's rows of x from `first_token` on, by the warps that share the sums.
template <class T>
__device__ __forceinline__ void store_tile(const QmvParams& p, const Schedule& s,
                                           const QmvTile& tile, const TileSums& sums,
                                           uint32_t first_token, uint32_t tokens, uint32_t part,
                                           uint32_t row_group, uint32_t lane) {
  const uint32_t operand_of = operand_of_rows(p, row_group), first = rows_of_gate(p, row_group);
  const uint32_t of_tile = rows_in_operand(p, row_group) * kQmvItemRows + lane;
  if (of_tile >= rows_of(p, tile.index)) return;
  const uint32_t n = first_row_of(p, tile.index) + of_tile;
  const uint32_t warp = part + operand_of * p.parts;
#pragma unroll 1
  for (uint32_t token = warp; token < tokens; token += p.parts << p.paired) {
    const uint32_t row = s.order[tile.first + first_token + token];
    const int64_t to = s.out[row] + section_of(p, tile.index) * p.section_step + n;
    const uint32_t column = token * p.column_step;
    float gate = 0.0f, value = 0.0f;
#pragma unroll 1
    for (uint32_t operand = 0; operand <= p.paired; ++operand) {
      gate = value;
      value = finished<T>(p, s, operand, tile, n, row, sums, first + (operand << p.operand_shift),
                          column, lane);
    }
    if (p.paired) value = activation(gate, value, p.glu);
    store(p, to, value);
  }
}

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

// A row of x's share of the weighted sums: rows [first, first + box_rows) of w, by one warp.
__device__ __forceinline__ void combine_box(const QmvParams& p, const Schedule& s, uint32_t first,
                                            uint32_t lane) {
  const QmvCombine& c = p.combine;
  const uint32_t end = min(first + p.box_rows, p.n);
  for (uint32_t token = 0; token < c.tokens; ++token) {
    for (uint32_t n = first + lane; n < end; n += 32) {
      float sum = 0.0f;
#pragma unroll 4
      for (uint32_t j = 0; j < c.top_k; ++j) {
        const uint32_t pair = token * c.top_k + j;
        if (s.key[pair] < 0) continue;
        const float weight = c.weights[token * c.weights_stride[0] + j * c.weights_stride[1]];
        const float row = load_written(&c.rows[uint64_t{pair} * p.n + n]);
        sum = formats::add(sum, formats::mul(weight, row));
      }
      simt::store_float(c.out, c.out_type, token * c.out_row_stride + n, sum);
    }
  }
}

// The weighted sums of the boxes of rows whose last products this thread block stored: every thread
// block counts each block of its share, and whoever counts last sees what all others stored.
__device__ __forceinline__ void combine(const QmvParams& p, const Schedule& s, uint32_t thread) {
  constexpr uint32_t kThreads = 32 * kQmvConsumers;
  const QmvCombine& c = p.combine;
  const uint32_t warp = thread / 32, lane = thread % 32;
  // Where no row has a matrix, boxes have no share: all blocks take them in turn.
  const bool none = s.active == 0;
  const uint32_t of_matrix = p.tiles * p.tile_blocks;  // the last tile may have fewer
  const uint32_t begin = none ? blockIdx.x : s.begin * p.tile_blocks;
  const uint32_t end = none ? of_matrix : s.end * p.tile_blocks;
  const uint32_t step = none ? gridDim.x : 1;
  __threadfence();
  named_barrier(1, kThreads);
  for (uint32_t at = begin + warp * step; at < end; at += kQmvConsumers * step) {
    const uint32_t block = at % of_matrix;
    if (block >= p.blocks) continue;
    uint32_t before = lane == 0 && !none ? atomicAdd(&c.counters[block], 1u) : 0;
    __threadfence();
    before = __shfl_sync(~0u, before, 0);
    if (none || before + 1 == s.active) combine_box(p, s, block * p.box_rows, lane);
  }
}

}  // namespace moeblas::cuda::device
