// Which bytes, halves or bits the permutations of avx512.h take, made by the compiler.
#pragma once

#include <cstdint>

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

// The bytes f(0) to f(127).
template <class F>
struct BytesOf {
  alignas(64) uint8_t at[128];
  constexpr BytesOf() : at{} {
    for (int i = 0; i < 128; ++i) at[i] = static_cast<uint8_t>(F{}(i));
  }
};

// Of kBytes bytes each, one after the other, into eight each; the bytes behind repeat the first.
template <int kBytes>
struct Spread {
  uint8_t at[64];
  constexpr Spread() : at{} {
    for (int i = 0; i < 64; ++i)
      at[i] = static_cast<uint8_t>(i / 8 * kBytes + (i % 8 < kBytes ? i % 8 : 0));
  }
};

// Of sixteen runs of kRun bytes in a row three bytes each, from byte kFirst on, and any fourth. The
// last 64 bytes are another vector.
template <int kRun, int kFirst>
struct ThreeOfRuns {
  uint8_t at[64];
  constexpr ThreeOfRuns() : at{} {
    for (int i = 0; i < 64; ++i) {
      const int byte = i / 4 * kRun + kFirst + (i % 4 < 3 ? i % 4 : 0);
      at[i] = static_cast<uint8_t>(byte < 64 ? byte : 64 + byte - (16 * kRun - 64));
    }
  }
};

// Where in every eight bytes the eight bits of each begin.
template <int... kBit>
struct Fields {
  uint8_t at[64];
  constexpr Fields() : at{} {
    constexpr int kBits[] = {kBit...};
    static_assert(sizeof...(kBit) == 8);
    for (int i = 0; i < 64; ++i) at[i] = static_cast<uint8_t>(kBits[i % 8]);
  }
};

// Of codes in a row, one for each lane (a word or a half): what every 16 bytes take of them,
// halves; which bytes of these a lane takes; where in them its code begins.
template <int Bits, class Lane>
struct CodesAt {
  static constexpr int kLane = sizeof(Lane), kIn16 = 16 / kLane;
  uint16_t octets[32];
  uint8_t bytes[64];
  Lane shifts[64 / kLane];
  constexpr CodesAt() : octets{}, bytes{}, shifts{} {
    for (int i = 0; i < 64 / kLane; ++i) {
      // Words are taken from the same 16 bytes.
      const int begin = kLane == 2 ? i / kIn16 * kIn16 * Bits / 16 * 16 : 0;
      const int bit = i * Bits - begin;
      for (int byte = 0; byte < kLane; ++byte)
        bytes[i * kLane + byte] = static_cast<uint8_t>(byte < 2 ? bit / 8 + byte : 0x80);
      shifts[i] = static_cast<Lane>(bit % 8);
    }
    for (int i = 0; i < 32; ++i) octets[i] = static_cast<uint16_t>(i / 8 * Bits / 2 + i % 8);
  }
};

// Of eight bytes the first Bits are kept: first within 16 bytes, then of all.
template <int Bits>
struct Octets {
  uint8_t bytes[64];
  uint16_t halves[32];
  constexpr Octets() : bytes{}, halves{} {
    for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(i % 16 / Bits * 8 + i % 16 % Bits);
    for (int i = 0; i < 32; ++i) halves[i] = static_cast<uint16_t>(i / Bits * 8 + i % Bits);
  }
};

// For every pair of lanes two times two halves: PerPair * pair + Even and the next for the even
// lane, PerPair * pair + Odd and the next for the odd one. Halves beyond the first vector come
// from a second one, which begins at half Second.
template <int PerPair, int Even, int Odd, int Second>
struct HalvesOfPairs {
  alignas(64) uint16_t at[32];

  constexpr HalvesOfPairs() : at{} {
    for (int i = 0; i < 32; ++i) {
      const int half = i / 4 * PerPair + (i % 4 < 2 ? Even : Odd) + i % 2;
      at[i] = static_cast<uint16_t>(half < 32 ? half : 32 + half - Second);
    }
  }
};

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
