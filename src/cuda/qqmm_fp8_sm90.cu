// qqmm_fp8_sm90: products of two mxfp4 operands at precision fast, as products of e4m3 on Hopper's
// tensor cores. Used by qqmm with one matrix of w and many rows. out^T = W x^T, as in qmm_sm90: w
// is decoded from the checkpoint's own layout into the registers that wgmma takes, with the scales
// folded into the codes (device/fold_e4m3.cuh); rows of x come folded.
//
//   rows of w            rows of x      One persistent cluster of two blocks makes tiles of 256
//   +---------------+                   rows of w times kTokens rows of x. Each block brings its
//   | block 0       |    64 for each    codes and tables, and half of the rows of x to both. In
//   |               |    of two warp-   a block:
//   +---------------+    groups           warp 0      copies, all of a block of 128 k in one slot
//   | block 1       |                     warps 4 ..  fetch, decode, multiply, add up, store
//   +---------------+
//
// The tensor cores keep some 14 bits of a sum: every 128 k a warpgroup begins anew and adds what
// it has to sums in float32. Meanwhile the other one multiplies: they take turns. Rows that do not
// fold are left to qmm_sm90, all if w does not.
#include "cuda/device/bulk_store.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/fold_e4m3.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma_e4m3.cuh"
#include "cuda/qqmm_fp8_sm90_params.h"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {
namespace {

using Tile = FoldTile;

// Where a cluster's tile begins.
struct FoldPlace {
  uint32_t w_row, row;
};

// The tiles of a cluster. kPanel neighbouring stripes of w's rows at a time meet all rows of x, so
// that both stay in the L2 cache.
class FoldTiles {
 public:
  static constexpr uint32_t kPanel = 8;

  __device__ explicit FoldTiles(const FoldProductParams& p) : p_(p), tile_(blockIdx.x / 2) {}

  __device__ bool next(FoldPlace& place) {
    if (tile_ >= p_.stripes * p_.token_tiles) return false;
    const uint32_t of_panel = kPanel * p_.token_tiles, panel = tile_ / of_panel;
    const uint32_t within = tile_ - panel * of_panel;
    const uint32_t width = min(kPanel, p_.stripes - panel * kPanel);
    const uint32_t token_tile = within / width;
    place.w_row = (panel * kPanel + within - token_tile * width) * Tile::kStripe;
    place.row = token_tile * Tile::kTokens;
    tile_ += gridDim.x / 2;
    return true;
  }

 private:
  const FoldProductParams& p_;
  uint32_t tile_;
};

class FoldBlock {
 public:
  static constexpr uint32_t kSlots = Tile::kSlots;

  __device__ FoldBlock(const FoldProductParams& p, uint32_t base)
      : p_(p), base_(base), rank_(device::cluster_rank()) {}

  __device__ void begin() const {
    if (threadIdx.x == 0) {
      constexpr uint32_t kArrivals = 2 * 8;  // warps that multiply, of both blocks
      for (uint32_t i = 0; i < kSlots; ++i) {
        device::barrier_init(full(i), 1);
        device::barrier_init(empty(i), kArrivals);
      }
      device::barrier_init_visible();
    }
    if (threadIdx.x < device::kFolds) {
      const device::FoldTable table =
          device::fold_table(static_cast<int>(threadIdx.x) + device::kFoldLeast);
      device::store_shared_2(base_ + Tile::kTables + threadIdx.x * 8, {table.low, table.high});
    }
  }

  // One thread.
  __device__ void send() const {
    constexpr uint32_t kHalf = Tile::kTokens / 2;
    const uint64_t policy = device::evict_normal_policy();
    FoldTiles tiles(p_);
    uint32_t step = 0;
    for (FoldPlace place; tiles.next(place);) {
      const uint32_t w_row = place.w_row + rank_ * Tile::kRows;
      const auto row = static_cast<int32_t>(place.row + rank_ * kHalf);
      for (uint32_t b = 0; b < p_.blocks; ++b, ++step) {
        const uint32_t slot = step % kSlots;
        device::barrier_wait(empty(slot), (step / kSlots % 2) ^ 1);
        device::barrier_expect(full(slot), Tile::kXBytes + Tile::kCodeBytes + Tile::kIndexBytes);
        device::copy_box_to_both(base_ + slot * Tile::kXBytes + rank_ * (kHalf * kFoldK), &p_.x,
                                 static_cast<int32_t>(b * (kFoldK / 2)), row, full(slot));
        device::copy_box(base_ + Tile::kCodes + slot * Tile::kCodeBytes, &p_.codes,
                         static_cast<int32_t>(b * (kFoldK / 8)), static_cast<int32_t>(w_row),
                         full(slot), policy);
        device::copy_run(base_ + Tile::kIndices + slot * Tile::kIndexBytes,
                         p_.indices + (uint64_t{b} * p_.padded_n + w_row) * (kFoldK / 32),
                         Tile::kIndexBytes, full(slot), policy);
      }
    }
  }

 protected:
  __device__ uint32_t full(uint32_t slot) const { return base_ + Tile::kBarriers + slot * 8; }
  __device__ uint32_t empty(uint32_t slot) const { return full(slot) + kSlots * 8; }

  const FoldProductParams& p_;
  uint32_t base_, rank_;
};

class FoldConsumer : public FoldBlock {
 public:
  __device__ FoldConsumer(const FoldProductParams& p, uint32_t base)
      : FoldBlock(p, base),
        thread_(threadIdx.x % 128),
        lane_(threadIdx.x % 32),
        group_(device::uniform(threadIdx.x / 128 - 1)) {
    const uint32_t row = group_ * 64 + thread_ / 32 * 16 + lane_ / 4, t = lane_ % 4;
    codes_ = base + Tile::kCodes + row * (kFoldK / 2) + t * 16;
    indices_ = base + Tile::kIndices + row * (kFoldK / 32) + t;
    columns_ = device::uniform(device::wgmma_columns_at(base));
    empty_ = device::cluster_address(empty(0), lane_ % 2);
    const uint32_t token = lane_ / 16 * 8 + lane_ % 8, octet = thread_ / 32 * 2 + lane_ / 8 % 2;
    out_ = base + Tile::kOut + group_ * (2 * Tile::kOutBytes);
    factors_ = base + Tile::kFactors + group_ * (kTokens * 4);
    stored_ = token * 128 + ((octet ^ (lane_ % 8)) << 4);
    policy_ = device::evict_first_policy();
  }

  __device__ void consume() {
    FoldTiles tiles(p_);
    if (group_ == 1) device::named_barrier_arrive(kTurn, 256);
    for (FoldPlace place; tiles.next(place);) {
      float sums[kSums];
      const Factors factors(*this, place);
      multiply(sums);
      store(sums, place, factors);
    }
    if (group_ == 0) device::named_barrier(kTurn, 256);  // the other's last
    if (thread_ == 0) device::bulk_store_wait_read<0>();
  }

 private:
  static constexpr uint32_t kTokens = Tile::kTokens, kSums = kTokens / 2, kSlots = Tile::kSlots;
  // Barriers of a warpgroup, and of whose turn it is to multiply: products that take w from
  // registers hold up those who issue them, so that what is not a product runs beside the other's.
  static constexpr uint32_t kOwn = 1, kTurn = 3;
  using Fragments = uint32_t[4][4];  // A of the four products of a block

  // The powers of two of a tile, asked for before its products: of this thread's rows of w, and of
  // rows of x, which change hands in shared memory.
  struct Factors {
    float w[2], x[2];

    __device__ Factors(const FoldConsumer& c, const FoldPlace& place) {
      const uint32_t n = c.first_n(place) + c.thread_ / 32 * 16 + c.lane_ / 4;  // below padded_n
      w[0] = __ldg(c.p_.w_factors + n);
      w[1] = __ldg(c.p_.w_factors + n + 8);
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t at = c.thread_ + i * 128, row = place.row + at;
        x[i] = at < kTokens && row < c.p_.rows ? __ldg(c.p_.x_factors + row) : 0.0f;
      }
    }
    __device__ void put(const FoldConsumer& c) const {
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        if (c.thread_ + i * 128 >= kTokens) break;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(c.factors_ + (c.thread_ + i * 128) * 4),
                     "f"(x[i])
                     : "memory");
      }
    }
  };

  __device__ uint32_t first_n(const FoldPlace& place) const {
    return place.w_row + rank_ * Tile::kRows + group_ * 64;
  }

  // The step's codes of rows g and g + 8, whose slot is full.
  __device__ void decode(uint32_t slot, Fragments& a) const {
    const uint32_t codes = codes_ + slot * Tile::kCodeBytes;
    const uint32_t indices = indices_ + slot * Tile::kIndexBytes;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint4 c = device::load_shared_4(codes + r * (8 * kFoldK / 2));
      const uint32_t index = device::load_shared_u8(indices + r * (8 * kFoldK / 32));
      const uint2 v = device::load_shared_2(base_ + Tile::kTables + index * 8);
      const device::FoldTable table{v.x, v.y};
      const uint32_t words[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const device::FoldedOctet octet = device::fold_octet(words[j], table);
        a[j][r] = octet.low;
        a[j][2 + r] = octet.high;
      }
    }
  }

  __device__ void wait_full(uint32_t step) const {
    device::barrier_wait(full(step % kSlots), step / kSlots % 2);
  }

  // One block of K, while the next one's codes are decoded.
  __device__ void multiply_block(float (&sums)[kSums], Fragments& now, Fragments& next, bool more) {
    const uint32_t slot = step_ % kSlots;
    float part[kSums];
    device::named_barrier(kTurn + group_, 256);
    device::wgmma_begin();
    const uint32_t columns = columns_ + slot * device::wgmma_columns_step(Tile::kXBytes);
    device::WgmmaE4m3<kTokens>::template multiply<false>(part, now[0],
                                                         device::wgmma_columns(columns));
#pragma unroll
    for (uint32_t j = 1; j < 4; ++j) {
      device::WgmmaE4m3<kTokens>::template multiply<true>(
          part, now[j], device::wgmma_columns(columns + j * device::wgmma_columns_step(32)));
    }
    device::wgmma_commit();
    device::named_barrier_arrive(kTurn + (group_ ^ 1), 256);
    if (more) {
      wait_full(step_ + 1);
      decode((step_ + 1) % kSlots, next);
    }
    device::wgmma_wait<0>();
    if (lane_ < 2) device::cluster_barrier_arrive(empty_ + slot * 8);
    ++step_;
#pragma unroll
    for (uint32_t i = 0; i < kSums; ++i) sums[i] += part[i];
  }

  __device__ void multiply(float (&sums)[kSums]) {
    Fragments a[2];
    wait_full(step_);
    decode(step_ % kSlots, a[0]);
#pragma unroll
    for (uint32_t i = 0; i < kSums; ++i) sums[i] = 0.0f;
    for (uint32_t b = 0; b < p_.blocks; b += 2) {
      multiply_block(sums, a[0], a[1], b + 1 < p_.blocks);
      if (b + 1 < p_.blocks) multiply_block(sums, a[1], a[0], b + 2 < p_.blocks);
    }
  }

  // Powers of two applied, rounded, and turned by way of shared memory, kAtOnce rows of out at a
  // time, each of which leaves beside what follows.
  __device__ void store(const float (&sums)[kSums], const FoldPlace& place,
                        const Factors& factors) {
    const uint32_t n = first_n(place);
    if (n >= p_.n) return;
    constexpr uint32_t kAtOnce = Tile::kAtOnce;
    factors.put(*this);
#pragma unroll
    for (uint32_t i = 0; i < kTokens / kAtOnce; ++i) {
      const uint32_t row = place.row + i * kAtOnce;
      if (row >= p_.rows) break;
      const uint32_t buffer = out_ + stores_++ % 2 * Tile::kOutBytes;
      if (thread_ == 0) device::bulk_store_wait_read<1>();
      device::named_barrier(kOwn + group_, 128);
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce / 8; j += 2) {
        uint32_t pairs[4];
#pragma unroll
        for (uint32_t e = 0; e < 2; ++e) {
          const uint32_t token = i * kAtOnce + 8 * (j + e) + lane_ % 4 * 2;
          const uint2 x = device::load_shared_2(factors_ + token * 4);
          const float* s = &sums[4 * (i * (kAtOnce / 8) + j + e)];
#pragma unroll
          for (uint32_t r = 0; r < 2; ++r) {
            const float w = factors.w[r];
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
                : "=r"(pairs[2 * e + r])
                : "f"(s[2 * r + 1] * (w * __uint_as_float(x.y))),
                  "f"(s[2 * r] * (w * __uint_as_float(x.x))));
          }
        }
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         buffer + stored_ + j * 1024),
                     "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                     : "memory");
      }
      device::shared_stores_visible();
      device::named_barrier(kOwn + group_, 128);
      if (thread_ == 0) {
        device::store_box(&p_.out, static_cast<int32_t>(n), static_cast<int32_t>(row), 0, buffer,
                          policy_);
        device::bulk_store_commit();
      }
    }
  }

  uint32_t thread_, lane_, group_;
  uint32_t codes_, indices_;  // this lane's, in slot 0
  uint32_t columns_;          // descriptor of the rows of x
  uint32_t empty_;            // of slot 0, of this block or the other by lane
  uint32_t out_, stored_;
  uint32_t factors_;  // of the tile's rows of x
  uint64_t policy_;
  uint32_t step_ = 0, stores_ = 0;
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(Tile::kThreads, 1)
    qqmm_fp8_sm90(const __grid_constant__ FoldProductParams p) {
#if defined(__CUDA_ARCH__)
  if (p.state->skip != 0) return;
  extern __shared__ __align__(1024) uint8_t folded_memory[];
  const uint32_t base = (device::shared_address(folded_memory) + 1023) & ~1023u;
  FoldBlock(p, base).begin();
  __syncthreads();
  device::cluster_barrier();
  if (threadIdx.x < 128) {
    device::leave_registers<40>();
    if (threadIdx.x == 0) FoldBlock(p, base).send();
  } else {
    device::take_registers<232>();
    FoldConsumer(p, base).consume();
  }
  // The other block may still send rows here, or arrive at a barrier of this one.
  __syncwarp();
  device::cluster_barrier();
#endif
}
#else
// Other architectures of the same build get a kernel that is never launched.
__global__ void qqmm_fp8_sm90(const __grid_constant__ FoldProductParams) {}
#endif

const simt::CudaKernel qqmm_fp8_sm90_kernel{"qqmm_fp8_sm90",
                                            reinterpret_cast<const void*>(&qqmm_fp8_sm90)};

}  // namespace
}  // namespace moeblas::cuda
