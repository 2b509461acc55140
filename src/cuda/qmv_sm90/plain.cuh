// Outputs of qmv_sm90 to which nothing is done but, of gates and ups, the activation: a column for
// each row of x, K whole, nothing added. Most are; and as every warp stores at the end of every
// tile, what store_tile asks and loops over for the others costs as much there as a stage does.
#pragma once

#include "cuda/qmv_sm90/store.cuh"

namespace moeblas::cuda::device {

__device__ __forceinline__ bool stores_plainly(const QmvParams& p) {
  return ((p.limbs - 1) | p.added | p.section_inverse) == 0;
}

// A row of x among a tile's, and where its outputs begin.
struct RowOut {
  uint32_t row;
  int32_t at;
};
// The first of a warp's, if there is one. Known before sums meet it is not waited for behind that.
__device__ __forceinline__ RowOut first_row_out(const Schedule& s, const QmvTile& tile,
                                                uint32_t token) {
  const uint32_t row = s.order[tile.first + min(token, tile.tokens - 1)];
  return {row, s.out[row]};
}

__device__ __forceinline__ void store_finite(const QmvParams& p, int64_t at, float value) {
  if (p.out_type == simt::kBf16) {
    // To the nearest, of two as near to the even one.
    const uint32_t bits = __float_as_uint(value);
    reinterpret_cast<uint16_t*>(p.out)[at] =
        static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  } else if (p.out_type == simt::kF16) {
    reinterpret_cast<__half*>(p.out)[at] = __float2half_rn(value);
  } else {
    reinterpret_cast<float*>(p.out)[at] = value;
  }
}

// store_tile where stores_plainly. `first`: the first token's of the warp, which is token `warp`;
// the tile's next ones are p.parts << p.paired further on.
template <class T>
__device__ __forceinline__ void store_plain(const QmvParams& p, const Schedule& s,
                                            const QmvTile& tile, const TileSums& sums,
                                            uint32_t first_token, uint32_t tokens, uint32_t warp,
                                            uint32_t row_group, uint32_t lane, RowOut first) {
  const uint32_t step = sums.columns * kQmvSumsPitch, rows = p.tile_blocks * p.box_rows;
  const uint32_t of_tile = rows_in_operand(p, row_group) * kQmvItemRows + lane;
  const uint32_t n = tile.index * rows + of_tile;
  if (of_tile >= rows || n >= p.n) return;
  const float* group = sums.at + rows_of_gate(p, row_group) * p.parts * step + lane;
#pragma unroll 1
  for (uint32_t token = warp; token < tokens; token += p.parts << p.paired) {
    if (token != warp) first = first_row_out(s, tile, first_token + token);
    const auto total = [&](uint32_t operand) {
      const float* from = group + token * kQmvSumsPitch;
      const float sum = added_parts(p, from + (operand << p.operand_shift) * p.parts * step, step);
      return settled<T>(p, s, operand, tile, n, first.row, sum);
    };
    float value = total(0);
    if (p.paired) value = activation(value, total(1), p.glu);
    const int64_t at = first.at + static_cast<int32_t>(n);
    if (formats::is_finite(value)) {
      store_finite(p, at, value);
    } else {
      store(p, at, value);
    }
  }
}

}  // namespace moeblas::cuda::device
