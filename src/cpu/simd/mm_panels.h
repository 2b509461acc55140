// Weights into panels: packed rows are transposed as 32-bit words, so that a vector holds the same
// word of as many outputs, and decoded there: a shift, a look-up or conversion and a multiply-add
// per vector of weights, whatever the width. A panel is filled once for all rows of x that meet it.
//
// Where the time goes, 4 bits into pairs of bfloat16, per 32 weights: one shuffle and half a load
// of the transposition, two shifts, two look-ups, two multiply-adds, a conversion, a shuffle, a
// store.
#pragma once

#include "cpu/mm_kernels.h"
#include "cpu/simd/decoder.h"
#include "cpu/simd/elements.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

// S is Simd: what only some tiers have must be named by way of a parameter.
template <class S, int kVectors>
struct Panels {
  using Floats = Simd::Floats;
  using Words = Simd::Words;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int kCols = kVectors * kLanes;
  template <Panel kPanel>
  static constexpr int kPerStep = kPanel == Panel::bf16 ? 2 : 1;

  static uint32_t* at(void* panel, int64_t step, int v) {
    return static_cast<uint32_t*>(panel) + step * kCols + v * kLanes;
  }
  static void put(void* panel, int64_t step, int v, Words words) {
    Simd::store_words(at(panel, step, v), words);
  }
  static void put(void* panel, int64_t step, int v, Floats values) {
    Simd::store_words(at(panel, step, v), Simd::as_words(values));
  }

  // words[i] = word i of kLanes rows of `bytes`, filled up with zeros.
  static void transpose(const uint8_t* const* rows, int64_t bytes, uint32_t* words) {
    for (int64_t from = 0; from < bytes; from += kLanes * 4) {
      Words block[kLanes];
      const int64_t left = bytes - from;
      unroll<kLanes>([&](auto i) {
        block[i.value] = Simd::load_row(rows[i.value] + from, static_cast<int>(left));
      });
      Simd::transpose(block);
      unroll<kLanes>([&](auto i) {
        Simd::store_words(words + (from / 4 + i.value) * kLanes, block[i.value]);
      });
    }
  }

  // Code kIndex of a run whose first code begins words[0].
  template <int kBits, int kIndex>
  static Words code_at(const uint32_t* words) {
    constexpr int kWord = kIndex * kBits / 32, kShift = kIndex * kBits % 32;
    const Words low = Simd::load_words(words + kWord * kLanes);
    if constexpr (kShift == 0) {
      return low;
    } else if constexpr (kShift + kBits <= 32) {
      return Simd::shift_right<kShift>(low);
    } else {
      const Words high = Simd::load_words(words + (kWord + 1) * kLanes);
      return Simd::either(Simd::shift_right<kShift>(low), Simd::shift_left<32 - kShift>(high));
    }
  }

  // Codes kFirst to kFirst + 15 of a run, one group's, to the panel from value k on.
  template <Codes kCodes, Panel kPanel, int kFirst>
  static void decode_run(const Decoder<kCodes, kPanel>& decoder, const uint32_t* words,
                         Floats scale, Floats bias, void* panel, int64_t k, int v) {
    unroll<16 / kPerStep<kPanel>>([&](auto i) {
      const int64_t step = k / kPerStep<kPanel> + i.value;
      const auto value = [&](auto index) {
        return decoder.value(code_at<bits_of(kCodes), kFirst + index.value>(words), scale, bias);
      };
      if constexpr (kPanel == Panel::bf16) {
        put(panel, step, v,
            S::pair_bf16(value(Index<2 * i.value>{}), value(Index<2 * i.value + 1>{})));
      } else {
        put(panel, step, v, value(i));
      }
    });
  }

  template <Codes kCodes, Panel kPanel>
  static void packed_along_k(const WeightBlock& b) {
    constexpr int kBits = bits_of(kCodes);
    const Decoder<kCodes, kPanel> decoder;
    for (int v = 0; v * kLanes < b.count; ++v) {
      transpose(b.rows + v * kLanes, b.k * kBits / 8, b.words);
      for (int64_t k = 0; k < b.k; k += 16) {
        const int64_t group = (k >> b.group_shift) * kCols + v * kLanes;
        const Floats scale = Simd::load(b.scales + group);
        const Floats bias = is_affine(kCodes) ? Simd::load(b.biases + group) : Simd::zero();
        // Of an odd width every other run of 16 begins within a word.
        const uint32_t* words =
            b.words + (kBits % 2 != 0 ? k / 32 * kBits : k * kBits / 32) * kLanes;
        if (kBits % 2 != 0 && k % 32 != 0) {
          decode_run<kCodes, kPanel, kBits % 2 * 16>(decoder, words, scale, bias, b.panel, k, v);
        } else {
          decode_run<kCodes, kPanel, 0>(decoder, words, scale, bias, b.panel, k, v);
        }
      }
    }
  }

  template <Codes kCodes, Panel kPanel>
  static void packed_along_n(const WeightBlock& b) {
    constexpr int kBits = bits_of(kCodes);
    const Decoder<kCodes, kPanel> decoder;
    for (int v = 0; v * kLanes < b.count; ++v) {
      const auto value = [&](int64_t k) {
        const int64_t chunk = k * (kCols / kChunk) + v * kLanes / kChunk;
        const Words code = Simd::codes_in_a_row<kBits>(b.rows[k] + v * kLanes * kBits / 8);
        return decoder.value(code, Simd::all(b.scales[chunk]),
                             is_affine(kCodes) ? Simd::all(b.biases[chunk]) : Simd::zero());
      };
      for (int64_t k = 0; k < b.k; k += kPerStep<kPanel>) {
        if constexpr (kPanel == Panel::bf16) {
          const Floats odd = k + 1 < b.k ? value(k + 1) : Simd::zero();
          put(b.panel, k / 2, v, S::pair_bf16(value(k), odd));
        } else {
          put(b.panel, k, v, value(k));
        }
      }
    }
  }

  template <Panel kPanel, Element kFrom>
  static void dense_along_k(const WeightBlock& b) {
    constexpr bool kWide = kFrom == Element::f32;
    const int64_t bytes = b.k * (kWide ? 4 : 2);
    for (int v = 0; v * kLanes < b.count; ++v) {
      transpose(b.rows + v * kLanes, bytes, b.words);
      for (int64_t word = 0; word * 4 < bytes; ++word) {
        const Words u = Simd::load_words(b.words + word * kLanes);
        if constexpr (kWide || kPanel == Panel::bf16) {
          put(b.panel, word, v, u);
        } else {
          // Of an odd number of values the last word holds one; the other's place is in the panel.
          if constexpr (kFrom == Element::bf16) {
            put(b.panel, 2 * word, v, Simd::shift_left<16>(u));
            put(b.panel, 2 * word + 1, v, Simd::both(u, Simd::all_words(0xffff0000)));
          } else {
            put(b.panel, 2 * word, v, Simd::floats_of_low_f16(u));
            put(b.panel, 2 * word + 1, v, Simd::floats_of_low_f16(Simd::shift_right<16>(u)));
          }
        }
      }
    }
  }

  template <Panel kPanel, Element kFrom>
  static void dense_along_n(const WeightBlock& b) {
    for (int v = 0; v * kLanes < b.count; ++v) {
      const int64_t first = v * kLanes * (kFrom == Element::f32 ? 4 : 2);
      const int count = static_cast<int>(b.count) - v * kLanes;
      for (int64_t k = 0; k < b.k; k += kPerStep<kPanel>) {
        const uint8_t* row = b.rows[k] + first;
        if constexpr (kPanel == Panel::bf16) {
          Words u = Simd::as_words(Simd::load_bf16(row, count));
          u = Simd::shift_right<16>(u);
          if (k + 1 < b.k)
            u = Simd::either(u, Simd::as_words(Simd::load_bf16(b.rows[k + 1] + first, count)));
          put(b.panel, k / 2, v, u);
        } else {
          put(b.panel, k, v, load_elements<kFrom>(row, 0, count));
        }
      }
    }
  }

  template <bool kPowers>
  static void byte_scales(const WeightBlock& b) {
    using Byte = Decoder<Codes::e4m3, Panel::f32>;
    for (int v = 0; v * kLanes < b.count; ++v) {
      transpose(b.rows + v * kLanes, b.k, b.words);
      for (int64_t k = 0; k < b.k; k += 4) {
        const Words u = Simd::load_words(b.words + k / 4 * kLanes);
        // The last word's places are in the panel.
        unroll<4>([&](auto i) {
          const Words byte = Simd::both(Simd::shift_right<8 * i.value>(u), Simd::all_words(255));
          const Floats scale = kPowers ? Byte::e8m0(byte) : Byte::e4m3(byte);
          put(b.panel, k + i.value, v, Simd::mul(scale, Simd::all(b.factor)));
        });
      }
    }
  }

  template <Element kFrom>
  static void load_row(const void* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const int n = in_vector(count - i);
      Simd::store_f32(to + i, load_elements<kFrom>(from, i, n), n);
    }
  }
  template <Element kTo>
  static void store_row(const float* from, float factor, int64_t count, void* to) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const int n = in_vector(count - i);
      store_elements<kTo>(to, i, Simd::mul(Simd::load_f32(from + i, n), Simd::all(factor)), n);
    }
  }
};

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
