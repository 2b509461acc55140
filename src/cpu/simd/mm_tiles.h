// Panels times rows of x: up to kMostRows rows at a time against a whole panel, their sums in
// registers for all steps of it. A sum is formed of a panel's steps each, in the order of K, by
// steps of one value (float32, fused) or two (bfloat16), whatever stands beside it.
//
// Bound by the multiply-adds: rows x kVectors of them per step, for kVectors loads of the panel and
// one of x per row. Rows of x are fetched a tile ahead. What earlier panels gave is added at a
// tile's end: loaded at its beginning, it would wait until the tile before has stored its own sums,
// and the multiply-adds with it (30 cycles of some 1500 on a Zen 5, measured).
#pragma once

#include "cpu/mm_kernels.h"
#include "cpu/simd/simd.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

// S is Simd, see Panels.
template <class S, int kVectors, int kMostRows>
struct Tiles {
  using Floats = Simd::Floats;
  using Words = Simd::Words;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int kCols = kVectors * kLanes;

  // sum += w x, x's numbers being the word of every lane.
  template <Panel kPanel>
  [[gnu::always_inline]] static void step(Floats& sum, Words w, Words x) {
    if constexpr (kPanel == Panel::bf16) {
      sum = S::dot_bf16(sum, w, x);
    } else {
      sum = Simd::fma(Simd::as_floats(w), Simd::as_floats(x), sum);
    }
  }

  template <Panel kPanel, int kRows, class WordOf>
  [[gnu::always_inline]] static void add_step(Floats (&sum)[kRows][kVectors], const uint32_t* panel,
                                              const uint8_t* const (&x)[kRows], WordOf&& word_of) {
    Words w[kVectors];
    unroll<kVectors>([&](auto v) { w[v.value] = Simd::load_words(panel + v.value * kLanes); });
    unroll<kRows>([&](auto r) {
      const Words value = Simd::all_words(word_of(x[r.value]));
      unroll<kVectors>([&](auto v) { step<kPanel>(sum[r.value][v.value], w[v.value], value); });
    });
  }

  template <Panel kPanel, int kRows>
  static void tile(const PanelProduct& p) {
    const auto* panel = static_cast<const uint32_t*>(p.panel);
    Floats sum[kRows][kVectors];
    const uint8_t* x[kRows];
    unroll<kRows>([&](auto r) {
      x[r.value] = p.x[r.value] + p.x_at;
      unroll<kVectors>([&](auto v) { sum[r.value][v.value] = Simd::zero(); });
    });
    const int64_t steps = kPanel == Panel::bf16 ? p.k / 2 : p.k;
    const auto add = [&](int64_t i) __attribute__((always_inline)) {
      add_step<kPanel>(sum, panel + i * kCols, x, [i](const uint8_t* from) {
        uint32_t word;
        __builtin_memcpy(&word, from + i * 4, sizeof word);
        return word;
      });
    };
    int64_t i = 0;
    if (p.next_x != nullptr) {
      constexpr int kLine = 64, kSteps = kLine / 4;
      constexpr int kSums = kRows * kCols * 4 / (kPanelSteps / kSteps);  // bytes
      const auto* sums = reinterpret_cast<const uint8_t*>(p.sums);
      while (i + kSteps <= steps) {
        const int64_t next_at = p.next_at + i * 4;
        // Beyond the last row it may be nobody's address.
        unroll<kRows>([&](auto r) {
          const auto row = reinterpret_cast<uintptr_t>(p.next_x[r.value]);
          __builtin_prefetch(reinterpret_cast<const void*>(row + static_cast<uintptr_t>(next_at)),
                             0, 3);
        });
        for (int byte = 0; byte < kSums; byte += kLine) __builtin_prefetch(sums + byte, 0, 3);
        sums += kSums;
        for (const int64_t end = i + kSteps; i < end; ++i) add(i);
      }
    }
    for (; i < steps; ++i) add(i);
    // Of an odd number of values the last stands alone: what follows it may be nobody's.
    if (kPanel == Panel::bf16 && p.k % 2 != 0) {
      add_step<kPanel>(sum, panel + steps * kCols, x, [steps](const uint8_t* from) {
        uint16_t half;
        __builtin_memcpy(&half, from + steps * 4, sizeof half);
        return static_cast<uint32_t>(half);
      });
    }
    float* const sums = p.sums;
    const bool first = p.first;
    unroll<kRows>([&](auto r) {
      unroll<kVectors>([&](auto v) {
        float* const at = sums + r.value * kCols + v.value * kLanes;
        const Floats here = sum[r.value][v.value];
        Simd::store(at, first ? here : Simd::add(Simd::load(at), here));
      });
    });
  }

  template <Panel kPanel>
  static void multiply(const PanelProduct& p) {
    unroll<kMostRows>([&](auto r) {
      if (p.rows == r.value + 1) tile<kPanel, r.value + 1>(p);
    });
  }
};

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
