// Codes as numbers, a vector at a time.
#pragma once

#include "cpu/mm_kernels.h"
#include "cpu/simd/simd.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

constexpr int bits_of(Codes codes) {
  constexpr int kBits[] = {2, 3, 4, 5, 6, 8, 4, 8};
  return kBits[static_cast<int>(codes)];
}
constexpr bool is_affine(Codes codes) { return codes != Codes::e2m1 && codes != Codes::e4m3; }

// Codes under a scale as numbers.
template <Codes kCodes, Panel kPanel>
class Decoder {
 public:
  using Floats = Simd::Floats;
  using Words = Simd::Words;
  static constexpr int kBits = bits_of(kCodes);

  Decoder() : table_(numbers().of) {}

  // The code is in the low bits of every lane, whatever is above it.
  Floats number(Words code) const {
    if constexpr (kBits <= 4) return table_[code];
    if constexpr (kCodes == Codes::e4m3) return e4m3(code);
    return Simd::to_floats(Simd::both(code, Simd::all_words((1u << kBits) - 1)));
  }
  // Panels of float32 hold what dequantize gives, by two roundings; the others are rounded once
  // more anyway.
  Floats value(Words code, Floats scale, Floats bias) const {
    const Floats q = number(code);
    if constexpr (!is_affine(kCodes)) return Simd::mul(q, scale);
    if constexpr (kPanel == Panel::bf16) return Simd::fma(q, scale, bias);
    return Simd::add(Simd::mul(q, scale), bias);
  }

  static Floats e4m3(Words code) {
    // The exponent has float16's place then, and 8 too little of its bias; subnormal numbers of one
    // are those of the other.
    const Words moved =
        Simd::either(Simd::both(Simd::shift_left<7>(code), Simd::all_words(0x3f80)),
                     Simd::both(Simd::shift_left<8>(code), Simd::all_words(0x8000)));
    const Floats value = Simd::mul(Simd::floats_of_low_f16(moved), Simd::all(256.0f));
    return Simd::where_below(Simd::both(code, Simd::all_words(0x7f)), 0x7f, value, nan());
  }
  static Floats e8m0(Words byte) { return Simd::where_below(byte, 255, Simd::e8m0(byte), nan()); }

 private:
  static Floats nan() { return Simd::as_floats(Simd::all_words(0x7fc00000)); }

  // E2M1's values; or codes as numbers, repeated so that higher bits of an index do not matter.
  struct Numbers {
    float of[16];
  };
  static Numbers numbers() {
    constexpr float kE2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    Numbers n;
    for (int i = 0; i < 16; ++i) {
      n.of[i] = kCodes != Codes::e2m1 ? static_cast<float>(i & ((1 << kBits) - 1))
                : i < 8               ? kE2m1[i]
                                      : -kE2m1[i - 8];
    }
    return n;
  }

  Simd::Table16 table_;
};

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
