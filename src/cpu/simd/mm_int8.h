// Products of int8 for `precision = fast`: codes of weights, which are small whole numbers, times
// values of x rounded to int8, group by group of the weights' groups. Sums of a group are exact in
// int32; per group and output
//
//   total = bias * (x's scale * sum of x's numbers) + (x's scale * (scale * sum) + total)
//
// in float32. E2M1's values count as twice themselves plus 12, which x's numbers times 12 make up
// for before they are scaled; the half waits for the total.
//
// Used for many rows. A panel takes one shuffle and a mask for 64 weights of 4 bits. Tiles are
// bound by the products: rows x kVectors per four values of K, then four operations per group,
// which is why groups of 16 are left to other rows.
#pragma once

#include "cpu/mm_kernels.h"
#include "cpu/simd/decoder.h"
#include "cpu/simd/elements.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

// S is Simd, see Panels.
template <class S, int kVectors, int kMostRows>
struct Int8 {
  using Floats = Simd::Floats;
  using Words = Simd::Words;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int kCols = kVectors * kLanes;
  static constexpr int kE2m1Offset = 12;

  // ---- Weights

  // A word of packed codes becomes 8 / bits of bytes: the first has codes 0, 8 / bits, ... of it.
  template <Codes kCodes>
  static void fill(const WeightBlock& b) {
    constexpr int kBits = bits_of(kCodes), kSteps = 8 / kBits;
    const typename S::ByteTable128 e2m1([](int i) {
      constexpr int kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12};
      return kE2m1Offset + (i & 8 ? -kTwice[i & 7] : kTwice[i & 7]);
    });
    const int64_t bytes = b.k * kBits / 8;
    for (int v = 0; v * kLanes < b.count; ++v) {
      auto* to = static_cast<uint32_t*>(b.panel) + v * kLanes;
      for (int64_t from = 0; from < bytes; from += kLanes * 4) {
        Words block[kLanes];
        const int left = static_cast<int>(bytes - from);
        unroll<kLanes>([&](auto i) {
          block[i.value] = Simd::load_row(b.rows[v * kLanes + i.value] + from, left);
        });
        Simd::transpose(block);
        unroll<kLanes>([&](auto i) {
          unroll<kSteps>([&](auto j) {
            Words codes = Simd::shift_right<j.value * kBits>(block[i.value]);
            if constexpr (kCodes == Codes::e2m1) {
              codes = e2m1[codes];
            } else if constexpr (kBits < 8) {
              codes = Simd::both(codes, Simd::all_words(((1u << kBits) - 1) * 0x01010101u));
            }
            Simd::store_words(to, codes);
            to += kCols;
          });
        });
      }
    }
  }

  // ---- x

  // Where in sixteen values the values of an int8 panel's steps lie.
  struct Order {
    alignas(64) uint32_t at[3][16];  // of 2, 4 and 8 bits
    constexpr Order() : at{} {
      for (int size = 0; size < 3; ++size) {
        const int steps = 4 >> size;
        for (int i = 0; i < 16; ++i) {
          const int word = i / (4 * steps), step = i / 4 % steps;
          at[size][i] = static_cast<uint32_t>(word * 4 * steps + i % 4 * steps + step);
        }
      }
    }
  };
  static constexpr Order kOrder{};

  template <Element kElement>
  static void quantize_x(const void* x, int64_t count, int64_t group, Codes codes, uint8_t* numbers,
                         Int8Group* groups) {
    const int size = codes == Codes::u8 ? 2 : codes == Codes::u2 ? 0 : 1;
    const Words order = Simd::load_words(kOrder.at[size]);
    const Words magnitude = Simd::all_words(0x7fffffffu);
    for (int64_t first = 0; first < count; first += group, ++groups) {
      Words most = Simd::all_words(0);
      for (int64_t i = first; i < first + group; i += kLanes) {
        const Words v = Simd::as_words(load_elements<kElement>(x, i, kLanes));
        most = Simd::largest_words(most, Simd::both(v, magnitude));  // NaN is above infinity
      }
      const Scaling by = scaling(largest_lane(most));
      Words sum = Simd::all_words(0);
      for (int64_t i = first; i < first + group; i += kLanes) {
        const Floats v = Simd::spread(load_elements<kElement>(x, i, kLanes), order);
        const Words number = Simd::to_words(Simd::mul(v, Simd::all(by.inverse)));
        sum = Simd::sum_words(sum, number);
        S::store_low_bytes(numbers + i, number);
      }
      *groups = {by.scale, by.inverse == 0.0f ? 0 : sum_of_lanes(sum)};
    }
  }

  // ---- Products

  // sum += four values of K.
  template <int kRows>
  [[gnu::always_inline]] static void add_step(Words (&sum)[kRows][kVectors], const uint32_t* panel,
                                              const uint8_t* const (&x)[kRows], int64_t at) {
    Words w[kVectors];
    unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      w[v.value] = Simd::load_words(panel + v.value * kLanes);
    });
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      uint32_t four;
      __builtin_memcpy(&four, x[r.value] + at, sizeof four);
      const Words value = Simd::all_words(four);
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        sum[r.value][v.value] = S::dot_bytes(sum[r.value][v.value], w[v.value], value);
      });
    });
  }

  // total += what a group's sums stand for.
  template <bool kAffine, int kRows>
  [[gnu::always_inline]] static void add_group(const Words (&sum)[kRows][kVectors],
                                               const PanelProduct& p, int64_t g) {
    const float* const scales = p.scales + g * kCols;
    const float* const biases = p.biases + g * kCols;
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      const Int8Group& of_x = p.x_groups[r.value][g];
      const Floats scale = Simd::all(of_x.scale);
      const Floats of_bias = Simd::all(of_x.scale * static_cast<float>(of_x.sum));
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        constexpr int kAt = v.value * kLanes;
        float* const at = p.sums + r.value * kCols + kAt;
        const Floats scaled =
            Simd::mul(Simd::to_floats(sum[r.value][v.value]), Simd::load(scales + kAt));
        Floats total = Simd::fma(scaled, scale, Simd::load(at));
        if constexpr (kAffine) total = Simd::fma(Simd::load(biases + kAt), of_bias, total);
        Simd::store(at, total);
      });
    });
  }

  template <bool kAffine, int kRows>
  static void tile(const PanelProduct& p) {
    const auto* panel = static_cast<const uint32_t*>(p.panel);
    const int64_t groups = p.k >> p.group_shift, group = int64_t{1} << p.group_shift;
    const uint8_t* x[kRows];
    unroll<kRows>([&](auto r)
                      __attribute__((always_inline)) { x[r.value] = p.x[r.value] + p.x_at; });
    if (p.first) {
      for (int i = 0; i < kRows * kCols; i += kLanes) Simd::store(p.sums + i, Simd::zero());
    }
    int64_t at = 0;
    for (int64_t g = 0; g < groups; ++g) {
      Words sum[kRows][kVectors];
      unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        const int from = kAffine ? 0 : -kE2m1Offset * p.x_groups[r.value][g].sum;
        unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
          sum[r.value][v.value] = Simd::all_words(static_cast<uint32_t>(from));
        });
      });
      for (const int64_t end = at + group; at < end; at += 4, panel += kCols)
        add_step(sum, panel, x, at);
      add_group<kAffine>(sum, p, g);
    }
  }

  static void multiply(const PanelProduct& p) {
    unroll<kMostRows>([&](auto r) {
      if (p.rows != r.value + 1) return;
      if (p.codes == Codes::e2m1) {
        tile<false, r.value + 1>(p);
      } else {
        tile<true, r.value + 1>(p);
      }
    });
  }

 private:
  struct Scaling {
    float scale, inverse;
  };
  // By the bits of a group's largest magnitude. Groups below 2^-100, whose scales could vanish,
  // count as 0; a group that is not finite gets no number, so that its sums get none.
  static Scaling scaling(uint32_t most) {
    constexpr uint32_t kLeast = 27u << 23, kInfinity = 0x7f800000u;
    if (most < kLeast) return {0.0f, 0.0f};
    if (most >= kInfinity) return {__builtin_nanf(""), 0.0f};
    const float largest = __builtin_bit_cast(float, most);
    return {largest / kInt8Most, kInt8Most / largest};
  }
  static uint32_t largest_lane(Words v) {
    uint32_t lanes[kLanes], most = 0;
    Simd::store_words(lanes, v);
    for (uint32_t lane : lanes) most = lane > most ? lane : most;
    return most;
  }
  static int32_t sum_of_lanes(Words v) {
    uint32_t lanes[kLanes], sum = 0;
    Simd::store_words(lanes, v);
    for (uint32_t lane : lanes) sum += lane;
    return static_cast<int32_t>(sum);
  }
  static constexpr float kInt8Most = 127.0f;
};

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
