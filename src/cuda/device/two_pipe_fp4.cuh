// e2m1 to float16 where the pipe of logic has more to do than the one of products.
#pragma once

#include "cuda/device/decode.cuh"

namespace moeblas::cuda::device {

// e2m1 by fewer operations on the pipe of logic, permutations and right shifts, which has the most
// to do beside mma, and more on the one beside it, of products, which left shifts are: 7 and 4 for
// a word's 9 and 2. What a choice between two words leaves beside a code goes when its half is
// masked.
struct TwoPipeFp4Decoder : Fp4Decoder {
  // `first` where signs are, `second` elsewhere. Opaque: the compiler would mask both words.
  static MB_FN unsigned int with_sign(unsigned int first, unsigned int second) {
#if defined(__CUDA_ARCH__)
    unsigned int word;
    asm("lop3.b32 %0, %1, %2, 0x80808080, 0xe4;" : "=r"(word) : "r"(first), "r"(second));
    return word;
#else
    return (first & 0x80808080u) | (second & 0x7f7f7f7fu);
#endif
  }
  static MB_FN Octet decode(unsigned int word, unsigned int) {
    const unsigned int code = 0x8e008e00u;
    const unsigned int even = with_sign(word << 4, word << 1), odd = with_sign(word, word >> 3);
    return {{(even << 8) & code, (odd << 8) & code, even & code, odd & code}};
  }
};

}  // namespace moeblas::cuda::device
