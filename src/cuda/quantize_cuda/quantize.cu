// quantize_cuda_<format>_<dtype>: rows of floats to packed codes, scales and biases.
// quantize_cuda_<format>_swizzled_<dtype>: the same with swizzled scales
// (quantize_cuda/tile_order.h). requantize_<format>_<dtype>: rows of floats to the values that
// their codes stand for, the first half of qqmm.
//
//   a warp's 1024 values     lane 0    lane 1    ...    read and written 16 bytes a lane, turned in
//   of one or several rows   32 values 32 values        shared memory (device/lane_blocks.cuh)
//
// A lane fits the scale of its one or two groups, or with the one to three lanes beside it that of
// a larger one, and packs its codes into whole words. The time is that of reading values and
// writing codes; for 16-bit values in 4-bit codes nearly as many issue slots are taken, which is
// what device/encode.cuh is for, and why lanes of 16-bit values take 64 of them (quantize_blocks).
#include "cuda/device/decode_block.cuh"
#include "cuda/device/encode_block.cuh"
#include "cuda/device/scale_tile.cuh"

namespace moeblas::cuda {
namespace {

using device::AffineGroups;
using device::BlockPlace;
using device::kWarps;
using device::LaneBlock;
using device::LaneGroups;
using device::TilePlace;

template <class T, Quantized kWhat>
constexpr uint32_t kBlocks = quantize_blocks(kWhat, sizeof(T));

// What is known of groups in an affine format. Of float32 there is one kernel for all.
template <class Format, class T, Quantized kWhat>
constexpr AffineGroups kGroups = !device::kAffine<Format> || sizeof(T) == 4 ? AffineGroups::any
                                 : kWhat == Quantized::sixteens             ? AffineGroups::of_16
                                                                            : AffineGroups::larger;

// Thread blocks that a multiprocessor holds, which bounds registers.
template <class Format, class T, Quantized kWhat>
constexpr int kResident = sizeof(T) == 4                                                        ? 3
                          : std::is_same_v<Format, formats::Mxfp4> && kWhat == Quantized::apart ? 5
                                                                                                : 4;
// A fifth is worth more than sixteen registers to all but e4m3, whose codes take few operations.
template <class Format, class T>
constexpr int kRequantizeResident = sizeof(T) == 4                           ? 3
                                    : std::is_same_v<Format, formats::Mxfp8> ? 4
                                                                             : 5;

template <class T>
__device__ uint8_t* values_at(const ConversionParams& p, const BlockPlace& at) {
  return p.values +
         (device::row_offset(p.packed.values, at.row) + at.column * int64_t{kLaneValues}) *
             int64_t{sizeof(T)};
}

// Codes of a lane's block in shared memory, whose values x are.
template <int kChunks, class Format, class T, class Groups>
__device__ __forceinline__ void encode_from(const uint4* shared, uint32_t b, const LaneBlock<T>& x,
                                            const Groups& groups,
                                            uint32_t (&words)[Format::kBits]) {
  device::encode<Format, T>(
      x, groups, [=](uint32_t i) { return LaneBlock<T>::template value_in<kChunks>(shared, b, i); },
      words);
}

// A lane's only block.
template <class Format, class T, class Groups>
__device__ __forceinline__ void quantize_block(const ConversionParams& p, const BlockPlace& at,
                                               uint4* shared, Groups& groups,
                                               uint32_t (&words)[Format::kBits]) {
  constexpr int kChunks = LaneBlock<T>::kChunks;
  groups.start(p, at);
  LaneBlock<T> x;
  x.load(values_at<T>(p, at), shared);
  groups.fit(x, p, device::NoSecond{});
  encode_from<kChunks, Format>(shared, 0, x, groups, words);
}

// A lane's two blocks, the last of a row possibly without the second. A loop that is not unrolled
// leaves registers to other warps.
template <class Format, class T, AffineGroups kOf>
__device__ __forceinline__ void quantize_two(const ConversionParams& p, const BlockPlace& at,
                                             uint4* shared) {
  constexpr int kChunks = 2 * LaneBlock<T>::kChunks;
  using Chunks = device::WarpChunks<kChunks>;
  using Codes = device::WarpCodes<Format::kBits, T>;
  uint8_t* const codes = device::codes_at<Format>(p, at);
  const bool together = Codes::take(at, p.code_alignment);
  Chunks::bring(values_at<T>(p, at), at, at.blocks * LaneBlock<T>::kChunks, shared);
  LaneGroups<Format, T, kOf> groups;
  groups.start(p, at);
  Chunks::arrived();
  uint32_t scales = 0;  // of a block format, stored for both blocks at once
#pragma unroll 1
  for (uint32_t b = 0; b < 2; ++b) {
    LaneBlock<T> x;
    x.template get<kChunks>(shared, b);
    const bool fits = b == 0 || !groups.wide(p);
    if (fits) {
      groups.fit(x, p, [=] {
        LaneBlock<T> second;
        second.template get<kChunks>(shared, 1);
        return second;
      });
    }
    uint32_t words[Format::kBits];
    encode_from<kChunks, Format>(shared, b, x, groups, words);
    if (together) {
      Codes::put(words, b, shared);
    } else if (at.valid && b < at.blocks) {
      device::store_words<Format::kBits>(words, codes + b * (4 * Format::kBits), p.code_alignment);
    }
    if constexpr (device::kAffine<Format>) {
      if (fits && at.valid && b < at.blocks) groups.store(p, at.at(b));
    } else {
      scales |= groups.bytes() << b * (8 * groups.kHalves);
    }
  }
  if constexpr (!device::kAffine<Format>) {
    if (at.valid) groups.store_two(p, at, scales);
  }
  if (together) Codes::send(codes, shared);
}

template <class Format, class T, Quantized kWhat = Quantized::most>
__global__ void __launch_bounds__(kConversionThreads, kResident<Format, T, kWhat>)
    quantize_cuda(const __grid_constant__ ConversionParams p) {
  constexpr uint32_t kOfLane = kBlocks<T, kWhat>;
  constexpr AffineGroups kOf = kGroups<Format, T, kWhat>;
  __shared__ uint4 shared[kWarps][device::WarpChunks<LaneBlock<T>::kChunks * kOfLane>::kAll];
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  if (warp * 32 < p.lanes) {
    const BlockPlace at(p, warp, kOfLane);
    if constexpr (kOfLane == 2) {
      quantize_two<Format, T, kOf>(p, at, shared[threadIdx.x / 32]);
    } else {
      LaneGroups<Format, T, kOf> groups;
      uint32_t words[Format::kBits];
      quantize_block<Format, T>(p, at, shared[threadIdx.x / 32], groups, words);
      if (!at.valid) return;
      groups.store(p, at);
      device::store_words<Format::kBits>(words, device::codes_at<Format>(p, at), p.code_alignment);
    }
  }
}

// Of a block format, with swizzled scales: all of a tile's, zeros where the matrix has none.
template <class Format, class T>
__global__ void __launch_bounds__(kConversionThreads, kResident<Format, T, Quantized::most>)
    quantize_swizzled(const __grid_constant__ SwizzledParams p) {
  constexpr uint32_t kOfLane = kBlocks<T, Quantized::most>;
  constexpr int kChunks = LaneBlock<T>::kChunks * kOfLane;
  using Chunks = device::WarpChunks<kChunks>;
  using Groups = LaneGroups<Format, T>;
  __shared__ uint4 memory[kWarps][Chunks::kAll];
  uint4* const shared = memory[threadIdx.x / 32];
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  if (warp >= p.by.lanes) return;
  const TilePlace at(p, warp, kOfLane);
  uint32_t scales = 0;
  if (at.any(p)) {
    at.bring<T, Chunks>(p, shared);
    Groups groups;
    groups.start(p.by, at);
    const bool together = kOfLane == 2 && p.by.code_alignment == 16;
    Chunks::arrived();
#pragma unroll 1
    for (uint32_t b = 0; b < kOfLane; ++b) {
      LaneBlock<T> x;
      x.template get<kChunks>(shared, b);
      groups.fit(x, p.by, device::NoSecond{});
      uint32_t words[Format::kBits];
      encode_from<kChunks, Format>(shared, b, x, groups, words);
      if constexpr (kOfLane == 2) {
        if (together) device::WarpCodes<Format::kBits, T>::put(words, b, shared);
      }
      if (!together && at.valid && b < at.blocks) {
        uint8_t* const to = device::codes_at<Format>(p.by, at) + b * (4 * Format::kBits);
        device::store_words<Format::kBits>(words, to, p.by.code_alignment);
      }
      scales |= groups.bytes() << b * (8 * Groups::kHalves);
    }
    if (!at.valid) scales = 0;
    if (at.blocks < kOfLane) scales &= (1u << 8 * Groups::kHalves) - 1;
    if constexpr (kOfLane == 2) {
      if (together) at.send<Format::kBits, device::WarpCodes<Format::kBits, T>>(p, shared);
    }
  }
  const uint32_t group = at.column * Groups::kHalves;
  if (group < p.by.packed.padded_groups) {
    device::put_bytes<kOfLane * Groups::kHalves>(at.scales(p, group), scales);
  }
}

template <class Format, class T>
__global__ void __launch_bounds__(kConversionThreads, kRequantizeResident<Format, T>)
    requantize(const __grid_constant__ RequantizeParams p) {
  using Out = LaneBlock<__nv_bfloat16>;
  __shared__ uint4 shared[kWarps][device::WarpChunks<LaneBlock<T>::kChunks>::kAll];
  uint4* mine = shared[threadIdx.x / 32];
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  if (warp * 32 >= p.from.lanes) return;
  const BlockPlace at(p.from, warp, 1);
  LaneGroups<Format, T> groups;
  uint32_t words[Format::kBits];
  quantize_block<Format, T>(p.from, at, mine, groups, words);
  const simt::GroupScale<Format, false> scale[2] = {{Format::decode_scale(groups.scale[0])},
                                                    {Format::decode_scale(groups.scale[1])}};
  float v[kLaneValues];
  device::decode_block<Format>(words, scale, v);
  Out out;
  out.set(v);
  __syncwarp();
  out.template put<Out::kChunks>(mine, 0);
  const uint64_t block = uint64_t{at.row} * p.from.row_blocks + at.column;
  device::WarpChunks<Out::kChunks>::send(p.out + block * (kLaneValues * 2), at, Out::kChunks, mine);
}

__global__ void join_scales(const __grid_constant__ JoinScalesParams p) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  p.out[i] = (p.x.data != nullptr ? *p.x.data : p.x.number) *
             (p.w.data != nullptr ? p.w.data[i * p.w_stride] : p.w.number);
}

#define MB_QUANTIZE(name, ...)                                                 \
  MB_CUDA_ROW(quantize_cuda_##name##_f32, quantize_cuda<__VA_ARGS__, float>);  \
  MB_CUDA_ROW(quantize_cuda_##name##_f16, quantize_cuda<__VA_ARGS__, __half>); \
  MB_CUDA_ROW(quantize_cuda_##name##_bf16, quantize_cuda<__VA_ARGS__, __nv_bfloat16>)
#define MB_QUANTIZE_ALSO(name, what, ...)                           \
  MB_CUDA_ROW(quantize_cuda_##name##_##what##_f16,                  \
              quantize_cuda<__VA_ARGS__, __half, Quantized::what>); \
  MB_CUDA_ROW(quantize_cuda_##name##_##what##_bf16,                 \
              quantize_cuda<__VA_ARGS__, __nv_bfloat16, Quantized::what>)
#define MB_QUANTIZE_SWIZZLED(name, ...)                                                     \
  MB_CUDA_ROW(quantize_cuda_##name##_swizzled_f32, quantize_swizzled<__VA_ARGS__, float>);  \
  MB_CUDA_ROW(quantize_cuda_##name##_swizzled_f16, quantize_swizzled<__VA_ARGS__, __half>); \
  MB_CUDA_ROW(quantize_cuda_##name##_swizzled_bf16, quantize_swizzled<__VA_ARGS__, __nv_bfloat16>)
#define MB_REQUANTIZE(name, ...)                                         \
  MB_CUDA_ROW(requantize_##name##_f32, requantize<__VA_ARGS__, float>);  \
  MB_CUDA_ROW(requantize_##name##_f16, requantize<__VA_ARGS__, __half>); \
  MB_CUDA_ROW(requantize_##name##_bf16, requantize<__VA_ARGS__, __nv_bfloat16>)

MB_CUDA_ROW(join_scales, join_scales);
MB_QUANTIZE(affine2, formats::Affine<2>);
MB_QUANTIZE(affine3, formats::Affine<3>);
MB_QUANTIZE(affine4, formats::Affine<4>);
MB_QUANTIZE(affine5, formats::Affine<5>);
MB_QUANTIZE(affine6, formats::Affine<6>);
MB_QUANTIZE(affine8, formats::Affine<8>);
MB_QUANTIZE(mxfp4, formats::Mxfp4);
MB_QUANTIZE(mxfp8, formats::Mxfp8);
MB_QUANTIZE(nvfp4, formats::Nvfp4);
MB_QUANTIZE_ALSO(affine2, sixteens, formats::Affine<2>);
MB_QUANTIZE_ALSO(affine3, sixteens, formats::Affine<3>);
MB_QUANTIZE_ALSO(affine4, sixteens, formats::Affine<4>);
MB_QUANTIZE_ALSO(affine5, sixteens, formats::Affine<5>);
MB_QUANTIZE_ALSO(affine6, sixteens, formats::Affine<6>);
MB_QUANTIZE_ALSO(affine8, sixteens, formats::Affine<8>);
MB_QUANTIZE_ALSO(affine5, apart, formats::Affine<5>);
MB_QUANTIZE_ALSO(affine6, apart, formats::Affine<6>);
MB_QUANTIZE_ALSO(mxfp4, apart, formats::Mxfp4);
MB_QUANTIZE_ALSO(mxfp8, apart, formats::Mxfp8);
MB_QUANTIZE_SWIZZLED(mxfp4, formats::Mxfp4);
MB_QUANTIZE_SWIZZLED(mxfp8, formats::Mxfp8);
MB_QUANTIZE_SWIZZLED(nvfp4, formats::Nvfp4);
MB_REQUANTIZE(mxfp4, formats::Mxfp4);
MB_REQUANTIZE(mxfp8, formats::Mxfp8);
MB_REQUANTIZE(nvfp4, formats::Nvfp4);

}  // namespace
}  // namespace moeblas::cuda
