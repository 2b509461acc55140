// What qmm_sm90 has beside its products where they are an expert layer's (ffn_qmm_sm90): the order
// in which rows of gates and ups come, and what becomes of the sums. Of 16 rows of w that a warp
// multiplies the upper eight are gates and the lower eight the ups beside them (or the other way
// round), so that a lane holds both numbers of an activation.
//
// Rows come in the order of qmm_sm90_glu_order.h, so that activations are written as the second
// product reads them. What fills a row of theirs up to whole blocks of K comes from rows of w that
// do not exist, and is zero.
//
// Sums go through shared memory, 32 tokens at a time, as float32. The time goes into the
// exponentials, and into writing: 4 bytes a sum of the second product.
#pragma once

#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90_rings.cuh"
#include "simt/elements.h"
#include "simt/glu.h"

namespace moeblas::cuda {

// Of a warpgroup, for one tile. `out`: its buffers in shared memory.
template <class Weights, class Tiles>
class LayerEnd {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Memory = typename Block::Memory;
  static constexpr bool kActivations = Weights::kEnding == Ending::activations;

  __device__ LayerEnd(const QmmSm90Params& p, const TileRecord& tile, uint32_t first_row,
                      uint32_t out, uint32_t out_rows, uint32_t group)
      : p_(p),
        tile_(tile),
        first_row_(first_row),
        out_(out),
        out_rows_(out_rows),
        group_(group),
        thread_(threadIdx.x % 128) {}

  template <uint32_t kTokens>
  __device__ void store(float (&sums)[kTokens / 2]) const {
    constexpr uint32_t kSteps = kTokens / kAtOnce;
    static_assert(kSteps % 2 == 0 || Tiles::kOutBuffers == 1,
                  "of two buffers, a tile begins with the one that was not read last");
    add<kTokens>(sums, 0, p_.added[0]);
    if constexpr (kActivations) add<kTokens>(sums, 1, p_.added[1]);
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) {
      const uint32_t buffer = out_ + i % Tiles::kOutBuffers * Memory::kOutBytes;
      // Of two buffers, this one was read before the last barrier.
      if (Tiles::kOutBuffers == 1) meet();
      put(&sums[i * kAtOnce / 2], buffer);
      meet();
      if constexpr (kActivations) {
        store_activations(i * kAtOnce, buffer);
      } else {
        store_sums(i * kAtOnce, buffer);
      }
    }
  }

 private:
  static constexpr uint32_t kAtOnce = 32;  // tokens
  static_assert(kAtOnce * 64 * 4 <= Memory::kOutBytes, "a buffer holds them");

  __device__ void meet() const { device::named_barrier(1 + group_, 128); }

  // To the upper (0) or lower (1) rows; where no rows are paired, both are the first's.
  template <uint32_t kTokens>
  __device__ void add(float (&sums)[kTokens / 2], uint32_t lower, const AddedRows& added) const {
    if (added.data == nullptr) return;
    const uint32_t warp = thread_ / 32, g = thread_ % 32 / 4;
    float v[2];
    if constexpr (kActivations) {
      const uint32_t row = glu_row(p_.glu_rows.run_shift, first_row_ / 64, warp, g);
      v[lower] = row < p_.glu_rows.rows ? load(added, row) : 0.0f;
    } else {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t row = first_row_ + warp * 16 + r * 8 + g;
        v[r] = row < p_.n ? load(added, row) : 0.0f;
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kTokens / 2; ++i) {
      if (!kActivations || i / 2 % 2 == lower) sums[i] += v[i / 2 % 2];
    }
  }
  __device__ float load(const AddedRows& added, uint32_t row) const {
    return simt::load_float(added.data, added.type,
                            tile_.w * added.matrix_stride + row * added.step);
  }

  // Float `i` of a token's 64 in a buffer. Tokens 2c and 2c + 1 of eight are a lane's: exchanged by
  // c, no two lanes meet in a bank.
  __device__ static uint32_t place(uint32_t token, uint32_t i) {
    const uint32_t c = token / 2 % 4;
    return (token * 64 + (i ^ (kActivations ? c << 1 : c << 3))) * 4;
  }
  // Of the lane's upper or lower row.
  __device__ uint32_t column(uint32_t lower) const {
    const uint32_t warp = thread_ / 32, g = thread_ % 32 / 4;
    if constexpr (!kActivations) return warp * 16 + lower * 8 + g;
    return lower * 32 + glu_position(p_.glu_rows.run_shift, warp, g);
  }
  __device__ void put(const float* sums, uint32_t buffer) const {
    const uint32_t upper = column(0), lower = column(1), token = thread_ % 4 * 2;
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce / 8; ++j) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(
                         buffer + place(8 * j + token + i % 2, i < 2 ? upper : lower)),
                     "f"(sums[4 * j + i])
                     : "memory");
      }
    }
  }

  // Eight of a token's 32 by each thread.
  __device__ void store_activations(uint32_t first, uint32_t buffer) const {
    const GluRows& glu = p_.glu_rows;
    const uint32_t token = thread_ / 4, octet = thread_ % 4 * 8;
    const uint32_t row = tile_.row + first + token, position = first_row_ / 2 + octet;
    if (row >= tile_.end || position >= glu.pitch) return;
    // Pairs as they lie: that of positions 2t is t ^ turn. Of two tokens with one exchange, each
    // begins with the other half.
    const uint32_t turn = token / 2 % 4 ^ token % 2 * 2;
    float upper[8], lower[8];
    load_octet(buffer + token * 256 + octet * 4, token % 2, upper);
    load_octet(buffer + token * 256 + octet * 4 + 128, token % 2, lower);
    if (glu.first_is_up)
      activate(glu.glu, lower, upper, upper);
    else
      activate(glu.glu, upper, lower, upper);
    uint32_t v[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) v[i] = Weights::Math::rounded(upper[2 * i], upper[2 * i + 1]);
#pragma unroll
    for (uint32_t bit = 1; bit <= 2; bit *= 2) {
      const bool exchanged = (turn & bit) != 0;
      const uint32_t w[4] = {v[0], v[1], v[2], v[3]};
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) v[i] = exchanged ? w[i ^ bit] : w[i];
    }
    *reinterpret_cast<uint4*>(reinterpret_cast<uint16_t*>(p_.out) + uint64_t{row} * glu.pitch +
                              position) = {v[0], v[1], v[2], v[3]};
  }
  __device__ static void load_octet(uint32_t from, uint32_t half, float (&v)[8]) {
    const uint4 a = device::load_shared_4(from + half * 16);
    const uint4 b = device::load_shared_4(from + (half ^ 1) * 16);
    const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) v[i] = __uint_as_float(words[i]);
  }

  // What models have by the device's own exponential and division, which are off by less than what
  // rounding to 16 bits hides; the others one by one.
  __device__ static void activate(const simt::GluParams& p, const float (&gate)[8],
                                  const float (&up)[8], float (&to)[8]) {
    if (p.activation == simt::kSilu) {
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) to[i] = swish(gate[i], gate[i]) * up[i];
    } else if (p.activation == simt::kClampedSwiglu) {
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        // Comparisons that NaN passes through.
        const float g = gate[i] > p.limit ? p.limit : gate[i];
        const float below = up[i] > p.limit ? p.limit : up[i];
        to[i] = ((below < -p.limit ? -p.limit : below) + 1.0f) * swish(g, p.alpha * g);
      }
    } else {
      float g[8], u[8];
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) g[i] = gate[i], u[i] = up[i];
#pragma unroll 1
      for (uint32_t n = 0; n < 8; ++n) {
        const float a = simt::glu(g[0], u[0], p);
        // Numbers in registers have no index.
#pragma unroll
        for (uint32_t i = 0; i < 7; ++i) g[i] = g[i + 1], u[i] = u[i + 1], to[i] = to[i + 1];
        to[7] = a;
      }
    }
  }
  // factor * sigmoid(x)
  __device__ static float swish(float factor, float x) {
    return __fdividef(factor, 1.0f + __expf(-x));
  }

  // Rows of 64 sums, four by each thread.
  __device__ void store_sums(uint32_t first, uint32_t buffer) const {
    const uint32_t column = thread_ % 16 * 4;
    if (first_row_ + column >= p_.n) return;
    constexpr uint32_t kEach = kAtOnce / 8;
    uint4 v[kEach];
    int64_t row[kEach];
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      const uint32_t token = i * 8 + thread_ / 16;
      asm volatile("ld.shared.b64 %0, [%1];" : "=l"(row[i]) : "r"(out_rows_ + (first + token) * 8));
      v[i] = device::load_shared_4(buffer + place(token, column));
    }
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      if (tile_.row + first + i * 8 + thread_ / 16 >= tile_.end) continue;
      // N is a K elsewhere: a multiple of four.
      *reinterpret_cast<uint4*>(reinterpret_cast<float*>(p_.out) + row[i] + first_row_ + column) =
          v[i];
    }
  }

  const QmmSm90Params& p_;
  const TileRecord& tile_;
  uint32_t first_row_, out_, out_rows_, group_, thread_;
};

}  // namespace moeblas::cuda
