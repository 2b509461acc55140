// qmm_sm90 for 9 to 16 rows of x and one large matrix of 4-bit weights, affine in groups of 64 or
// mxfp4, or for experts' matrices that some rows meet each: one launch, whose warps hold rows of x
// in registers, so that nothing but w goes through shared memory.
//
//   rows of w            K
//   +----------+---+---+ .. +---+   A cluster makes so many tiles of 16 rows of w times all rows
//   | tile 0   | 0 | 1 |    | 7 |   of x, one after another. Its block, or each of its two, has up
//   | tile 1   | 0 | 1 | .. | 7 |   to 4096 of K, each of a block's eight multiplying warps 512 of
//   |  ...     | (warp of block 0)  those, in every tile the same: it loads its part of x once.
//   +----------+---+---+ .. +---+
//     in a block:  warps 0 .. 7    rows of x, products, by warps, which wait for data alone
//                  warp 8          codes and scales, by boxes
//                  warps 9 .. 11   sums
//
// Sums of warps and blocks meet in shared memory, those of two tiles at a time in one of two
// places: warps that add up one do it beside the products of the other, in one order. Sums that are
// not finite are made again from decoded weights.
//
// Rows of more than two blocks' K are passed twice, with half of K each time (HeldParts), so that
// there is no multiprocessor without a cluster: sums wait in shared memory from pass to pass, and
// codes of the second one come while the first one's last tiles are multiplied.
//
// Of runs of rows by a matrix each, more than sixteen are passed one after another (HeldPasses), of
// up to eight one octet is multiplied, and a block has an equal share of what all passes' tiles
// cost (HeldRun): between those of one run and the next its warps load other rows. Every block
// lists the runs for itself (lister.cuh). Of a layer's gates and ups a tile has eight rows each,
// and what is written is activations. Where rows of w are half as long, a tile has two groups of
// such rows, each half of the warps'.
//
// What gates and ups have left is multiplied likewise, where a bias is not added: the launch begins
// while they end, lists the runs once more and has codes brought before it waits for their rows.
// Rows of more than 4096 k are products by parts, whose float32 sums who weighs them adds up
// (ffn_combine). Rows of 1024 k come four groups to a tile, and so do those of 768, of which half
// of the warps have half a slice.
#pragma once

#include "cuda/device/dynamic_shared.cuh"
#include "cuda/qmm_sm90_held/lister.cuh"
#include "cuda/qmm_sm90_held/multiplier.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

// One thread of a warp.
template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
class HeldProducer : public HeldBlock<kShares, kKind, kRowGroups> {
 public:
  using Block = HeldBlock<kShares, kKind, kRowGroups>;
  using Block::barrier, Block::base_, Block::count_, Block::p_;
  using Block::kRuns, Block::kGates, Block::kSums;

  __device__ HeldProducer(const QmmHeldParams& p, uint32_t base) : Block(p, base) {}

  __device__ void prefetch_maps() const {
    device::prefetch_tensor_map(&p_.codes);
    if constexpr (Block::kShort) return;
    device::prefetch_tensor_map(&p_.scales);
    if constexpr (Weights::kBiases) device::prefetch_tensor_map(&p_.biases);
    if constexpr (kGates) {
      device::prefetch_tensor_map(&p_.lower_codes);
      device::prefetch_tensor_map(&p_.lower_scales);
      if constexpr (Weights::kBiases) device::prefetch_tensor_map(&p_.lower_biases);
    }
  }
  // Of one matrix.
  __device__ void begin() const {
    if (count_ > 0) send(0, Block::segment(0), 0);
  }
  // All else; by a whole warp. More than one tile would stand in front of rows of x, without which
  // nothing begins.
  __device__ void send_all() const {
    if (count_ == 0) return;
    if constexpr (!kRuns) device::barrier_wait(barrier(Block::kRowsAsked), 0);
    for (uint32_t i = kRuns ? 0 : 1; i < count_;) {
      const HeldSegment segment = Block::segment(i);
      if (threadIdx.x % 32 == 0) {
        for (uint32_t j = 0; j < segment.count; ++j) {
          if (kRuns && !kSums && i + j == 1) device::barrier_wait(barrier(Block::kRowsAsked), 0);
          if (i + j >= HeldMemory::kSlots) {
            device::barrier_wait(barrier(Block::kEmpty) + (i + j) % HeldMemory::kSlots * 8,
                                 ((i + j) / HeldMemory::kSlots % 2) ^ 1);
          }
          send(i + j, segment, j);
        }
      }
      __syncwarp();
      i += segment.count;
    }
  }

 private:
  // Tile `number` of a segment, the block's `i`th.
  __device__ void send(uint32_t i, const HeldSegment& segment, uint32_t number) const {
    const uint64_t policy =
        segment.again ? device::evict_normal_policy() : device::evict_first_policy();
    const uint32_t slot = i % HeldMemory::kSlots, to = base_ + slot * HeldMemory::kSlotBytes;
    const uint32_t full = barrier(Block::kFull) + slot * 8;
    const auto row = static_cast<int32_t>((segment.tile + number) * Block::kRows);
    const uint32_t first = Block::first_slice(segment);
    const auto slices = static_cast<int32_t>(first);
    const auto scales = static_cast<int32_t>(first * (kHeldScaleBox / kHeldWarps));
    const auto matrix = static_cast<int32_t>(segment.matrix);
    constexpr uint32_t kKinds = Weights::kBiases ? 2 : 1;
    constexpr uint32_t kScaleBytes =
        Block::kShort ? Block::kRows * Block::kScaleRow : HeldMemory::kScaleBytes;
    device::barrier_expect(full,
                           p_.slices * kRowGroups * HeldMemory::kSliceBytes + kKinds * kScaleBytes);
    if constexpr (Block::kShort) {
      for (uint32_t slice = 0; slice < Block::kSlices; ++slice) {
        device::copy_box(to + slice * kRowGroups * HeldMemory::kSliceBytes, &p_.codes, 0,
                         static_cast<int32_t>(slice * kHeldPieces), row, matrix, full, policy);
      }
      const auto copy_rows = [&](uint32_t behind, const uint8_t* data, const int64_t(&stride)[2]) {
        device::copy_run(to + behind, data + segment.matrix * stride[1] + row * stride[0],
                         kScaleBytes, full, policy);
      };
      copy_rows(HeldMemory::kScales, p_.w_scales, p_.scales_stride);
      if constexpr (Weights::kBiases) {
        copy_rows(HeldMemory::kBiases, p_.w_biases, p_.biases_stride);
      }
      return;
    }
    device::copy_box(to, &p_.codes, 0, 0, row, slices, matrix, full, policy);
    device::copy_box(to + HeldMemory::kScales, &p_.scales, scales, row, matrix, full, policy);
    if constexpr (Weights::kBiases) {
      device::copy_box(to + HeldMemory::kBiases, &p_.biases, scales, row, matrix, full, policy);
    }
    if constexpr (kGates) {
      constexpr uint32_t kCodes = HeldMemory::kScales / 2;
      constexpr uint32_t kScales = HeldMemory::kScales + HeldMemory::kScaleBytes / 2;
      constexpr uint32_t kBiases = HeldMemory::kBiases + HeldMemory::kScaleBytes / 2;
      device::copy_box(to + kCodes, &p_.lower_codes, 0, 0, row, slices, matrix, full, policy);
      device::copy_box(to + kScales, &p_.lower_scales, scales, row, matrix, full, policy);
      if constexpr (Weights::kBiases) {
        device::copy_box(to + kBiases, &p_.lower_biases, scales, row, matrix, full, policy);
      }
    }
  }
};

// Warps that add up.
template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
class HeldAdder : public HeldBlock<kShares, kKind, kRowGroups> {
 public:
  using Block = HeldBlock<kShares, kKind, kRowGroups>;
  using Block::barrier, Block::count_, Block::p_, Block::rank_;
  using Block::kRuns, Block::kGates, Block::kSums;
  using Math = Bfloat16Pairs;

  __device__ HeldAdder(const QmmHeldParams& p, uint32_t base)
      : Block(p, base), lane_(threadIdx.x % 32) {}

  // The block's first tiles, each thread rows of its own; of runs, those that are its first ones if
  // every matrix is passed once. Boxes bring the same bytes: they begin at multiples of 16.
  __device__ void prefetch() const {
    const uint32_t thread = threadIdx.x - (kHeldThreads - 32 * kHeldAdders);
    const HeldFirst first = Block::first_tile();
    const uint32_t row = first.tile * Block::kRows + thread;
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
    for (uint32_t batch = 0; batch * kHeldBatch < count_; ++batch) {
      device::barrier_wait(barrier(Block::kSumsFull) + batch % 2 * 8, batch / 2 % 2);
      // The next sums in this place are asked for before anyone can bring them.
      if (warp == 0 && lane_ == 0) Block::expect_sums(batch + 2);
      uint32_t any = 0;
      // Sums that wait from pass to pass are one warp's, whatever batch their tile is in, and what
      // waits in their place after them is its, too.
      constexpr bool kByTiles = kShares > 1;
      static_assert(HeldMemory::kKeptTiles % kHeldAdders == 0, "no warp waits for another");
      // Groups of rows of an octet of tokens are added up side by side: one behind the other, each
      // unit took 1500 clocks of a warp, and tiles of four groups waited for that.
      const uint32_t octets = kByTiles ? 1 : 2;
      const uint32_t items = min(kHeldBatch, count_ - batch * kHeldBatch) * kHalves * octets;
      for (uint32_t item = kByTiles ? 0 : warp; item < items; item += kByTiles ? 1 : kHeldAdders) {
        const uint32_t octet = kByTiles ? rank_ : item % 2, in_batch = item / octets / kHalves;
        const uint32_t first_group = item / octets % kHalves * kAtOnce;
        const uint32_t number = batch * kHeldBatch + in_batch;
        while (number >= end) {
          of.tiles = Block::segment(end);
          end += of.tiles.count;
          find_rows(of);
        }
        const uint32_t tile = of.tiles.tile + of.tiles.count - (end - number);
        if (kByTiles && tile % kHeldAdders != warp) continue;
        if (octet == 1 && !Block::has_both_octets(of.tiles)) continue;
        const uint32_t unit = (in_batch * kRowGroups + first_group) * 2 + octet;
        const uint32_t from =
            Block::place_of(batch, HeldUnits::place(unit, kShares), 0, 0) + lane_ * 16;
        float s[kAtOnce][4] = {};
        for (uint32_t share = 0; share < kShares; ++share) {
#pragma unroll 4
          for (uint32_t i = 0; i < p_.slices; ++i) {
#pragma unroll
            for (uint32_t r = 0; r < kAtOnce; ++r) {
              const uint32_t place = HeldUnits::place(r * 2, kShares) * kShares + share;
              add(device::load_shared_4(from + (place * Block::kSlices + i) * HeldMemory::kPlace),
                  s[r]);
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
        const uint32_t row = tile * Block::kRows + first_group * Block::kWarpRows;
        const uint32_t token = octet * 8 + lane_ % 4 * 2;
#pragma unroll
        for (uint32_t r = 0; r < kAtOnce; ++r) {
          if (!are_finite(s[r])) make_again(of.tiles, row + r * Block::kWarpRows, token, s[r]);
        }
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
            store_sums(of, row_of + lane_ / 4, octet, s[r]);
          } else {
            store(of.tiles.rows, row_of, octet * 8 + lane_ / 4,
                  octet == 0 ? of.out_rows[0] : of.out_rows[1], Math::rounded(s[r][0], s[r][1]),
                  Math::rounded(s[r][2], s[r][3]));
          }
        }
      }
      // What was loaded has come before its place is given back to all who fill it.
      const uint32_t none = device::nothing_of(any);
      __syncwarp();
      if constexpr (kShares == 1) {
        device::barrier_arrive(barrier(Block::kSumsEmpty) + batch % 2 * 8 + none);
      } else if (lane_ < kShares) {
        device::cluster_barrier_arrive(
            device::cluster_address(barrier(Block::kSumsEmpty) + batch % 2 * 8 + none, lane_));
      }
    }
  }

 private:
  // Groups of rows that are added up at once, and in how many steps those of a tile.
  static constexpr uint32_t kAtOnce = kRowGroups == 1 ? 1 : 2, kHalves = kRowGroups / kAtOnce;

  struct Segment {
    HeldSegment tiles;
    int64_t out_rows[2];  // of tokens g and g + 8
    // Of sums: of tokens 2t and 2t + 1 of each octet, among those of all parts.
    uint32_t sum_rows[2][2];
  };
  __device__ void find_rows(Segment& segment) const {
    if constexpr (kSums) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t token = lane_ % 4 * 2 + i % 2 + 8 * (i / 2);
        uint32_t& row = segment.sum_rows[i / 2][i % 2];
        row = segment.tiles.part * p_.lists.pairs.pairs;
        if (token < segment.tiles.rows) row += Block::pair_of(segment.tiles.row + token);
      }
    } else if constexpr (!kGates) {
#pragma unroll
      for (uint32_t u = 0; u < 2; ++u) {
        const uint32_t token = lane_ / 4 + 8 * u;
        segment.out_rows[u] = token * p_.out_row_stride;
        if constexpr (kKind == HeldKind::runs) {
          if (token < segment.tiles.rows) {
            segment.out_rows[u] = out_of(p_.lists, Block::pair_of(segment.tiles.row + token));
          }
        }
      }
    }
  }
  __device__ static void add(const uint4& v, float (&s)[4]) {
    s[0] += __uint_as_float(v.x);
    s[1] += __uint_as_float(v.y);
    s[2] += __uint_as_float(v.z);
    s[3] += __uint_as_float(v.w);
  }
  __device__ static bool are_finite(const float (&s)[4]) {
    uint32_t most = 0;
#pragma unroll
    for (const float sum : s) most = max(most, __float_as_uint(sum) & 0x7fffffffu);
    return most < 0x7f800000u;
  }
  // A lane's of rows from `row` on that are not finite.
  __device__ void make_again(const HeldSegment& of, uint32_t row, uint32_t token,
                             float (&s)[4]) const {
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      if (isfinite(s[j])) continue;
      s[j] = made_again(of, row + lane_ / 4 + (kGates ? 0 : j / 2 * 8), token + j % 2,
                        kGates && j / 2 == 1);
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
  // Of rows `row` and the eighth below and of a lane's two tokens of an octet.
  __device__ void store_sums(const Segment& of, uint32_t row, uint32_t octet,
                             const float (&s)[4]) const {
    const uint32_t token = octet * 8 + lane_ % 4 * 2;
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const uint32_t sum_row = octet == 0 ? of.sum_rows[0][j] : of.sum_rows[1][j];
      float* to = p_.sums + uint64_t{sum_row} * p_.n + row;
      const bool there = token + j < of.tiles.rows;
      if (there && row < p_.n) to[0] = s[j];
      if (there && row + 8 < p_.n) to[8] = s[2 + j];
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

template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
__device__ __forceinline__ void qmm_held_block(const QmmHeldParams& p) {
  using Block = HeldBlock<kShares, kKind, kRowGroups>;
  constexpr bool kRuns = Block::kRuns;
  const uint32_t memory = device::shared_address(device::dynamic_shared_1024());
  const uint32_t base = device::uniform((memory + 1023) & ~1023u);
  HeldLister<kShares, kKind, kRowGroups> lister(p, base);
  // What does not depend on the launch in front is done before it is waited for.
  if (threadIdx.x / 32 == kHeldWarps) {
    if (threadIdx.x % 32 == 0) {
      const HeldProducer<Weights, kShares, kKind, kRowGroups> producer(p, base);
      // Nothing else is needed before the first copies can begin.
      producer.prefetch_maps();
      producer.init_barriers();
      if constexpr (!kRuns) {
        producer.expect_sums(0);
        producer.expect_sums(1);
      }
      if constexpr (!Block::kSums) {
        device::wait_for_previous_launch();
        device::let_next_launch_begin();
      }
      if constexpr (!kRuns) producer.begin();
    }
  } else if constexpr (kRuns) {
    if (threadIdx.x >= kHeldThreads - 32 * kHeldAdders) {
      HeldAdder<Weights, kShares, kKind, kRowGroups>(p, base).prefetch();
    } else {
      // What is behind a layer's first product finds ids that were there before that.
      if constexpr (!Block::kSums) device::wait_for_previous_launch();
      lister.count();
    }
  }
  __syncwarp();
  if constexpr (kRuns) {
    __syncthreads();
    if (threadIdx.x >= kHeldMultipliers) lister.add_up();
    __syncthreads();
    if (threadIdx.x >= kHeldMultipliers) {
      lister.list_runs();
    } else {
      lister.place();
    }
  }
  if constexpr (kShares == 1) {
    __syncthreads();
  } else {
    device::cluster_barrier();
  }
  if (threadIdx.x >= kHeldMultipliers) {
    device::leave_registers<Block::kOtherRegisters>();
    if (threadIdx.x < kHeldMultipliers + 32) {
      HeldProducer<Weights, kShares, kKind, kRowGroups> producer(p, base);
      producer.find_runs();
      if constexpr (!Block::kSums) device::wait_for_previous_launch();
      producer.send_all();
    } else {
      const uint32_t warp = device::uniform(threadIdx.x / 32) - kHeldWarps - 1;
      HeldAdder<Weights, kShares, kKind, kRowGroups> adder(p, base);
      if constexpr (!kRuns) adder.prefetch();
      device::wait_for_previous_launch();
      if (Block::kSums && warp == 0) device::let_next_launch_begin();
      adder.find_runs();
      adder.add_up(warp);
    }
  } else {
    device::take_registers<Block::kMultiplierRegisters>();
    HeldMultiplier<Weights, kShares, kKind, kRowGroups> multiplier(p, base);
    device::wait_for_previous_launch();
    multiplier.find_runs();
    multiplier.multiply();
  }
  // No block ends while others bring sums to it or tell it of theirs.
  __syncwarp();
  if constexpr (kShares > 1) device::cluster_meet();
}

// Other architectures of the same build get a kernel that is never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
__global__ void __cluster_dims__(kShares, 1, 1) __launch_bounds__(kHeldThreads, 1)
    qmm_sm90_held(const __grid_constant__ QmmHeldParams p) {
#if defined(__CUDA_ARCH__)
  qmm_held_block<Weights, kShares, kKind, kRowGroups>(p);
#endif
}
#else
template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
__global__ void qmm_sm90_held(const __grid_constant__ QmmHeldParams) {}
#endif

#define MB_QMM_SM90_HELD(name, Weights, shares, kind, row_groups)                                  \
  static const simt::CudaKernel held_##name##_kernel {                                             \
    "qmm_sm90_held_" #name,                                                                        \
        reinterpret_cast<const void*>(&qmm_sm90_held<Weights, shares, HeldKind::kind, row_groups>) \
  }

}  // namespace moeblas::cuda
