// What qmm_sm90 has beside its products where they are an expert layer's (ffn_qmm_sm90): what
// becomes of the sums. Of 16 rows of w that a warp of the first product multiplies the upper eight
// are gates and the lower eight the ups beside them (or the other way round), so that a lane holds
// both numbers of an activation. Rows come in the order of qmm_sm90/glu_order.h, so that
// activations are written as the second product reads them. What fills a row of theirs up to whole
// blocks of K comes from rows of w that do not exist, and is zero.
//
//   activations   in registers; those of some tokens through shared memory while the next ones' are
//                 made, 64 bytes a token
//   sums          of the second product, float32: a warpgroup's, 256 bytes a token
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

// What is added to a lane's sums, as it lies in memory: asked for while they are multiplied.
struct AddedBits {
  uint32_t of[2];  // the upper and the lower rows
};

// Of a warpgroup, for one tile. `out`: its buffers in shared memory.
template <class Weights, class Tiles>
class LayerEnd {
 public:
  using Block = QmmBlock<Weights, Tiles>;
  using Memory = typename Block::Memory;
  static constexpr bool kActivations = Weights::kEnding == Ending::activations;

  __device__ LayerEnd(const QmmSm90Params& p, const TileRecord& tile, uint32_t first_row,
                      uint32_t out, uint32_t out_rows, uint32_t group, const AddedBits& added)
      : p_(p),
        tile_(tile),
        first_row_(device::kept(first_row, threadIdx.x % 32)),
        out_(device::kept(out, threadIdx.x % 32)),
        out_rows_(device::kept(out_rows, threadIdx.x % 32)),
        group_(group),
        thread_(device::kept(threadIdx.x % 128, threadIdx.x % 32)),
        warp_(thread_ / 32),
        g_(thread_ % 32 / 4),
        c_(thread_ % 4),
        added_{number(p.added[0], added.of[0]),
               number(p.added[kActivations ? 1 : 0], added.of[1])} {}

  // Of the rows that `thread` of a warpgroup has from `first_row` on.
  __device__ static AddedBits ask(const QmmSm90Params& p, const TileRecord& tile,
                                  uint32_t first_row, uint32_t thread) {
    const uint32_t warp = thread / 32, g = thread % 32 / 4;
    if constexpr (kActivations) {
      const uint32_t row = glu_row(p.glu_rows.run_shift, first_row / 64, warp, g);
      const bool exists = row < p.glu_rows.rows;
      return {ask_one(p.added[0], tile, row, exists), ask_one(p.added[1], tile, row, exists)};
    } else {
      const uint32_t row = first_row + warp * 16 + g;
      return {ask_one(p.added[0], tile, row, row < p.n),
              ask_one(p.added[0], tile, row + 8, row + 8 < p.n)};
    }
  }

  template <uint32_t kTokens>
  __device__ void store(float (&sums)[kTokens / 2]) const {
    if constexpr (kActivations) {
      store_activations<kTokens>(sums);
    } else {
      if (p_.added[0].data != nullptr) add<kTokens>(sums);
      store_sums<kTokens>(sums);
    }
  }

 private:
  static constexpr uint32_t kBuffers = Tiles::kOutBuffers * Memory::kOutBytes;

  __device__ static uint32_t ask_one(const AddedRows& added, const TileRecord& tile, uint32_t row,
                                     bool exists) {
    if (added.data == nullptr || !exists) return 0;
    const int64_t i = tile.w * added.matrix_stride + row * added.step;
    if (added.type == simt::kF32) return __ldg(reinterpret_cast<const uint32_t*>(added.data) + i);
    return __ldg(reinterpret_cast<const uint16_t*>(added.data) + i);
  }
  // Where there is nothing to add, what leaves every number as it is.
  __device__ static float number(const AddedRows& added, uint32_t bits) {
    if (added.data == nullptr) return -0.0f;
    if (added.type == simt::kBf16) bits <<= 16;
    return added.type == simt::kF16 ? pair16::float_of_float16(bits) : __uint_as_float(bits);
  }

  template <uint32_t kTokens>
  __device__ void add(float (&sums)[kTokens / 2]) const {
#pragma unroll
    for (uint32_t i = 0; i < kTokens / 2; ++i) sums[i] += added_[i / 2 % 2];
  }

  // ---- The first product

  template <uint32_t kTokens>
  __device__ void store_activations(float (&sums)[kTokens / 2]) const {
    const simt::GluParams& glu = p_.glu_rows.glu;
    const bool turned = p_.glu_rows.first_is_up != 0;
    const float bias = added_[0], second_bias = added_[1];
    // What models have by the device's own exponential and division, which are off by less than
    // what rounding to 16 bits hides.
    if (glu.activation == simt::kSilu) {
      store_parts<kTokens>(sums, [=](float upper, float lower) {
        const float a = __fadd_rn(upper, bias), b = __fadd_rn(lower, second_bias);
        const float gate = turned ? b : a;
        return swish(gate, gate) * (turned ? a : b);
      });
    } else if (glu.activation == simt::kClampedSwiglu) {
      const float limit = glu.limit, alpha = glu.alpha;
      store_parts<kTokens>(sums, [=](float upper, float lower) {
        const float a = __fadd_rn(upper, bias), b = __fadd_rn(lower, second_bias);
        const float g = device::lesser(turned ? b : a, limit);
        const float u = device::greater(device::lesser(turned ? a : b, limit), -limit);
        return (u + 1.0f) * swish(g, alpha * g);
      });
    } else {
      add<kTokens>(sums);
      activate_rarely<kTokens>(sums, turned);
      store_parts<kTokens>(sums, [](float done, float) { return done; });
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
    meet();  // whoever reads the last tile's there
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
  // t of four is exchanged by the token, so that no two lanes meet in a bank. A part of the tokens
  // is stored while the next one's activations are made, whose exponentials take the longest.
  template <uint32_t kTokens, class Activation>
  __device__ void store_parts(const float (&sums)[kTokens / 2], Activation&& activation) const {
    constexpr uint32_t kRoom = kBuffers / 128;  // of tokens, two parts side by side
    constexpr uint32_t kWanted = (kTokens / 2 + 31) / 32 * 32;
    constexpr uint32_t kPart = kRoom < kWanted ? kRoom : kWanted;
    constexpr uint32_t kAtOnce = 32, kRounds = kPart / kAtOnce;
    static_assert(kRounds > 0, "a warpgroup stores 32 tokens at once");
    const GluRows& glu = p_.glu_rows;
    const uint32_t position = glu_position(glu.run_shift, warp_, g_), second = position % 2;
    const int partner = glu.run_shift == kRunShift<NibbleOrder> ? 16 : 8;
    const uint32_t halves = second == 0 ? 0x5410 : 0x3276;
    const uint32_t to = out_ + (2 * c_ + second) * 64 + (position / 2 ^ c_) * 4;
    const uint32_t token = thread_ / 4, first = first_row_ / 2 + thread_ % 4 * 8;
    const uint32_t from = out_ + token * 64 + thread_ % 4 * 16, turn = token / 2 % 4;
    const int32_t left =
        first < glu.pitch ? static_cast<int32_t>(tile_.end - tile_.row - token) : 0;
    const uint64_t out =
        reinterpret_cast<uint64_t>(p_.out) + (uint64_t{tile_.row + token} * glu.pitch + first) * 2;
    const uint32_t step = kAtOnce * 2 * glu.pitch;
    uint4 v[kRounds];
    const auto store = [&](uint32_t part) {
#pragma unroll
      for (uint32_t i = 0; i < kRounds; ++i) {
        const uint32_t round = part * kRounds + i;
        if (round * kAtOnce >= kTokens) break;
        device::store_global_4_if(static_cast<int32_t>(round * kAtOnce) < left,
                                  out + uint64_t{step} * round, v[i]);
      }
    };
    constexpr uint32_t kParts = (kTokens + kPart - 1) / kPart;
    // Whoever reads the last tile's there has done so.
    meet();
#pragma unroll
    for (uint32_t part = 0; part < kParts; ++part) {
      if (part != 0 && tile_.tokens <= part * kPart) {
        store(part - 1);
        return;
      }
      const uint32_t place = part % 2 * (kRoom * 64);
#pragma unroll
      for (uint32_t j = part * kPart / 8; j < (part + 1) * kPart / 8 && j < kTokens / 8; ++j) {
        const float* s = &sums[4 * j];
        const uint32_t own = Weights::Math::rounded(activation(s[0], s[2]), activation(s[1], s[3]));
        const uint32_t other = __shfl_xor_sync(~0u, own, partner);
        device::store_shared_u32(to + place + (j - part * kPart / 8) * 512,
                                 __byte_perm(own, other, halves));
      }
      if (part != 0) store(part - 1);
      meet();
#pragma unroll
      for (uint32_t i = 0; i < kRounds; ++i) {
        const auto word = [&](uint32_t k) {
          return device::load_shared_u32(from + (k ^ turn) * 4 + place + i * (kAtOnce * 64));
        };
        v[i] = {word(0), word(1), word(2), word(3)};
      }
    }
    store(kParts - 1);
  }
  __device__ void meet() const { device::named_barrier(1 + group_, 128); }

  // ---- The second product

  // Some tokens at a time, in two places in turn: the warpgroup's 64 sums of a token are 256 bytes,
  // and leave as such. (Each warp's 64 bytes by themselves take twice as long to leave.) Quarters
  // of 16 bytes are exchanged by the token, so that lanes meet in no bank, neither as they put one
  // sum each nor as they take four.
  template <uint32_t kTokens>
  __device__ void store_sums(const float (&sums)[kTokens / 2]) const {
    constexpr uint32_t kRow = 256, kAtOnce = kBuffers / (2 * kRow), kRounds = kAtOnce / 8;
    constexpr uint32_t kPlace = kAtOnce * kRow;
    // Where narrower tiles, too, come with as many sums.
    constexpr uint32_t kEndsAt = Tiles::kExtra != 0 ? 32 : Tiles::kLeastTokens;
    static_assert(kRounds > 0, "eight tokens at the least");
    // So that who begins the next tile in the first place meets nobody who still reads there.
    static_assert(kEndsAt % (2 * kAtOnce) == 0 && kTokens % kEndsAt == 0, "both places in turn");
    const uint32_t to = out_ + 2 * c_ * kRow + ((warp_ * 4 + g_ / 4) ^ (2 * c_)) * 16 + g_ % 4 * 4;
    const uint32_t lane = thread_ % 32, token = warp_ * 2 + lane / 16;
    const uint32_t from = out_ + token * kRow + (lane % 16 ^ (2 * warp_)) * 16;
    const uint32_t column = first_row_ + lane % 16 * 4;
    const uint64_t columns =
        device::kept(reinterpret_cast<uint64_t>(p_.out) + uint64_t{column} * 4, lane);
    // N is a K elsewhere: a multiple of four.
    const int32_t left = column < p_.n ? static_cast<int32_t>(tile_.end - tile_.row - token) : 0;
    int64_t rows[2][kRounds];
    const auto find_rows = [&](uint32_t step) {
#pragma unroll
      for (uint32_t i = 0; i < kRounds; ++i) {
        rows[step % 2][i] =
            device::load_shared_i64(out_rows_ + (step * kAtOnce + i * 8 + token) * 8);
      }
    };
    find_rows(0);
#pragma unroll
    for (uint32_t i = 0; i < kTokens; i += kAtOnce) {
      const uint32_t step = i / kAtOnce, place = step % 2 * kPlace;
      if (i != 0 && i % kEndsAt == 0 && tile_.tokens <= i) break;
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce / 2; ++j) {
        // The lower rows of w are two quarters further.
        put((to ^ (j / 2 % 2) * 32) + place + (j / 4 * 8 + j % 2) * kRow, sums[i / 2 + j]);
      }
      meet();
      uint4 v[kRounds];
#pragma unroll
      for (uint32_t r = 0; r < kRounds; ++r) {
        v[r] = device::load_shared_4(from + place + r * 8 * kRow);
      }
      if (i + kAtOnce < kTokens) find_rows(step + 1);
#pragma unroll
      for (uint32_t r = 0; r < kRounds; ++r) {
        device::store_global_4_if(static_cast<int32_t>(i + r * 8) < left,
                                  columns + rows[step % 2][r] * 4, v[r]);
      }
    }
  }

  const QmmSm90Params& p_;
  const TileRecord& tile_;
  uint32_t first_row_, out_, out_rows_, group_, thread_;
  uint32_t warp_, g_, c_;  // the lane has rows g and g + 8 of the warp's 16, tokens 2c, 2c + 1
  float added_[2];         // to the upper and the lower rows
};

}  // namespace moeblas::cuda
