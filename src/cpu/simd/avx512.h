// AVX-512 (F, BW, DQ, VL): sixteen lanes. See simd.h for what each operation means.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/simd/avx512_tables.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

struct Simd {
  static constexpr int kLanes = 16;
  using Floats = __m512;
  using Words = __m512i;

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats all(float value) { return _mm512_set1_ps(value); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

  static float sum(Floats v) {
    const __m256 half = halved(v), pairs = _mm256_hadd_ps(half, half);
    const __m256 fours = _mm256_hadd_ps(pairs, pairs);
    return _mm_cvtss_f32(
        _mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
  }
  static void sums(Floats a, Floats b, Floats c, Floats d, float* out) {
    const __m256 fours =
        _mm256_hadd_ps(_mm256_hadd_ps(halved(a), halved(b)), _mm256_hadd_ps(halved(c), halved(d)));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
  }

  static Words load_words(const void* p) { return _mm512_loadu_si512(p); }
  template <class Vector>
  static Vector kept(Vector v) {
    asm("" : "+v"(v));
    return v;
  }
  static Words all_words(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
  static Words both(Words a, Words b) { return _mm512_and_si512(a, b); }
  template <int N>
  static Words shift_right(Words v) {
    return _mm512_srli_epi32(v, N);
  }
  template <int N>
  static Words shift_left(Words v) {
    return _mm512_slli_epi32(v, N);
  }
  static Floats to_floats(Words v) { return _mm512_cvtepi32_ps(v); }
  static Floats as_floats(Words v) { return _mm512_castsi512_ps(v); }
  static Floats spread(Floats v, Words lanes) { return _mm512_permutexvar_ps(lanes, v); }

  struct Table16 {
    __m512 values;
    explicit Table16(const float* sixteen) : values(_mm512_loadu_ps(sixteen)) {}
    Floats operator[](Words low_bits) const { return _mm512_permutexvar_ps(low_bits, values); }
  };

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
  // acc + the products of the bfloat16 pairs of each word.
  static Floats dot(Floats acc, Words a, Words b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
  }
  // Of each half of a word the low five or six bits choose; the numbers are exact in bfloat16.
  struct HalfTable32 {
    Words numbers;
    template <class F>
    explicit HalfTable32(F&& number_of, int first = 0) {
      uint16_t halves[32];
      for (int i = 0; i < 32; ++i)
        halves[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, number_of(first + i)) >> 16);
      numbers = load_words(halves);
    }
    Words operator[](Words low_bits) const { return _mm512_permutexvar_epi16(low_bits, numbers); }
  };
  struct HalfTable64 {
    HalfTable32 low, high;
    template <class F>
    explicit HalfTable64(F&& number_of) : low(number_of), high(number_of, 32) {}
    Words operator[](Words low_bits) const {
      return _mm512_permutex2var_epi16(low.numbers, low_bits, high.numbers);
    }
  };
  // Of each byte the low seven bits choose. The compiler makes the table: a kernel's call, which
  // begins with it, lasts microseconds.
  struct ByteTable128 {
    Words low, high;
    template <class F>
    explicit ByteTable128(F) {
      static constexpr BytesOf<F> kBytes;
      low = load_words(kBytes.at);
      high = load_words(kBytes.at + 64);
    }
    Words operator[](Words low_bits) const { return _mm512_permutex2var_epi8(low, low_bits, high); }
  };
  // kBytes bytes in every eight, eight times; nothing beyond them is read.
  template <int kBytes>
  static Words spread_bytes(const uint8_t* p) {
    alignas(64) static constexpr Spread<kBytes> kFrom;
    constexpr uint64_t kRead = (uint64_t{1} << 8 * kBytes) - 1;
    return _mm512_permutexvar_epi8(load_words(kFrom.at), _mm512_maskz_loadu_epi8(kRead, p));
  }
  // Three bytes of each of sixteen runs of kRun bytes, from its byte kFirst on, in the run's lane.
  template <int kRun, int kFirst>
  static Words three_bytes_of_runs(const uint8_t* p) {
    alignas(64) static constexpr ThreeOfRuns<kRun, kFirst> kFrom;
    return _mm512_permutex2var_epi8(load_words(p), load_words(kFrom.at),
                                    load_words(p + 16 * kRun - 64));
  }
  // Byte i of every eight takes the eight bits of them that begin at the bit named.
  template <int... kBit>
  static Words fields(Words v) {
    alignas(64) static constexpr Fields<kBit...> kAt;
    return _mm512_multishift_epi64_epi8(load_words(kAt.at), v);
  }
  static Words low_bytes_in_turn(Words a, Words b) { return _mm512_unpacklo_epi8(a, b); }
  static Words high_bytes_in_turn(Words a, Words b) { return _mm512_unpackhi_epi8(a, b); }
#endif

  static __mmask16 first(int count) {
    return static_cast<__mmask16>(count >= kLanes ? 0xffff : (1 << count) - 1);
  }
  static Floats load_f32(const void* p, int count) {
    return _mm512_maskz_loadu_ps(first(count), p);
  }
  static Floats load_f16(const void* p, int count) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), p));
  }
  static Floats load_bf16(const void* p, int count) {
    const Words halves = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(count), p));
    return as_floats(_mm512_slli_epi32(halves, 16));
  }
  static Words load_bytes(const void* p, int count) {
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first(count), p));
  }

  static Floats e8m0(Words bytes) {
    return as_floats(_mm512_max_epu32(_mm512_slli_epi32(bytes, 23), _mm512_set1_epi32(0x00400000)));
  }
  // Sixteen bits at a time, in half the operations that words take.
  static Floats load_e4m3(const void* p, int count) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_maskz_loadu_epi8(first(count), p));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(~0x4000));
    const __m256i body = _mm256_set1_epi16(0x3f80);
    const __mmask16 is_nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(half, body), body);
    const Floats value = _mm512_mul_ps(_mm512_cvtph_ps(half), all(256.0f));
    return _mm512_mask_mov_ps(value, is_nan, as_floats(all_words(0x7fc00000)));
  }
  static Floats small_e4m3(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtph_ps(
        _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(~0x4000)));
  }
  static bool any_e4m3_nan(const uint8_t* p) {
    const __m256i body = _mm256_set1_epi8(0x7f);
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_cmpeq_epi8_mask(_mm256_and_si256(v, body), body) != 0;
  }

  template <int Bits>
  static void load_octets(const uint8_t* p, Words& low, Words& high) {
    if constexpr (Bits == 2) {
      low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    } else if constexpr (Bits == 4) {
      low = load_words(p);
    } else if constexpr (Bits == 3) {
      // Two octets are three halves: even lanes take the first two, odd lanes the last two.
      const Words v = _mm512_maskz_loadu_epi8(0xffffffffffff, p);
      low = _mm512_srlv_epi32(one_source<3, 0, 1>(v), odd_lanes(0, 8));
    } else if constexpr (Bits == 5) {
      // Two octets are five halves; the second begins in the middle of one. Codes 4 .. 7 begin at
      // bits 20 and 60 of the pair.
      const Words a = load_words(p), b = load_words(p + 16);
      low = _mm512_srlv_epi32(two_sources<5, 0, 2, 8>(a, b), odd_lanes(0, 8));
      high = _mm512_srlv_epi32(two_sources<5, 1, 3, 8>(a, b), odd_lanes(4, 12));
    } else if constexpr (Bits == 6) {
      const Words a = load_words(p), b = load_words(p + 32);
      low = two_sources<6, 0, 3, 16>(a, b);
      high = _mm512_srli_epi32(two_sources<6, 1, 4, 16>(a, b), 8);
    } else {
      static_assert(Bits == 8);
      const Words a = load_words(p), b = load_words(p + 64);
      const Words even =
          _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      low = _mm512_permutex2var_epi32(a, even, b);
      high = _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
    }
  }

  // ---- Panels

  static Words load_row(const void* p, int bytes) {
    return _mm512_maskz_loadu_epi8(bytes >= 64 ? ~uint64_t{0} : (uint64_t{1} << bytes) - 1, p);
  }
  static void store_words(void* p, Words v) { _mm512_storeu_si512(p, v); }
  static Words as_words(Floats v) { return _mm512_castps_si512(v); }
  static Words either(Words a, Words b) { return _mm512_or_si512(a, b); }
  static Words sum_words(Words a, Words b) { return _mm512_add_epi32(a, b); }
  static Floats where_below(Words v, uint32_t bound, Floats below, Floats others) {
    return _mm512_mask_mov_ps(others, _mm512_cmplt_epu32_mask(v, all_words(bound)), below);
  }
  static Floats floats_of_low_f16(Words v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }

  static void store_f32(void* p, Floats v, int count) { _mm512_mask_storeu_ps(p, first(count), v); }
  static void store_f16(void* p, Floats v, int count) {
    _mm256_mask_storeu_epi16(p, first(count), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store_bf16(void* p, Floats v, int count) {
    _mm256_mask_storeu_epi16(p, first(count), bf16(v));
  }

  template <int Bits>
  static Words codes_in_a_row(const uint8_t* p) {
    if constexpr (Bits == 8) {
      return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    } else if constexpr (Bits == 4) {
      // A byte in every pair of lanes, its upper half moved up to the upper lane.
      const Words byte = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
      return _mm512_or_si512(byte, _mm512_slli_epi64(byte, 28));
    } else {
      // The two bytes that a code begins in become its lane's.
      alignas(64) static constexpr CodesAt<Bits, uint32_t> kAt;
      const __m128i octets = _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << 2 * Bits) - 1), p);
      const Words bytes =
          _mm512_shuffle_epi8(_mm512_broadcast_i32x4(octets), load_words(kAt.bytes));
      const Words codes = _mm512_srlv_epi32(bytes, load_words(kAt.shifts));
      return _mm512_and_si512(codes, all_words((1u << Bits) - 1));
    }
  }

  static void transpose(Words (&rows)[kLanes]) {
    Words pairs[kLanes], quads[kLanes];
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
      quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
      quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
      quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      const Words a = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0x88);
      const Words b = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0x88);
      const Words c = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0xdd);
      const Words d = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0xdd);
      rows[i] = _mm512_shuffle_i32x4(a, b, 0x88);
      rows[4 + i] = _mm512_shuffle_i32x4(c, d, 0x88);
      rows[8 + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
      rows[12 + i] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
  }

  // ---- Rows

  static Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats round(Floats v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Floats least(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static Floats largest(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats where_less(Floats a, Floats b, Floats less, Floats others) {
    return _mm512_mask_mov_ps(others, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), less);
  }
  static Floats power_of_two(Floats n) {
    return as_floats(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), all_words(127)), 23));
  }
  static Floats evens(Floats low, Floats high) {
    const Words even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(low, even, high);
  }

  // ---- Quantization

  static Words to_words(Floats v) { return _mm512_cvtps_epi32(v); }
  static Words largest_words(Words a, Words b) { return _mm512_max_epu32(a, b); }
  static Words largest_i16(Words a, Words b) { return _mm512_max_epi16(a, b); }
  static Words largest_u16(Words a, Words b) { return _mm512_max_epu16(a, b); }
  static Words least_u16(Words a, Words b) { return _mm512_min_epu16(a, b); }
  static bool any(Words v) { return _mm512_test_epi32_mask(v, v) != 0; }
  static bool every_below(Words v, uint32_t bound) {
    return _mm512_cmplt_epu32_mask(v, all_words(bound)) == 0xffff;
  }
  static bool every_less(Floats a, Floats b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) == 0xffff;
  }
  static Floats of_larger_magnitude(Floats a, Floats b) { return _mm512_range_ps(a, b, 0b0111); }
  static Floats capped_magnitude(Floats v, Floats most) {
    return _mm512_range_ps(v, most, 0b1010);  // the one of less magnitude, without a sign
  }
  static Words bits_of(uint32_t mask, Words a, Words b) {
    return _mm512_ternarylogic_epi32(all_words(mask), a, b, 0xca);
  }
  template <class At, class F>
  static Words fold(At&& at, F&& f) {
    const auto quad = [&](int i) {
      const Words low = fold_halves_of(at(i), at(4 + i), f);
      return fold_halves_of(low, fold_halves_of(at(8 + i), at(12 + i), f), f);
    };
    return fold_quads(quad, f);
  }
  template <class At, class F>
  static Words fold_two(At&& at, F&& f) {
    const auto quad = [&](int i) { return fold_halves_of(at(2 * i), at(2 * i + 1), f); };
    const Words order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, fold_quads(quad, f));
  }
  static void store_bytes(const Words (&v)[4], uint8_t* p) {
    // Four words of each vector in turn, then in order.
    const Words in_turn =
        _mm512_packus_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
    const Words order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    store_words(p, _mm512_permutexvar_epi32(order, in_turn));
  }
  static void store_bytes_of_pairs(const Words (&v)[4], uint8_t* p) {
    const Words low = either(v[0], shift_left<16>(v[1])), high = either(v[2], shift_left<16>(v[3]));
    const Words order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    store_words(p, _mm512_permutexvar_epi64(order, _mm512_packus_epi16(low, high)));
  }
  template <int Bits>
  static void pack_bytes(const uint8_t* codes, uint8_t* p) {
    constexpr int kMost = (1 << Bits) - 1;
    const Words bytes = _mm512_min_epu8(load_words(codes), _mm512_set1_epi8(char(kMost)));
    if constexpr (Bits == 8) {
      store_words(p, bytes);
    } else {
      // Two codes together, four, eight; then the bytes that they fill.
      const Words twos = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(1 | 256 << Bits));
      const Words fours = _mm512_madd_epi16(twos, all_words(1 | 65536 << 2 * Bits));
      if constexpr (Bits == 4) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi16_epi8(twos));
      } else if constexpr (Bits == 2) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(fours));
      } else {
        alignas(64) static constexpr Octets<Bits> kAt;
        constexpr int kUnused = 32 - 4 * Bits;
        const Words eights =
            _mm512_srli_epi64(_mm512_sllv_epi32(fours, _mm512_set1_epi64(kUnused)), kUnused);
        const Words in_lane = _mm512_shuffle_epi8(eights, load_words(kAt.bytes));
        store_words(p, _mm512_permutexvar_epi16(load_words(kAt.halves), in_lane));
      }
    }
  }

  // Sixteen values, rounded to halves, twice; and 32 values of as many nibbles.
  static constexpr bool kHalfTables = true;
  static constexpr uint32_t kCount[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  static Words halves(bool f16, bool numbers, Floats low, Floats high) {
    if (!f16 && numbers) {
      // The upper halves of both vectors' words.
      alignas(64) static constexpr uint16_t kUpper[32] = {
          1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
          33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
      return _mm512_permutex2var_epi16(rounded(low), load_words(kUpper), rounded(high));
    }
    const auto half = [f16](Floats v) {
      return f16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : bf16(v);
    };
    return _mm512_inserti64x4(_mm512_castsi256_si512(half(low)), half(high), 1);
  }
  static void store_past_cache(void* p, Words v) {
    _mm512_stream_si512(static_cast<__m512i*>(p), v);
  }
  template <int Bits>
  static Words look_up_halves(Words table, const uint8_t* codes) {
    // Of an index five bits count.
    if constexpr (Bits == 4) {
      // In every word a byte and, 12 bits above, it again: its upper nibble begins the upper half.
      const Words byte =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
      const Words index = _mm512_or_si512(byte, _mm512_slli_epi32(byte, 12));
      return _mm512_permutexvar_epi16(index, table);
    } else {
      alignas(64) static constexpr CodesAt<Bits, uint16_t> kAt;
      const Words loaded = _mm512_maskz_loadu_epi8((uint64_t{1} << 4 * Bits) - 1, codes);
      const Words octets = _mm512_permutexvar_epi16(load_words(kAt.octets), loaded);
      const Words bytes = _mm512_shuffle_epi8(octets, load_words(kAt.bytes));
      return _mm512_permutexvar_epi16(_mm512_srlv_epi16(bytes, load_words(kAt.shifts)), table);
    }
  }

#if defined(__AVX512VNNI__)
  // g++ 12 copies the operand of the intrinsic that is also the result.
  static Words dot_bytes(Words acc, Words a, Words b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  }
#endif
  static void store_low_bytes(void* p, Words v) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
  }

#if defined(__AVX512BF16__)
  static Words pair_bf16(Floats even, Floats odd) {
    alignas(64) static constexpr uint16_t kInTurn[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                         21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                         11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(load_words(kInTurn),
                                    reinterpret_cast<Words>(_mm512_cvtne2ps_pbh(odd, even)));
  }
  static Floats dot_bf16(Floats sum, Words a, Words b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
#endif

 private:
  // The upper halves are bfloat16, of what is no NaN.
  static Words rounded(Floats v) {
    const Words u = as_words(v);
    const Words odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), all_words(1));
    return _mm512_add_epi32(_mm512_add_epi32(u, all_words(0x7fff)), odd);
  }
  // As integers, since the conversion takes subnormal numbers for 0.
  static __m256i bf16(Floats v) {
    const Words u = as_words(v), upper = _mm512_srli_epi32(rounded(v), 16);
    const Words quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), all_words(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(upper, is_nan, quiet));
  }
  // 16 bytes in place of 32: of the lower half of a and its upper one, then of b's.
  template <class F>
  static Words fold_halves_of(Words a, Words b, F&& f) {
    return f(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }
  // Word i of 16 bytes: f over these 16 bytes of quad(i).
  template <class Quad, class F>
  static Words fold_quads(Quad&& quad, F&& f) {
    const auto within = [&](Words a, Words b) {
      const Floats x = as_floats(a), y = as_floats(b);
      return f(as_words(_mm512_shuffle_ps(x, y, 0x88)), as_words(_mm512_shuffle_ps(x, y, 0xdd)));
    };
    const Words a = quad(0), b = within(a, quad(1)), c = quad(2);
    return within(b, within(c, quad(3)));
  }
  static __m256 halved(Floats v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  }
  static Words odd_lanes(int even, int odd) {
    return _mm512_set1_epi64(static_cast<int64_t>(odd) << 32 | even);
  }

  template <int PerPair, int Even, int Odd>
  static Words one_source(Words a) {
    static constexpr HalvesOfPairs<PerPair, Even, Odd, 0> kFrom;
    return _mm512_permutexvar_epi16(load_words(kFrom.at), a);
  }
  template <int PerPair, int Even, int Odd, int Second>
  static Words two_sources(Words a, Words b) {
    static constexpr HalvesOfPairs<PerPair, Even, Odd, Second> kFrom;
    return _mm512_permutex2var_epi16(a, load_words(kFrom.at), b);
  }
};

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
