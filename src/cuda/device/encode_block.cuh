// From a lane's block of 32 values to its codes, scales and biases: what the kernels that quantize
// have in common.
#pragma once

#include "cuda/device/encode.cuh"
#include "cuda/device/encode_pairs.cuh"
#include "cuda/device/lane_blocks.cuh"
#include "simt/packed.h"

namespace moeblas::cuda::device {

template <class Format>
constexpr bool kAffine = simt::IsAffine<Format>::value;

// Whether codes are made of two values at once: powers of two times bfloat16 are exact.
template <class Format, class T>
constexpr bool kPairs = std::is_same_v<Format, formats::Mxfp4> && std::is_same_v<T, __nv_bfloat16>;

// What is known of the groups of an affine format where a kernel is compiled.
enum class AffineGroups { any, of_16, larger };

// The scales of kCount neighbouring groups, which lie side by side in either layout.
template <int kCount>
__device__ __forceinline__ void put_bytes(uint8_t* to, uint32_t bytes) {
  if (kCount == 4 && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
    *reinterpret_cast<uint32_t*>(to) = bytes;
  } else if (kCount == 2 && reinterpret_cast<uintptr_t>(to) % 2 == 0) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bytes);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = static_cast<uint8_t>(bytes >> 8 * i);
  }
}

// The groups of a lane's block: two of 16 values, one of 32, or its share of a larger one. Block
// formats: the largest magnitudes, as bits, among which NaN is above infinity and infinity above
// every number.
template <class Format, class T, AffineGroups kOf = AffineGroups::any>
struct LaneGroups {
  static constexpr int kHalves = int(Format::kGroup) == 16 ? 2 : 1;

  std::conditional_t<kPairs<Format, T>, PairFit, Encoder<Format>[2]> encoder;
  uint32_t scale[2];
  float whole_scale;  // the tensor's

  // As bits of T.
  static __device__ uint32_t largest_bits(const LaneBlock<T>& x, int first, int count) {
    uint32_t most = 0;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < count; i += 2) {
        most = __vimax3_u32(most, x.word(first + i) & 0x7fffffffu,
                            x.word(first + i + 1) & 0x7fffffffu);
      }
      return most;
    } else {
#pragma unroll
      for (int i = 0; i < count / 2; i += 2) {
        most = __vimax3_u16x2(most, x.word(first / 2 + i) & 0x7fff7fffu,
                              x.word(first / 2 + i + 1) & 0x7fff7fffu);
      }
      return max(most & 0xffffu, most >> 16);
    }
  }
  static __device__ float largest(const LaneBlock<T>& x, int first, int count) {
    const uint32_t most = largest_bits(x, first, count);
    if constexpr (sizeof(T) == 4) return __uint_as_float(most);
    if constexpr (std::is_same_v<T, __nv_bfloat16>) return __uint_as_float(most << 16);
    return __half2float(__ushort_as_half(static_cast<uint16_t>(most)));
  }
  // What fit needs of memory, to be asked for with the values and not after them.
  template <class Place>
  __device__ void start(const ConversionParams& p, const Place& at) {
    whole_scale = std::is_same_v<Format, formats::Nvfp4> ? tensor_scale(p, at.row) : 1.0f;
  }
  // Whether the groups of a lane's block are its next block's, too.
  __device__ static constexpr bool wide(const ConversionParams&) { return false; }
  template <class Second>
  __device__ void fit(const LaneBlock<T>& x, const ConversionParams&, Second) {
    if constexpr (kPairs<Format, T>) {
      encoder = PairFit(largest_bits(x, 0, 32));
      scale[0] = scale[1] = encoder.scale;
    } else {
      const float enc = 1.0f / whole_scale;
      if constexpr (kHalves == 2) {
        const float first = largest(x, 0, 16), second = largest(x, 16, 16);
        if (nvfp4_fits(first, enc) && nvfp4_fits(second, enc)) {
          take(0, nvfp4_fit(first, enc)), take(1, nvfp4_fit(second, enc));
        } else {
          take(0, fit_group<Format>(first, enc)), take(1, fit_group<Format>(second, enc));
        }
      } else {
        const GroupFit fit = fit_group<Format>(largest(x, 0, 32), enc);
        take(0, fit), take(1, fit);
      }
    }
  }
  // Bytes of a block's scales.
  __device__ uint32_t bytes() const { return kHalves == 2 ? scale[0] | scale[1] << 8 : scale[0]; }
  // To rows of scales.
  __device__ void store(const ConversionParams& p, const BlockPlace& at) const {
    put_bytes<kHalves>(scales_at(p, at), bytes());
  }
  // Those of a lane's two blocks, the first of which has an even number.
  __device__ static void store_two(const ConversionParams& p, const BlockPlace& at,
                                   uint32_t of_both) {
    if (at.blocks == 2) {
      put_bytes<2 * kHalves>(scales_at(p, at), of_both);
    } else {
      put_bytes<kHalves>(scales_at(p, at), of_both);
    }
  }

 private:
  __device__ void take(int half, const GroupFit& fit) {
    scale[half] = fit.scale;
    encoder[half].multiplier = fit.multiplier;
  }
  static __device__ uint8_t* scales_at(const ConversionParams& p, const BlockPlace& at) {
    return p.scales + row_offset(p.packed.scales, at.row) + at.column * kHalves;
  }
};

// Least and most of the numbers among values, kept apart by a word's halves; NaN if there is none.
template <class T>
struct Range {
  using Word = std::conditional_t<
      sizeof(T) == 4, float,
      std::conditional_t<std::is_same_v<T, __nv_bfloat16>, __nv_bfloat162, __half2>>;
  Word low, high;

  // Of 16 values.
  __device__ Range(const LaneBlock<T>& x, int first) {
    constexpr int kWords = 16 * sizeof(T) / 4;
    low = high = word(x, first * kWords / 16);
#pragma unroll
    for (int i = 1; i < kWords; ++i) {
      const Word w = word(x, first * kWords / 16 + i);
      low = least(low, w);
      high = most(high, w);
    }
  }
  __device__ void join(const Range& other) {
    low = least(low, other.low);
    high = most(high, other.high);
  }
  __device__ float lowest() const {
    if constexpr (sizeof(T) == 4) {
      return low;
    } else {
      return fminf(static_cast<float>(low.x), static_cast<float>(low.y));
    }
  }
  __device__ float highest() const {
    if constexpr (sizeof(T) == 4) {
      return high;
    } else {
      return fmaxf(static_cast<float>(high.x), static_cast<float>(high.y));
    }
  }

 private:
  static __device__ Word word(const LaneBlock<T>& x, int i) {
    const uint32_t bits = x.word(i);
    Word result;
    memcpy(&result, &bits, sizeof bits);
    return result;
  }
  static __device__ Word least(Word a, Word b) {
    if constexpr (sizeof(T) == 4) {
      return fminf(a, b);
    } else {
      return __hmin2(a, b);
    }
  }
  static __device__ Word most(Word a, Word b) {
    if constexpr (sizeof(T) == 4) {
      return fmaxf(a, b);
    } else {
      return __hmax2(a, b);
    }
  }
};

// A lane's only block: groups of more than 32 values go on in the lanes beside it.
struct NoSecond {};

template <int kBits, class T, AffineGroups kOf>
struct LaneGroups<formats::Affine<kBits>, T, kOf> {
  Encoder<formats::Affine<kBits>> encoder[2];

  __device__ void start(const ConversionParams&, const BlockPlace&) {}
  __device__ static uint32_t size(const ConversionParams& p) {
    return kOf == AffineGroups::of_16 ? 16 : p.packed.group_size;
  }
  __device__ static bool halves(const ConversionParams& p) {
    return kOf != AffineGroups::larger && size(p) == 16;
  }
  __device__ static bool wide(const ConversionParams& p) { return size(p) > 32; }
  // second(): the lane's other block, which larger groups have in common with the first.
  template <class Second>
  __device__ void fit(const LaneBlock<T>& x, const ConversionParams& p, Second second) {
    Range<T> range(x, 0);
    const Range<T> upper(x, 16);
    uint32_t lanes_of_group = size(p) / 32;
    if (halves(p)) {
      encoder[1].start(fit_affine<kBits>(upper.lowest(), upper.highest()));
    } else {
      range.join(upper);
    }
    if constexpr (!std::is_same_v<Second, NoSecond>) {
      if (lanes_of_group > 1) {
        const LaneBlock<T> other = second();
        range.join(Range<T>(other, 0));
        range.join(Range<T>(other, 16));
        lanes_of_group /= 2;
      }
    }
    float low = range.lowest(), high = range.highest();
    for (uint32_t lanes = 1; lanes < lanes_of_group; lanes *= 2) {
      low = fminf(low, __shfl_xor_sync(0xffffffffu, low, lanes));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, lanes));
    }
    encoder[0].start(fit_affine<kBits>(low, high));
    if (!halves(p)) encoder[1] = encoder[0];
  }
  __device__ void store(const ConversionParams& p, const BlockPlace& at) const {
    // Groups are powers of two.
    const bool halves = LaneGroups::halves(p);
    const uint32_t shift = halves ? 0 : 26 - __clz(static_cast<int>(size(p)));
    if ((at.column & ((1u << shift) - 1)) != 0) return;
    const int64_t group = halves ? at.column * int64_t{2} : at.column >> shift;
    const int64_t scale = row_offset(p.packed.scales, at.row) + group;
    const int64_t bias = row_offset(p.packed.biases, at.row) + group;
    const int type = p.packed.scales.type;
    if (halves) {
      put_two(p.scales, type, scale, encoder[0].params.scale, encoder[1].params.scale);
      put_two(p.biases, type, bias, encoder[0].params.bias, encoder[1].params.bias);
    } else {
      put(p.scales, type, scale, encoder[0].params.scale);
      put(p.biases, type, bias, encoder[0].params.bias);
    }
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
  // Neighbours: 16-bit ones in one store where they share a word, so that a warp writes its sectors
  // whole.
  static __device__ void put_two(uint8_t* to, int type, int64_t i, float a, float b) {
    auto* word = reinterpret_cast<uint32_t*>(to + i * 2);
    if (type != simt::kF32 && reinterpret_cast<uintptr_t>(word) % 4 == 0) {
      if (type == simt::kBf16) {
        *reinterpret_cast<__nv_bfloat162*>(word) = __floats2bfloat162_rn(a, b);
      } else {
        *reinterpret_cast<__half2*>(word) = __floats2half2_rn(a, b);
      }
    } else {
      put(to, type, i, a);
      put(to, type, i + 1, b);
    }
  }
};

template <class Format, class T, class Groups>
__device__ __forceinline__ void encode_as(const LaneBlock<T>& x, const Groups& groups,
                                          bool saturates, uint32_t (&words)[Format::kBits]) {
  if constexpr (kPairs<Format, T>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = groups.encoder.eight_in_order(x.word(4 * i), x.word(4 * i + 1), x.word(4 * i + 2),
                                               x.word(4 * i + 3));
    }
  } else if constexpr (sizeof(T) == 2 && std::is_base_of_v<E2m1Encoder, Encoder<Format>>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = groups.encoder[i / 2].eight(
          [&](int j) { return x.value(8 * i + j); },
          {x.word(4 * i), x.word(4 * i + 1), x.word(4 * i + 2), x.word(4 * i + 3)}, saturates);
    }
  } else {
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
}
// By the definition; look(i) is value i, in shared memory, where a loop may look for it.
template <class Format, class T, class Groups, class Look>
__device__ void encode_defined(Look look, const Groups& groups, uint32_t (&words)[Format::kBits]) {
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
template <class Format, class T, class Groups, class Look>
__device__ __forceinline__ void encode(const LaneBlock<T>& x, const Groups& groups, Look look,
                                       uint32_t (&words)[Format::kBits]) {
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

// Where a block's codes belong.
template <class Format, class Place>
__device__ __forceinline__ uint8_t* codes_at(const ConversionParams& p, const Place& at) {
  return p.codes + row_offset(p.packed.codes, at.row) + at.column * int64_t{4 * Format::kBits};
}
}  // namespace moeblas::cuda::device
