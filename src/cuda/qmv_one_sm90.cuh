// qmv_one_sm90: decode on Hopper. quantized_matmul for one row of x and one matrix of affine codes
// of any width, packed along K, in the checkpoint's own layout.
//
// A thread block per multiprocessor takes a share of all tiles of rows. One warp brings them by
// bulk copies into a ring of stages, sixteen consume them:
//
//   stage    codes [slab][row of the tile][128 bytes], scales [row][groups], biases; all swizzled
//   share    a warp's: 32 rows (or 16) by one batch of 128 values or two; eight of them side by
//            side along K, two one above the other
//   batch    16 rows: mma.m16n8k32 with codes as the 16-row operand, x as four limbs of a byte
//            (qmv_sm80_bytes.cuh)
//
// Codes that cross words need no more than a lane's own 32, which begin at a word: what a lane
// loads lies at a few places of a stage that do not change, so that swizzling costs nothing, and
// rows meet lanes in an order in which the loads of eight or sixteen lanes lie on different banks.
//
// Sums of a group's products are exact, then float32; parts of K meet in shared memory in their
// order. Sums that are not finite are made again from decoded weights.
//
// The time goes into reading w; below some 20 MB of it, into what happens before the first copy and
// after the last.
#pragma once

#include "cuda/device/decoded_output.cuh"
#include "cuda/device/x_bytes.cuh"
#include "cuda/qmv_one_sm90.h"
#include "cuda/qmv_sm80_bytes.cuh"

namespace moeblas::cuda::device {

struct QmvOneMaps {
  CUtensorMap codes, scales, biases;
};

struct QmvOneShared {
  uint64_t full[kQmvOneMostStages], empty[kQmvOneMostStages];
};

template <int bits, int group, int rows, int batches>
struct QmvOne {
  using Format = formats::Affine<bits>;
  static constexpr QmvOneShape kShape = {bits, group, rows, batches};
  static constexpr int kBits = bits, kGroup = group, kXGroup = group < 64 ? group : 64;
  static constexpr uint32_t kRows = rows, kBatches = batches;
  static constexpr uint32_t kTileRows = kShape.tile_rows();
  static constexpr uint32_t kStepUnits = kShape.values() / kQmvOneUnit;
  static constexpr uint32_t kSlabs = kShape.slabs();
  static constexpr uint32_t kStepScales = kShape.scale_bytes(1);
  // A lane's codes of a batch come by loads of so many words.
  static constexpr uint32_t kLoadWords = bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
  static constexpr uint32_t kLoads = bits / kLoadWords;
  using X = ByteLane<kXGroup>;
};

// Which row of eight a lane's row g is, such that what lanes load at a time lies on other banks,
// swizzled as codes and scales are.
template <int bits>
__device__ __forceinline__ uint32_t row_of_lane(uint32_t g) {
  return bits == 8 ? g : (g & 1) * 4 + (g & 2) + (g >> 2);
}
// Where byte `at` of a row of so many bytes lies among swizzled ones.
template <uint32_t kRowBytes>
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t at) {
  const uint32_t turn = kRowBytes == 128  ? row & 7
                        : kRowBytes == 64 ? row >> 1 & 3
                        : kRowBytes == 32 ? row >> 2 & 1
                                          : 0;
  return row * kRowBytes + (at ^ turn << 4);
}

// Where a lane finds its share of a stage, from the stage's begin on: each load of its codes, its
// row's scales.
template <class T>
struct QmvOneLane {
  uint32_t codes[T::kBatches * T::kLoads];
  uint32_t scales, biases;

  template <uint32_t kScaleBytes>
  static __device__ __forceinline__ QmvOneLane of(const QmvOneParams& p, uint32_t row_group,
                                                  uint32_t part, uint32_t lane) {
    const uint32_t t = lane % 4, row = row_group * T::kRows + row_of_lane<T::kBits>(lane / 4);
    QmvOneLane l;
#pragma unroll
    for (uint32_t i = 0; i < T::kBatches * T::kLoads; ++i) {
      const uint32_t batch = part * T::kBatches + i / T::kLoads;
      const uint32_t at = (batch * 4 + t) * (4 * T::kBits) + i % T::kLoads * (4 * T::kLoadWords);
      l.codes[i] = at / kQmvOneSlab * (T::kTileRows * kQmvOneSlab) +
                   swizzled<kQmvOneSlab>(row, at % kQmvOneSlab);
    }
    const uint32_t first = part * T::kBatches * kQmvOneBatch / T::kGroup;
    constexpr bool kOwn = kScaleBytes == 4 && T::kGroup < 128;
    const uint32_t scales =
        swizzled<T::kStepScales * kScaleBytes>(row, (first + (kOwn ? t / 2 : 0)) * kScaleBytes);
    l.scales = p.scales_at + scales;
    l.biases = p.biases_at + scales;
    return l;
  }
};

// Neighbours, where their address is a multiple of as many bytes.
template <uint32_t kWords>
__device__ __forceinline__ void load_neighbours(uint32_t from, uint32_t (&words)[kWords]) {
  static_assert(kWords == 1 || kWords == 2 || kWords % 4 == 0, "what one load brings, or several");
  if constexpr (kWords == 1) {
    words[0] = load_shared_u32(from);
  } else if constexpr (kWords == 2) {
    const uint2 v = load_shared_2(from);
    words[0] = v.x, words[1] = v.y;
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kWords; i += 4) {
      const uint4 v = load_shared_4(from + 4 * i);
      words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
    }
  }
}

// A row's scales (or biases) of a warp's share: those of the lane's slot.
template <class T, int kScale>
struct QmvOneScales {
  static constexpr uint32_t kBytes = kScale == simt::kF32 ? 4 : 2;
  static constexpr uint32_t kSums = T::kBatches * static_cast<uint32_t>(T::X::kSets);
  // Two neighbours each, of which the lane wants one; of groups of 128 one, in turn.
  static constexpr uint32_t kWords = kBytes == 4        ? kSums
                                     : T::kGroup == 128 ? (kSums + 1) / 2
                                                        : kSums;
  uint32_t word[kWords];

  __device__ __forceinline__ void load(uint32_t at) {
    if constexpr (kBytes == 4) {
#pragma unroll
      for (uint32_t i = 0; i < kSums; ++i) {
        word[i] = load_shared_u32(at + i * (T::kGroup == 128 ? 4 : 8));
      }
    } else if constexpr (T::kGroup == 128 && kSums == 1) {
      word[0] = load_shared_u16(at);
    } else {
      load_neighbours(at, word);
    }
  }
  __device__ __forceinline__ float of(uint32_t sum, uint32_t slot) const {
    if constexpr (kBytes == 4) {
      return __uint_as_float(word[sum]);
    } else {
      const uint32_t two = T::kGroup == 128 ? word[sum / 2] : word[sum];
      const bool second = T::kGroup == 128 ? sum % 2 != 0 : slot != 0;
      if constexpr (kScale == simt::kBf16) {
        return __uint_as_float(bytes_of(two, 0, second ? 0x3244 : 0x1044));
      } else {
        const uint32_t one = bytes_of(two, 0, second ? 0x4432 : 0x4410);
        return __half2float(__ushort_as_half(static_cast<uint16_t>(one)));
      }
    }
  }
};

// A lane's 32 codes of a row.
template <class T>
__device__ __forceinline__ void load_codes(const uint32_t* at, uint32_t stage, uint32_t row,
                                           uint32_t (&bytes)[8]) {
  uint32_t words[T::kBits];
#pragma unroll
  for (uint32_t i = 0; i < T::kLoads; ++i) {
    uint32_t some[T::kLoadWords];
    load_neighbours(stage + at[i] + row * kQmvOneSlab, some);
#pragma unroll
    for (uint32_t j = 0; j < T::kLoadWords; ++j) words[i * T::kLoadWords + j] = some[j];
  }
  ByteDecoder<T::kBits>::decode(words, bytes);
}

// A warp's share of a stage. y: sums of the lane's row of each eight.
template <class T, int kScale>
__device__ __forceinline__ void add_item(const QmvOneLane<T>& from, uint32_t stage,
                                         const typename T::X& at, uint32_t lane,
                                         float (&y)[T::kRows / 8]) {
  using D = ByteDecoder<T::kBits>;
  using Scales = QmvOneScales<T, kScale>;
  constexpr int kSets = T::X::kSets;
  constexpr uint32_t kScalePitch = T::kStepScales * Scales::kBytes;
  const uint32_t slot = lane % 4 / 2;
  Scales scale[T::kRows / 8], bias[T::kRows / 8];
#pragma unroll
  for (uint32_t r = 0; r < T::kRows / 8; ++r) {
    scale[r].load(stage + from.scales + r * 8 * kScalePitch);
    bias[r].load(stage + from.biases + r * 8 * kScalePitch);
  }
#pragma unroll
  for (uint32_t batch = 0; batch < T::kBatches; ++batch) {
    uint4 x[2];
    if constexpr (kSets == 1) at.load(x, lane, 0, batch);
#pragma unroll
    for (uint32_t h = 0; h < T::kRows / 16; ++h) {
      uint32_t upper[8], lower[8];
      load_codes<T>(from.codes + batch * T::kLoads, stage, 16 * h, upper);
      load_codes<T>(from.codes + batch * T::kLoads, stage, 16 * h + 8, lower);
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        if constexpr (kSets > 1) at.load(x, lane, static_cast<uint32_t>(set), batch);
        constexpr bool kApart = D::kRaised > 0;
        int32_t d[4] = {}, apart[4] = {};
        auto& raised = kApart ? apart : d;
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
          const uint4 v = x[i / 4];
          multiply_bytes(d, {upper[i], lower[i], upper[i + 1], lower[i + 1]}, {v.x, v.y});
          multiply_bytes(raised, {upper[i + 2], lower[i + 2], upper[i + 3], lower[i + 3]},
                         {v.z, v.w});
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kApart) d[i] = d[i] * (1 << D::kRaised) + raised[i];
        }
        const uint32_t sum = batch * kSets + static_cast<uint32_t>(set);
        const Factor factor = load_factor(at.factors + sum * 32);
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t r = 2 * h + i;
          // In this order: a scale and the size of x may be far out, in opposite directions.
          y[r] += scale[r].of(sum, slot) *
                  (static_cast<float>(d[2 * i] + d[2 * i + 1] * 256) * factor.scale);
          y[r] += bias[r].of(sum, slot) * factor.sum;
        }
      }
    }
  }
}

template <class T>
class QmvOneBlock {
 public:
  __device__ __forceinline__ QmvOneBlock(const QmvOneParams& p, const simt::ProductBuffers& b,
                                         const QmvOneMaps& maps, QmvOneShared& shared)
      : p_(p), b_(b), maps_(maps), shared_(shared) {}

  __device__ __forceinline__ void run() {
    if (warp() >= kQmvOneConsumers) {
      leave_registers<kQmvOneProducerRegisters>();
      if (warp() == kQmvOneConsumers) {
        if (lane() == 0) produce();
        __syncwarp();
        named_barrier_arrive(kReady, kReaders);
        if (lane() == 0) produce_rest();
        __syncwarp();
      } else {
        prefetch(threadIdx.x - kReaders);
      }
    } else {
      take_registers<kQmvOneConsumerRegisters>();
      wait_for_previous_launch();
      fill_x();
      named_barrier(kReady, kReaders);
      const int32_t type = p_.product.w.scale.type;
      if (type == simt::kBf16) {
        consume<simt::kBf16>();
      } else if (type == simt::kF16) {
        consume<simt::kF16>();
      } else {
        consume<simt::kF32>();
      }
    }
    // Nobody leaves before: synccheck takes warps that have left for missing at other barriers.
    named_barrier(0, kQmvOneThreads);
  }

 private:
  static constexpr uint32_t kReady = 1, kSums = 2, kReaders = 32 * (kQmvOneConsumers + 1);

  __device__ __forceinline__ uint32_t warp() const { return threadIdx.x / 32; }
  __device__ __forceinline__ uint32_t lane() const { return threadIdx.x % 32; }
  __device__ __forceinline__ uint32_t part() const { return warp() % kQmvOneParts; }
  __device__ __forceinline__ uint32_t row_group() const { return warp() / kQmvOneParts; }
  __device__ __forceinline__ uint32_t base() const {
    return (shared_address(dynamic_shared()) + 1023) / 1024 * 1024;
  }
  __device__ __forceinline__ uint32_t ring() const { return base() + p_.ring_at; }
  __device__ __forceinline__ XColumns x_columns() const { return {base(), base() + p_.factors_at}; }
  __device__ __forceinline__ uint32_t zeros() const { return base() + p_.units * 128; }
  __device__ __forceinline__ uint32_t tiles() const {
    return p_.share + (blockIdx.x < p_.remainder ? 1 : 0);
  }
  __device__ __forceinline__ uint32_t first_tile() const {
    return blockIdx.x * p_.share + min(blockIdx.x, p_.remainder);
  }

  // ---- the warp that brings weights, by one lane

  __device__ __forceinline__ void bring(uint32_t stage, uint32_t slot, uint32_t row, uint32_t step,
                                        uint64_t policy) const {
    const uint32_t full = shared_address(&shared_.full[slot]);
    barrier_expect(full, p_.box_bytes);
    constexpr uint32_t kElements = kQmvOneSlab / 4;
#pragma unroll
    for (uint32_t i = 0; i < T::kSlabs; ++i) {
      copy_box(stage + i * (T::kTileRows * kQmvOneSlab), &maps_.codes,
               static_cast<int32_t>((step * T::kSlabs + i) * kElements), static_cast<int32_t>(row),
               full, policy);
    }
    const auto at = static_cast<int32_t>(step * T::kStepScales);
    copy_box(stage + p_.scales_at, &maps_.scales, at, static_cast<int32_t>(row), full, policy);
    copy_box(stage + p_.biases_at, &maps_.biases, at, static_cast<int32_t>(row), full, policy);
  }
  // The first stages, for which nobody has to be waited for.
  __device__ __forceinline__ void produce() const {
#pragma unroll 1
    for (uint32_t i = 0; i < p_.stages; ++i) {
      barrier_init(shared_address(&shared_.full[i]), 1);
      barrier_init(shared_address(&shared_.empty[i]), kQmvOneConsumers);
    }
    barrier_init_visible();
    wait_for_previous_launch();
    let_next_launch_begin();
    const uint64_t policy = evict_first_policy();
    const uint32_t row = first_tile() * p_.box_rows, first = min(p_.stages, p_.k_steps);
#pragma unroll 1
    for (uint32_t i = 0; i < first; ++i) bring(ring() + i * p_.stage_bytes, i, row, i, policy);
  }
  // What the stages will hold first, on its way into the L2 cache, where it can do no harm however
  // old it is: the previous launch may have yet to write it. Whole lines of the row alone: what
  // lies behind it may be nobody's.
  __device__ __forceinline__ void prefetch(uint32_t thread) const {
    constexpr uint32_t kLine = 128, kThreads = kQmvOneThreads - kReaders;
    const int64_t stride = p_.product.w.n_stride;
    const uint32_t row = first_tile() * p_.box_rows, n = static_cast<uint32_t>(p_.product.n);
    const uint32_t rows = min(p_.box_rows, n - row);
    const auto row_lines = static_cast<uint32_t>(p_.product.k * T::kBits / (8 * kLine));
    const uint32_t lines = min(kQmvOneMostPrefetch / p_.box_rows, row_lines);
    const uint8_t* from = b_.w + row * stride;
    for (uint32_t i = thread; i < rows * lines; i += kThreads) {
      const uint32_t r = i / lines;
      prefetch_line(from + r * stride + (i - r * lines) * kLine);
    }
  }
  __device__ __forceinline__ void produce_rest() const {
    const uint64_t policy = evict_first_policy();
    uint32_t step = min(p_.stages, p_.k_steps), row = first_tile() * p_.box_rows;
    const uint32_t count = tiles() * p_.k_steps;
    uint32_t slot = step == p_.stages ? 0 : step, parity = 0;
    bool reused = step == p_.stages;
#pragma unroll 1
    for (uint32_t i = step; i < count; ++i) {
      if (step == p_.k_steps) {
        step = 0;
        row += p_.box_rows;
      }
      if (reused) barrier_wait(shared_address(&shared_.empty[slot]), parity);
      bring(ring() + slot * p_.stage_bytes, slot, row, step, policy);
      ++step;
      if (++slot == p_.stages) {
        slot = 0;
        if (reused) parity ^= 1;
        reused = true;
      }
    }
  }

  // ---- the others

  __device__ __forceinline__ void fill_x() const {
    const simt::ProductParams& q = p_.product;
    for (uint32_t at = threadIdx.x * 16; at < kQmvOneZeroBytes; at += kQmvOneConsumers * 512) {
      store_shared_4(zeros() + at, uint4{0, 0, 0, 0});
    }
    const XRow row = {b_.x,    q.x.col_stride, q.x.type, p_.x_runs, static_cast<uint32_t>(q.k),
                      p_.units};
    if (p_.x_runs != 0 && q.x.type == simt::kBf16) {
      fill_bytes<T::kBits, T::kXGroup, simt::kBf16>(row, x_columns(), warp(), lane(),
                                                    kQmvOneConsumers);
    } else if (p_.x_runs != 0 && q.x.type == simt::kF32) {
      fill_bytes<T::kBits, T::kXGroup, simt::kF32>(row, x_columns(), warp(), lane(),
                                                   kQmvOneConsumers);
    } else {
      fill_bytes<T::kBits, T::kXGroup>(row, x_columns(), warp(), lane(), kQmvOneConsumers);
    }
  }

  template <int kScale>
  __device__ __forceinline__ void consume() const {
    constexpr uint32_t kSumRows = kQmvOneConsumers * T::kRows;
    const uint32_t t = lane() % 4, units = part() * T::kBatches * 4;
    const uint32_t row = row_group() * T::kRows;  // in a tile
    const bool has_rows = row < p_.box_rows;
    const auto from = QmvOneLane<T>::template of < kScale == simt::kF32
                          ? 4
                          : 2 > (p_, row_group(), part(), lane());
    const uint32_t end = ring() + p_.stages * p_.stage_bytes;
    uint32_t stage = ring(), full = shared_address(shared_.full), parity = 0;
    auto* sums = reinterpret_cast<float*>(dynamic_shared() +
                                          (base() + p_.sums_at - shared_address(dynamic_shared())));
    const uint32_t count = tiles();
    uint32_t first_row = first_tile() * p_.box_rows;
#pragma unroll 1
    for (uint32_t tile = 0; tile < count; ++tile, first_row += p_.box_rows) {
      float y[T::kRows / 8] = {};
      auto x = T::X::of(x_columns(), zeros(), lane(), units);
#pragma unroll 1
      for (uint32_t step = 0; step < p_.k_steps; ++step) {
        barrier_wait(full, parity);
        uint32_t used = 0;
        if (has_rows) {
          add_item<T, kScale>(from, stage, x, lane(), y);
#pragma unroll
          for (uint32_t r = 0; r < T::kRows / 8; ++r) used ^= __float_as_uint(y[r]);
        }
        x.advance(lane(), T::kStepUnits);
        const uint32_t none = nothing_of(used);
        __syncwarp();
        if (lane() == 0) barrier_arrive(full + sizeof shared_.full + none);
        full += 8;
        stage += p_.stage_bytes;
        if (stage == end) {
          stage = ring();
          full = shared_address(shared_.full);
          parity ^= 1;
        }
      }
      // Two places take turns: whoever writes to one has seen, where the other was read, that it
      // has been read.
      float* place = sums + (tile % 2) * kSumRows + row_group() * kQmvOneParts * T::kRows;
#pragma unroll
      for (uint32_t r = 0; r < T::kRows / 8; ++r) {
        float sum = y[r];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (t == 0) place[part() * T::kRows + 8 * r + row_of_lane<T::kBits>(lane() / 4)] = sum;
      }
      named_barrier(kSums + row_group(), 32 * kQmvOneParts);
      if (part() == 0) store(place, first_row, row + lane());
    }
  }

  // A row's parts in their order.
  __device__ __forceinline__ void store(const float* sums, uint32_t first_row, uint32_t row) const {
    const simt::ProductParams& q = p_.product;
    const int64_t n = int64_t{first_row} + row;
    if (lane() >= T::kRows || row >= p_.box_rows || n >= q.n) return;
    float total = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < kQmvOneParts; ++i) total += sums[i * T::kRows + lane()];
    if (!formats::is_finite(total)) {
      const simt::ScaleBuffers scales = {b_.w_scales, b_.w_biases, 0, 0, 1.0f};
      total = decoded_output<typename T::Format>(q, b_.w + n * q.w.n_stride, scales, n, b_.x, 0);
    }
    simt::store_sum(q.out, b_, {0, 0, 0, q.out.plain != 0}, n, total);
  }

  const QmvOneParams& p_;
  const simt::ProductBuffers& b_;
  const QmvOneMaps& maps_;
  QmvOneShared& shared_;
};

template <class T>
__device__ __forceinline__ void qmv_one(const QmvOneParams& p, const simt::ProductBuffers& b,
                                        const QmvOneMaps& maps) {
  __shared__ QmvOneShared shared;
  QmvOneBlock<T>(p, b, maps, shared).run();
}

}  // namespace moeblas::cuda::device

#if defined(__CUDACC__)
template <int bits, int group, int rows, int batches>
__global__ void __launch_bounds__(moeblas::cuda::kQmvOneThreads, 1)
    qmv_one_sm90(MB_PRODUCT_POINTERS, const __grid_constant__ moeblas::cuda::QmvOneParams p,
                 const __grid_constant__ moeblas::cuda::device::QmvOneMaps maps) {
#if __CUDA_ARCH__ >= 900
  const moeblas::simt::ProductBuffers b = MB_PRODUCT_BUFFERS;
  moeblas::cuda::device::qmv_one<moeblas::cuda::device::QmvOne<bits, group, rows, batches>>(p, b,
                                                                                            maps);
#endif
}
#endif
