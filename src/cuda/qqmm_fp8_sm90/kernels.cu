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
// it has to sums in float32, one half of its rows of x after the other, so that those sums fit
// beside what is multiplied. The time is that of a warpgroup's own instructions, 250 a block of 128
// k, of which a scheduler has two warps: the more rows of x, the less of it is decoding; what is
// decoded was fetched a block before. Rows that do not fold are left to qmm_sm90, all if w does
// not.
#include "cuda/device/barrier_look.cuh"
#include "cuda/device/bulk_store.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/copy_async.cuh"
#include "cuda/device/fold_e4m3.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/wgmma_e4m3.cuh"
#include "cuda/qqmm_fp8_sm90/params.h"
#include "simt/cuda_registry.h"

namespace moeblas::cuda {
namespace {

using Tile = FoldTile;

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Where a cluster's tile begins.
struct FoldPlace {
  uint32_t w_row, row;
};

// The tiles of a cluster. kPanel neighbouring stripes of w's rows at a time meet all rows of x, so
// that both stay in the L2 cache.
class FoldTiles {
 public:
  static constexpr uint32_t kPanel = 8;

  __device__ explicit FoldTiles(const FoldProductParams& p)
      : p_(p), tile_(blockIdx.x / 2), within_(tile_) {}

  __device__ bool next(FoldPlace& place) {
    if (tile_ >= p_.stripes * p_.token_tiles) return false;
    for (const uint32_t of_panel = kPanel * p_.token_tiles; within_ >= of_panel;) {
      within_ -= of_panel;
      first_ += kPanel;
    }
    const uint32_t width = p_.stripes - first_;
    const uint32_t token_tile = width >= kPanel ? within_ / kPanel : within_ / width;
    place.w_row = (first_ + within_ - token_tile * min(width, kPanel)) * Tile::kStripe;
    place.row = token_tile * Tile::kTokens;
    tile_ += gridDim.x / 2;
    within_ += gridDim.x / 2;
    return true;
  }

  __device__ uint32_t count() const {
    const uint32_t all = p_.stripes * p_.token_tiles, each = gridDim.x / 2;
    return tile_ < all ? (all - tile_ - 1) / each + 1 : 0;
  }

 private:
  const FoldProductParams& p_;
  uint32_t tile_, within_;  // of all, of the panel
  uint32_t first_ = 0;      // stripe of the panel
};

class FoldBlock {
 public:
  static constexpr uint32_t kSlots = Tile::kSlots;

  __device__ FoldBlock(const FoldProductParams& p, uint32_t base)
      : p_(p), base_(base), rank_(device::cluster_rank()) {}

  __device__ void begin() const {
    if (threadIdx.x == 0) {
      // Of the eight warps that multiply every lane, as every lane reads codes; of the other
      // block's warps, whose rows of x are in reach of copies from here, one lane each.
      constexpr uint32_t kArrivals = 8 * 32 + 8;
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
    empty_of_other_ = device::cluster_address(empty(0), rank_ ^ 1);
    out_ = base + Tile::kOut + group_ * Tile::kOutBytes;
    factors_ = base + Tile::kFactors + group_ * Tile::kFactorBytes;
    // A constant that the compiler is not to know, nor that it is the same in all lanes: it would
    // put it into a register at each use.
    positive_ = device::kFoldPositive + (threadIdx.x >> 16);
  }

  __device__ void consume() {
    FoldTiles tiles(p_);
    pairs_ = tiles.count() * (p_.blocks / 2);
    Fragments a[2];
    Codes c;
    const From first = from(0);
    wait_and_fetch<0>(first, c);
    fetch_tables(c);
    decode<0>(c, a[0]);
    decode<1>(c, a[0]);
    wait_and_fetch<1>(first, c);
    fetch_tables(c);
    for (FoldPlace place; tiles.next(place);) {
      float sums[kSums];
      ask_factors(place);
      multiply(sums, a, c);
      store(sums, place);
    }
    if (thread_ == 0) device::bulk_store_wait_read<0>();
  }

 private:
  static constexpr uint32_t kTokens = Tile::kTokens, kSums = kTokens / 2, kSlots = Tile::kSlots;
  static constexpr uint32_t kHalf = kTokens / 2, kPart = kHalf / 2;
  static constexpr uint32_t kOwn = 1;  // the barrier of the first warpgroup
  using Fragments = uint32_t[4][4];    // A of the four products of a block
  // Of a block, what lanes decode: the codes of rows g and g + 8, and the tables of their groups.
  struct Codes {
    uint32_t words[2][4], index[2];
    device::FoldTable tables[2];
  };

  __device__ uint32_t first_n(const FoldPlace& place) const {
    return place.w_row + rank_ * Tile::kRows + group_ * 64;
  }

  // The powers of two of a tile, on their way while its products are made.
  __device__ void ask_factors(const FoldPlace& place) const {
    if (thread_ < 64) {  // below padded_n
      device::copy_async<4>(factors_ + thread_ * 4, p_.w_factors + first_n(place) + thread_, true);
    }
    if (thread_ < kTokens / 2) {
      const uint32_t row = place.row + thread_ * 2;  // and the next
      const bool exists = row < p_.rows;
      device::copy_async<4>(factors_ + (64 + thread_) * 4, p_.x_factors + (exists ? row : 0),
                            exists);
    }
    device::copies_end_group();
  }

  // Where the codes of a pair of blocks lie, which takes the first two slots or the last two, and
  // the barrier that says so. Of the second block all is a constant further.
  struct From {
    uint32_t full, parity, codes, indices;
  };
  static_assert(kSlots == 4, "two pairs");
  __device__ From from(uint32_t pair) const {
    const uint32_t slot = pair % 2 * 2;
    return {full(slot), pair / 2 % 2, codes_ + slot * Tile::kCodeBytes,
            indices_ + slot * Tile::kIndexBytes};
  }
  template <uint32_t kBlock>
  __device__ void fetch(const From& f, Codes& c) const {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      c.index[r] =
          device::load_shared_u8(f.indices + kBlock * Tile::kIndexBytes + r * (8 * kFoldK / 32));
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint4 v =
          device::load_shared_4(f.codes + kBlock * Tile::kCodeBytes + r * (8 * kFoldK / 2));
      c.words[r][0] = v.x, c.words[r][1] = v.y, c.words[r][2] = v.z, c.words[r][3] = v.w;
    }
  }
  template <uint32_t kBlock>
  __device__ void wait_and_fetch(const From& f, Codes& c) const {
    device::barrier_wait(f.full + kBlock * 8, f.parity);
    fetch<kBlock>(f, c);
  }
  __device__ void fetch_tables(Codes& c) const {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint2 v = device::load_shared_2(base_ + Tile::kTables + c.index[r]);
      c.tables[r] = {v.x, v.y};
    }
  }
  // A of two products.
  template <uint32_t kAt>
  __device__ void decode(const Codes& c, Fragments& a) const {
#pragma unroll
    for (uint32_t j = 2 * kAt; j < 2 * kAt + 2; ++j) {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const device::FoldedOctet octet = device::fold_octet(c.words[r][j], c.tables[r], positive_);
        a[j][r] = octet.low;
        a[j][2 + r] = octet.high;
      }
    }
  }

  // Of one block of a pair and half of the rows of x, while a half of the next block is decoded.
  template <uint32_t kBlock, uint32_t kAt>
  __device__ void multiply_half(float (&sums)[kSums], const Fragments& now, Fragments& next,
                                Codes& c, const From& ahead) {
    constexpr auto product = [](uint32_t bytes) { return device::wgmma_columns_step(bytes); };
    const uint32_t slot = pair_ % 2 * 2 + kBlock;
    const uint32_t columns =
        columns_ + slot * product(Tile::kXBytes) + kAt * product(kHalf * kFoldK);
    float part[kPart];
    device::wgmma_begin();
    device::WgmmaE4m3<kHalf>::template multiply<false>(part, now[0],
                                                       device::wgmma_columns(columns));
#pragma unroll
    for (uint32_t j = 1; j < 4; ++j) {
      device::WgmmaE4m3<kHalf>::template multiply<true>(
          part, now[j], device::wgmma_columns(columns + j * product(32)));
    }
    device::wgmma_commit();
    // The answer takes about as long as the decoding.
    const bool more = pair_ + 1 < pairs_;
    bool here = true;
    if constexpr (kAt == 1) here = device::barrier_passed(ahead.full + kBlock * 8, ahead.parity);
    // (Without a condition the compiler would let no product overlap what is decoded for another.)
    if (pair_ + kBlock < pairs_) decode<kAt>(c, next);
    if constexpr (kAt == 1) {
      if (more) {
        if (!here) device::barrier_wait(ahead.full + kBlock * 8, ahead.parity);
        fetch<kBlock>(ahead, c);
      }
    }
    device::wgmma_wait<0>();
    if constexpr (kAt == 1) {
      device::barrier_arrive(empty(slot));
      if (lane_ == 0) device::cluster_barrier_arrive(empty_of_other_ + slot * 8);
    }
#pragma unroll
    for (uint32_t i = 0; i < kPart; ++i) sums[kAt * kPart + i] += part[i];
  }
  template <uint32_t kBlock>
  __device__ void multiply_block(float (&sums)[kSums], const Fragments& now, Fragments& next,
                                 Codes& c, const From& ahead) {
    multiply_half<kBlock, 0>(sums, now, next, c, ahead);
    multiply_half<kBlock, 1>(sums, now, next, c, ahead);
    fetch_tables(c);
  }

  __device__ void multiply(float (&sums)[kSums], Fragments (&a)[2], Codes& c) {
#pragma unroll
    for (uint32_t i = 0; i < kSums; ++i) sums[i] = 0.0f;
    for (uint32_t b = 0; b < p_.blocks; b += 2) {
      const From ahead = from(pair_ + 1);
      multiply_block<0>(sums, a[0], a[1], c, ahead);
      multiply_block<1>(sums, a[1], a[0], c, ahead);
      ++pair_;
    }
  }

  // Rounded, powers of two applied, which is exact of all but the smallest numbers, and turned by
  // way of shared memory, from where they leave beside what follows.
  __device__ void store(const float (&sums)[kSums], const FoldPlace& place) const {
    device::copies_wait<0>();
    const uint32_t n = first_n(place);
    if (n >= p_.n) return;
    const uint32_t of_w = factors_ + (thread_ / 32 * 16 + lane_ / 4) * 4;
    const uint32_t of_x = factors_ + (64 + lane_ % 4) * 4;
    const uint32_t token = lane_ / 16 * 8 + lane_ % 8, octet = thread_ / 32 * 2 + lane_ / 8 % 2;
    const uint32_t to = out_ + token * 128 + ((octet ^ lane_ % 8) << 4);
    if (thread_ == 0) device::bulk_store_wait_read<0>();
    device::named_barrier(kOwn + group_, 128);
    // All before the first is used: each would be waited for.
    const uint32_t w[2] = {device::load_shared_u32(of_w), device::load_shared_u32(of_w + 8 * 4)};
    uint32_t x[kTokens / 8];
#pragma unroll
    for (uint32_t j = 0; j < kTokens / 8; ++j) x[j] = device::load_shared_u32(of_x + 4 * j * 4);
#pragma unroll
    for (uint32_t j = 0; j < kTokens / 8; j += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (uint32_t e = 0; e < 2; ++e) {
        const float* s = &sums[4 * (j + e)];
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
          uint32_t pair;
          asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(s[2 * r + 1]), "f"(s[2 * r]));
          pairs[2 * e + r] =
              device::multiply_bfloats(pair, device::multiply_bfloats(w[r], x[j + e]));
        }
      }
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       to + j * 1024),
                   "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                   : "memory");
    }
    device::shared_stores_visible();
    device::named_barrier(kOwn + group_, 128);
    if (thread_ == 0) {
      device::store_box(&p_.out, static_cast<int32_t>(n), static_cast<int32_t>(place.row), 0, out_,
                        device::evict_first_policy());
      device::bulk_store_commit();
    }
  }

  uint32_t thread_, lane_, group_;
  uint32_t codes_, indices_;  // this lane's, in slot 0
  uint32_t columns_;          // descriptor of the rows of x
  uint32_t empty_of_other_;   // of slot 0
  uint32_t out_, factors_;    // of this warpgroup
  uint32_t positive_;
  uint32_t pair_ = 0, pairs_ = 0;
};

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(Tile::kThreads, 1)
    qqmm_fp8_sm90(const __grid_constant__ FoldProductParams p) {
#if defined(__CUDA_ARCH__)
  extern __shared__ __align__(1024) uint8_t folded_memory[];
  const uint32_t base = (device::shared_address(folded_memory) + 1023) & ~1023u;
  FoldBlock(p, base).begin();
  __syncthreads();
  device::cluster_barrier();
  device::wait_for_previous_launch();
  if (p.state->skip != 0) return;
  if (threadIdx.x < 128) {
    device::leave_registers<24>();
    if (threadIdx.x == 0) FoldBlock(p, base).send();
  } else {
    device::take_registers<240>();
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
