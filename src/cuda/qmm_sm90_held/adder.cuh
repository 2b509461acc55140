// The warps of the kernels of qmm_sm90 that hold rows of x in registers (qmm_sm90_held/kernel.cuh)
// which add up what multiplying warps have left, and write what comes of it: rows of x's type, a
// layer's activations, or float32 sums. What is not finite they make again from decoded weights.
#pragma once

#include "cuda/device/store_async.cuh"
#include "cuda/qmm_sm90/lists.cuh"
#include "cuda/qmm_sm90/pairs.cuh"
#include "cuda/qmm_sm90_held/thread_block.cuh"

namespace moeblas::cuda {

// Warps that add up.
template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
class HeldAdder : public HeldBlock<kShares, kKind, kRowGroups> {
 public:
  using Block = HeldBlock<kShares, kKind, kRowGroups>;
  using Block::barrier, Block::count_, Block::p_, Block::rank_;
  using Block::kBatch, Block::kOctets, Block::kPlaces;
  using Block::kRuns, Block::kGates, Block::kSums;
  using Math = Bfloat16Pairs;

  __device__ HeldAdder(const QmmHeldParams& p, uint32_t base)
      : Block(p, base), lane_(threadIdx.x % 32) {}

  // The block's first tiles, each thread rows of its own; of runs, those that are its first ones if
  // every matrix is passed once. Boxes bring the same bytes: they begin at multiples of 16.
  __device__ void prefetch() const {
    const uint32_t thread = threadIdx.x - (kHeldThreads - 32 * kHeldAdders);
    const HeldFirst first = Block::first_tile();
    const uint32_t row = Block::row_of(first.tile + thread / Block::kRows) + thread % Block::kRows;
    if (thread >= kHeldPrefetchTiles * Block::kRows || row >= p_.n) return;
    const uint32_t values = min(p_.slices * kHeldSlice, p_.k - first.slice * kHeldSlice);
    const auto prefetch = [&](const uint8_t* data, const int64_t(&stride)[2], int64_t to_lower,
                              uint32_t slice_bytes) {
      data += first.matrix * stride[1] + row * stride[0] + first.slice * slice_bytes;
      const uint32_t bytes = values / (kHeldSlice / slice_bytes);
      if (bytes % 16 != 0) return;
      device::prefetch_run(data, bytes);
      if constexpr (kGates) device::prefetch_run(data + to_lower, bytes);
    };
    prefetch(p_.w, p_.w_stride, p_.to_lower, kHeldPieces * 128);
    prefetch(p_.w_scales, p_.scales_stride, p_.to_lower_scales, kHeldScaleBox / kHeldWarps);
    if constexpr (Weights::kBiases) {
      prefetch(p_.w_biases, p_.biases_stride, p_.to_lower_biases, kHeldScaleBox / kHeldWarps);
    }
  }

  // One of kHeldAdders warps.
  __device__ void add_up(uint32_t warp) {
    Segment of{};
    uint32_t end = 0;  // of tiles of `of`
    for (uint32_t batch = 0; batch * kBatch < count_; ++batch) {
      device::barrier_wait(barrier(Block::kSumsFull) + batch % kPlaces * 8, batch / kPlaces % 2);
      // The next sums in this place are asked for before anyone can bring them.
      if (warp == 0 && lane_ == 0) Block::expect_sums(batch + kPlaces);
      uint32_t any = 0;
      // Sums that wait from pass to pass are one warp's, whatever batch their tile is in, and what
      // waits in their place after them is its, too.
      constexpr bool kByTiles = kShares > 1;
      static_assert(kHeldKeptTiles % kHeldAdders == 0, "no warp waits for another");
      // Groups of rows of an octet of tokens are added up side by side: one behind the other, each
      // unit took 1500 clocks of a warp, and tiles of four groups waited for that. Warps take turns
      // from batch to batch, as runs have rows of some octets alone.
      const uint32_t octets = kByTiles ? 1 : kOctets;
      const uint32_t items = min(kBatch, count_ - batch * kBatch) * kHalves * octets;
      for (uint32_t item = kByTiles ? 0 : (warp + batch) % kHeldAdders; item < items;
           item += kByTiles ? 1 : kHeldAdders) {
        const uint32_t octet = kByTiles ? rank_ : item % kOctets;
        const uint32_t in_batch = item / octets / kHalves;
        const uint32_t first_group = item / octets % kHalves * kAtOnce;
        const uint32_t number = batch * kBatch + in_batch;
        while (number >= end) {
          of.tiles = Block::segment(end);
          end += of.tiles.count;
          find_rows(of);
        }
        const uint32_t tile = of.tiles.tile + of.tiles.count - (end - number);
        if (kByTiles && tile % kHeldAdders != warp) continue;
        if (kRuns && octet >= Block::octets_of(of.tiles)) continue;
        const uint32_t unit = (in_batch * kRowGroups + first_group) * kOctets + octet;
        const uint32_t from =
            Block::place_of(batch, HeldUnits::place(unit, kShares), 0, 0) + lane_ * 16;
        float s[kAtOnce][4] = {};
        for (uint32_t share = 0; share < kShares; ++share) {
#pragma unroll 4
          for (uint32_t i = 0; i < p_.slices; ++i) {
#pragma unroll
            for (uint32_t r = 0; r < kAtOnce; ++r) {
              const uint32_t place = HeldUnits::place(r * kOctets, kShares) * kShares + share;
              add(device::load_shared_4(from + (place * Block::kSlices + i) * kHeldPlace), s[r]);
            }
          }
        }
#pragma unroll
        for (uint32_t r = 0; r < kAtOnce; ++r) {
#pragma unroll
          for (const float sum : s[r]) any |= __float_as_uint(sum);
        }
        if constexpr (kByTiles) {
          const uint32_t kept = Block::kept_of(tile) + lane_ * 16;
          if (of.tiles.has_sums) add(device::load_shared_4(kept), s[0]);
          if (of.tiles.keeps_sums) {
            device::store_shared_4(kept, {__float_as_uint(s[0][0]), __float_as_uint(s[0][1]),
                                          __float_as_uint(s[0][2]), __float_as_uint(s[0][3])});
            continue;
          }
        }
        const uint32_t row = Block::row_of(tile) + first_group * Block::kWarpRows;
        const uint32_t token = octet * 8 + lane_ % 4 * 2;
        if (!are_finite(s)) make_again(of.tiles, row, token, s);
        __syncwarp();
        if constexpr (kGates) {
#pragma unroll
          for (uint32_t r = 0; r < kAtOnce; ++r) activate(s[r]);
        }
#pragma unroll
        for (uint32_t r = 0; r < kAtOnce; ++r) {
          const uint32_t row_of = row + r * Block::kWarpRows;
          if constexpr (kGates) {
            store_activations(of.tiles, row_of, token, s[r][0], s[r][1]);
          } else if constexpr (kSums) {
            store_sums(of.tiles, row_of + lane_ / 4, token, s[r]);
          } else {
            const uint32_t of_row = octet * 8 + lane_ / 4;
            store(of.tiles.rows, row_of, of_row,
                  kRuns ? out_of_pair(of_octet(of.pairs, octet)) : of_row * p_.out_row_stride,
                  Math::rounded(s[r][0], s[r][1]), Math::rounded(s[r][2], s[r][3]));
          }
        }
      }
      // What was loaded has come before its place is given back to all who fill it.
      const uint32_t none = device::nothing_of(any);
      __syncwarp();
      if constexpr (kShares == 1) {
        device::barrier_arrive(barrier(Block::kSumsEmpty) + batch % kPlaces * 8 + none);
      } else if (lane_ < kShares) {
        device::cluster_barrier_arrive(device::cluster_address(
            barrier(Block::kSumsEmpty) + batch % kPlaces * 8 + none, lane_));
      }
    }
  }

 private:
  // Groups of rows that are added up at once, and in how many steps those of a tile.
  static constexpr uint32_t kAtOnce = kRowGroups == 1 ? 1 : 2, kHalves = kRowGroups / kAtOnce;

  struct Segment {
    HeldSegment tiles;
    uint32_t pairs[kOctets];  // of runs, of token g of each octet
  };
  template <class T>
  __device__ static T of_octet(const T (&all)[kOctets], uint32_t octet) {
    T found = all[0];
#pragma unroll
    for (uint32_t u = 1; u < kOctets; ++u) {
      if (octet == u) found = all[u];
    }
    return found;
  }
  __device__ void find_rows(Segment& segment) const {
    if constexpr (kKind == HeldKind::runs) {
#pragma unroll
      for (uint32_t u = 0; u < kOctets; ++u) {
        const uint32_t token = lane_ / 4 + 8 * u;
        segment.pairs[u] = 0;
        if (token < segment.tiles.rows) {
          segment.pairs[u] = Block::pair_of(segment.tiles.row + token);
        }
      }
    }
  }
  // As out_of, without a division.
  __device__ int64_t out_of_pair(uint32_t pair) const {
    const uint32_t row = held_row_of(pair, p_.by_top_k), choice = pair - row * p_.lists.top_k;
    return row * p_.lists.out_steps[0] + choice * p_.lists.out_steps[1];
  }
  __device__ static void add(const uint4& v, float (&s)[4]) {
    s[0] += __uint_as_float(v.x);
    s[1] += __uint_as_float(v.y);
    s[2] += __uint_as_float(v.z);
    s[3] += __uint_as_float(v.w);
  }
  using Several = float[kAtOnce][4];
  __device__ static bool are_finite(const Several& s) {
    uint32_t most = 0;
#pragma unroll
    for (const auto& of_group : s) {
#pragma unroll
      for (const float sum : of_group) most = max(most, __float_as_uint(sum) & 0x7fffffffu);
    }
    return most < 0x7f800000u;
  }
  // A lane's of rows from `row` on that are not finite. One behind the other: instructions that are
  // hardly ever needed stand between others once, not once for each sum.
  __device__ void make_again(const HeldSegment& of, uint32_t row, uint32_t token,
                             Several& s) const {
#pragma unroll 1
    for (uint32_t i = 0; i < 4 * kAtOnce; ++i) {
      const uint32_t j = i % 4;
      float sum = 0.0f;
      const auto for_it = [&](const auto& change) {
#pragma unroll
        for (uint32_t other = 0; other < 4 * kAtOnce; ++other) {
          if (other == i) change(s[other / 4][other % 4]);
        }
      };
      for_it([&](float& of_it) { sum = of_it; });
      if (isfinite(sum)) continue;
      sum = made_again(of, row + i / 4 * Block::kWarpRows + lane_ / 4 + (kGates ? 0 : j / 2 * 8),
                       token + j % 2, kGates && j / 2 == 1);
      for_it([&](float& of_it) { of_it = sum; });
    }
  }
  // A sum from weights as they are.
  __device__ float made_again(const HeldSegment& of, uint32_t row, uint32_t token,
                              bool lower) const {
    if (row >= p_.n || token >= of.rows) return 0.0f;
    const auto at = [&](const uint8_t* data, const int64_t(&stride)[2], int64_t to_lower) {
      return data + row * stride[0] + of.matrix * stride[1] + (lower ? to_lower : 0);
    };
    const auto* codes = reinterpret_cast<const uint32_t*>(at(p_.w, p_.w_stride, p_.to_lower));
    const uint8_t* scales = at(p_.w_scales, p_.scales_stride, p_.to_lower_scales);
    const uint8_t* biases = at(p_.w_biases, p_.biases_stride, p_.to_lower_biases);
    if constexpr (kRuns) token = Block::source_of(of.row + token);
    const uint16_t* x = p_.x + token * p_.x_stride;
    const uint32_t begin = kSums ? of.part * p_.slices * kHeldSlice : 0;
    const uint32_t end = kSums ? min(begin + p_.slices * kHeldSlice, p_.k) : p_.k;
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t k = begin; k < end; ++k) {
      const uint32_t code = __ldg(codes + k / 8) >> k % 8 * 4 & 15;
      sum = __fmaf_rn(Weights::weight(code, scales, biases, k), bfloat16(__ldg(x + k)), sum);
    }
    return sum;
  }
  __device__ static float bfloat16(uint16_t bits) { return __uint_as_float(bits << 16); }
  // Sums of two tokens and a row of gates and of ups, the upper of both first, become activations.
  __device__ void activate(float (&s)[4]) const {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const float gate = p_.first_is_up ? s[2 + j] : s[j], up = p_.first_is_up ? s[j] : s[2 + j];
      s[j] = __fdividef(gate, 1.0f + __expf(-gate)) * up;
    }
  }
  // Eight rows from `row` on, of tokens `token` and the next. Of a word, neighbours as they are
  // written, one lane has one number and another the other: each writes that of one token.
  __device__ void store_activations(const HeldSegment& of, uint32_t row, uint32_t token, float a,
                                    float b) const {
    const bool stages = p_.stages_out != 0;
    const uint32_t g = lane_ / 4, second = stages ? g / 4 : g % 2;
    const float other = __shfl_xor_sync(0xffffffffu, second == 0 ? b : a, stages ? 16 : 4);
    const uint32_t word = second == 0 ? Math::rounded(a, other) : Math::rounded(other, b);
    token += second;
    if (token < of.rows) {
      uint16_t* to = p_.out + (of.row + token) * p_.out_row_stride +
                     (stages ? held_staged_word(row, g % 4) : row + g / 2 * 2);
      *reinterpret_cast<uint32_t*>(to) = word;
    }
    __syncwarp();
  }
  // Of rows `row` and the eighth below and of tokens `token` and the next, among those of all
  // parts.
  __device__ void store_sums(const HeldSegment& of, uint32_t row, uint32_t token,
                             const float (&s)[4]) const {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      if (token + j >= of.rows) break;
      const uint32_t sum_row = of.part * p_.lists.pairs.pairs + Block::pair_of(of.row + token + j);
      float* to = p_.sums + uint64_t{sum_row} * p_.n + row;
      if (row < p_.n) to[0] = s[j];
      if (row + 8 < p_.n) to[8] = s[2 + j];
    }
    __syncwarp();
  }
  // Eight rows of w and the eight below, times eight tokens: a lane's are two tokens of a row of w
  // before they are transposed and two rows of w of a token then.
  __device__ void store(uint32_t tokens, uint32_t row, uint32_t token, int64_t out_row,
                        uint32_t upper, uint32_t lower) const {
    // By all lanes, before they part.
    const uint32_t pairs[2] = {device::transposed(upper), device::transposed(lower)};
    if (token < tokens) {
      row += lane_ % 4 * 2;
      uint16_t* to = p_.out + out_row;
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r, row += 8) {
        if (row >= p_.n) break;
        if (p_.wide_out) {
          *reinterpret_cast<uint32_t*>(to + row) = pairs[r];
        } else {
          to[row] = static_cast<uint16_t>(pairs[r]);
          if (row + 1 < p_.n) to[row + 1] = static_cast<uint16_t>(pairs[r] >> 16);
        }
      }
    }
    __syncwarp();
  }

  uint32_t lane_;
};

}  // namespace moeblas::cuda
