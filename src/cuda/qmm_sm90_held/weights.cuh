// The weights of the kernels that hold rows of x in registers and apply scales behind products,
// qmm_sm90's (qmm_sm90_held) and qmm_few_sm90's: how codes become operands of products, what these
// stand for, and a single weight.
#pragma once

#include "cuda/device/pair_words.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/two_pipe_fp4.cuh"
#include "cuda/qmm_sm90_held/order.h"
#include "formats/mxfp4.h"

namespace moeblas::cuda {

// By what a token's slice of x is multiplied before products, and what these are multiplied by: a
// power of two that brings its largest value, bits of a bfloat16 without the sign, to
// 2^Weights::kTop.
template <class Weights>
class HeldPower {
 public:
  __device__ explicit HeldPower(uint32_t largest)
      : exponent_(largest == 0 ? 0 : static_cast<int>(largest >> 7) - 127),
        up_(min(Weights::kTop - exponent_, 127)) {}

  // For both halves of a word of x, and for a word in an odd place.
  __device__ uint32_t even() const { return pair(up_); }
  __device__ uint32_t odd() const { return pair(up_ - Weights::kOdd); }
  // Of products that are 2^-down of what they stand for. What is too large for a power gets NaN,
  // and what is so small that products of it would lose bits.
  __device__ float factor(int down) const {
    constexpr int kMostExponent = 94, kLeastExponent = -100;
    const bool has_one = exponent_ >= kLeastExponent && exponent_ <= kMostExponent;
    return __uint_as_float(has_one ? static_cast<uint32_t>(down - up_ + 127) << 23 : 0x7fc00000u);
  }

 private:
  __device__ static uint32_t pair(int exponent) {
    return static_cast<uint32_t>(exponent + 127) * 0x00800080u;
  }
  int exponent_, up_;
};

// 4 bits in groups of 64. A code where it stands is a subnormal bfloat16, q * 2^-133, or q * 2^-129
// in every other place. So it is multiplied as it is, without an instruction to make a weight of
// it, by rows of x times a power of two that brings a slice's largest to 2^100, and by a sixteenth
// of that in those other places. Scales come behind the products of a group, as float32, and biases
// as products of their own, times the groups' sums of x as three bfloat16.
struct HeldAffine4 {
  static constexpr bool kBiases = true, kTensorScale = false;
  static constexpr uint32_t kScaledHalves = 1;  // of a group of 64, each with a scale
  using Order = HeldOrder<false>;
  // Products under Scales are 2^-kDown of what they stand for, and under scales of a word
  // 2^-kWordDown; x's largest is brought to 2^kTop, what stands in odd places to 2^-kOdd of that.
  static constexpr int kDown = 133, kWordDown = 133, kTop = 100, kOdd = 4;
  // As the products take rows of x: pairs of bfloat16, which have been scaled.
  static __device__ uint32_t row(uint32_t pair) { return pair; }
  // The two products of eight codes each of rows g and g + 8.
  static __device__ void operands(const uint32_t (&words)[2], uint32_t (&a)[2][4]) {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t word = words[r] >> j * 8;
        a[j][r] = word & 0x000f000fu;
        a[j][2 + r] = word & 0x00f000f0u;
      }
    }
  }
  static __device__ void multiply(float (&sums)[4], const uint32_t (&a)[4], uint2 b) {
    device::multiply_bf16(sums, {a[0], a[1], a[2], a[3]}, b);
  }
  // Of two groups of a row.
  struct Scales {
    uint32_t both;
    __device__ void fetch(uint32_t from) { both = device::load_shared_u32(from); }
    __device__ float of(uint32_t i) const {
      return __uint_as_float(i == 0 ? both << 16 : both & 0xffff0000u);
    }
  };
  // A row's next ones, as they lie.
  static __device__ void of_word(uint32_t two, float (&of)[2]) {
    of[0] = __uint_as_float(two << 16);
    of[1] = __uint_as_float(two & 0xffff0000u);
  }
  static __device__ float weight(uint32_t code, const uint8_t* scales, const uint8_t* biases,
                                 uint32_t k) {
    const auto of = [&](const uint8_t* all) {
      return __uint_as_float(uint32_t{__ldg(reinterpret_cast<const uint16_t*>(all) + k / 64)}
                             << 16);
    };
    return __fmaf_rn(static_cast<float>(code), of(scales), of(biases));
  }
};

// e2m1 under e8m0, in groups of 32. Codes become float16, 2^-14 of what they stand for; so do rows
// of x, a slice's largest brought to 2^14. What is 2^-28 of that has all of its bits, and the rest
// comes to 2^-39 of it, as in columns of x (x_columns.cuh), whose units are smaller.
struct HeldMxfp4 {
  static constexpr bool kBiases = false, kTensorScale = false;
  static constexpr uint32_t kScaledHalves = 2;
  using Order = HeldOrder<true>;
  static constexpr int kDown = 13, kWordDown = 14, kTop = 14, kOdd = 0;
  static __device__ uint32_t row(uint32_t pair) {
    return Float16Pairs::rounded(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
  static __device__ void operands(const uint32_t (&words)[2], uint32_t (&a)[2][4]) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const device::Octet octet = device::TwoPipeFp4Decoder::decode(words[r], 0);
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        a[j][r] = octet.pair[2 * j];
        a[j][2 + r] = octet.pair[2 * j + 1];
      }
    }
  }
  static __device__ void multiply(float (&sums)[4], const uint32_t (&a)[4], uint2 b) {
    device::multiply_f16(sums, {a[0], a[1], a[2], a[3]}, b);
  }
  // Of four groups of a row, a byte each, which a product makes twice the power that it stands for:
  // so 2^-127 is a normal number. 2^127 is infinite, and its sums are made again; so are those of
  // 255, no number, which would be a zero (has_none).
  struct Scales {
    uint32_t bytes[4];
    __device__ void fetch(uint32_t from) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) bytes[i] = device::load_shared_u8(from + i);
    }
    __device__ float of(uint32_t i) const {
      return __uint_as_float(bytes[i] * 0x00800000u + 0x00800000u);
    }
  };
  // Whether one of the four bytes is 255.
  static __device__ bool has_none(uint32_t word) {
    return ((~word - 0x01010101u) & word & 0x80808080u) != 0;
  }
  // As bfloat16, of which 255 is infinite: sums of it are made again.
  static __device__ void of_word(uint32_t four, float (&of)[4]) {
    const uint32_t even = __vmaxu2((four & 0x00ff00ffu) << 7, 0x00400040u);
    const uint32_t odd = __vmaxu2((four & 0xff00ff00u) >> 1, 0x00400040u);
    of[0] = __uint_as_float(even << 16);
    of[1] = __uint_as_float(odd << 16);
    of[2] = __uint_as_float(even & 0xffff0000u);
    of[3] = __uint_as_float(odd & 0xffff0000u);
  }
  static __device__ float weight(uint32_t code, const uint8_t* scales, const uint8_t*, uint32_t k) {
    using F = formats::Mxfp4;
    return formats::mul(F::decode_code(code), F::decode_scale(__ldg(scales + k / 32)));
  }
};

}  // namespace moeblas::cuda
