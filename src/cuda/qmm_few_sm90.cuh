// qmm_few_sm90: up to 8 rows of x times one matrix of 4-bit weights. Warps share out K, not rows
// of w: a warp keeps its slice of x, 256 values of every row, in registers from the first tile to
// the last, and all that moves is w.
//
//   rows of w        K
//   +---------+-------------+-------------+   The blocks of a cluster make the same rows, each of
//   | tile 0  | block 0     | block 1     |   its own part of K, a slice of 256 for each of sixteen
//   | tile 1  | 0 1 2 .. 15 | 0 1 2 .. 15 |   warps (or of eight, two rows of tasks). A tile's
//   |  ...    | (warp)      |             |   sums meet in shared memory, in the order of K.
//   +---------+-------------+-------------+
//     in a block:  warps 0 .. 15  products
//                  warp 16        codes and scales as they lie, by boxes, a tile a stage
//                  warp 17        adds up what the blocks of a cluster send of their tiles
//                  warps 18, 19   add up what this block's warps have of a tile, and send it
//
// The time goes into reading w.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/store_async.cuh"
#include "cuda/qmm_few_sm90_params.h"
#include "cuda/qmm_sm90_weights.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

template <class Weights, uint32_t kTokens, uint32_t kParts, uint32_t kBlocks>
class FewBlock {
 public:
  __device__ FewBlock(const QmmFewParams& p, uint32_t base)
      : p_(p),
        base_(base),
        rank_(device::cluster_rank()),
        lane_(threadIdx.x % 32),
        warp_(device::uniform(threadIdx.x / 32)) {
    const uint32_t clusters = gridDim.x / kBlocks, cluster = blockIdx.x / kBlocks;
    const uint32_t each = p.tiles / clusters, more = p.tiles % clusters;
    first_ = each * cluster + min(cluster, more);
    count_ = each + (cluster < more ? 1 : 0);
  }

  __device__ void run() {
    Columns x[2];
    if (warp_ == kFewWarps) {
      if (lane_ == 0) {
        prefetch_maps();
        init_barriers();
        device::wait_for_previous_launch();
        device::let_next_launch_begin();
        bring(0, min(p_.stages, count_));
      }
    } else if (warp_ > kFewWarps) {
      prefetch();
      device::wait_for_previous_launch();
    } else {
      device::wait_for_previous_launch();
      load_x(x, warp_ % kParts);
    }
    __syncwarp();
    __syncthreads();
    // Only who sends to other blocks has to know that they are there.
    device::cluster_arrive();
    if (warp_ == kFewWarps) {
      if (lane_ == 0) bring(p_.stages, count_);
    } else if (warp_ < kFewWarps) {
      consume(x);
    } else {
      device::cluster_wait();
      if (warp_ == kFewWarps + 1) {
        end_tiles();
      } else {
        add_up_tiles(warp_ - (kFewWarps + 2));
      }
    }
    __syncwarp();
    if (warp_ <= kFewWarps) device::cluster_wait();
    device::cluster_meet();  // nobody sends to a block that has left
  }

 private:
  using Memory = FewMemory<kTokens, kParts>;
  using Math = typename Weights::Math;
  static constexpr uint32_t kGroups = Memory::kGroups;
  static constexpr uint32_t kTileRows = Memory::kTileRows, kOctets = kTokens / 8;
  static constexpr uint32_t kPairs = kTokens / 2;  // of tokens: what a warp adds up at a time
  static constexpr uint32_t kScales = Weights::kScales;
  // x of a slice as words of B: of halves of a block of 128, in the order in which codes become A.
  using Columns = uint2[2][4][kOctets];

  __device__ uint32_t full(uint32_t i) const { return base_ + Memory::kBarriers + i * 8; }
  __device__ uint32_t empty(uint32_t i) const { return full(kFewMostStages + i); }
  __device__ uint32_t end_full(uint32_t i) const { return full(2 * kFewMostStages + i); }
  __device__ uint32_t end_empty(uint32_t i) const { return end_full(kFewEnds + i); }
  __device__ uint32_t sums_free(uint32_t i) const { return end_empty(kFewEnds + i); }
  __device__ uint32_t stage(uint32_t i) const { return base_ + Memory::kRing + i * p_.stage_bytes; }
  __device__ uint32_t k_begin() const { return rank_ * p_.slices * kFewSlice; }

  // ---- the warp that brings w, by one lane

  __device__ void prefetch_maps() const {
    device::prefetch_tensor_map(&p_.codes);
    device::prefetch_tensor_map(&p_.scales);
    if constexpr (Weights::kBiases) device::prefetch_tensor_map(&p_.biases);
  }
  __device__ void init_barriers() const {
    for (uint32_t i = 0; i < p_.stages; ++i) {
      device::barrier_init(full(i), 1);
      device::barrier_init(empty(i), p_.slices * kGroups);
    }
    for (uint32_t i = 0; i < kFewEnds; ++i) {
      device::barrier_init(end_full(i), 1);
      device::barrier_init(end_empty(i), kBlocks);
    }
    for (uint32_t i = 0; i < kFewSums * kGroups; ++i) {
      device::barrier_init(sums_free(i), 32 * kFewAdders / kGroups);
    }
    device::barrier_init_visible();
  }
  __device__ void bring(uint32_t begin, uint32_t end) const {
    const uint64_t policy = device::evict_first_policy();
    uint32_t slot = 0, parity = 0;
    for (uint32_t i = begin; i < end; ++i) {
      if (begin != 0) device::barrier_wait(empty(slot), parity);
      const auto row = static_cast<int32_t>((first_ + i) * kTileRows);
      const uint32_t to = stage(slot), at = full(slot);
      device::barrier_expect(at, p_.box_bytes);
      device::copy_box(to, &p_.codes, 0, row, static_cast<int32_t>(rank_ * p_.slices), at, policy);
      const uint32_t first = rank_ * p_.slices * p_.slice_scales;
      for (uint32_t j = 0; j < p_.scale_boxes; ++j) {
        const uint32_t in_stage = j * (kTileRows * p_.scale_row);
        const auto from = static_cast<int32_t>(first + j * p_.scale_row);
        device::copy_box(to + p_.scales_at + in_stage, &p_.scales, from, row, at, policy);
        if constexpr (Weights::kBiases) {
          device::copy_box(to + p_.biases_at + in_stage, &p_.biases, from, row, at, policy);
        }
      }
      if (++slot == p_.stages) slot = 0, parity ^= 1;
    }
  }

  // ---- the warp that ends tiles

  // What the stages will hold first, on its way into the L2 cache, where it can do no harm however
  // old it is: the previous launch may have yet to write it.
  __device__ void prefetch() const {
    const uint32_t lines =
        min(p_.slices, p_.k / kFewSlice - min(p_.k / kFewSlice, rank_ * p_.slices));
    if (lines == 0) return;
    const uint32_t row = first_ * kTileRows;
    const uint32_t rows = min(kFewMostPrefetch / p_.slices, p_.n - min(p_.n, row));
    const uint8_t* from = p_.w + row * p_.w_row_stride + k_begin() / 2;
    for (uint32_t i = threadIdx.x - 32 * (kFewWarps + 1); i < rows * lines;
         i += 32 * (1 + kFewAdders)) {
      const uint32_t r = i / lines;
      device::prefetch_line(from + r * p_.w_row_stride + (i - r * lines) * kFewPiece);
    }
  }
  __device__ void end_tiles() const {
    constexpr uint32_t kItems = kGroups * kPairs / kBlocks;
    static_assert(kPairs % kBlocks == 0, "blocks end as much of a tile as each other");
    if (lane_ == 0) {
      for (uint32_t i = 0; i < kFewEnds; ++i)
        device::barrier_expect(end_full(i), Memory::kEndBytes);
    }
    __syncwarp();
    const float factor = tensor_factor();
    uint32_t slot = 0, parity = 0;
    for (uint32_t i = 0; i < count_; ++i) {
      device::barrier_wait(end_full(slot), parity);
      if (lane_ == 0) device::barrier_expect(end_full(slot), Memory::kEndBytes);
      const uint32_t from = base_ + Memory::kEnds + slot * Memory::kEndBytes + lane_ * 4;
      uint32_t any = 0;
#pragma unroll
      for (uint32_t item = 0; item < kItems; ++item) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t block = 0; block < kBlocks; ++block) {
          const float part = device::load_shared_float(from + (item * kBlocks + block) * 128);
          sum += part;
          any |= __float_as_uint(part);
        }
        const uint32_t group = item / (kPairs / kBlocks);
        const uint32_t pair = item % (kPairs / kBlocks) * kBlocks + rank_;
        store(i, group, pair, sum * factor);
      }
      const uint32_t none = device::nothing_of(any);
      __syncwarp();
      // Where somebody waits for it: an arrival may not come when its block has left.
      if (lane_ < kBlocks && i + kFewEnds < count_) {
        device::cluster_barrier_arrive(device::cluster_address(end_empty(slot), lane_) + none);
      }
      if (++slot == kFewEnds) slot = 0, parity ^= 1;
    }
  }
  __device__ float tensor_factor() const {
    if constexpr (Weights::kTensorScale) {
      const float* data = p_.tensor_scale.data;
      return (data == nullptr ? p_.tensor_scale.host : __ldg(data)) * Weights::kUp;
    }
    return 1.0f;
  }

  // ---- those who multiply

  // Rows come as they lie and change lanes in shared memory.
  __device__ void load_x(Columns (&x)[2], uint32_t part) const {
    const uint32_t g = lane_ / 4, t = lane_ % 4, unit = lane_ % 16;
    const uint32_t k = k_begin() + part * kFewSlice + unit * 8;
    uint4 rows[2][kOctets][4];
#pragma unroll
    for (uint32_t i = 0; i < 2 * kOctets * 4; ++i) {
      const uint32_t b = i / (kOctets * 4), u = i / 4 % kOctets, j = i % 4;
      const uint32_t token = u * 8 + j * 2 + lane_ / 16, at = k + b * kBlockK;
      rows[b][u][j] = {0, 0, 0, 0};
      if (token < p_.m && at < p_.k) {
        rows[b][u][j] = *reinterpret_cast<const uint4*>(p_.x + token * p_.x_row_stride + at);
      }
    }
    const uint32_t place = base_ + Memory::kSums + warp_ * Memory::kXBytes;
#pragma unroll
    for (uint32_t i = 0; i < 2 * kOctets; ++i) {
      const uint32_t b = i / kOctets, u = i % kOctets;
      __syncwarp();
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t token = j * 2 + lane_ / 16;
        device::store_shared_4(place + token * 256 + FewOrder::x_unit(token, unit) * 16,
                               rows[b][u][j]);
      }
      __syncwarp();
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint4 v =
            device::load_shared_4(place + g * 256 + FewOrder::x_unit(g, 4 * t + j) * 16);
        uint2(&to)[4][kOctets] = x[b][j / 2];
        to[j % 2 * 2][u] = {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632)};
        to[j % 2 * 2 + 1][u] = {__byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)};
      }
    }
  }
  // Of a block of 128 of K and a task, rows g and g + 8 as they came.
  struct Raw {
    uint4 codes[2];
    uint32_t scales[kScales][2], biases[kScales][2];
  };
  // From a stage's begin on; between blocks of K, and between halves of them.
  struct Places {
    uint32_t codes, scales, block, half, lower, biases;
  };
  __device__ void load_codes(Raw& raw, const Places& at, uint32_t from, uint32_t b) const {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      raw.codes[r] = device::load_shared_4(from + (at.codes ^ b * 64) + r * 8 * kFewPiece);
    }
  }
  __device__ void load_scales(Raw& raw, const Places& at, uint32_t from, uint32_t b) const {
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
  using Sums = float[kChains][kOctets][4];
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
#pragma unroll
      for (uint32_t u = 0; u < kOctets; ++u) {
        device::multiply_bf16(
            sums[j % kChains][u],
            {pairs[0][2 * j], pairs[1][2 * j], pairs[0][2 * j + 1], pairs[1][2 * j + 1]},
            x[h][j][u]);
      }
    }
  }
  // A block; `between` halves of it.
  template <class Between>
  __device__ static void multiply(const Raw& raw, const Columns& x, Sums& sums,
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

  __device__ Places places(uint32_t part, uint32_t group) const {
    const uint32_t t = lane_ % 4, row = group * kFewTaskRows + FewOrder::row(lane_ / 4);
    const uint32_t byte = part * p_.slice_scales;
    const uint32_t turn = row * p_.scale_row / 128 % (p_.scale_row / 16) * 16;
    Places at;
    at.codes = part * (kTileRows * kFewPiece) + row * kFewPiece + FewOrder::codes(row, t) * 16;
    at.scales = p_.scales_at + byte / p_.scale_row * (kTileRows * p_.scale_row) +
                row * p_.scale_row + ((byte % p_.scale_row) ^ turn) +
                t * 32 / p_.group * p_.scale_bytes;
    at.block = device::uniform(kBlockK / p_.group * p_.scale_bytes);
    at.half = device::uniform(16 / p_.group * p_.scale_bytes);
    at.lower = device::uniform(8 * p_.scale_row);
    at.biases = device::uniform(p_.biases_at - p_.scales_at);
    return at;
  }

  __device__ void consume(const Columns (&x)[2]) {
    const uint32_t part = warp_ % kParts, group = warp_ / kParts;
    const Places at = places(part, group);
    if (part >= p_.slices) return;
    // A block of K is loaded while the one before it is multiplied; where it has one scale a row,
    // that comes late and leaves its register to others.
    constexpr bool kScalesEarly = kScales == 2;
    Raw first, second;
    uint32_t slot = 0, parity = 0;
    const auto load_early = [&](Raw& raw, uint32_t b) {
      if constexpr (kScalesEarly) load_scales(raw, at, stage(slot), b);
      load_codes(raw, at, stage(slot), b);
    };
    const auto load_late = [&](Raw& raw, uint32_t b) {
      if constexpr (!kScalesEarly) load_scales(raw, at, stage(slot), b);
    };
    const auto give_back = [&](uint32_t any) {
      const uint32_t none = device::nothing_of(any);
      __syncwarp();
      if (lane_ == 0) device::barrier_arrive(empty(slot) + none);
      if (++slot == p_.stages) slot = 0, parity ^= 1;
    };
    device::barrier_wait(full(0), 0);
    load_early(first, 0);
#pragma unroll 1
    for (uint32_t i = 0; i < count_; ++i) {
      Sums s = {};
      load_late(first, 0);
      multiply(first, x[0], s, [&] { load_early(second, 1); });
      load_late(second, 1);
      multiply(second, x[1], s, [&] {
        give_back(any_of(second));
        if (i + 1 < count_) {
          device::barrier_wait(full(slot), parity);
          load_early(first, 0);
        }
      });
      store_sums(s, i, group);
    }
  }
  // Of which the compiler keeps nothing in registers between tiles.
  __device__ static uint32_t lane_again() { return device::forgotten(threadIdx.x) % 32; }
  __device__ uint32_t sums_of(uint32_t tile) const {
    return base_ + Memory::kSums + tile % kFewSums * (Memory::kSumsBytes / kFewSums);
  }
  // Of those who multiply a row of tasks and of those who add them up.
  __device__ uint32_t threads_of_sums() const { return 32 * (p_.slices + kFewAdders / kGroups); }
  // Two tokens of two rows, where a warp that reads one lane's tokens of all rows, and where one
  // that writes all, meets no bank twice.
  __device__ void store_sums(const Sums& s, uint32_t tile, uint32_t group) const {
    const uint32_t lane = lane_again(), g = lane / 4, t = lane % 4;
    const uint32_t to = sums_of(tile) + warp_ * Memory::kPlaceBytes + (t * 8 + (g ^ 2 * t)) * 16;
    const uint32_t place = group * kFewSums + tile % kFewSums;
    device::barrier_wait(sums_free(place), (tile / kFewSums % 2) ^ 1);
#pragma unroll
    for (uint32_t u = 0; u < kOctets; ++u) {
      uint32_t sums[4];
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) sums[i] = __float_as_uint(s[0][u][i] + s[1][u][i]);
      device::store_shared_4(to + u * 512, {sums[0], sums[1], sums[2], sums[3]});
    }
    device::named_barrier_arrive(1 + place, threads_of_sums());
  }

  // ---- the warps that add up what a block's have of a tile, in the order of K

  __device__ void add_up_tiles(uint32_t adder) const {
    using Adder = FewAdder<kTokens, kParts>;
    constexpr uint32_t kMine = Adder::kMine, kEach = kPairs / kBlocks;
    const uint32_t group = Adder::group(adder), first = Adder::first(adder);
    const uint32_t from = group * (kParts * Memory::kPlaceBytes) + first * 128 + lane_ * 4;
#pragma unroll 1
    for (uint32_t tile = 0; tile < count_; ++tile) {
      const uint32_t place = group * kFewSums + tile % kFewSums;
      device::named_barrier(1 + place, threads_of_sums());
      float sums[kMine] = {};
      uint32_t any = 0;
#pragma unroll 4
      for (uint32_t i = 0; i < p_.slices; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < kMine; ++j) {
          const float part =
              device::load_shared_float(sums_of(tile) + from + i * Memory::kPlaceBytes + j * 128);
          sums[j] += part;
          any |= __float_as_uint(part);
        }
      }
      device::barrier_arrive(sums_free(place) + device::nothing_of(any));
      const uint32_t slot = tile % kFewEnds;
      device::barrier_wait(end_empty(slot), (tile / kFewEnds % 2) ^ 1);
#pragma unroll
      for (uint32_t j = 0; j < kMine; ++j) {
        const uint32_t pair = first + j, owner = pair % kBlocks;
        const uint32_t item = group * kEach + pair / kBlocks;
        const uint32_t to = base_ + Memory::kEnds + slot * Memory::kEndBytes +
                            (item * kBlocks + rank_) * 128 + lane_ * 4;
        device::store_async(device::cluster_address(to, owner),
                            device::cluster_address(end_full(slot), owner), sums[j]);
      }
    }
  }
  // A lane's sum of two tokens of a tile: of which of them and of which row is what `consume` has
  // written there.
  __device__ void store(uint32_t tile, uint32_t group, uint32_t pair, float sum) const {
    const uint32_t lane = lane_again(), g = (lane / 4) ^ (2 * (pair % 4)), c = lane % 4;
    const uint32_t token = pair * 2 + c % 2;
    const uint32_t row =
        (first_ + tile) * kTileRows + group * kFewTaskRows + c / 2 * 8 + FewOrder::row(g);
    if (token < p_.m && row < p_.n) {
      p_.out[token * p_.out_row_stride + row] = static_cast<uint16_t>(Math::rounded(sum, 0.0f));
    }
  }

  const QmmFewParams& p_;
  uint32_t base_, rank_, lane_, warp_;
  uint32_t first_, count_;
};

// Other architectures of the same build get a kernel that is never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Weights, uint32_t kTokens, uint32_t kParts, uint32_t kBlocks>
__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kFewThreads, 1)
    qmm_few_sm90(const __grid_constant__ QmmFewParams p) {
#if defined(__CUDA_ARCH__)
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t base = device::uniform((device::shared_address(memory) + 1023) & ~1023u);
  FewBlock<Weights, kTokens, kParts, kBlocks>(p, base).run();
#endif
}
#else
template <class Weights, uint32_t kTokens, uint32_t kParts, uint32_t kBlocks>
__global__ void qmm_few_sm90(const __grid_constant__ QmmFewParams) {}
#endif

#define MB_QMM_FEW_SM90(name, tokens, parts, blocks, ...)                                \
  static const simt::CudaKernel name##_##tokens##_##parts##_##blocks##_kernel {          \
    "qmm_few_sm90_" #name "_" #tokens "_" #parts "_" #blocks,                            \
        reinterpret_cast<const void*>(&qmm_few_sm90<__VA_ARGS__, tokens, parts, blocks>) \
  }
#define MB_QMM_FEW_SM90_ALL(name, ...)         \
  MB_QMM_FEW_SM90(name, 8, 8, 2, __VA_ARGS__); \
  MB_QMM_FEW_SM90(name, 8, 16, 2, __VA_ARGS__)

}  // namespace moeblas::cuda
