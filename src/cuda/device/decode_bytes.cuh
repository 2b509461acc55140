// Codes of 2 to 8 bits, 32 of a row as they lie, to bytes, four in a word: the operands of products
// of integers. What comes out of the words is in the order that costs least, 1 to 2.4 operations
// for four codes: where codes and bytes do not meet, each word takes four codes that begin at the
// same bit of their bytes. Proved equal to src/formats on every code: tests/cuda/decode_test.cpp.
#pragma once

#include "cuda/device/decode.cuh"

namespace moeblas::cuda::device {

// The codes of words 0 to 3 of what comes out are four runs of four neighbours, which begin at
// codes run(0) to run(3), those of words 4 to 7 others, kSecond further on. Byte `byte` of word
// `word` is neighbour at % 4 of run at / 4. Words 2, 3, 6 and 7 hold codes times 2^kRaised: left
// where they lie, these take an operation less.
template <int bits>
struct ByteDecoder;

template <>
struct ByteDecoder<2> {
  enum { kSecond = 16, kRaised = 2 };
  static MB_FN int run(int i) { return 4 * i; }
  static MB_FN int at(int word, int byte) { return 4 * byte + word % 2 * 2 + word % 4 / 2; }
  static MB_FN void decode(const unsigned int (&w)[2], unsigned int (&out)[8]) {
    for (int i = 0; i < 8; ++i) {
      out[i] = (w[i / 4] >> 4 * (i % 2)) & (i % 4 < 2 ? 0x03030303u : 0x0c0c0c0cu);
    }
  }
};

template <>
struct ByteDecoder<4> {
  enum { kSecond = 16, kRaised = 4 };
  static MB_FN int run(int i) { return 4 * i; }
  static MB_FN int at(int word, int byte) { return word % 2 * 8 + 2 * byte + word % 4 / 2; }
  static MB_FN void decode(const unsigned int (&w)[4], unsigned int (&out)[8]) {
    for (int i = 0; i < 8; ++i) {
      out[i] = w[i / 4 * 2 + i % 2] & (i % 4 < 2 ? 0x0f0f0f0fu : 0xf0f0f0f0u);
    }
  }
};

template <>
struct ByteDecoder<8> {
  enum { kSecond = 16, kRaised = 0 };
  static MB_FN int run(int i) { return 4 * i; }
  static MB_FN int at(int word, int byte) { return 4 * (word % 4) + byte; }
  static MB_FN void decode(const unsigned int (&w)[8], unsigned int (&out)[8]) {
    for (int i = 0; i < 8; ++i) out[i] = w[i];
  }
};

// Bytes 0, 3, 6, 9 of three words, then those one and two further on.
struct ByteTriples {
  unsigned int first, second, third;
  static MB_FN ByteTriples of(unsigned int a, unsigned int b, unsigned int c) {
    return {bytes_of(bytes_of(a, b, 0x0630), c, 0x5210),
            bytes_of(bytes_of(a, b, 0x0741), c, 0x6210),
            bytes_of(bytes_of(a, b, 0x0052), c, 0x7410)};
  }
};
// The bits of `mask` in each byte of a word that is moved down, or up.
MB_FN unsigned int down(unsigned int word, int by, unsigned int mask) {
  return (word >> by) & mask * 0x01010101u;
}
MB_FN unsigned int up(unsigned int word, int by, unsigned int mask) {
  return (word << by) & mask * 0x01010101u;
}

template <>
struct ByteDecoder<3> {
  enum { kSecond = 4, kRaised = 0 };
  static MB_FN int run(int i) { return 8 * i; }
  static MB_FN int at(int word, int byte) { return 4 * byte + word % 4; }
  static MB_FN void decode(const unsigned int (&w)[3], unsigned int (&out)[8]) {
    const ByteTriples b = ByteTriples::of(w[0], w[1], w[2]);
    out[0] = down(b.first, 0, 7);
    out[1] = down(b.first, 3, 7);
    out[2] = down(b.first, 6, 3) | up(b.second, 2, 4);
    out[3] = down(b.second, 1, 7);
    out[4] = down(b.second, 4, 7);
    out[5] = down(b.second, 7, 1) | up(b.third, 1, 6);
    out[6] = down(b.third, 2, 7);
    out[7] = down(b.third, 5, 7);
  }
};

template <>
struct ByteDecoder<5> {
  enum { kSecond = 4, kRaised = 0 };
  static MB_FN int run(int i) { return 8 * i; }
  static MB_FN int at(int word, int byte) { return 4 * byte + word % 4; }
  static MB_FN void decode(const unsigned int (&w)[5], unsigned int (&out)[8]) {
    // Bytes 0, 5, 10, 15, then those one to four further on.
    const auto four = [](unsigned int low, unsigned int high) {
      return bytes_of(low, high, 0x5410);
    };
    const unsigned int b[5] = {four(bytes_of(w[0], w[1], 0x0050), bytes_of(w[2], w[3], 0x0072)),
                               four(bytes_of(w[0], w[1], 0x0061), bytes_of(w[2], w[4], 0x0043)),
                               four(bytes_of(w[0], w[1], 0x0072), bytes_of(w[3], w[4], 0x0050)),
                               four(bytes_of(w[0], w[2], 0x0043), bytes_of(w[3], w[4], 0x0061)),
                               four(bytes_of(w[1], w[2], 0x0050), bytes_of(w[3], w[4], 0x0072))};
    out[0] = down(b[0], 0, 31);
    out[1] = down(b[0], 5, 7) | up(b[1], 3, 24);
    out[2] = down(b[1], 2, 31);
    out[3] = down(b[1], 7, 1) | up(b[2], 1, 30);
    out[4] = down(b[2], 4, 15) | up(b[3], 4, 16);
    out[5] = down(b[3], 1, 31);
    out[6] = down(b[3], 6, 3) | up(b[4], 2, 28);
    out[7] = down(b[4], 3, 31);
  }
};

template <>
struct ByteDecoder<6> {
  enum { kSecond = 16, kRaised = 0 };
  static MB_FN int run(int i) { return 4 * i; }
  static MB_FN int at(int word, int byte) { return 4 * byte + word % 4; }
  static MB_FN void decode(const unsigned int (&w)[6], unsigned int (&out)[8]) {
    for (int i = 0; i < 2; ++i) {
      const ByteTriples b = ByteTriples::of(w[3 * i], w[3 * i + 1], w[3 * i + 2]);
      out[4 * i] = down(b.first, 0, 63);
      out[4 * i + 1] = down(b.first, 6, 3) | up(b.second, 2, 60);
      out[4 * i + 2] = down(b.second, 4, 15) | up(b.third, 4, 48);
      out[4 * i + 3] = down(b.third, 2, 63);
    }
  }
};

// Which of the 32 codes byte `byte` of word `word` is.
template <int bits>
MB_FN int element_of_byte(int word, int byte) {
  using D = ByteDecoder<bits>;
  const int at = D::at(word, byte);
  return D::run(at / 4) + at % 4 + word / 4 * D::kSecond;
}

}  // namespace moeblas::cuda::device
