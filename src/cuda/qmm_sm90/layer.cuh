// What qmm_sm90 has beside its products where they are an expert layer's (ffn_qmm_sm90): what
// becomes of the sums. Of 16 rows of w that a warp of the first product multiplies the upper eight
// are gates and the lower eight the ups beside them (or the other way round), so that a lane holds
// both numbers of an activation. Rows come in the order of qmm_sm90/glu_order.h, so that
// activations are written as the second product reads them. What fills a row of theirs up to whole
// blocks of K comes from rows of w that do not exist, and is zero.
//
//   activations   in registers; a warpgroup's tile through shared memory at once, 64 bytes a token
//   sums          of the second product, float32: each warp's by itself, 64 bytes a token
//
// The time goes into the exponentials, and into writing: 4 bytes a sum of the second product.
#pragma once

#include "cuda/device/activation.cuh"
#include "cuda/device/kept.cuh"
#include "cuda/device/pair_words.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90/rings.cuh"
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
        first_row_(device::kept(first_row, threadIdx.x % 32)),
        out_(device::kept(out, threadIdx.x % 32)),
        out_rows_(device::kept(out_rows, threadIdx.x % 32)),
        group_(group),
        thread_(device::kept(threadIdx.x % 128, threadIdx.x % 32)),
        warp_(thread_ / 32),
        g_(thread_ % 32 / 4),
        c_(thread_ % 4) {}

  template <uint32_t kTokens>
  __device__ void store(float (&sums)[kTokens / 2]) const {
    add<kTokens>(sums, 0, p_.added[0]);
    if constexpr (kActivations) {
      add<kTokens>(sums, 1, p_.added[1]);
      store_activations<kTokens>(sums);
    } else {
      store_sums<kTokens>(sums);
    }
  }

 private:
  static constexpr uint32_t kBuffers = Tiles::kOutBuffers * Memory::kOutBytes;

  // To the upper (0) or lower (1) rows; where no rows are paired, both are the first's.
  template <uint32_t kTokens>
  __device__ void add(float (&sums)[kTokens / 2], uint32_t lower, const AddedRows& added) const {
    if (added.data == nullptr) return;
    float v[2];
    if constexpr (kActivations) {
      const uint32_t row = glu_row(p_.glu_rows.run_shift, first_row_ / 64, warp_, g_);
      v[lower] = row < p_.glu_rows.rows ? load(added, row) : 0.0f;
    } else {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t row = first_row_ + warp_ * 16 + r * 8 + g_;
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

  // ---- The first product

  // The upper sums become activations.
  template <uint32_t kTokens>
  __device__ void activate(float (&sums)[kTokens / 2]) const {
    const simt::GluParams& glu = p_.glu_rows.glu;
    const bool turned = p_.glu_rows.first_is_up != 0;
    const auto each = [&](auto&& f) {
#pragma unroll
      for (uint32_t i = 0; i < kTokens / 2; i += 4) {
#pragma unroll
        for (uint32_t j = i; j < i + 2; ++j) {
          const float gate = turned ? sums[j + 2] : sums[j];
          sums[j] = f(gate, turned ? sums[j] : sums[j + 2]);
        }
      }
    };
    // What models have by the device's own exponential and division, which are off by less than
    // what rounding to 16 bits hides.
    if (glu.activation == simt::kSilu) {
      each([](float gate, float up) { return swish(gate, gate) * up; });
    } else if (glu.activation == simt::kClampedSwiglu) {
      each([&](float gate, float up) {
        const float g = device::lesser(gate, glu.limit);
        const float u = device::greater(device::lesser(up, glu.limit), -glu.limit);
        return (u + 1.0f) * swish(g, glu.alpha * g);
      });
    } else {
      activate_rarely<kTokens>(sums, turned);
    }
  }
  // factor * sigmoid(x)
  __device__ static float swish(float factor, float x) {
    constexpr float kLog2E = 1.44269504f;
    return __fdividef(factor, 1.0f + device::exp2_beside_1(x * -kLog2E));
  }
  // One by one, with few copies of the text: numbers in registers have no index, those in shared
  // memory do. A thread sees its own alone.
  template <uint32_t kTokens>
  __device__ void activate_rarely(float (&sums)[kTokens / 2], bool turned) const {
    constexpr uint32_t kAll = kTokens / 2, kFit = kBuffers / 512,
                       kRound = kAll < kFit        ? kAll
                                : kAll % kFit == 0 ? kFit
                                                   : 8;
    const uint32_t own = out_ + thread_ * 4;
#pragma unroll
    for (uint32_t i = 0; i < kAll; i += kRound) {
#pragma unroll
      for (uint32_t j = 0; j < kRound; ++j) put(own + j * 512, sums[i + j]);
#pragma unroll 1
      for (uint32_t n = 0; n < kRound / 2; ++n) {
        const uint32_t at = own + (n / 2 * 4 + n % 2) * 512;
        const float upper = device::load_shared_float(at);
        const float lower = device::load_shared_float(at + 2 * 512);
        put(at, simt::glu(turned ? lower : upper, turned ? upper : lower, p_.glu_rows.glu));
      }
#pragma unroll
      for (uint32_t j = 0; j < kRound; ++j) {
        if (j % 4 < 2) sums[i + j] = device::load_shared_float(own + j * 512);
      }
    }
  }
  __device__ static void put(uint32_t at, float v) { device::store_shared_float(at, v); }

  // Two neighbouring positions of a token are a word, of lanes whose rows are 4 or 2 apart; word
  // t of four is exchanged by the token, so that no two lanes meet in a bank.
  template <uint32_t kTokens>
  __device__ void store_activations(float (&sums)[kTokens / 2]) const {
    // As many at once as there is room for.
    constexpr uint32_t kPart = kTokens * 64 <= kBuffers ? kTokens : kBuffers / 64;
    const GluRows& glu = p_.glu_rows;
    // Whoever reads the last tile's there has done so.
    meet();
    activate<kTokens>(sums);
    const uint32_t position = glu_position(glu.run_shift, warp_, g_), second = position % 2;
    const int partner = glu.run_shift == kRunShift<NibbleOrder> ? 16 : 8;
    const uint32_t to = out_ + (2 * c_ + second) * 64 + (position / 2 ^ c_) * 4;
    if (glu.glu.activation != simt::kSilu && glu.glu.activation != simt::kClampedSwiglu) meet();
    const uint32_t token = thread_ / 4, first = first_row_ / 2 + thread_ % 4 * 8;
    const uint32_t turn = token / 2 % 4;
    auto* rows = reinterpret_cast<uint16_t*>(p_.out) + first;
#pragma unroll
    for (uint32_t part = 0; part < kTokens; part += kPart) {
      if (part != 0) {
        if (tile_.tokens <= part) return;
        meet();
      }
#pragma unroll
      for (uint32_t j = part / 8; j < (part + kPart) / 8 && j < kTokens / 8; ++j) {
        const uint32_t own = Weights::Math::rounded(sums[4 * j], sums[4 * j + 1]);
        const uint32_t other = __shfl_xor_sync(~0u, own, partner);
        const uint32_t word =
            second == 0 ? __byte_perm(own, other, 0x5410) : __byte_perm(other, own, 0x7632);
        device::store_shared_u32(to + (j - part / 8) * 512, word);
      }
      meet();
      if (first >= glu.pitch) continue;
#pragma unroll
      for (uint32_t i = part; i < part + kPart && i < kTokens; i += 32) {
        if (tile_.row + i + token >= tile_.end) continue;
        const uint4 v = device::load_shared_4(out_ + (i - part + token) * 64 + thread_ % 4 * 16);
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (uint32_t bit = 1; bit <= 2; bit *= 2) {
          const uint32_t w[4] = {words[0], words[1], words[2], words[3]};
#pragma unroll
          for (uint32_t k = 0; k < 4; ++k) words[k] = (turn & bit) != 0 ? w[k ^ bit] : w[k];
        }
        *reinterpret_cast<uint4*>(rows + uint64_t{tile_.row + i + token} * glu.pitch) = {
            words[0], words[1], words[2], words[3]};
      }
    }
  }
  __device__ void meet() const { device::named_barrier(1 + group_, 128); }

  // ---- The second product

  // 16 tokens at a time, in two places in turn where there is room: rows of 16 sums, 80 bytes from
  // one to the next, so that lanes meet in no bank.
  template <uint32_t kTokens>
  __device__ void store_sums(const float (&sums)[kTokens / 2]) const {
    constexpr uint32_t kPitch = 80, kPlaces = Tiles::kOutBuffers;
    constexpr uint32_t kAtOnce = kBuffers / (4 * kPitch * kPlaces) >= 16 ? 16 : 8;
    static_assert(4 * kAtOnce * kPitch * kPlaces <= kBuffers, "each warp has its own");
    const uint32_t own = out_ + warp_ * kAtOnce * kPitch * kPlaces;
    const uint32_t lane = thread_ % 32, column = first_row_ + warp_ * 16 + lane % 4 * 4;
    auto* out = reinterpret_cast<float*>(p_.out) + column;
#pragma unroll
    for (uint32_t i = 0; i < kTokens; i += kAtOnce) {
      if (Tiles::kExtra != 0 && i != 0 && i % 32 == 0 && tile_.tokens <= i) break;
      const uint32_t place = own + i / kAtOnce % kPlaces * kAtOnce * kPitch;
      // What was there has been read: before the last __syncwarp, where there are two places.
      if (kPlaces == 1) __syncwarp();
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce / 2; ++j) {
        const uint32_t token = j / 4 * 8 + 2 * c_ + j % 2, row = j / 2 % 2 * 8 + g_;
        put(place + token * kPitch + row * 4, sums[i / 2 + j]);
      }
      __syncwarp();
      constexpr uint32_t kHalves = kAtOnce / 8;
      uint4 v[kHalves];
      int64_t row[kHalves];
#pragma unroll
      for (uint32_t h = 0; h < kHalves; ++h) {
        const uint32_t token = h * 8 + lane / 4;
        row[h] = device::load_shared_i64(out_rows_ + (i + token) * 8);
        v[h] = device::load_shared_4(place + token * kPitch + lane % 4 * 16);
      }
#pragma unroll
      for (uint32_t h = 0; h < kHalves; ++h) {
        // N is a K elsewhere: a multiple of four.
        if (tile_.row + i + h * 8 + lane / 4 >= tile_.end || column >= p_.n) continue;
        *reinterpret_cast<uint4*>(out + row[h]) = v[h];
      }
    }
  }

  const QmmSm90Params& p_;
  const TileRecord& tile_;
  uint32_t first_row_, out_, out_rows_, group_, thread_;
  uint32_t warp_, g_, c_;  // the lane has rows g and g + 8 of the warp's 16, tokens 2c, 2c + 1
};

}  // namespace moeblas::cuda
