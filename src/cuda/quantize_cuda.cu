// quantize_cuda_<format>_<dtype>: rows of floats to packed codes, scales and biases, for quantize
// and both directions of quantize_dual where rows lie as values do. requantize_<format>_<dtype>:
// rows of floats to the values that their codes stand for, the first half of qqmm.
//
//   a warp's 1024 values     lane 0    lane 1    ...    read and written 16 bytes a lane, turned in
//   of one or several rows   32 values 32 values        shared memory (device/lane_blocks.cuh)
//
// A lane fits the scale of its one or two groups, or with the one to three lanes beside it that of
// a larger one, and packs its codes into whole words. The time is that of reading values and
// writing codes; for 16-bit values in 4-bit codes nearly as many issue slots are taken, which is
// what device/encode.cuh is for.
#include "cuda/device/decode_block.cuh"
#include "cuda/device/encode.cuh"
#include "cuda/device/lane_blocks.cuh"

namespace moeblas::cuda {
namespace {

using device::BlockPlace;
using device::kWarps;
using device::LaneBlock;

// Of a multiprocessor.
template <class T>
constexpr int kResident = sizeof(T) == 4 ? 3 : 5;

template <class Format>
constexpr bool kAffine = simt::IsAffine<Format>::value;

// The groups of a lane's block: two of 16 values, one of 32, or its share of a larger one. Block
// formats: the largest magnitudes, as bits, among which NaN is above infinity and infinity above
// every number.
template <class Format, class T>
struct LaneGroups {
  static constexpr int kHalves = int(Format::kGroup) == 16 ? 2 : 1;

  device::Encoder<Format> encoder[2];
  uint32_t scale[2];
  float tensor_scale;

  static __device__ float largest(const LaneBlock<T>& x, int first, int count) {
    uint32_t most = 0;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < count; i += 2) {
        most = __vimax3_u32(most, x.word(first + i) & 0x7fffffffu,
                            x.word(first + i + 1) & 0x7fffffffu);
      }
      return __uint_as_float(most);
    } else {
#pragma unroll
      for (int i = 0; i < count / 2; i += 2) {
        most = __vimax3_u16x2(most, x.word(first / 2 + i) & 0x7fff7fffu,
                              x.word(first / 2 + i + 1) & 0x7fff7fffu);
      }
      most = max(most & 0xffffu, most >> 16);
      if constexpr (std::is_same_v<T, __nv_bfloat16>) return __uint_as_float(most << 16);
      return __half2float(__ushort_as_half(static_cast<uint16_t>(most)));
    }
  }
  // What fit needs of memory, to be asked for with the values and not after them.
  __device__ void start(const ConversionParams& p, const BlockPlace& at) {
    tensor_scale = std::is_same_v<Format, formats::Nvfp4> ? device::tensor_scale(p, at.row) : 1.0f;
  }
  __device__ void fit(const LaneBlock<T>& x, const ConversionParams&) {
    const float enc = 1.0f / tensor_scale;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const device::GroupFit fit = device::fit_group<Format>(largest(x, h * 16, 32 / kHalves), enc);
      scale[h] = fit.scale;
      encoder[h].multiplier = fit.multiplier;
    }
    if (kHalves == 1) encoder[1] = encoder[0], scale[1] = scale[0];
  }
  __device__ void store(const ConversionParams& p, const BlockPlace& at) const {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const uint32_t group = at.column * kHalves + h;
      p.scales[device::scale_offset(p.packed, at.row, group)] = static_cast<uint8_t>(scale[h]);
    }
  }
};

template <int kBits, class T>
struct LaneGroups<formats::Affine<kBits>, T> {
  device::Encoder<formats::Affine<kBits>> encoder[2];

  // Of the numbers; NaN if there is none.
  static __device__ void range(const LaneBlock<T>& x, int first, float& low, float& high) {
    if constexpr (sizeof(T) == 4) {
      low = high = x.value(first);
#pragma unroll
      for (int i = 1; i < 16; ++i) {
        low = fminf(low, x.value(first + i));
        high = fmaxf(high, x.value(first + i));
      }
    } else {
      using Pair = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, __nv_bfloat162, __half2>;
      const auto pair = [&](int i) {
        const uint32_t word = x.word(first / 2 + i);
        Pair result;
        memcpy(&result, &word, sizeof word);
        return result;
      };
      Pair lows = pair(0), highs = lows;
#pragma unroll
      for (int i = 1; i < 8; ++i) {
        lows = __hmin2(lows, pair(i));
        highs = __hmax2(highs, pair(i));
      }
      low = fminf(static_cast<float>(lows.x), static_cast<float>(lows.y));
      high = fmaxf(static_cast<float>(highs.x), static_cast<float>(highs.y));
    }
  }
  __device__ void start(const ConversionParams&, const BlockPlace&) {}
  __device__ void fit(const LaneBlock<T>& x, const ConversionParams& p) {
    float low, high, low16, high16;
    range(x, 0, low, high);
    range(x, 16, low16, high16);
    if (p.packed.group_size == 16) {
      encoder[1].start(formats::affine_fit(low16, high16, kBits));
    } else {
      low = fminf(low, low16);
      high = fmaxf(high, high16);
      for (uint32_t lanes = 1; lanes < p.packed.group_size / 32; lanes *= 2) {
        low = fminf(low, __shfl_xor_sync(0xffffffffu, low, lanes));
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, lanes));
      }
    }
    encoder[0].start(formats::affine_fit(low, high, kBits));
    if (p.packed.group_size != 16) encoder[1] = encoder[0];
  }
  __device__ void store(const ConversionParams& p, const BlockPlace& at) const {
    // Groups are powers of two.
    const bool halves = p.packed.group_size == 16;
    const uint32_t shift = halves ? 0 : 26 - __clz(static_cast<int>(p.packed.group_size));
    if ((at.column & ((1u << shift) - 1)) != 0) return;
    const int64_t group = halves ? at.column * int64_t{2} : at.column >> shift;
    const int64_t scale = device::row_offset(p.packed.scales, at.row) + group;
    const int64_t bias = device::row_offset(p.packed.biases, at.row) + group;
    const int type = p.packed.scales.type;
    put(p.scales, type, scale, encoder[0].params.scale);
    put(p.biases, type, bias, encoder[0].params.bias);
    if (!halves) return;
    put(p.scales, type, scale + 1, encoder[1].params.scale);
    put(p.biases, type, bias + 1, encoder[1].params.bias);
  }

 private:
  static __device__ void put(uint8_t* to, int type, int64_t i, float v) {
    if (type == simt::kF32) {
      reinterpret_cast<float*>(to)[i] = v;
    } else if (type == simt::kBf16) {
      reinterpret_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(v);
    } else {
      reinterpret_cast<__half*>(to)[i] = __float2half_rn(v);
    }
  }
};

template <class T>
__device__ uint8_t* values_at(const ConversionParams& p, const BlockPlace& at) {
  return p.values +
         (device::row_offset(p.packed.values, at.row) + at.column * int64_t{kLaneValues}) *
             int64_t{sizeof(T)};
}

template <class Format, class T>
__device__ __forceinline__ void encode(const LaneBlock<T>& x, const LaneGroups<Format, T>& groups,
                                       bool saturates, uint32_t (&words)[Format::kBits]) {
#pragma unroll
  for (int i = 0; i < int(Format::kBits); ++i) words[i] = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    device::put_four<Format::kBits>(
        words, i,
        groups.encoder[i / 4].four(x.value(4 * i), x.value(4 * i + 1), x.value(4 * i + 2),
                                   x.value(4 * i + 3), saturates));
  }
}
// By the definition, from shared memory, in which a loop may look for its values.
template <class Format, class T>
__device__ void encode_defined(const uint4* shared, const LaneGroups<Format, T>& groups,
                               uint32_t (&words)[Format::kBits]) {
  formats::uint64 octet = 0;
  const uint32_t lane = threadIdx.x % 32;
  constexpr int kChunks = LaneBlock<T>::kChunks, kOfChunk = kLaneValues / kChunks;
  const formats::AffineParams first = groups.encoder[0].params, second = groups.encoder[1].params;
  uint32_t bits = 0, word = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < kLaneValues; ++i) {
    const auto* values =
        reinterpret_cast<const T*>(&shared[device::chunk_place<kChunks>(lane, i / kOfChunk)]);
    const float value = static_cast<float>(values[i % kOfChunk]);
    const formats::AffineParams params{i < 16 ? first.scale : second.scale,
                                       i < 16 ? first.bias : second.bias};
    octet |= formats::uint64{formats::affine_encode(value, params, Format::kBits)} << bits;
    bits += Format::kBits;
    if (bits < 32) continue;
#pragma unroll
    for (uint32_t w = 0; w < uint32_t{Format::kBits}; ++w) {
      if (w == word) words[w] = static_cast<uint32_t>(octet);
    }
    octet >>= 32;
    bits -= 32;
    ++word;
  }
}

// Lanes that need the longer way take all others with them, so that none waits for both.
template <class Format, class T>
__device__ __forceinline__ void encode(const LaneBlock<T>& x, const LaneGroups<Format, T>& groups,
                                       const uint4* shared, uint32_t (&words)[Format::kBits]) {
  const auto any = [](bool lane) { return __any_sync(0xffffffffu, lane) != 0; };
  if constexpr (kAffine<Format>) {
    if (any(groups.encoder[0].reciprocal == 0.0f || groups.encoder[1].reciprocal == 0.0f)) {
      return encode_defined<Format, T>(shared, groups, words);
    }
  } else if constexpr (std::is_same_v<Format, formats::Nvfp4>) {
    if (any(groups.encoder[0].saturates(groups.scale[0]) ||
            groups.encoder[1].saturates(groups.scale[1]))) {
      return encode<Format, T>(x, groups, true, words);
    }
  }
  encode<Format, T>(x, groups, false, words);
}

// Zeros where swizzled matrices have no scale: rows below the last, then columns beside it.
__device__ __noinline__ void clear_padding(const ConversionParams& p) {
  const auto rows = static_cast<uint64_t>(p.packed.rows_per_matrix);
  const auto groups = static_cast<uint64_t>(p.packed.groups);
  const auto padded_rows = static_cast<uint64_t>(p.packed.padded_rows);
  const auto padded_groups = static_cast<uint64_t>(p.packed.padded_groups);
  const uint64_t below = (padded_rows - rows) * padded_groups;
  for (uint64_t i = blockIdx.x * uint64_t{kConversionThreads} + threadIdx.x;
       i < p.padding * p.matrices; i += uint64_t{gridDim.x} * kConversionThreads) {
    const uint64_t matrix = i / p.padding, rest = i - matrix * p.padding;
    uint64_t row = rows + rest / padded_groups, group = rest % padded_groups;
    if (rest >= below) {
      const uint64_t beside = padded_groups - groups;
      row = (rest - below) / beside;
      group = groups + (rest - below) % beside;
    }
    p.scales[simt::row_offset(p.packed.scales, matrix * padded_rows) +
             static_cast<int64_t>(formats::swizzled_128x4(row, group, padded_groups))] = 0;
  }
}

template <class Format, class T>
__global__ void __launch_bounds__(kConversionThreads, kResident<T>)
    quantize_cuda(const __grid_constant__ ConversionParams p) {
  __shared__ uint4 shared[kWarps][LaneBlock<T>::kSharedChunks];
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  if (warp * 32 < p.blocks) {
    const BlockPlace at(p, warp);
    LaneGroups<Format, T> groups;
    groups.start(p, at);
    LaneBlock<T> x;
    x.load(values_at<T>(p, at), shared[threadIdx.x / 32]);
    groups.fit(x, p);
    uint32_t words[Format::kBits];
    encode<Format, T>(x, groups, shared[threadIdx.x / 32], words);
    if (at.valid) {
      groups.store(p, at);
      device::store_words<Format::kBits>(words,
                                         p.codes + device::row_offset(p.packed.codes, at.row) +
                                             at.column * int64_t{4 * Format::kBits},
                                         p.code_alignment);
    }
  }
  if (p.padding > 0) clear_padding(p);
}

template <class Format, class T>
__global__ void __launch_bounds__(kConversionThreads, kResident<T>)
    requantize(const __grid_constant__ RequantizeParams p) {
  __shared__ uint4 shared[kWarps][LaneBlock<T>::kSharedChunks];
  uint4* mine = shared[threadIdx.x / 32];
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  if (warp * 32 >= p.from.blocks) return;
  const BlockPlace at(p.from, warp);
  LaneGroups<Format, T> groups;
  groups.start(p.from, at);
  LaneBlock<T> x;
  x.load(values_at<T>(p.from, at), mine);
  groups.fit(x, p.from);
  uint32_t words[Format::kBits];
  encode<Format, T>(x, groups, mine, words);
  const simt::GroupScale<Format, false> scale[2] = {{Format::decode_scale(groups.scale[0])},
                                                    {Format::decode_scale(groups.scale[1])}};
  float v[kLaneValues];
  device::decode_block<Format>(words, scale, v);
  LaneBlock<__nv_bfloat16> out;
  out.set(v);
  __syncwarp();
  const uint64_t block = uint64_t{at.row} * p.from.row_blocks + at.column;
  out.store(p.out + block * (kLaneValues * 2), at.count, mine);
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
