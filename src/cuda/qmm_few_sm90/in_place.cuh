// The warps of qmm_few_sm90 that multiply 4-bit codes where they stand, affine in groups of 64.
#pragma once

#include "cuda/qmm_few_sm90/thread_block.cuh"

namespace moeblas::cuda {

// A code where it stands is a subnormal bfloat16, q * 2^-133, or q * 2^-129 in every other place,
// and is multiplied as that, by x times a power of two that brings the largest of a token's slice
// to 2^100, and by a sixteenth of that in those other places. Scales come behind the products of a
// group, in float32, and biases as a product of their own, times the groups' sums of x as three
// bfloat16. Where there is no such power, and of what is not finite, sums are NaN and are made
// again.
template <uint32_t kParts_, bool kPasses_>
class FewInPlace : public FewMultiplier<FewGroupOrder, kParts_, kPasses_> {
 public:
  using Weights = Affine<Bfloat16Pairs, 4>;
  using Base = FewMultiplier<FewGroupOrder, kParts_, kPasses_>;
  using Base::count_, Base::stage, Base::kTileRows;
  using Base::p_, Base::lane_, Base::part_, Base::slot_;
  using typename Base::Columns;
  static constexpr bool kMadeAgain = true;

  __device__ FewInPlace(const QmmFewParams& p, uint32_t base) : Base(p, base) {}

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
        Base::give_back(any_of(second) | now.biases[0] | now.biases[1]);
        if (tile + 1 < last) {
          Base::wait_for_stage();
          load_codes(first, at, 0);
          load_scales(scales, at);
        }
        multiply_groups(second, 1, x[1], now, sums);
        float of_biases[4] = {};
        device::multiply_bf16(of_biases,
                              {now.biases[0], now.biases[1], now.biases[0], now.biases[1]},
                              {of_x.sums[0], of_x.sums[1]});
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
  };
  // From a stage's begin on.
  struct Places {
    uint32_t codes, scales, biases;
  };

  __device__ static float power(int exponent) {
    return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
  }
  // For both halves of a word.
  __device__ static uint32_t power_pair(int exponent) {
    return static_cast<uint32_t>(exponent + 127) * 0x00800080u;
  }
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
        device::multiply_bf16(of_tokens, {kOnes, kOnes, kOnes, kOnes}, b);
        two = __vmaxu2(two, __vmaxu2(b.x & 0x7fff7fffu, b.y & 0x7fff7fffu));
      }
      const int from = static_cast<int>(lane_ / 8);
      const float even = __shfl_sync(~0u, of_tokens[0], from);
      const float odd = __shfl_sync(~0u, of_tokens[1], from);
      sums[group] = lane_ / 4 % 2 == 0 ? even : odd;
    }
    uint32_t largest = max(two & 0xffffu, two >> 16);
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
    // What is too large for a power gets none, too.
    constexpr int kTop = 100, kMostExponent = 94;
    const int exponent = largest == 0 ? 0 : static_cast<int>(largest >> 7) - 127;
    const int up = kTop - exponent;
    // By 2^up, which may be more than one factor can be.
    const int rest_up = min(up, 127);
    if (__any_sync(~0u, up > rest_up)) {
      const uint32_t first = power_pair(up - rest_up);
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) {
        uint2& b = x[i / 8][i / 4 % 2][i % 4];
        b = {Math::multiply(b.x, first), Math::multiply(b.y, first)};
      }
    }
    const uint32_t even = power_pair(rest_up), odd = power_pair(rest_up - 4);
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      uint2& b = x[i / 8][i / 4 % 2][i % 4];
      b = {Math::multiply(b.x, even), Math::multiply(b.y, odd)};
    }
    const float factor = exponent > kMostExponent ? __uint_as_float(0x7fc00000u) : power(133 - up);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      of.factors[j] = __shfl_sync(~0u, factor, static_cast<int>(t * 2 + j) * 4);
    }
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
    at.codes = part_ * (kTileRows * kFewPiece) + row * kFewPiece + FewGroupOrder::codes(row, t);
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
        codes.row[i][r] = device::load_shared_2(from + r * 8 * kFewPiece);
      }
    }
  }
  __device__ void load_scales(Scales& scales, const Places& at) const {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t from = stage(slot_) + at.scales + r * 8 * p_.scale_row;
      scales.row[r] = device::load_shared_2(from);
      scales.biases[r] = device::load_shared_u32(from + at.biases);
    }
  }
  // Of loads what says that they have come.
  __device__ static uint32_t any_of(const Codes& c) {
    return c.row[0][0].x | c.row[0][1].x | c.row[1][0].x | c.row[1][1].x;
  }
  // Two groups, 2b and the next, in a chain of products each.
  __device__ static void multiply_groups(const Codes& codes, uint32_t b, const Columns& x,
                                         const Scales& scales, float (&sums)[4]) {
    float products[2][4] = {};
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        uint32_t a[4];
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
          const uint2 row = codes.row[i][r];
          const uint32_t word = (j < 2 ? row.x : row.y) >> j % 2 * 8;
          a[r] = word & 0x000f000fu;
          a[2 + r] = word & 0x00f000f0u;
        }
        device::multiply_bf16(products[i], {a[0], a[1], a[2], a[3]}, x[i][j]);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t two = b == 0 ? scales.row[r].x : scales.row[r].y;
        const float scale = __uint_as_float(i == 0 ? two << 16 : two & 0xffff0000u);
#pragma unroll
        for (uint32_t j = 2 * r; j < 2 * r + 2; ++j) {
          sums[j] = __fmaf_rn(products[i][j], scale, sums[j]);
        }
      }
    }
  }
};

}  // namespace moeblas::cuda
