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
// Longer rows are made in passes over a cluster's tiles, each of other slices, whose x comes by
// stages of its own in front of them; sums wait in shared memory from pass to pass. (Clusters of
// four leave twelve of 132 multiprocessors without one.)
//
// The time goes into reading w.
#pragma once

#include "cuda/device/hand_over.cuh"
#include "cuda/device/prefetch.cuh"
#include "cuda/device/store_async.cuh"
#include "cuda/qmm_few_sm90/late_scales.cuh"
#include "cuda/qmm_few_sm90/pairs.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

template <class Multiplier>
class FewKernel : public Multiplier {
 public:
  using Multiplier::empty, Multiplier::end_full, Multiplier::end_empty, Multiplier::sums_free;
  using Multiplier::first_, Multiplier::count_, Multiplier::stage, Multiplier::full;
  using Multiplier::kGroups, Multiplier::kTileRows, Multiplier::kPairs, Multiplier::kXTokens;
  using Multiplier::kParts, Multiplier::kPasses, Multiplier::passes, Multiplier::x_stages;
  using Multiplier::p_, Multiplier::base_, Multiplier::rank_, Multiplier::lane_, Multiplier::warp_;
  using typename Multiplier::Columns, typename Multiplier::Memory, typename Multiplier::Weights;

  __device__ FewKernel(const QmmFewParams& p, uint32_t base) : Multiplier(p, base) {}

  __device__ void run() {
    Columns x[2] = {};
    if (warp_ == kFewWarps) {
      if (lane_ == 0) {
        prefetch_maps();
        init_barriers();
        device::wait_for_previous_launch();
        device::let_next_launch_begin();
        bring(0, min(p_.stages, stages_of_launch()));
      }
    } else if (warp_ > kFewWarps) {
      // In front of what is prefetched: 4 rows of 4096^2 in affine 4 bits 6.25 us for 6.4, but of
      // 8192^2, where x comes by stages, 14.25 for 14.0.
      if constexpr (!Multiplier::kXByStages) {
        __shared__ uint32_t parameters;
        if (warp_ == kFewWarps + 1) device::fetch_parameters(p_, &parameters);
      }
      prefetch();
      device::wait_for_previous_launch();
    } else if constexpr (!Multiplier::kXByStages) {
      device::wait_for_previous_launch();
      Multiplier::load_x(x);
    }
    __syncwarp();
    __syncthreads();
    // Only who sends to other blocks has to know that they are there.
    device::cluster_arrive();
    if (warp_ == kFewWarps) {
      if (lane_ == 0) bring(p_.stages, stages_of_launch());
    } else if (warp_ < kFewWarps) {
      Multiplier::multiply(x);
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
  using Math = Bfloat16Pairs;

  __device__ uint32_t stages_of_pass() const { return x_stages() + count_; }
  __device__ uint32_t stages_of_launch() const { return passes() * stages_of_pass(); }

  // ---- the warp that brings w, by one lane

  __device__ void prefetch_maps() const {
    if constexpr (kPasses) device::prefetch_tensor_map(&p_.x_rows);
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
      device::barrier_init(end_empty(i), kFewBlocks);
    }
    for (uint32_t i = 0; i < kFewSums * kGroups; ++i) {
      device::barrier_init(sums_free(i), 32 * kFewAdders / kGroups);
    }
    device::barrier_init_visible();
  }
  __device__ void bring(uint32_t begin, uint32_t end) const {
    const uint64_t policy = device::evict_first_policy();
    const uint32_t each = stages_of_pass();
    uint32_t slot = 0, parity = 0, at = begin, pass = 0;
    for (; at >= each; at -= each) ++pass;
    for (uint32_t i = begin; i < end; ++i) {
      if (begin != 0) device::barrier_wait(empty(slot), parity);
      if (at < x_stages()) {
        bring_x(slot, pass, at * kXTokens);
      } else {
        bring_tile(slot, pass, at - x_stages(), policy);
      }
      if (++slot == p_.stages) slot = 0, parity ^= 1;
      if (++at == each) at = 0, ++pass;
    }
  }
  __device__ void bring_tile(uint32_t slot, uint32_t pass, uint32_t tile, uint64_t policy) const {
    const auto row = static_cast<int32_t>((first_ + tile) * kTileRows);
    const uint32_t to = stage(slot), at = full(slot), slice = Multiplier::first_slice(pass);
    device::barrier_expect(at, p_.box_bytes);
    device::copy_box(to, &p_.codes, 0, row, static_cast<int32_t>(slice), at, policy);
    for (uint32_t j = 0; j < p_.scale_boxes; ++j) {
      const uint32_t in_stage = j * (kTileRows * p_.scale_row);
      const auto from = static_cast<int32_t>(slice * p_.slice_scales + j * p_.scale_row);
      device::copy_box(to + p_.scales_at + in_stage, &p_.scales, from, row, at, policy);
      if constexpr (Weights::kBiases) {
        device::copy_box(to + p_.biases_at + in_stage, &p_.biases, from, row, at, policy);
      }
    }
  }
  // Of kXTokens rows of x what this block meets in a pass.
  __device__ void bring_x(uint32_t slot, uint32_t pass, uint32_t first) const {
    const uint32_t to = stage(slot), at = full(slot);
    if (Multiplier::x_by_rows(pass)) {
      const uint32_t rows = min(kXTokens, p_.m - first);
      const uint32_t bytes = Multiplier::slices_there(pass) * (kFewSlice * 2);
      const uint16_t* from = p_.x + first * p_.x_row_stride + Multiplier::k_begin(pass);
      device::barrier_expect(at, rows * bytes);
      for (uint32_t row = 0; row < rows; ++row, from += p_.x_row_stride) {
        device::copy_run(to + row * FewXRows::pitch(p_.slices), from, bytes, at);
      }
    } else {
      device::barrier_expect(at, p_.slices * (kXTokens * kFewSlice * 2));
      device::copy_box(to, &p_.x_rows, 0, static_cast<int32_t>(first),
                       static_cast<int32_t>(Multiplier::first_slice(pass) * kFewXPieces), at,
                       device::evict_normal_policy());
    }
  }

  // ---- the warp that ends tiles

  // What the stages will hold first.
  __device__ void prefetch() const {
    const uint32_t lines = Multiplier::slices_there(0);
    if (lines == 0) return;
    const uint32_t row = first_ * kTileRows;
    const uint32_t rows = min(kFewMostPrefetch / p_.slices, p_.n - min(p_.n, row));
    const uint8_t* from = p_.w + row * p_.w_row_stride + Multiplier::k_begin(0) / 2;
    static_assert(kFewPiece == device::kMemoryLine, "a slice's codes are a line of a row");
    device::prefetch_lines(from, p_.w_row_stride, rows, lines, threadIdx.x - 32 * (kFewWarps + 1),
                           32 * (1 + kFewAdders));
  }
  __device__ void end_tiles() const {
    constexpr uint32_t kItems = kGroups * kPairs / kFewBlocks;
    static_assert(kPairs % kFewBlocks == 0, "blocks end as much of a tile as each other");
    if (lane_ == 0) {
      for (uint32_t i = 0; i < kFewEnds; ++i)
        device::barrier_expect(end_full(i), Memory::kEndBytes);
    }
    __syncwarp();
    const float factor = tensor_factor();
    const uint32_t total = passes() * count_;
    uint32_t slot = 0, parity = 0, i = 0, pass = 0;
    for (uint32_t n = 0; n < total; ++n) {
      device::barrier_wait(end_full(slot), parity);
      if (lane_ == 0) device::barrier_expect(end_full(slot), Memory::kEndBytes);
      const uint32_t from = base_ + Memory::kEnds + slot * Memory::kEndBytes + lane_ * 4;
      uint32_t any = 0;
#pragma unroll
      for (uint32_t item = 0; item < kItems; ++item) {
        const uint32_t kept = base_ + p_.kept_at + ((i * kItems + item) * 32 + lane_) * 4;
        float sum = !kPasses || pass == 0 ? 0.0f : device::load_shared_float(kept);
#pragma unroll
        for (uint32_t block = 0; block < kFewBlocks; ++block) {
          const float part = device::load_shared_float(from + (item * kFewBlocks + block) * 128);
          sum += part;
          any |= __float_as_uint(part);
        }
        const uint32_t group = item / (kPairs / kFewBlocks);
        const uint32_t pair = item % (kPairs / kFewBlocks) * kFewBlocks + rank_;
        if (kPasses && pass + 1 < passes()) {
          device::store_shared_u32(kept, __float_as_uint(sum));
        } else {
          store(i, group, pair, sum * factor);
        }
      }
      const uint32_t none = device::nothing_of(any);
      __syncwarp();
      // Where somebody waits for it: an arrival may not come when its block has left.
      if (lane_ < kFewBlocks && n + kFewEnds < total) {
        device::cluster_barrier_arrive(device::cluster_address(end_empty(slot), lane_) + none);
      }
      if (++slot == kFewEnds) slot = 0, parity ^= 1;
      if (kPasses && ++i == count_) i = 0, ++pass;
      if (!kPasses) ++i;
    }
  }
  __device__ float tensor_factor() const {
    if constexpr (Weights::kTensorScale) {
      const float* data = p_.tensor_scale.data;
      return (data == nullptr ? p_.tensor_scale.host : __ldg(data)) * Weights::kUp;
    }
    return 1.0f;
  }

  // ---- the warps that add up what a block's have of a tile, in the order of K

  __device__ void add_up_tiles(uint32_t adder) const {
    using Adder = FewAdder<kParts>;
    constexpr uint32_t kMine = Adder::kMine, kEach = kPairs / kFewBlocks;
    const uint32_t group = Adder::group(adder), first = Adder::first(adder);
    const uint32_t from = group * (kParts * Memory::kPlaceBytes) + first * 128 + lane_ * 4;
#pragma unroll 1
    for (uint32_t tile = 0; tile < passes() * count_; ++tile) {
      const uint32_t place = group * kFewSums + tile % kFewSums;
      device::named_barrier(1 + place, Multiplier::threads_of_sums());
      float sums[kMine] = {};
      uint32_t any = 0;
#pragma unroll 4
      for (uint32_t i = 0; i < p_.slices; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < kMine; ++j) {
          const float part = device::load_shared_float(Multiplier::sums_of(tile) + from +
                                                       i * Memory::kPlaceBytes + j * 128);
          sums[j] += part;
          any |= __float_as_uint(part);
        }
      }
      device::barrier_arrive(sums_free(place) + device::nothing_of(any));
      const uint32_t slot = tile % kFewEnds;
      device::barrier_wait(end_empty(slot), (tile / kFewEnds % 2) ^ 1);
#pragma unroll
      for (uint32_t j = 0; j < kMine; ++j) {
        const uint32_t pair = first + j, owner = pair % kFewBlocks;
        const uint32_t item = group * kEach + pair / kFewBlocks;
        const uint32_t to = base_ + Memory::kEnds + slot * Memory::kEndBytes +
                            (item * kFewBlocks + rank_) * 128 + lane_ * 4;
        device::store_async(device::cluster_address(to, owner),
                            device::cluster_address(end_full(slot), owner), sums[j]);
      }
    }
  }
  // A lane's sum of two tokens of a tile: of which of them and of which row is what `consume` has
  // written there.
  __device__ void store(uint32_t tile, uint32_t group, uint32_t pair, float sum) const {
    const uint32_t lane = Multiplier::lane_again(), g = (lane / 4) ^ (2 * (pair % 4)), c = lane % 4;
    const uint32_t token = pair * 2 + c % 2;
    const uint32_t row =
        (first_ + tile) * kTileRows + group * kFewTaskRows + c / 2 * 8 + FewOrder::row(g);
    if (token < p_.m && row < p_.n) {
      if constexpr (Multiplier::kMadeAgain) {
        if (!isfinite(sum)) sum = made_again(row, token);
      }
      p_.out[token * p_.out_row_stride + row] = static_cast<uint16_t>(Math::rounded(sum, 0.0f));
    }
  }
  // A sum from weights as they are.
  __device__ float made_again(uint32_t row, uint32_t token) const {
    const auto* codes = reinterpret_cast<const uint32_t*>(p_.w + row * p_.w_row_stride);
    const uint8_t* scales = p_.w_scales + row * p_.scales_stride;
    const uint8_t* biases = p_.w_biases + row * p_.biases_stride;
    const uint16_t* x = p_.x + token * p_.x_row_stride;
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t k = 0; k < p_.k; ++k) {
      const uint32_t code = __ldg(codes + k / 8) >> k % 8 * 4 & 15;
      sum = __fmaf_rn(Weights::weight(code, scales, biases, k), bfloat16(__ldg(x + k)), sum);
    }
    return sum;
  }
  __device__ static float bfloat16(uint16_t bits) { return __uint_as_float(bits << 16); }
};

// Other architectures of the same build get a kernel that is never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Multiplier>
__global__ void __cluster_dims__(kFewBlocks, 1, 1) __launch_bounds__(kFewThreads, 1)
    qmm_few_sm90(const __grid_constant__ QmmFewParams p) {
#if defined(__CUDA_ARCH__)
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t base = device::uniform((device::shared_address(memory) + 1023) & ~1023u);
  FewKernel<Multiplier>(p, base).run();
#endif
}
#else
template <class Multiplier>
__global__ void qmm_few_sm90(const __grid_constant__ QmmFewParams) {}
#endif

#define MB_QMM_FEW_SM90(name, parts, ...)                                                       \
  static const simt::CudaKernel name##_##parts##_kernel {                                       \
    "qmm_few_sm90_" #name "_" #parts, reinterpret_cast<const void*>(&qmm_few_sm90<__VA_ARGS__>) \
  }

}  // namespace moeblas::cuda
