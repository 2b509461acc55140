// From a lane's block of 32 values to its codes, scales and biases: what the kernels that quantize
// have in common.
#pragma once

#include "cuda/device/encode.cuh"
#include "cuda/device/lane_blocks.cuh"
#include "simt/packed.h"

namespace moeblas::cuda::device {

template <class Format>
constexpr bool kAffine = simt::IsAffine<Format>::value;

// The groups of a lane's block: two of 16 values, one of 32, or its share of a larger one. Block
// formats: the largest magnitudes, as bits, among which NaN is above infinity and infinity above
// every number.
template <class Format, class T>
struct LaneGroups {
  static constexpr int kHalves = int(Format::kGroup) == 16 ? 2 : 1;

  Encoder<Format> encoder[2];
  uint32_t scale[2];
  float whole_scale;  // the tensor's

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
    whole_scale = std::is_same_v<Format, formats::Nvfp4> ? tensor_scale(p, at.row) : 1.0f;
  }
  __device__ void fit(const LaneBlock<T>& x, const ConversionParams&) {
    const float enc = 1.0f / whole_scale;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const GroupFit fit = fit_group<Format>(largest(x, h * 16, 32 / kHalves), enc);
      scale[h] = fit.scale;
      encoder[h].multiplier = fit.multiplier;
    }
    if (kHalves == 1) encoder[1] = encoder[0], scale[1] = scale[0];
  }
  __device__ void store(const ConversionParams& p, const BlockPlace& at) const {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const uint32_t group = at.column * kHalves + h;
      p.scales[scale_offset(p.packed, at.row, group)] = static_cast<uint8_t>(scale[h]);
    }
  }
};

template <int kBits, class T>
struct LaneGroups<formats::Affine<kBits>, T> {
  Encoder<formats::Affine<kBits>> encoder[2];

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
    const int64_t scale = row_offset(p.packed.scales, at.row) + group;
    const int64_t bias = row_offset(p.packed.biases, at.row) + group;
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

template <class Format, class T>
__device__ __forceinline__ void encode_as(const LaneBlock<T>& x,
                                          const LaneGroups<Format, T>& groups, bool saturates,
                                          uint32_t (&words)[Format::kBits]) {
#pragma unroll
  for (int i = 0; i < int(Format::kBits); ++i) words[i] = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    put_four<Format::kBits>(
        words, i,
        groups.encoder[i / 4].four(x.value(4 * i), x.value(4 * i + 1), x.value(4 * i + 2),
                                   x.value(4 * i + 3), saturates));
  }
}
// By the definition; look(i) is value i, in shared memory, where a loop may look for it.
template <class Format, class T, class Look>
__device__ void encode_defined(Look look, const LaneGroups<Format, T>& groups,
                               uint32_t (&words)[Format::kBits]) {
  formats::uint64 octet = 0;
  const formats::AffineParams first = groups.encoder[0].params, second = groups.encoder[1].params;
  uint32_t bits = 0, word = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < kLaneValues; ++i) {
    const formats::AffineParams params{i < 16 ? first.scale : second.scale,
                                       i < 16 ? first.bias : second.bias};
    octet |= formats::uint64{formats::affine_encode(look(i), params, Format::kBits)} << bits;
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
template <class Format, class T, class Look>
__device__ __forceinline__ void encode(const LaneBlock<T>& x, const LaneGroups<Format, T>& groups,
                                       Look look, uint32_t (&words)[Format::kBits]) {
  const auto any = [](bool lane) { return __any_sync(0xffffffffu, lane) != 0; };
  if constexpr (kAffine<Format>) {
    if (any(groups.encoder[0].reciprocal == 0.0f || groups.encoder[1].reciprocal == 0.0f)) {
      return encode_defined<Format, T>(look, groups, words);
    }
  } else if constexpr (std::is_same_v<Format, formats::Nvfp4>) {
    if (any(groups.encoder[0].saturates(groups.scale[0]) ||
            groups.encoder[1].saturates(groups.scale[1]))) {
      return encode_as<Format, T>(x, groups, true, words);
    }
  }
  encode_as<Format, T>(x, groups, false, words);
}

// A lane's codes and scales to where the block's belong.
template <class Format, class T>
__device__ __forceinline__ void store_block(const ConversionParams& p, const BlockPlace& at,
                                            const LaneGroups<Format, T>& groups,
                                            const uint32_t (&words)[Format::kBits]) {
  if (!at.valid) return;
  groups.store(p, at);
  store_words<Format::kBits>(
      words, p.codes + row_offset(p.packed.codes, at.row) + at.column * int64_t{4 * Format::kBits},
      p.code_alignment);
}

// Zeros where swizzled matrices have no scale: rows below the last, then columns beside it.
static __device__ __noinline__ void clear_padding(const ConversionParams& p) {
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

}  // namespace moeblas::cuda::device
