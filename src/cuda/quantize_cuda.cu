// quantize_cuda_<format>_<dtype>: rows of floats to packed codes, scales and biases.
// requantize_<format>_<dtype>: rows of floats to the values that their codes stand for, the first
// half of qqmm.
//
//   a warp's 1024 values     lane 0    lane 1    ...    read and written 16 bytes a lane, turned in
//   of one or several rows   32 values 32 values        shared memory (device/lane_blocks.cuh)
//
// A lane fits the scale of its one or two groups, or with the one to three lanes beside it that of
// a larger one, and packs its codes into whole words. The time is that of reading values and
// writing codes; for 16-bit values in 4-bit codes nearly as many issue slots are taken, which is
// what device/encode.cuh is for.
#include "cuda/device/decode_block.cuh"
#include "cuda/device/encode_block.cuh"

namespace moeblas::cuda {
namespace {

using device::BlockPlace;
using device::kWarps;
using device::LaneBlock;
using device::LaneGroups;

// Blocks that a multiprocessor holds, which bounds registers. Sixteen more are worth more to e4m3,
// whose codes take few operations, than a fifth block.
template <class Format, class T>
constexpr int kResident = sizeof(T) == 4                           ? 3
                          : std::is_same_v<Format, formats::Mxfp8> ? 4
                                                                   : 5;

template <class T>
__device__ uint8_t* values_at(const ConversionParams& p, const BlockPlace& at) {
  return p.values +
         (device::row_offset(p.packed.values, at.row) + at.column * int64_t{kLaneValues}) *
             int64_t{sizeof(T)};
}

template <class Format, class T>
__global__ void __launch_bounds__(kConversionThreads, kResident<Format, T>)
    quantize_cuda(const __grid_constant__ ConversionParams p) {
  __shared__ uint4 shared[kWarps][LaneBlock<T>::kSharedChunks];
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  if (warp * 32 < p.blocks) {
    const BlockPlace at(p, warp);
    LaneGroups<Format, T> groups;
    groups.start(p, at);
    LaneBlock<T> x;
    x.load(values_at<T>(p, at), at.joined, shared[threadIdx.x / 32]);
    groups.fit(x, p);
    uint32_t words[Format::kBits];
    const uint4* mine = shared[threadIdx.x / 32];
    device::encode<Format, T>(
        x, groups, [mine](uint32_t i) { return LaneBlock<T>::loaded(mine, i); }, words);
    device::store_block<Format, T>(p, at, groups, words);
  }
  if (p.padding > 0) device::clear_padding(p);
}

template <class Format, class T>
__global__ void __launch_bounds__(kConversionThreads, kResident<Format, T>)
    requantize(const __grid_constant__ RequantizeParams p) {
  __shared__ uint4 shared[kWarps][LaneBlock<T>::kSharedChunks];
  uint4* mine = shared[threadIdx.x / 32];
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  if (warp * 32 >= p.from.blocks) return;
  const BlockPlace at(p.from, warp);
  LaneGroups<Format, T> groups;
  groups.start(p.from, at);
  LaneBlock<T> x;
  x.load(values_at<T>(p.from, at), at.joined, mine);
  groups.fit(x, p.from);
  uint32_t words[Format::kBits];
  device::encode<Format, T>(
      x, groups, [mine](uint32_t i) { return LaneBlock<T>::loaded(mine, i); }, words);
  const simt::GroupScale<Format, false> scale[2] = {{Format::decode_scale(groups.scale[0])},
                                                    {Format::decode_scale(groups.scale[1])}};
  float v[kLaneValues];
  device::decode_block<Format>(words, scale, v);
  LaneBlock<__nv_bfloat16> out;
  out.set(v);
  __syncwarp();
  const uint64_t block = uint64_t{at.row} * p.from.row_blocks + at.column;
  out.store(p.out + block * (kLaneValues * 2), at.joined, at.count, mine);
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
MB_REQUANTIZE(mxfp4, formats::Mxfp4);
MB_REQUANTIZE(mxfp8, formats::Mxfp8);
MB_REQUANTIZE(nvfp4, formats::Nvfp4);

}  // namespace
}  // namespace moeblas::cuda
