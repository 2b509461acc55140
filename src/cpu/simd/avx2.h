// AVX2, FMA and F16C: eight lanes. See simd.h for what each operation means.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

struct Simd {
  static constexpr int kLanes = 8;
  using Floats = __m256;
  using Words = __m256i;

  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats all(float value) { return _mm256_set1_ps(value); }
  static Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Floats v) { _mm256_storeu_ps(p, v); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

  static float sum(Floats v) {
    const Floats pairs = _mm256_hadd_ps(v, v), fours = _mm256_hadd_ps(pairs, pairs);
    return _mm_cvtss_f32(
        _mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
  }
  static void sums(Floats a, Floats b, Floats c, Floats d, float* out) {
    const Floats fours = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
  }

  static Words load_words(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  template <class Vector>
  static Vector kept(Vector v) {
    asm("" : "+x"(v));
    return v;
  }
  static Words all_words(uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
  static Words both(Words a, Words b) { return _mm256_and_si256(a, b); }
  template <int N>
  static Words shift_right(Words v) {
    return _mm256_srli_epi32(v, N);
  }
  template <int N>
  static Words shift_left(Words v) {
    return _mm256_slli_epi32(v, N);
  }
  static Floats to_floats(Words v) { return _mm256_cvtepi32_ps(v); }
  static Floats as_floats(Words v) { return _mm256_castsi256_ps(v); }
  static Floats spread(Floats v, Words lanes) { return _mm256_permutevar8x32_ps(v, lanes); }

  struct Table16 {
    __m256 low, high;
    explicit Table16(const float* sixteen)
        : low(_mm256_loadu_ps(sixteen)), high(_mm256_loadu_ps(sixteen + 8)) {}
    Floats operator[](Words low_bits) const {
      const Floats in_high = as_floats(_mm256_slli_epi32(low_bits, 28));  // bit 3 as the sign
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, low_bits),
                              _mm256_permutevar8x32_ps(high, low_bits), in_high);
    }
  };

  static Floats load_f32(const void* p, int count) {
    if (count >= kLanes) return _mm256_loadu_ps(static_cast<const float*>(p));
    float buffer[kLanes] = {};
    __builtin_memcpy(buffer, p, static_cast<unsigned>(count) * sizeof(float));
    return _mm256_loadu_ps(buffer);
  }
  static Floats load_f16(const void* p, int count) { return _mm256_cvtph_ps(halves(p, count)); }
  static Floats load_bf16(const void* p, int count) {
    return as_floats(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves(p, count)), 16));
  }
  static Words load_bytes(const void* p, int count) {
    uint64_t bytes = 0;
    if (count >= kLanes) {
      __builtin_memcpy(&bytes, p, kLanes);
    } else {
      __builtin_memcpy(&bytes, p, static_cast<unsigned>(count));
    }
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)));
  }

  static Floats e8m0(Words bytes) {
    return as_floats(_mm256_max_epu32(_mm256_slli_epi32(bytes, 23), _mm256_set1_epi32(0x00400000)));
  }
  static Floats small_e4m3(const uint8_t* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(~0x4000)));
  }
  static bool any_e4m3_nan(const uint8_t* p) {
    const __m128i body = _mm_set1_epi8(0x7f);
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(v, body), body)) != 0;
  }

  template <int Bits>
  static void load_octets(const uint8_t* p, Words& low, Words& high) {
    constexpr char o = -128;  // no byte
    if constexpr (Bits == 2) {
      low = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    } else if constexpr (Bits == 4) {
      low = load_words(p);
    } else if constexpr (Bits == 3) {
      // Four octets are 12 bytes; the upper half's are loaded with the 4 before them.
      low = _mm256_shuffle_epi8(
          two(p, p + 8), _mm256_setr_epi8(0, 1, 2, o, 3, 4, 5, o, 6, 7, 8, o, 9, 10, 11, o, 4, 5, 6,
                                          o, 7, 8, 9, o, 10, 11, 12, o, 13, 14, 15, o));
    } else if constexpr (Bits == 5) {
      // Four octets are 20 bytes: bytes 0 .. 15 and 4 .. 19 of each half.
      const Words a = two(p, p + 20), b = two(p + 4, p + 24);
      low = _mm256_or_si256(
          _mm256_shuffle_epi8(
              a, twice(_mm_setr_epi8(0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, o, o, o, o))),
          _mm256_shuffle_epi8(
              b, twice(_mm_setr_epi8(o, o, o, o, o, o, o, o, o, o, o, o, 11, 12, 13, 14))));
      high = _mm256_or_si256(
          _mm256_shuffle_epi8(
              a, twice(_mm_setr_epi8(1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, o, o, o, o))),
          _mm256_shuffle_epi8(
              b, twice(_mm_setr_epi8(o, o, o, o, o, o, o, o, o, o, o, o, 12, 13, 14, 15))));
      high = _mm256_srli_epi32(high, 12);
    } else if constexpr (Bits == 6) {
      // Four octets are 24 bytes: bytes 0 .. 15 and 8 .. 23 of each half.
      const Words a = two(p, p + 24), b = two(p + 8, p + 32);
      low = _mm256_or_si256(
          _mm256_shuffle_epi8(
              a, twice(_mm_setr_epi8(0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15, o, o, o, o))),
          _mm256_shuffle_epi8(
              b, twice(_mm_setr_epi8(o, o, o, o, o, o, o, o, o, o, o, o, 10, 11, 12, 13))));
      high = _mm256_or_si256(
          _mm256_shuffle_epi8(
              a, twice(_mm_setr_epi8(2, 3, 4, 5, 8, 9, 10, 11, o, o, o, o, o, o, o, o))),
          _mm256_shuffle_epi8(
              b, twice(_mm_setr_epi8(o, o, o, o, o, o, o, o, 6, 7, 8, 9, 12, 13, 14, 15))));
      high = _mm256_srli_epi32(high, 8);
    } else {
      static_assert(Bits == 8);
      const Floats a = as_floats(load_words(p)), b = as_floats(load_words(p + 32));
      low = in_order(_mm256_shuffle_ps(a, b, 0x88));
      high = in_order(_mm256_shuffle_ps(a, b, 0xdd));
    }
  }

  // ---- Panels

  static Words load_row(const void* p, int bytes) {
    if (bytes >= 32) return load_words(p);
    uint8_t buffer[32] = {};
    __builtin_memcpy(buffer, p, static_cast<unsigned>(bytes));
    return load_words(buffer);
  }
  static void store_words(void* p, Words v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static Words as_words(Floats v) { return _mm256_castps_si256(v); }
  static Words either(Words a, Words b) { return _mm256_or_si256(a, b); }
  static Words sum_words(Words a, Words b) { return _mm256_add_epi32(a, b); }
  // For v and bounds below 2^31.
  static Floats where_below(Words v, uint32_t bound, Floats below, Floats others) {
    return _mm256_blendv_ps(others, below, as_floats(_mm256_cmpgt_epi32(all_words(bound), v)));
  }
  static Floats floats_of_low_f16(Words v) {
    const Words low = _mm256_and_si256(v, all_words(0xffff));
    return _mm256_cvtph_ps(low_halves(low));
  }

  static void store_f32(void* p, Floats v, int count) {
    float buffer[kLanes];
    if (count >= kLanes) return _mm256_storeu_ps(static_cast<float*>(p), v);
    _mm256_storeu_ps(buffer, v);
    __builtin_memcpy(p, buffer, static_cast<unsigned>(count) * sizeof(float));
  }
  static void store_f16(void* p, Floats v, int count) {
    store_halves(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT), count);
  }
  static void store_bf16(void* p, Floats v, int count) {
    store_halves(p, low_halves(bf16(v)), count);
  }

  template <int Bits>
  static Words codes_in_a_row(const uint8_t* p) {
    const uint64_t bytes = _pdep_u64(octet<Bits>(p), 0x0101010101010101u * ((1u << Bits) - 1));
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)));
  }

  static void transpose(Words (&rows)[kLanes]) {
    Words pairs[kLanes], quads[kLanes];
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      quads[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
      quads[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
      quads[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
      quads[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm256_permute2x128_si256(quads[i], quads[4 + i], 0x20);
      rows[4 + i] = _mm256_permute2x128_si256(quads[i], quads[4 + i], 0x31);
    }
  }

  // ---- Rows

  static Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
  static Floats round(Floats v) {
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Floats least(Floats a, Floats b) { return _mm256_min_ps(a, b); }
  static Floats largest(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static Floats where_less(Floats a, Floats b, Floats less, Floats others) {
    return _mm256_blendv_ps(others, less, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static Floats power_of_two(Floats n) {
    return as_floats(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), all_words(127)), 23));
  }
  static Floats evens(Floats low, Floats high) {
    return as_floats(in_order(_mm256_shuffle_ps(low, high, 0x88)));
  }

  // ---- Quantization

  static Words to_words(Floats v) { return _mm256_cvtps_epi32(v); }
  static Words largest_words(Words a, Words b) { return _mm256_max_epu32(a, b); }
  static Words largest_i16(Words a, Words b) { return _mm256_max_epi16(a, b); }
  static Words largest_u16(Words a, Words b) { return _mm256_max_epu16(a, b); }
  static Words least_u16(Words a, Words b) { return _mm256_min_epu16(a, b); }
  static bool any(Words v) { return _mm256_testz_si256(v, v) == 0; }
  static bool every_below(Words v, uint32_t bound) {
    const Words above = _mm256_cmpeq_epi32(_mm256_max_epu32(v, all_words(bound)), v);
    return _mm256_testz_si256(above, above) != 0;
  }
  static bool every_less(Floats a, Floats b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) == 0xff;
  }
  static Floats of_larger_magnitude(Floats a, Floats b) {
    const Floats sign = all(-0.0f);
    return where_less(_mm256_andnot_ps(sign, b), _mm256_andnot_ps(sign, a), a, b);
  }
  static Floats capped_magnitude(Floats v, Floats most) {
    return _mm256_min_ps(_mm256_andnot_ps(all(-0.0f), v), most);
  }
  static Words bits_of(uint32_t mask, Words a, Words b) {
    const Words m = all_words(mask);
    return _mm256_or_si256(_mm256_and_si256(m, a), _mm256_andnot_si256(m, b));
  }
  template <class At, class F>
  static Words fold(At&& at, F&& f) {
    const auto pair = [&](int i) {
      const Words a = at(i), b = at(4 + i);
      return f(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
    };
    const auto within = [&](Words a, Words b) {
      const Floats x = as_floats(a), y = as_floats(b);
      return f(as_words(_mm256_shuffle_ps(x, y, 0x88)), as_words(_mm256_shuffle_ps(x, y, 0xdd)));
    };
    const Words a = pair(0), b = within(a, pair(1)), c = pair(2);
    return within(b, within(c, pair(3)));
  }
  static void store_bytes(const Words (&v)[4], uint8_t* p) {
    // Four words of each vector in turn, then in order.
    const Words in_turn =
        _mm256_packus_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    const Words order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    store_words(p, _mm256_permutevar8x32_epi32(in_turn, order));
  }
  static void store_bytes_of_pairs(const Words (&v)[4], uint8_t* p) {
    const Words low = either(v[0], shift_left<16>(v[1])), high = either(v[2], shift_left<16>(v[3]));
    store_words(p, _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8));
  }
  template <int Bits>
  static void pack_bytes(const uint8_t* codes, uint8_t* p) {
    constexpr int kMost = (1 << Bits) - 1;
    const Words bytes = _mm256_min_epu8(load_words(codes), _mm256_set1_epi8(char(kMost)));
    if constexpr (Bits == 8) {
      store_words(p, bytes);
    } else {
      // Two codes together, four, eight; then the bytes that they fill.
      constexpr int kUnused = 32 - 4 * Bits;
      const Words twos = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(1 | 256 << Bits));
      const Words fours = _mm256_madd_epi16(twos, all_words(1 | 65536 << 2 * Bits));
      const Words eights =
          _mm256_srli_epi64(_mm256_sllv_epi32(fours, _mm256_set1_epi64x(kUnused)), kUnused);
      alignas(16) static constexpr Octets<Bits> kAt;
      const Words in_lane = _mm256_shuffle_epi8(
          eights, twice(_mm_load_si128(reinterpret_cast<const __m128i*>(kAt.bytes))));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(in_lane));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 2 * Bits),
                       _mm256_extracti128_si256(in_lane, 1));
    }
  }
  static Words halves(bool f16, bool numbers, Floats low, Floats high) {
    if (f16) {
      return _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT),
                              _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
    }
    const auto words = [numbers](Floats v) {
      return numbers ? _mm256_srli_epi32(rounded(v), 16) : bf16(v);
    };
    return in_order(as_floats(_mm256_packus_epi32(words(low), words(high))));
  }
  static void store_past_cache(void* p, Words v) {
    _mm256_stream_si256(static_cast<__m256i*>(p), v);
  }
  static constexpr bool kHalfTables = false;

 private:
  // The upper halves are bfloat16, of what is no NaN.
  static Words rounded(Floats v) {
    const Words u = as_words(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), all_words(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, odd), all_words(0x7fff));
  }
  // The lower halves are.
  static Words bf16(Floats v) {
    const Words quiet = _mm256_or_si256(_mm256_srli_epi32(as_words(v), 16), all_words(0x40));
    const Floats is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded(v), 16), quiet, as_words(is_nan));
  }
  // Of eight bytes the first Bits are kept.
  template <int Bits>
  struct Octets {
    uint8_t bytes[16];
    constexpr Octets() : bytes{} {
      for (int i = 0; i < 16; ++i)
        bytes[i] = static_cast<uint8_t>(i < 2 * Bits ? i / Bits * 8 + i % Bits : 0x80);
    }
  };
  // In parts, which a copy through memory would have to wait for.
  template <int Bits>
  static uint64_t octet(const uint8_t* p) {
    constexpr int kFirst = Bits >= 4 ? 4 : 2, kRest = Bits - kFirst;
    if constexpr (Bits == 8) {
      return part<8>(p);
    } else if constexpr (kRest == 0) {
      return part<kFirst>(p);
    } else {
      return part<kFirst>(p) | part<kRest>(p + kFirst) << 8 * kFirst;
    }
  }
  template <int Bytes>
  static uint64_t part(const uint8_t* p) {
    if constexpr (Bytes == 1) return *p;
    if constexpr (Bytes == 2) return static_cast<uint64_t>(p[1]) << 8 | p[0];
    uint32_t low = 0;
    __builtin_memcpy(&low, p, 4);
    if constexpr (Bytes == 4) return low;
    uint64_t all = 0;
    __builtin_memcpy(&all, p, 8);
    return all;
  }

  // Words below 2^16 as halves.
  static __m128i low_halves(Words v) {
    return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  }
  static void store_halves(void* p, __m128i halves, int count) {
    if (count >= kLanes) return _mm_storeu_si128(static_cast<__m128i*>(p), halves);
    uint16_t buffer[kLanes];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(buffer), halves);
    __builtin_memcpy(p, buffer, static_cast<unsigned>(count) * sizeof(uint16_t));
  }
  static __m128i halves(const void* p, int count) {
    if (count >= kLanes) return _mm_loadu_si128(static_cast<const __m128i*>(p));
    uint16_t buffer[kLanes] = {};
    __builtin_memcpy(buffer, p, static_cast<unsigned>(count) * sizeof(uint16_t));
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(buffer));
  }
  static Words two(const uint8_t* low, const uint8_t* high) {
    return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(high),
                               reinterpret_cast<const __m128i*>(low));
  }
  static Words twice(__m128i v) { return _mm256_broadcastsi128_si256(v); }
  // The pairs of lanes 0 2 1 3.
  static Words in_order(Floats v) { return _mm256_permute4x64_epi64(_mm256_castps_si256(v), 0xd8); }
};

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
