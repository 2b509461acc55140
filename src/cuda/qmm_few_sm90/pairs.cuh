// The warps of qmm_few_sm90 that decode weights into pairs of 16 bits before they multiply.
#pragma once

#include "cuda/qmm_few_sm90/thread_block.cuh"

namespace moeblas::cuda {

template <class Weights_, uint32_t kParts_, bool kPasses_>
class FewPairs : public FewMultiplier<FewOrder, kParts_, kPasses_> {
 public:
  using Weights = Weights_;
  using Base = FewMultiplier<FewOrder, kParts_, kPasses_>;
  using Base::count_, Base::stage, Base::kTileRows;
  using Base::p_, Base::lane_, Base::part_, Base::slot_;
  using typename Base::Columns;
  static constexpr bool kMadeAgain = false;

  __device__ FewPairs(const QmmFewParams& p, uint32_t base) : Base(p, base) {}

  __device__ void multiply(Columns (&x)[2]) {
    if (part_ >= p_.slices) return;
    const Places at = places();
    // A block of K is loaded while the one before it is multiplied; scales come late and leave
    // their registers to others.
    Raw first, second;
    uint32_t tile = 0;  // of all passes
    for (uint32_t pass = 0; pass < Base::passes(); ++pass) {
      if constexpr (Base::kXByStages) Base::take_x(x, pass);
      Base::wait_for_stage();
      load_codes(first, at, 0);
#pragma unroll 1
      for (const uint32_t last = tile + count_; tile < last; ++tile) {
        Sums s = {};
        load_scales(first, at, 0);
        multiply_block(first, x[0], s, [&] { load_codes(second, at, 1); });
        load_scales(second, at, 1);
        multiply_block(second, x[1], s, [&] {
          Base::give_back(any_of(second));
          if (tile + 1 < last) {
            Base::wait_for_stage();
            load_codes(first, at, 0);
          }
        });
        Base::store_sums(
            {s[0][0] + s[1][0], s[0][1] + s[1][1], s[0][2] + s[1][2], s[0][3] + s[1][3]}, tile);
      }
    }
  }

 private:
  static constexpr uint32_t kScales = Weights::kScales;

  // Of a block of 128 of K and a task, rows g and g + 8 as they came.
  struct Raw {
    uint4 codes[2];
    uint32_t scales[kScales][2], biases[kScales][2];
  };
  // From a stage's begin on; between blocks of K, and between halves of them.
  struct Places {
    uint32_t codes, scales, block, half, lower, biases;
  };
  __device__ void load_codes(Raw& raw, const Places& at, uint32_t b) const {
    const uint32_t from = stage(slot_);
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      raw.codes[r] = device::load_shared_4(from + (at.codes ^ b * 64) + r * 8 * kFewPiece);
    }
  }
  __device__ void load_scales(Raw& raw, const Places& at, uint32_t b) const {
    const uint32_t from = stage(slot_);
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
#pragma unroll
      for (uint32_t s = 0; s < kScales; ++s) {
        const uint32_t to = from + at.scales + b * at.block + s * at.half + r * at.lower;
        raw.scales[s][r] = Weights::Stored::fetch(to, 0);
        raw.biases[s][r] = Weights::kBiases ? Weights::Stored::fetch(to + at.biases, 0) : 0;
      }
    }
  }
  // Of each load what says that it has come.
  __device__ static uint32_t any_of(const Raw& raw) {
    uint32_t any = 0;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      any |= raw.codes[r].x;
#pragma unroll
      for (uint32_t s = 0; s < kScales; ++s) any |= raw.scales[s][r] | raw.biases[s][r];
    }
    return any;
  }
  // In two chains, as a product waits for the one before it.
  static constexpr uint32_t kChains = 2;
  using Sums = float[kChains][4];
  // Half `h` of a block.
  template <bool kSmall>
  __device__ static void multiply_as(const Raw& raw, uint32_t h, const Columns& x, Sums& sums) {
    const uint32_t s = kScales == 2 ? h : 0;
    typename Weights::Scale scales[2];
    if constexpr (kSmall) {
      Weights::small_scales(raw.scales[s], raw.biases[s], scales);
    } else {
      Weights::scales(raw.scales[s], raw.biases[s], scales);
    }
    uint32_t pairs[2][8];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint4 v = raw.codes[r];
      const uint32_t codes[2] = {h == 0 ? v.x : v.z, h == 0 ? v.y : v.w};
      if constexpr (kSmall) {
        Weights::decode_small(codes, scales[r], pairs[r]);
      } else {
        Weights::decode(codes, scales[r], pairs[r]);
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      device::multiply_bf16(
          sums[j % kChains],
          {pairs[0][2 * j], pairs[1][2 * j], pairs[0][2 * j + 1], pairs[1][2 * j + 1]}, x[h][j]);
    }
  }
  // A block; `between` halves of it.
  template <class Between>
  __device__ static void multiply_block(const Raw& raw, const Columns& x, Sums& sums,
                                        const Between& between) {
    if constexpr (Weights::kSmallScales) {
      bool small = true;
#pragma unroll
      for (uint32_t s = 0; s < kScales; ++s) small &= Weights::small(raw.scales[s]);
      if (__all_sync(~0u, small)) {
        multiply_as<true>(raw, 0, x, sums);
        between();
        multiply_as<true>(raw, 1, x, sums);
        return;
      }
    }
    multiply_as<false>(raw, 0, x, sums);
    between();
    multiply_as<false>(raw, 1, x, sums);
  }

  __device__ Places places() const {
    const uint32_t t = lane_ % 4, row = Base::group_ * kFewTaskRows + FewOrder::row(lane_ / 4);
    const uint32_t byte = part_ * p_.slice_scales;
    const uint32_t turn = row * p_.scale_row / 128 % (p_.scale_row / 16) * 16;
    Places at;
    at.codes = part_ * (kTileRows * kFewPiece) + row * kFewPiece + FewOrder::codes(row, t) * 16;
    at.scales = p_.scales_at + byte / p_.scale_row * (kTileRows * p_.scale_row) +
                row * p_.scale_row + ((byte % p_.scale_row) ^ turn) +
                t * 32 / p_.group * p_.scale_bytes;
    at.block = device::uniform(kBlockK / p_.group * p_.scale_bytes);
    at.half = device::uniform(16 / p_.group * p_.scale_bytes);
    at.lower = device::uniform(8 * p_.scale_row);
    at.biases = device::uniform(p_.biases_at - p_.scales_at);
    return at;
  }
};

}  // namespace moeblas::cuda
