// What happens to both operands before qqmm_fp8_sm90 multiplies, and to what it cannot.
//
//   fold_weights    four lanes a row of w: scale bytes to the tables that its groups take
//   fold_rows       a warp a row of x: quantized if it is floats, and folded, 8 codes a lane
//   stage_unfolded  a warp a row of x that does not fold: what qmm_sm90 takes
//
// The time is that of reading x and writing as many bytes as it has values. A row's largest scale
// must be known before it is folded: lanes keep its codes meanwhile, so that x is read once. It is
// made codes beside fold_weights.
#include "cuda/device/encode_pairs.cuh"
#include "cuda/device/fold_e4m3.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90/order.h"
#include "cuda/qqmm_fp8_sm90/params.h"
#include "simt/portable_kernel.h"

namespace moeblas::cuda {
namespace {

constexpr uint32_t kAll = 0xffffffffu;
constexpr uint32_t kWarps = kFoldThreads / 32;

// Nothing on other architectures of the same build, where none of this is launched.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  device::wait_for_previous_launch();
#endif
}
__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  device::let_next_launch_begin();
#endif
}

// Keys order groups as their scale bytes do; 0: a group of zeros, which takes any.
__device__ __forceinline__ bool folds(uint32_t least, uint32_t most) {
  return most == 0 || device::row_folds(least - 1, most - 1);
}
__device__ __forceinline__ uint32_t top_of(uint32_t most) {
  return most == 0 ? device::kFoldTopOfNothing : most - 1;
}
// Of a group by its scale byte; NaN times zero is NaN.
__device__ __forceinline__ uint32_t key_of(uint32_t byte, bool zeros) {
  return zeros && byte != 255u ? 0u : byte + 1u;
}

// Least of those that are not 0, and most, of so many neighbouring lanes.
struct Extremes {
  uint32_t least = kAll, most = 0;

  __device__ void add(uint32_t key) {
    most = max(most, key);
    least = min(least, key - 1u);  // of 0: stays above all
  }
  template <int kLanes>
  __device__ void join() {
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      most = max(most, __shfl_xor_sync(kAll, most, distance));
      least = min(least, __shfl_xor_sync(kAll, least, distance));
    }
  }
  __device__ bool fold() const { return folds(least + 1, most); }
};

__global__ void __launch_bounds__(kFoldThreads)
    fold_weights(const __grid_constant__ FoldWeightsParams p) {
  const uint32_t t = threadIdx.x % 4;
  wait_for_previous();
  let_next_begin();  // fold_rows, which asks for what is made here when it must
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.state = {1, 0, 0, 0};
  bool misfit = false;
  constexpr uint32_t kRowsAtOnce = kFoldThreads / 4;
  // Whole warps stay together: the last row is padded to more than a warp's.
  for (uint32_t row = blockIdx.x * kRowsAtOnce + threadIdx.x / 4; row < p.padded_n;
       row += gridDim.x * kRowsAtOnce) {
    const bool exists = row < p.n;
    const uint8_t* scales = p.scales + (exists ? row * p.scale_stride : 0);
    Extremes found;
    if (exists) {
#pragma unroll 4
      for (uint32_t g = t; g < p.groups; g += 4) found.add(key_of(__ldg(scales + g), false));
    }
    found.join<4>();
    if (__any_sync(kAll, exists && !found.fold())) {
      // Without the groups of zeros it may.
      Extremes again;
      if (exists) {
        for (uint32_t g = t; g < p.groups; g += 4) {
          const uint4 c = __ldg(reinterpret_cast<const uint4*>(p.codes + row * p.code_stride) + g);
          const uint32_t any = (c.x | c.y | c.z | c.w) & 0x77777777u;
          again.add(key_of(__ldg(scales + g), any == 0));
        }
      }
      again.join<4>();
      if (!found.fold()) found = again;
    }
    misfit |= exists && !found.fold();
    const uint32_t top = top_of(found.most);
    if (t == 0) {
      p.factors[row] =
          device::fold_factor(found.fold() ? top : device::kFoldTopOfNothing) * 0x10001u;
    }
#pragma unroll 4
    for (uint32_t b = 0; b < p.blocks; ++b) {
      const uint32_t g = 4 * b + t;
      const uint32_t byte = exists && g < p.groups ? __ldg(scales + g) : 0;
      p.indices[(uint64_t{b} * p.padded_n + row) * 4 + t] =
          static_cast<uint8_t>(device::fold_index(byte, top) * sizeof(device::FoldTable));
    }
  }
  const bool any = __syncthreads_or(misfit) != 0;
  if (threadIdx.x == 0) p.misfits[blockIdx.x] = any;
}

// Eight codes of a row, in an order of the rows' own, and the key of their group, whose other codes
// the neighbours of the same four lanes have; zeros beyond the row.
struct Eight {
  uint32_t codes, key;
};

__device__ __forceinline__ uint32_t joined_most(uint32_t v) {
  v = max(v, __shfl_xor_sync(kAll, v, 1));
  return max(v, __shfl_xor_sync(kAll, v, 2));
}

// Rows of bfloat16.
struct FloatRows {
  // The largest magnitude of the group, as its bits, among which NaN is the largest.
  __device__ static uint32_t largest(uint4 v) {
    const uint32_t most = __vimax3_u16x2(__vmaxu2(v.x & 0x7fff7fffu, v.y & 0x7fff7fffu),
                                         v.z & 0x7fff7fffu, v.w & 0x7fff7fffu);
    return joined_most(max(most & 0xffffu, most >> 16));
  }
  using Raw = uint4;
  __device__ static Raw load(const FoldSource& x, uint32_t row, uint32_t chunk) {
    const auto* from = reinterpret_cast<const uint4*>(x.values + row * x.stride);
    return chunk * 8 < x.k ? __ldg(from + chunk) : uint4{0, 0, 0, 0};
  }
  __device__ static Eight eight(Raw v) {
    const uint32_t most = largest(v);
    const device::PairFit fit(most);
    return {fit.eight(v.x, v.y, v.z, v.w), most == 0 ? 0 : fit.scale + 1};
  }
  __device__ static uint32_t code(uint32_t codes, uint32_t i) {
    return codes >> (i % 4 * 8 + i / 4 * 4) & 15u;
  }
  __device__ static device::FoldedOctet fold(uint32_t codes, device::FoldTable table) {
    return device::fold_bytes(codes, table);
  }
};

// Rows of codes.
struct PackedRows {
  struct Raw {
    uint32_t codes, byte;
  };
  __device__ static Raw load(const FoldSource& x, uint32_t row, uint32_t chunk) {
    if (chunk * 8 >= x.k) return {0, 0};
    return {__ldg(reinterpret_cast<const uint32_t*>(x.values + row * x.stride) + chunk),
            __ldg(x.scales + row * x.scale_stride + chunk / 4)};
  }
  __device__ static Eight eight(Raw v) {
    return {v.codes, key_of(v.byte, joined_most(v.codes & 0x77777777u) == 0)};
  }
  __device__ static uint32_t code(uint32_t codes, uint32_t i) { return codes >> 4 * i & 15u; }
  __device__ static device::FoldedOctet fold(uint32_t codes, device::FoldTable table) {
    return device::fold_octet(codes, table);
  }
};

// A row's codes, of which a lane keeps the first kKept words, 4096 of a row's: a longer row's
// others are made twice.
template <class Rows>
class Codes {
 public:
  static constexpr uint32_t kKept = 16, kAtOnce = 4;

  __device__ Codes(const FoldSource& x, uint32_t row, uint32_t chunks)
      : x_(x), row_(row), chunks_(chunks) {}

  // f(eight) of all chunks.
  template <class F>
  __device__ void make(F f) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < kKept; i += kAtOnce) {
      if (i * 32 >= chunks_) break;
      typename Rows::Raw raw[kAtOnce];
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) raw[j] = Rows::load(x_, row_, (i + j) * 32 + lane);
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) {
        if ((i + j) * 32 >= chunks_) break;
        kept_[i + j] = Rows::eight(raw[j]);
        f(kept_[i + j]);
      }
    }
#pragma unroll 1
    for (uint32_t first = kKept * 32; first < chunks_; first += 32) {
      f(Rows::eight(Rows::load(x_, row_, first + lane)));
    }
  }
  // f(the first lane's chunk, eight) of them again.
  template <class F>
  __device__ void take(F f) const {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < kKept; ++i) {
      if (i * 32 < chunks_) f(i * 32, kept_[i]);
    }
#pragma unroll 1
    for (uint32_t first = kKept * 32; first < chunks_; first += 32) {
      f(first, Rows::eight(Rows::load(x_, row_, first + lane)));
    }
  }

 private:
  const FoldSource& x_;
  uint32_t row_, chunks_;
  Eight kept_[kKept];
};

template <class Rows>
__global__ void __launch_bounds__(kFoldThreads)
    fold_rows(const __grid_constant__ FoldRowsParams p) {
  __shared__ device::FoldTable tables[device::kFolds + 1];  // the last: of groups of zeros
  if (threadIdx.x < sizeof tables) {
    const int power = static_cast<int>(threadIdx.x / 8) + device::kFoldLeast;
    reinterpret_cast<uint8_t*>(tables)[threadIdx.x] = static_cast<uint8_t>(
        power > device::kFoldMost ? 0x80u : device::fold_code(power, threadIdx.x % 8));
  }
  const uint32_t row = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t chunks = p.blocks * (kFoldK / 8);
  Codes<Rows> codes(p.x, min(row, p.x.rows - 1), chunks);
  Extremes keys;
  codes.make([&](const Eight& e) { keys.add(e.key); });
  keys.join<32>();
  wait_for_previous();  // fold_weights, which has waited for what makes x
  bool misfit = false;
  for (uint32_t i = threadIdx.x; i < p.misfit_count; i += kFoldThreads) misfit |= p.misfits[i] != 0;
  const bool none = __syncthreads_or(misfit) != 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) p.state->skip = none;
  if (row >= p.x.rows) return;
  const bool fold = !none && keys.fold();
  const uint32_t top = top_of(keys.most);
  if (lane == 0) {
    const uint32_t factor = device::fold_factor(fold ? top : device::kFoldTopOfNothing);
    p.factors[row] = static_cast<uint16_t>(factor);
    // Factors are read by twos.
    if (row + 1 == p.x.rows) p.factors[row + 1] = static_cast<uint16_t>(factor);
    if (!fold) p.list[atomicAdd(&p.state->count, 1u)] = row;
  }
  if (none) return;
  // Bits of a lane's number: t (2), j (2) of its codes; after half of them are exchanged with the
  // lane at distance 4, its upper t, h, j of two neighbouring words.
  const uint32_t h = lane / 4 % 2;
  uint8_t* to = p.folded + uint64_t{row} * (p.blocks * kFoldK) + lane / 16 * kFoldK +
                lane % 4 * 32 + h * 16 + lane / 8 % 2 * 8;
  // Of a row that does not fold no more is asked than that it be numbers.
  uint32_t tables_at = device::shared_address(tables);
  asm volatile("" : "+r"(tables_at));  // or the compiler works it out again each time
  codes.take([&](uint32_t first, const Eight& e) {
    const uint32_t index = min(e.key - 1 + device::kFolds - 1 - top, device::kFolds);
    const uint2 table = device::load_shared_2(tables_at + index * 8);
    const device::FoldedOctet octet = Rows::fold(e.codes, {table.x, table.y});
    const uint32_t kept = h == 0 ? octet.low : octet.high;
    const uint32_t other = __shfl_xor_sync(kAll, h == 0 ? octet.high : octet.low, 4);
    *reinterpret_cast<uint2*>(to + first * 8) = h == 0 ? uint2{kept, other} : uint2{other, kept};
  });
}

// Rows are staged as stage_rows does it, from codes.
template <class Rows>
__global__ void __launch_bounds__(kFoldThreads)
    stage_unfolded(const __grid_constant__ StageUnfoldedParams p) {
  __shared__ uint4 shared[kWarps][32];
  wait_for_previous();
  const uint32_t lane = threadIdx.x % 32, count = p.state->count;
  uint4* mine = shared[threadIdx.x / 32];
  const auto* values = reinterpret_cast<const uint16_t*>(mine);
  const uint32_t block = lane / 16 * kBlockK, position = lane % 16 * 8;
  for (uint32_t i = blockIdx.x * kWarps + threadIdx.x / 32; i < count; i += gridDim.x * kWarps) {
    const uint32_t row = p.list[i];
    if (lane == 0) p.out_rows[i] = row * p.out_stride;
    auto* to = reinterpret_cast<uint4*>(p.staged + uint64_t{i} * p.staged_k * 2);
    const uint32_t chunks = p.staged_k / 8;
    for (uint32_t first = 0; first < chunks; first += 32) {
      const Eight e = Rows::eight(Rows::load(p.x, row, first + lane));
      const float scale = formats::e8m0_decode(e.key == 0 ? 0 : e.key - 1);
      uint32_t words[4];
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const auto value = [&](uint32_t which) {
          return formats::mul(formats::e2m1_decode(Rows::code(e.codes, which)), scale);
        };
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
            : "=r"(words[j])
            : "f"(value(2 * j + 1)), "f"(value(2 * j)));
      }
      mine[lane] = {words[0], words[1], words[2], words[3]};
      __syncwarp();
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        words[j] = values[block + NibbleOrder::natural_k(position + 2 * j)] |
                   uint32_t{values[block + NibbleOrder::natural_k(position + 2 * j + 1)]} << 16;
      }
      __syncwarp();
      if (first + lane < chunks) to[first + lane] = {words[0], words[1], words[2], words[3]};
    }
  }
}

MB_CUDA_ROW(fold_weights, fold_weights);
MB_CUDA_ROW(fold_rows_bf16, fold_rows<FloatRows>);
MB_CUDA_ROW(fold_rows_packed, fold_rows<PackedRows>);
MB_CUDA_ROW(stage_unfolded_bf16, stage_unfolded<FloatRows>);
MB_CUDA_ROW(stage_unfolded_packed, stage_unfolded<PackedRows>);

}  // namespace
}  // namespace moeblas::cuda
