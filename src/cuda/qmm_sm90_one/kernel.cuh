// qmm_sm90 for few rows of x and one matrix of 4-bit weights: one launch, in which every block has
// one tile, so that nothing is staged, scheduled or counted before the first copies begin.
//
//   rows of w          K
//   +---------+-------------+-------------+   Two blocks of a cluster make 64, 128 or 256 rows of
//   | set 0   | block 0     | block 1     |   w times all rows of x, each over half of K. Of a step
//   | set 1   | 0 1 2 3 0 1 | 0 1 2 3 0 1 |   of 512 k each of a block's four warpgroups has 128,
//   |  ...    | (warpgroup) |             |   for all sets of 64 rows: what it reads of x is read
//   +---------+-------------+-------------+   by no other, and once for all sets.
//     in a block:  warps 0 .. 15  products, by warps, which wait for data alone
//                  warp 16        codes, scales and rows of x as they lie, by boxes
//
// The eight sums of a row and token meet in shared memory: each block adds up every other octet of
// tokens, in one order, and stores it. No block waits for another cluster's.
#pragma once

#include "cuda/device/prefetch.cuh"
#include "cuda/qmm_sm90_one/consumer.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

// The warp that brings codes, scales and rows of x, by one thread, and those that wait beside it.
template <class Weights, uint32_t kTokens, uint32_t kSets>
class OneProducer : public OneBlock<kTokens, kSets> {
 public:
  using Block = OneBlock<kTokens, kSets>;
  using Memory = typename Block::Memory;
  using Block::barrier, Block::base_, Block::p_, Block::rank_, Block::w_row_;

  __device__ OneProducer(const QmmOneParams& p, uint32_t base) : Block(p, base) {}

  __device__ void prefetch_maps() const {
    device::prefetch_tensor_map(&p_.x);
    device::prefetch_tensor_map(&p_.codes);
    device::prefetch_tensor_map(&p_.scales);
    if constexpr (Weights::kBiases) device::prefetch_tensor_map(&p_.biases);
  }

  // First codes; by several threads.
  __device__ void prefetch(uint32_t thread, uint32_t threads) const {
    if (w_row_ >= p_.n) return;
    const uint8_t* from = p_.w + w_row_ * p_.w_row_stride + rank_ * p_.steps * (kOneStep / 2);
    device::prefetch_lines(from, p_.w_row_stride, min(kSets * kOneSetRows, p_.n - w_row_),
                           kOnePrefetchLines, thread, threads);
  }

  // One thread: slots of codes from `first` to `end`, in front of each step's its rows of x, of
  // each chunk's its scales.
  __device__ void send_weights(uint32_t first, uint32_t end) const {
    const uint64_t policy = device::evict_first_policy();
    for (uint32_t i = first; i < end; ++i) {
      const uint32_t step = i / kSets, set = i % kSets;
      const auto row = static_cast<int32_t>(w_row_ + set * kOneSetRows);
      if (set == 0) send_rows(step);
      if (step % p_.chunk_steps == 0) send_scales(step / p_.chunk_steps, set, row, policy);
      const uint32_t slot = i % Block::kCodeSlots;
      const uint32_t full = barrier(Block::kCodesFull) + slot * 8;
      device::barrier_wait(barrier(Block::kCodesEmpty) + slot * 8, (i / Block::kCodeSlots % 2) ^ 1);
      device::barrier_expect(full, Memory::kCodeSlotBytes);
      device::copy_box(base_ + Memory::kCodes + slot * Memory::kCodeSlotBytes, &p_.codes, 0,
                       static_cast<int32_t>((rank_ * p_.steps + step) * kOnePieces), row, full,
                       policy);
    }
  }

 private:
  __device__ void send_rows(uint32_t step) const {
    const uint32_t slot = step % Block::kXSlots, full = barrier(Block::kXFull) + slot * 8;
    device::barrier_wait(barrier(Block::kXEmpty) + slot * 8, (step / Block::kXSlots % 2) ^ 1);
    device::barrier_expect(full, Memory::kXSlotBytes);
    device::copy_box(base_ + Memory::kX + slot * Memory::kXSlotBytes, &p_.x, 0, 0,
                     static_cast<int32_t>((rank_ * p_.steps + step) * kOneXPieces), full,
                     device::evict_normal_policy());
  }
  __device__ void send_scales(uint32_t chunk, uint32_t set, int32_t row, uint64_t policy) const {
    const uint32_t i = chunk * kSets + set, slot = i % Block::kScaleSlots;
    const uint32_t full = barrier(Block::kScalesFull) + slot * 8;
    const uint32_t to = base_ + Memory::kScales + slot * Memory::kScaleSlotBytes;
    const uint32_t bytes = kOneSetRows * p_.scale_chunk;
    const auto at =
        static_cast<int32_t>((rank_ * (p_.steps / p_.chunk_steps) + chunk) * p_.scale_chunk);
    device::barrier_wait(barrier(Block::kScalesEmpty) + slot * 8, (i / Block::kScaleSlots % 2) ^ 1);
    device::barrier_expect(full, Weights::kBiases ? 2 * bytes : bytes);
    device::copy_box(to, &p_.scales, at, row, full, policy);
    if constexpr (Weights::kBiases) {
      device::copy_box(to + bytes, &p_.biases, at, row, full, policy);
    }
  }
};

template <class Weights, uint32_t kTokens, uint32_t kSets>
__device__ __forceinline__ void qmm_one_block(const QmmOneParams& p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t base = device::uniform((device::shared_address(memory) + 1023) & ~1023u);
  const OneProducer<Weights, kTokens, kSets> producer(p, base);
  uint32_t sent = 0;
  if (threadIdx.x == kOneConsumers) {
    // Nothing else is needed before the first copies can begin.
    producer.prefetch_maps();
    producer.init_barriers();
    device::wait_for_previous_launch();
    device::let_next_launch_begin();
    using Memory = OneMemory<kTokens, kSets>;
    sent = min(min(p.steps * kSets, p.chunk_steps * Memory::kScaleSlots),
               min(Memory::kXSlots * kSets, Memory::kCodeSlots));
    producer.send_weights(0, sent);
  } else if (threadIdx.x >= kOneConsumers + 32) {
    producer.prefetch(threadIdx.x - (kOneConsumers + 32), kOneThreads - (kOneConsumers + 32));
  }
  __syncthreads();
  device::wait_for_previous_launch();
  if (threadIdx.x >= kOneConsumers) {
    device::leave_registers<32>();
    if (threadIdx.x == kOneConsumers) producer.send_weights(sent, p.steps * kSets);
    __syncwarp();
    device::cluster_meet();
  } else {
    device::take_registers<112>();
    OneConsumer<Weights, kTokens, kSets>(p, base).consume();
  }
}

// Other architectures of the same build get a kernel that is never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Weights, uint32_t kTokens, uint32_t kSets>
__global__ void __cluster_dims__(kOneClusterBlocks, 1, 1) __launch_bounds__(kOneThreads, 1)
    qmm_sm90_one(const __grid_constant__ QmmOneParams p) {
#if defined(__CUDA_ARCH__)
  qmm_one_block<Weights, kTokens, kSets>(p);
#endif
}
#else
template <class Weights, uint32_t kTokens, uint32_t kSets>
__global__ void qmm_sm90_one(const __grid_constant__ QmmOneParams) {}
#endif

#define MB_QMM_SM90_ONE(name, tokens, sets, ...)                                \
  static const simt::CudaKernel name##_##tokens##_##sets##_kernel {             \
    "qmm_sm90_one_" #name "_" #tokens "_" #sets,                                \
        reinterpret_cast<const void*>(&qmm_sm90_one<__VA_ARGS__, tokens, sets>) \
  }
#define MB_QMM_SM90_ONE_ALL(name, ...)       \
  MB_QMM_SM90_ONE(name, 16, 1, __VA_ARGS__); \
  MB_QMM_SM90_ONE(name, 16, 2, __VA_ARGS__); \
  MB_QMM_SM90_ONE(name, 16, 4, __VA_ARGS__); \
  MB_QMM_SM90_ONE(name, 32, 1, __VA_ARGS__)

}  // namespace moeblas::cuda
