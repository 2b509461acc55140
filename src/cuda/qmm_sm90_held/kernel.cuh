// qmm_sm90 for 9 to 16 rows of x and one large matrix of 4-bit weights, affine in groups of 64 or
// mxfp4, or for experts' matrices that some rows meet each: one launch, whose warps hold rows of x
// in registers, so that little but w goes through shared memory.
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
// Sums of warps and blocks meet in shared memory, those of one tile or of two at a time in one of
// some places: warps that add up one do it beside the products of others, in one order. Sums that
// are not finite are made again from decoded weights.
//
// Rows of more than two blocks' K are passed twice, with half of K each time (HeldParts), so that
// there is no multiprocessor without a cluster: sums wait in shared memory from pass to pass, and
// codes of the second one come while the first one's last tiles are multiplied.
//
// Of runs of rows by a matrix each as many octets of tokens are multiplied as there are: up to two,
// or three, if a tile has one group of rows of w; columns of the third lie in shared memory. What
// is more is passed one after another (HeldPasses). A block has an equal share of what all passes'
// tiles and their rows of x cost (HeldRun): between those of one run and the next its warps load
// other rows. Every block lists the runs for itself (lister.cuh, few_lister.cuh). Of a layer's
// gates and ups a tile has eight rows each, and what is written is activations. Where rows of w are
// half as long, a tile has two groups of such rows, each half of the warps'.
//
// What gates and ups have left is multiplied likewise, where a bias is not added: the launch begins
// while they end, lists the runs once more and has codes brought before it waits for their rows.
// Rows of more than 4096 k are products by parts, whose float32 sums who weighs them adds up
// (ffn_combine). Rows of 1024 k come four groups to a tile, and so do those of 768, of which half
// of the warps have half a slice.
#pragma once

#include "cuda/device/dynamic_shared.cuh"
#include "cuda/qmm_sm90_held/adder.cuh"
#include "cuda/qmm_sm90_held/few_lister.cuh"
#include "cuda/qmm_sm90_held/multiplier.cuh"
#include "cuda/qmm_sm90_held/producer.cuh"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {

// What the two kinds of warps do, those that multiply and the others.
template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
struct HeldRoles {
  using Block = HeldBlock<kShares, kKind, kRowGroups>;
  using Lister = HeldLister<kShares, kKind, kRowGroups>;
  using FewLister = HeldFewLister<kShares, kKind, kRowGroups>;
  using Producer = HeldProducer<Weights, kShares, kKind, kRowGroups>;
  using Adder = HeldAdder<Weights, kShares, kKind, kRowGroups>;
  using Multiplier = HeldMultiplier<Weights, kShares, kKind, kRowGroups>;
  static constexpr bool kRuns = Block::kRuns, kSums = Block::kSums, kApart = Block::kApart;

  static __device__ bool multiplies() { return threadIdx.x < kHeldMultipliers; }
  static __device__ void meet() {
    if constexpr (kShares == 1) {
      __syncthreads();
    } else {
      device::cluster_barrier();
    }
  }

  // What does not depend on the launch in front is done before it is waited for.
  static __device__ void begin(const QmmHeldParams& p, uint32_t base) {
    if (threadIdx.x / 32 == kHeldWarps) {
      if (threadIdx.x % 32 == 0) {
        const Producer producer(p, base);
        // Nothing else is needed before the first copies can begin.
        producer.prefetch_maps();
        producer.init_barriers();
        if constexpr (!kRuns) {
          for (uint32_t i = 0; i < Block::kPlaces; ++i) producer.expect_sums(i);
        }
        if constexpr (!kSums && !kApart) {
          device::wait_for_previous_launch();
          device::let_next_launch_begin();
        }
        if constexpr (!kRuns) producer.begin();
      }
    } else if constexpr (kRuns) {
      if (!multiplies()) {
        Adder(p, base).prefetch();
      } else if constexpr (!kApart) {
        count(p, base);
      }
    }
    __syncwarp();
    if constexpr (kApart) {
      if (!multiplies() && FewLister::takes(p)) FewLister(p, base).clear();
    }
  }
  static __device__ void count(const QmmHeldParams& p, uint32_t base) {
    // What is behind a layer's first product finds ids that were there before that.
    if constexpr (!kSums) device::wait_for_previous_launch();
    Lister(p, base).count();
  }

  // Until the block knows its runs, and all meet more than once.
  static __device__ void list_together(const QmmHeldParams& p, uint32_t base) {
    Lister lister(p, base);
    if (!multiplies()) lister.add_up();
    meet();
    if (!multiplies()) {
      const HeldSegment first = lister.list_runs();
      if constexpr (Block::kListerSends) {
        device::named_barrier_arrive(kHeldListed, kHeldThreads);
        send_first(p, base, first);
        device::named_barrier(kHeldPlaced, kHeldThreads);
      }
    } else {
      lister.place();
      if constexpr (Block::kListerSends) {
        // Rows of x do not wait for what is sent.
        device::named_barrier_arrive(kHeldPlaced, kHeldThreads);
        device::named_barrier(kHeldListed, kHeldThreads);
      }
    }
    if constexpr (!Block::kListerSends) meet();
  }
  static __device__ void send_first(const QmmHeldParams& p, uint32_t base,
                                    const HeldSegment& first) {
    if (Block::kListerSends && first.count > 0) {
      device::wait_for_previous_launch();
      Producer(p, base).send(0, first, 0);
    }
    __syncwarp();
  }

  // The same by each kind from a place of its own, where all meet once in front of it.
  static __device__ void list_pairs(const QmmHeldParams& p, uint32_t base) {
    const Lister lister(p, base);
    if (FewLister::takes(p)) {
      lister.wait_for(Block::kFewListed);
      if (FewLister::has_listed(base)) return;
    }
    count(p, base);
    lister.tell(Block::kCounted);
    lister.wait_for(Block::kAddedUp);
    lister.place();
    lister.tell(Block::kPlaced);
    // A run's pairs are placed by several warps. What is sent is not waited for.
    lister.wait_for(Block::kPlaced);
    lister.wait_for(Block::kListed);
  }
  static __device__ void list_runs(const QmmHeldParams& p, uint32_t base) {
    if constexpr (!kSums) {
      device::wait_for_previous_launch();
      if (threadIdx.x == kHeldMultipliers) device::let_next_launch_begin();
      __syncwarp();
    }
    if (FewLister::takes(p)) {
      FewLister lister(p, base);
      const HeldSegment first = lister.list();
      lister.tell(Block::kFewListed);
      send_first(p, base, first);
      device::named_barrier(kHeldOthersMeet, kHeldThreads - kHeldMultipliers);
      if (FewLister::has_listed(base)) return;
    }
    Lister lister(p, base);
    lister.wait_for(Block::kCounted);
    lister.add_up();
    lister.tell(Block::kAddedUp);
    // Of the others' matrices, too.
    lister.wait_for(Block::kAddedUp);
    const HeldSegment first = lister.list_runs();
    lister.tell(Block::kListed);
    send_first(p, base, first);
    lister.wait_for(Block::kListed);
    lister.wait_for(Block::kPlaced);
  }

  static __device__ void multiply(const QmmHeldParams& p, uint32_t base) {
    device::take_registers<Block::kMultiplierRegisters>();
    Multiplier multiplier(p, base);
    device::wait_for_previous_launch();
    multiplier.find_runs();
    multiplier.multiply();
  }
  static __device__ void bring_and_add_up(const QmmHeldParams& p, uint32_t base) {
    device::leave_registers<Block::kOtherRegisters>();
    if (threadIdx.x < kHeldMultipliers + 32) {
      Producer producer(p, base);
      producer.find_runs();
      if constexpr (!kSums) device::wait_for_previous_launch();
      producer.send_all();
    } else {
      const uint32_t warp = device::uniform(threadIdx.x / 32) - kHeldWarps - 1;
      Adder adder(p, base);
      if constexpr (!kRuns) adder.prefetch();
      device::wait_for_previous_launch();
      if (kSums && warp == 0) device::let_next_launch_begin();
      adder.find_runs();
      adder.add_up(warp);
    }
  }
};

template <class Weights, uint32_t kShares, HeldKind kKind, uint32_t kRowGroups>
__device__ __forceinline__ void qmm_held_block(const QmmHeldParams& p) {
  using Roles = HeldRoles<Weights, kShares, kKind, kRowGroups>;
  const uint32_t memory = device::shared_address(device::dynamic_shared_1024());
  const uint32_t base = device::uniform((memory + 1023) & ~1023u);
  Roles::begin(p, base);
  Roles::meet();
  if constexpr (Roles::kApart) {
    if (threadIdx.x < kHeldMultipliers) {
      Roles::list_pairs(p, base);
      Roles::multiply(p, base);
    } else {
      Roles::list_runs(p, base);
      Roles::bring_and_add_up(p, base);
    }
  } else {
    if constexpr (Roles::kRuns) Roles::list_together(p, base);
    if (threadIdx.x >= kHeldMultipliers) {
      Roles::bring_and_add_up(p, base);
    } else {
      Roles::multiply(p, base);
    }
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
