// dequantize_cuda_<format>_<dtype>: packed codes to values, each formed in float32 by the format's
// definition and rounded once. A lane takes 32 codes, which are whole words in every width; values
// leave 16 bytes a lane, neighbours by neighbours (device/lane_blocks.cuh). The time is that of
// writing the values.
#include "cuda/device/decode_block.cuh"
#include "cuda/device/lane_blocks.cuh"

namespace moeblas::cuda {
namespace {

using device::BlockPlace;
using device::kWarps;
using device::LaneBlock;

// The scales of both halves of a lane's block.
template <class Format, bool affine>
struct BlockScales {
  simt::GroupScale<Format, false> of[2];

  __device__ BlockScales(const ConversionParams& p, const BlockPlace& at) {
    constexpr uint32_t kHalves = int(Format::kGroup) == 16 ? 2 : 1;
    const float tensor_scale = device::tensor_scale(p, at.row);
#pragma unroll
    for (uint32_t h = 0; h < kHalves; ++h) {
      const uint32_t byte =
          p.scales[device::scale_offset(p.packed, at.row, at.column * kHalves + h)];
      of[h].scale = formats::mul(Format::decode_scale(byte), tensor_scale);
    }
    if (kHalves == 1) of[1] = of[0];
  }
};
template <class Format>
struct BlockScales<Format, true> {
  simt::GroupScale<Format, true> of[2];

  __device__ BlockScales(const ConversionParams& p, const BlockPlace& at) {
    const int64_t group = p.packed.group_size == 16
                              ? at.column * int64_t{2}
                              : at.column / (p.packed.group_size / kLaneValues);
    // All loads before the first conversion: a wait of memory, not one for each.
    const simt::StridedRows &scales = p.packed.scales, &biases = p.packed.biases;
    const int64_t scale = device::row_offset(scales, at.row) + group;
    const int64_t bias = device::row_offset(biases, at.row) + group;
    const int size = scales.type == simt::kF32 ? 4 : 2, step = p.packed.group_size == 16 ? size : 0;
    simt::StoredScales<2> stored_scales, stored_biases;
    stored_scales.load(p.scales + scale * size, step, scales.type);
    stored_biases.load(p.biases + bias * size, step, scales.type);
    float s[2], b[2];
    stored_scales.floats(scales.type, s);
    stored_biases.floats(scales.type, b);
#pragma unroll
    for (int h = 0; h < 2; ++h) of[h].params.scale = s[h], of[h].params.bias = b[h];
  }
};

template <class Format, class T>
__global__ void __launch_bounds__(kConversionThreads)
    dequantize_cuda(const __grid_constant__ ConversionParams p) {
  using Chunks = device::WarpChunks<LaneBlock<T>::kChunks>;
  __shared__ uint4 shared[kWarps][Chunks::kAll];
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  if (warp * 32 >= p.lanes) return;
  const BlockPlace at(p, warp, 1);
  uint32_t words[Format::kBits];
  device::load_words<Format::kBits>(
      words,
      p.codes + device::row_offset(p.packed.codes, at.row) + at.column * int64_t{4 * Format::kBits},
      p.code_alignment);
  const BlockScales<Format, simt::IsAffine<Format>::value> scales(p, at);
  float v[kLaneValues];
  device::decode_block<Format>(words, scales.of, v);
  LaneBlock<T> out;
  out.set(v);
  uint8_t* to =
      p.values + (device::row_offset(p.packed.values, at.row) + at.column * int64_t{kLaneValues}) *
                     int64_t{sizeof(T)};
  uint4* mine = shared[threadIdx.x / 32];
  out.template put<LaneBlock<T>::kChunks>(mine, 0);
  Chunks::send(to, at, LaneBlock<T>::kChunks, mine);
}

#define MB_DEQUANTIZE(name, ...)                                                   \
  MB_CUDA_ROW(dequantize_cuda_##name##_f32, dequantize_cuda<__VA_ARGS__, float>);  \
  MB_CUDA_ROW(dequantize_cuda_##name##_f16, dequantize_cuda<__VA_ARGS__, __half>); \
  MB_CUDA_ROW(dequantize_cuda_##name##_bf16, dequantize_cuda<__VA_ARGS__, __nv_bfloat16>)

MB_DEQUANTIZE(affine2, formats::Affine<2>);
MB_DEQUANTIZE(affine3, formats::Affine<3>);
MB_DEQUANTIZE(affine4, formats::Affine<4>);
MB_DEQUANTIZE(affine5, formats::Affine<5>);
MB_DEQUANTIZE(affine6, formats::Affine<6>);
MB_DEQUANTIZE(affine8, formats::Affine<8>);
MB_DEQUANTIZE(mxfp4, formats::Mxfp4);
MB_DEQUANTIZE(mxfp8, formats::Mxfp8);
MB_DEQUANTIZE(nvfp4, formats::Nvfp4);

}  // namespace
}  // namespace moeblas::cuda
