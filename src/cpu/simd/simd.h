// What kernels in this folder are written in: `Simd`, a struct of vector operations, one for each
// instruction set. A kernel's text is compiled once per tier, with the tier's flags (MOEBLAS_TIER
// is its name, see src/CMakeLists.txt), in a namespace of the tier's name and, inside it, an
// unnamed one: what a translation unit compiled for one instruction set defines must never be what
// the linker keeps for another. For the same reason these texts include no header with inline
// functions that other units use.
//
// Floats are kLanes float32, Words as many uint32.
//   spread(v, lanes)        lane i takes v's lane lanes[i]; of an index the low bits count
//   Table16(p)[words]       the float32 of p[0, 16) that the low four bits choose
//   load_f32, _f16, _bf16   the first `count` elements at p (at most kLanes are read), 0 in the
//                           other lanes
//   load_bytes              the same for bytes, as words
//   e8m0(bytes)             their powers of two; 255 gives infinity
//   kept(v)                 v, in a register: compilers would load it again for every use
//   load_e4m3(p, count)     numbers of E4M3FN; AVX-512 alone
//   small_e4m3(p)           kLanes numbers of E4M3FN times 2^-8, NaN as a number
//   any_e4m3_nan(p)         of 2 kLanes bytes
//   load_octets<Bits>(p)    the codes of kLanes octets (see formats/pack.h), octet i in lane i: for
//                           2, 3 and 4 bits code j of an octet begins at bit Bits * j of `low`; for
//                           more, code j < 4 there and code j >= 4 at bit Bits * (j - 4) of `high`.
//                           What stands above an octet's codes is undefined. Reads kLanes * Bits
//                           bytes.
//   sum(v)                  all lanes, in a fixed order; sums(a, b, c, d, out) four of these
// With bfloat16 products:
//   dot(acc, a, b)          acc plus the two products of bfloat16 in each word
//   HalfTable32(f)[words]   for each half of a word the bfloat16 f(i) that its low five bits
//                           choose; HalfTable64: six; ByteTable128: the byte that each byte's low
//                           seven do
//   spread_bytes<N>(p)      N bytes in every eight, eight times; nothing beyond them is read
//   three_bytes_of_runs<N, F>(p) of sixteen runs of N bytes in a row three bytes each, from byte
//                           F on, and any fourth
//   fields<a, b, ...>(v)    in every eight bytes, eight bits of them from bit a on, from bit b on,
//   .. low_bytes_in_turn(a, b) a byte of a, one of b, ... within 128 bits, of their low halves; of
//                           the high ones
// For panels:
//   load_row(p, bytes)      words, filled up with zeros; nothing beyond `bytes` is read
//   transpose(rows)         word j of row i becomes word i of row j
//   where_below(v, b, x, y) x where v < b, else y; v and b below 2^31
//   floats_of_low_f16       the low halves of words
//   codes_in_a_row<Bits>(p) kLanes codes that begin at p, in the low bits of lanes; undefined
//                           above, but for more than 4 bits, where it is 0
//   store_f32, _f16, _bf16  the first `count` lanes, rounded once
//   pair_bf16(even, odd)    both rounded to bfloat16, side by side in every word; dot_bf16 adds the
//                           products of two such words. Both take what is subnormal for 0
//   dot_bytes(acc, a, b)    every word plus four products of its bytes, a's without a sign, b's
//                           with one
//   store_low_bytes(p, v)   the low byte of every lane
// For rows:
//   least(a, b), largest    b where one is NaN
//   power_of_two(n)         2^n of whole n from -126 to 127
//   evens(low, high)        every second of 2 kLanes numbers
// For quantization:
//   largest_i16, .._u16, least_u16  of halves of words, with and without a sign
//   any(v)                  a word is not 0
//   every_below(v, bound)   as integers without a sign; every_less(a, b): false with a NaN
//   of_larger_magnitude(a, b) the one that is; b of two alike, which it is not less than
//   capped_magnitude(v, m)  the lesser of |v| and m > 0; m or NaN of NaN
//   bits_of(mask, a, b)     of a where the mask has ones, of b elsewhere
//   fold(at, f)             lane i: f over all lanes of at(i), in any order; fold_two: of half i %
//                           2 of at(i / 2)
//   halves(f16, numbers, low, high) 2 kLanes values rounded to float16 or bfloat16; `numbers`: none
//                           is NaN
//   look_up_halves<Bits>(table, p) of such a table the value of every code
//   store_past_cache(p, v)  p a multiple of 64 bytes, to be fenced
//   store_bytes(v, p)       4 kLanes signed words as bytes, less than 0 as 0 and more than 255 as
//                           255; store_bytes_of_pairs the words of v[0] and v[1] in turn, then
//                           those of v[2] and v[3], and none may be less than 0
//   pack_bytes<Bits>(v, p)  4 kLanes codes, what is too large as the largest; up to 64 bytes are
//                           written
#pragma once

#if defined(__AVX512F__)
#include "cpu/simd/avx512.h"
#elif defined(__aarch64__)
#include "cpu/simd/neon.h"
#else
#include "cpu/simd/avx2.h"
#endif

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

template <int I>
struct Index {
  static constexpr int value = I;
};
// f(Index<0>), f(Index<1>), ... f(Index<N - 1>).
template <int N, class F>
[[gnu::always_inline]] inline void unroll(F&& f) {
  if constexpr (N > 0) {
    unroll<N - 1>(f);
    f(Index<N - 1>{});
  }
}

// f(Index<size>) for a size of groups.
template <class F>
void with_size(int64_t size, F&& f) {
  if (size == 16) return f(Index<16>{});
  if (size == 32) return f(Index<32>{});
  if (size == 64) return f(Index<64>{});
  f(Index<128>{});
}

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
