// The warps of qmm_few_sm90 that multiply 4-bit codes before scales, affine in groups of 64 where
// they stand, or mxfp4.
#pragma once

#include "cuda/qmm_few_sm90/thread_block.cuh"
#include "cuda/qmm_sm90_held/weights.cuh"

namespace moeblas::cuda {

// Codes become operands as Weights says, HeldAffine4 or HeldMxfp4, and are multiplied by x times a
// power of two, which brings the largest of a token's slice where it says. Scales come behind the
// products of a group, in float32, and biases as a product of their own, times the groups' sums of
// x as three bfloat16. Where there is no such power, and of what is not finite, sums are NaN and
// are made again.
template <class Weights_, uint32_t kParts_, bool kPasses_>
class FewLateScales
    : public FewMultiplier<FewGroupOrder<(Weights_::kScaledHalves > 1)>, kParts_, kPasses_> {
 public:
  using Weights = Weights_;
  using Order = FewGroupOrder<(Weights::kScaledHalves > 1)>;
  using Base = FewMultiplier<Order, kParts_, kPasses_>;
  using Base::count_, Base::stage, Base::kTileRows;
  using Base::p_, Base::lane_, Base::part_, Base::slot_;
  using typename Base::Columns;
  static constexpr bool kMadeAgain = true;

  __device__ FewLateScales(const QmmFewParams& p, uint32_t base) : Base(p, base) {}

  __device__ void multiply(Columns (&x)[2]) {
    if (part_ >= p_.slices) return;
    const Places at = places();
    Codes first, second;
    Scales scales;
    Factors of_x;
    uint32_t tile = 0;  // of all passes
    for (uint32_t pass = 0; pass < Base::passes(); ++pass) {
      if constexpr (Base::kXByStages) Base::take_x(x, pass);
      scale_x(x, of_x);
      Base::wait_for_stage();
      load_codes(first, at, 0);
      load_scales(scales, at);
#pragma unroll 1
      for (const uint32_t last = tile + count_; tile < last; ++tile) {
        float sums[4] = {};
        load_codes(second, at, 1);
        multiply_groups(first, 0, x[0], scales, sums);
        const Scales now = scales;
        Base::give_back(any_of(second) | now.any());
        if (tile + 1 < last) {
          Base::wait_for_stage();
          load_codes(first, at, 0);
          load_scales(scales, at);
        }
        multiply_groups(second, 1, x[1], now, sums);
        float of_biases[4] = {};
        if constexpr (Weights::kBiases) {
          device::multiply_bf16(of_biases,
                                {now.biases[0], now.biases[1], now.biases[0], now.biases[1]},
                                {of_x.sums[0], of_x.sums[1]});
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          sums[j] = __fmaf_rn(sums[j], of_x.factors[j % 2], of_biases[j]);
        }
        Base::store_sums(sums, tile);
      }
    }
  }

 private:
  using Math = Bfloat16Pairs;
  static constexpr uint32_t kSliceGroups = kFewSlice / kFewGroup;

  // What products of tokens 2t and 2t + 1 are multiplied by, and of token g words of B: sums of
  // groups 2 (t % 2) and the next, their first or second part by t / 2, and their third.
  struct Factors {
    float factors[2];
    uint32_t sums[2];
  };
  // Two groups' of rows g and g + 8.
  struct Codes {
    uint2 row[2][2];
  };
  // A slice's, and the biases of groups 2 (t % 2) and the next.
  struct Scales {
    uint2 row[2];
    uint32_t biases[2];
    __device__ uint32_t any() const {
      return Weights::kBiases ? biases[0] | biases[1] : row[0].x | row[1].x;
    }
  };
  // From a stage's begin on.
  struct Places {
    uint32_t codes, scales, biases;
  };

  __device__ void scale_x(Columns (&x)[2], Factors& of) const {
    const uint32_t t = lane_ % 4;
    uint32_t two = 0;
    float sums[kSliceGroups];  // of token g
#pragma unroll
    for (uint32_t group = 0; group < kSliceGroups; ++group) {
      float of_tokens[4] = {};  // 2t and 2t + 1, in each row
#pragma unroll
      for (const uint2& b : x[group / 2][group % 2]) {
        constexpr uint32_t kOnes = 0x3f803f80u;
        if constexpr (Weights::kBiases) {
          device::multiply_bf16(of_tokens, {kOnes, kOnes, kOnes, kOnes}, b);
        }
        two = __vmaxu2(two, __vmaxu2(b.x & 0x7fff7fffu, b.y & 0x7fff7fffu));
      }
      if constexpr (!Weights::kBiases) continue;
      const int from = static_cast<int>(lane_ / 8);
      const float even = __shfl_sync(~0u, of_tokens[0], from);
      const float odd = __shfl_sync(~0u, of_tokens[1], from);
      sums[group] = lane_ / 4 % 2 == 0 ? even : odd;
    }
    uint32_t largest = max(two & 0xffffu, two >> 16);
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
    const HeldPower<Weights> power(largest);
    const uint32_t even = power.even(), odd = power.odd();
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      uint2& b = x[i / 8][i / 4 % 2][i % 4];
      b = {Weights::row(Math::multiply(b.x, even)), Weights::row(Math::multiply(b.y, odd))};
    }
    const float factor = power.factor(Weights::kWordDown);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      of.factors[j] = __shfl_sync(~0u, factor, static_cast<int>(t * 2 + j) * 4);
    }
    if constexpr (!Weights::kBiases) return;
    float rest[2] = {t % 2 == 0 ? sums[0] : sums[2], t % 2 == 0 ? sums[1] : sums[3]};
    uint32_t parts[3];
#pragma unroll
    for (uint32_t& part : parts) {
      part = Math::rounded(rest[0], rest[1]);
      rest[0] -= __uint_as_float(part << 16);
      rest[1] -= __uint_as_float(part & 0xffff0000u);
    }
    of.sums[0] = t < 2 ? parts[0] : parts[1];
    of.sums[1] = t < 2 ? parts[2] : 0;
  }

  __device__ Places places() const {
    const uint32_t t = lane_ % 4, row = Base::group_ * kFewTaskRows + FewOrder::row(lane_ / 4);
    const uint32_t byte = part_ * p_.slice_scales;
    const uint32_t turn = row * p_.scale_row / 128 % (p_.scale_row / 16) * 16;
    Places at;
    at.codes = part_ * (kTileRows * kFewPiece) + row * kFewPiece + Order::codes(row, t);
    at.scales = p_.scales_at + row * p_.scale_row + (byte ^ turn);
    at.biases = p_.biases_at - p_.scales_at + t % 2 * 4;
    return at;
  }
  // Groups 2b and 2b + 1 of a slice.
  __device__ void load_codes(Codes& codes, const Places& at, uint32_t b) const {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t from = stage(slot_) + (at.codes ^ (2 * b + i) * 32);
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        if constexpr (Weights::kScaledHalves > 1) {
          codes.row[i][r] = {
              device::load_shared_u32(from + r * 8 * kFewPiece),
              device::load_shared_u32((from ^ Order::kSecondHalf) + r * 8 * kFewPiece)};
        } else {
          codes.row[i][r] = device::load_shared_2(from + r * 8 * kFewPiece);
        }
      }
    }
  }
  __device__ void load_scales(Scales& scales, const Places& at) const {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t from = stage(slot_) + at.scales + r * 8 * p_.scale_row;
      scales.row[r] = device::load_shared_2(from);
      if constexpr (Weights::kBiases) scales.biases[r] = device::load_shared_u32(from + at.biases);
    }
  }
  // Of loads what says that they have come.
  __device__ static uint32_t any_of(const Codes& c) {
    const uint32_t any = c.row[0][0].x | c.row[0][1].x | c.row[1][0].x | c.row[1][1].x;
    if constexpr (Weights::kScaledHalves == 1) return any;  // one load for both words of a row
    return any | c.row[0][0].y | c.row[0][1].y | c.row[1][0].y | c.row[1][1].y;
  }
  // Two groups, 2b and the next, in a chain of products for each scale.
  __device__ static void multiply_groups(const Codes& codes, uint32_t b, const Columns& x,
                                         const Scales& scales, float (&sums)[4]) {
    constexpr uint32_t kEach = Weights::kScaledHalves;
    float products[2][kEach][4] = {};
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      // As a product waits for the one before it, chains take turns where registers allow for it.
      constexpr bool kTurns = kEach == 1;
      uint32_t a[2][2][4];
      const auto multiply = [&](uint32_t i, uint32_t j) {
        Weights::multiply(products[i][h % kEach], a[i][j], x[i][2 * h + j]);
      };
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint2(&row)[2] = codes.row[i];
        Weights::operands({h == 0 ? row[0].x : row[0].y, h == 0 ? row[1].x : row[1].y}, a[i]);
        for (uint32_t j = 0; !kTurns && j < 2; ++j) multiply(i, j);
      }
      for (uint32_t j = 0; kTurns && j < 2; ++j) {
        for (uint32_t i = 0; i < 2; ++i) multiply(i, j);
      }
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      float of[2 * kEach];
      Weights::of_word(b == 0 ? scales.row[r].x : scales.row[r].y, of);
#pragma unroll
      for (uint32_t i = 0; i < 2 * kEach; ++i) {
#pragma unroll
        for (uint32_t j = 2 * r; j < 2 * r + 2; ++j) {
          sums[j] = __fmaf_rn(products[i / kEach][i % kEach][j], of[i], sums[j]);
        }
      }
    }
  }
};

}  // namespace moeblas::cuda
