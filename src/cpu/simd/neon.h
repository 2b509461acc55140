// NEON of every 64-bit Arm: eight lanes, which are two registers. See simd.h for what each
// operation means.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

struct Simd {
  static constexpr int kLanes = 8;
  struct Floats {
    float32x4_t low, high;
  };
  struct Words {
    uint32x4_t low, high;
  };

  static Floats zero() { return all(0.0f); }
  static Floats all(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
  static Floats load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static void store(float* p, Floats v) {
    vst1q_f32(p, v.low);
    vst1q_f32(p + 4, v.high);
  }
  static Floats add(Floats a, Floats b) {
    return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
  }
  static Floats sub(Floats a, Floats b) {
    return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)};
  }
  static Floats mul(Floats a, Floats b) {
    return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
  }
  static Floats fma(Floats a, Floats b, Floats c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
  }

  static float sum(Floats v) { return vaddvq_f32(v.low) + vaddvq_f32(v.high); }
  static void sums(Floats a, Floats b, Floats c, Floats d, float* out) {
    const float32x4_t low = vpaddq_f32(vpaddq_f32(a.low, b.low), vpaddq_f32(c.low, d.low));
    const float32x4_t high = vpaddq_f32(vpaddq_f32(a.high, b.high), vpaddq_f32(c.high, d.high));
    vst1q_f32(out, vaddq_f32(low, high));
  }

  static Words load_words(const void* p) {
    return {vreinterpretq_u32_u8(bytes(p)), vreinterpretq_u32_u8(bytes(p, 16))};
  }
  template <class Vector>
  static Vector kept(Vector v) {
    asm("" : "+w"(v.low), "+w"(v.high));
    return v;
  }
  static Words all_words(uint32_t value) { return {vdupq_n_u32(value), vdupq_n_u32(value)}; }
  static Words both(Words a, Words b) {
    return {vandq_u32(a.low, b.low), vandq_u32(a.high, b.high)};
  }
  template <int N>
  static Words shift_right(Words v) {
    if constexpr (N == 0) return v;  // which the instruction cannot
    if constexpr (N > 0) v = {vshrq_n_u32(v.low, N), vshrq_n_u32(v.high, N)};
    return v;
  }
  template <int N>
  static Words shift_left(Words v) {
    return {vshlq_n_u32(v.low, N), vshlq_n_u32(v.high, N)};
  }
  static Floats to_floats(Words v) {
    return {vcvtq_f32_s32(vreinterpretq_s32_u32(v.low)),
            vcvtq_f32_s32(vreinterpretq_s32_u32(v.high))};
  }
  static Floats as_floats(Words v) {
    return {vreinterpretq_f32_u32(v.low), vreinterpretq_f32_u32(v.high)};
  }
  static Floats spread(Floats v, Words lanes) {
    const uint8x16x2_t table = {vreinterpretq_u8_f32(v.low), vreinterpretq_u8_f32(v.high)};
    const auto half = [&](uint32x4_t of) {
      return vreinterpretq_f32_u8(vqtbl2q_u8(table, floats_at(of, kLanes)));
    };
    return {half(lanes.low), half(lanes.high)};
  }

  struct Table16 {
    uint8x16x4_t bytes;
    explicit Table16(const float* sixteen)
        : bytes{Simd::bytes(sixteen), Simd::bytes(sixteen, 16), Simd::bytes(sixteen, 32),
                Simd::bytes(sixteen, 48)} {}
    Floats operator[](Words low_bits) const {
      return {vreinterpretq_f32_u8(vqtbl4q_u8(bytes, floats_at(low_bits.low, 16))),
              vreinterpretq_f32_u8(vqtbl4q_u8(bytes, floats_at(low_bits.high, 16)))};
    }
  };

  static Floats load_f32(const void* p, int count) {
    float buffer[kLanes] = {};
    if (count >= kLanes) return load(static_cast<const float*>(p));
    __builtin_memcpy(buffer, p, static_cast<unsigned>(count) * sizeof(float));
    return load(buffer);
  }
  static Floats load_f16(const void* p, int count) { return from_f16(halves(p, count)); }
  static Floats load_bf16(const void* p, int count) {
    return as_floats(shift_left<16>(words(halves(p, count))));
  }
  static Words load_bytes(const void* p, int count) {
    uint64_t bytes = 0;
    if (count >= kLanes) {
      __builtin_memcpy(&bytes, p, kLanes);
    } else {
      __builtin_memcpy(&bytes, p, static_cast<unsigned>(count));
    }
    return words(vmovl_u8(vcreate_u8(bytes)));
  }

  static Floats e8m0(Words bytes) {
    const Words powers = shift_left<23>(bytes);
    return as_floats(largest_words(powers, all_words(0x00400000)));
  }
  static Floats small_e4m3(const uint8_t* p) {
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    const uint16x8_t moved = vreinterpretq_u16_s16(vshlq_n_s16(wide, 7));
    return from_f16(vandq_u16(moved, vdupq_n_u16(0xbfff)));
  }
  static bool any_e4m3_nan(const uint8_t* p) {
    const uint8x16_t body = vdupq_n_u8(0x7f);
    return vmaxvq_u8(vceqq_u8(vandq_u8(vld1q_u8(p), body), body)) != 0;
  }

  template <int Bits>
  static void load_octets(const uint8_t* p, Words& low, Words& high) {
    if constexpr (Bits == 2) {
      low = words(vreinterpretq_u16_u8(vld1q_u8(p)));
    } else if constexpr (Bits == 4) {
      low = load_words(p);
    } else if constexpr (Bits == 8) {
      const uint32x4x2_t a =
          vuzpq_u32(vreinterpretq_u32_u8(bytes(p)), vreinterpretq_u32_u8(bytes(p, 16)));
      const uint32x4x2_t b =
          vuzpq_u32(vreinterpretq_u32_u8(bytes(p, 32)), vreinterpretq_u32_u8(bytes(p, 48)));
      low = {a.val[0], b.val[0]};
      high = {a.val[1], b.val[1]};
    } else if constexpr (Bits == 3) {
      // Four octets are 12 bytes; the upper half's are loaded with the 4 before them.
      const uint8x16_t index = vld1q_u8(kOctets<3, 0>.at);
      low = {vreinterpretq_u32_u8(vqtbl1q_u8(bytes(p), index)),
             vreinterpretq_u32_u8(vqtbl1q_u8(bytes(p, 8), vqaddq_u8(index, vdupq_n_u8(4))))};
    } else {
      // Four octets are 4 * Bits bytes: the first 16 of them and the last 16, which overlap.
      static_assert(Bits == 5 || Bits == 6);
      const auto four = [](const uint8_t* at, const OctetBytes& of) {
        const uint8x16x2_t table = {vld1q_u8(at), vld1q_u8(at + kLast<Bits>)};
        return vreinterpretq_u32_u8(vqtbl2q_u8(table, vld1q_u8(of.at)));
      };
      low = {four(p, kOctets<Bits, 0>), four(p + 4 * Bits, kOctets<Bits, 0>)};
      constexpr int kFirst = 4 * Bits / 8;  // the byte in which code 4 begins
      high = {four(p, kOctets<Bits, kFirst>), four(p + 4 * Bits, kOctets<Bits, kFirst>)};
      high = shift_right<4 * Bits % 8>(high);
    }
  }

  // ---- Panels

  static Words load_row(const void* p, int bytes) {
    if (bytes >= 32) return load_words(p);
    uint8_t buffer[32] = {};
    __builtin_memcpy(buffer, p, static_cast<unsigned>(bytes));
    return load_words(buffer);
  }
  static void store_words(void* p, Words v) {
    auto* to = static_cast<uint8_t*>(p);
    vst1q_u8(to, vreinterpretq_u8_u32(v.low));
    vst1q_u8(to + 16, vreinterpretq_u8_u32(v.high));
  }
  static Words as_words(Floats v) {
    return {vreinterpretq_u32_f32(v.low), vreinterpretq_u32_f32(v.high)};
  }
  static Words either(Words a, Words b) {
    return {vorrq_u32(a.low, b.low), vorrq_u32(a.high, b.high)};
  }
  static Words sum_words(Words a, Words b) {
    return {vaddq_u32(a.low, b.low), vaddq_u32(a.high, b.high)};
  }
  static Floats where_below(Words v, uint32_t bound, Floats below, Floats others) {
    const uint32x4_t b = vdupq_n_u32(bound);
    return {vbslq_f32(vcltq_u32(v.low, b), below.low, others.low),
            vbslq_f32(vcltq_u32(v.high, b), below.high, others.high)};
  }
  static Floats floats_of_low_f16(Words v) {
    return from_f16(vcombine_u16(vmovn_u32(v.low), vmovn_u32(v.high)));
  }

  static void store_f32(void* p, Floats v, int count) {
    float buffer[kLanes];
    if (count >= kLanes) return store(static_cast<float*>(p), v);
    store(buffer, v);
    __builtin_memcpy(p, buffer, static_cast<unsigned>(count) * sizeof(float));
  }
  static void store_f16(void* p, Floats v, int count) { store_halves(p, f16(v), count); }
  static void store_bf16(void* p, Floats v, int count) { store_halves(p, bf16(v), count); }

  template <int Bits>
  static Words codes_in_a_row(const uint8_t* p) {
    if constexpr (Bits == 8) return load_bytes(p, kLanes);
    uint64_t octet = 0;
    __builtin_memcpy(&octet, p, Bits);
    constexpr int32_t kShifts[4] = {0, -Bits, -2 * Bits, -3 * Bits};
    const int32x4_t shifts = vld1q_s32(kShifts);
    const Words moved = {vshlq_u32(vdupq_n_u32(static_cast<uint32_t>(octet)), shifts),
                         vshlq_u32(vdupq_n_u32(static_cast<uint32_t>(octet >> 4 * Bits)), shifts)};
    return both(moved, all_words((1u << Bits) - 1));
  }

  static void transpose(Words (&rows)[kLanes]) {
    const auto four = [](uint32x4_t& a, uint32x4_t& b, uint32x4_t& c, uint32x4_t& d) {
      const uint64x2_t ab0 = vreinterpretq_u64_u32(vtrn1q_u32(a, b));
      const uint64x2_t ab1 = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
      const uint64x2_t cd0 = vreinterpretq_u64_u32(vtrn1q_u32(c, d));
      const uint64x2_t cd1 = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
      a = vreinterpretq_u32_u64(vtrn1q_u64(ab0, cd0));
      b = vreinterpretq_u32_u64(vtrn1q_u64(ab1, cd1));
      c = vreinterpretq_u32_u64(vtrn2q_u64(ab0, cd0));
      d = vreinterpretq_u32_u64(vtrn2q_u64(ab1, cd1));
    };
    for (int i = 0; i < 8; i += 4) {
      four(rows[i].low, rows[i + 1].low, rows[i + 2].low, rows[i + 3].low);
      four(rows[i].high, rows[i + 1].high, rows[i + 2].high, rows[i + 3].high);
    }
    for (int i = 0; i < 4; ++i) {
      const uint32x4_t high = rows[i].high;
      rows[i].high = rows[4 + i].low;
      rows[4 + i].low = high;
    }
  }

  // ---- Rows

  static Floats div(Floats a, Floats b) {
    return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
  }
  static Floats round(Floats v) { return {vrndnq_f32(v.low), vrndnq_f32(v.high)}; }
  // The instructions for these would give NaN.
  static Floats least(Floats a, Floats b) { return where_less(a, b, a, b); }
  static Floats largest(Floats a, Floats b) { return where_less(b, a, a, b); }
  static Floats where_less(Floats a, Floats b, Floats less, Floats others) {
    return {vbslq_f32(vcltq_f32(a.low, b.low), less.low, others.low),
            vbslq_f32(vcltq_f32(a.high, b.high), less.high, others.high)};
  }
  static Floats power_of_two(Floats n) {
    return as_floats(shift_left<23>(sum_words(to_words(n), all_words(127))));
  }
  static Floats evens(Floats low, Floats high) {
    return {vuzp1q_f32(low.low, low.high), vuzp1q_f32(high.low, high.high)};
  }

  // ---- Quantization

  static Words to_words(Floats v) {
    return {vreinterpretq_u32_s32(vcvtnq_s32_f32(v.low)),
            vreinterpretq_u32_s32(vcvtnq_s32_f32(v.high))};
  }
  static Words largest_words(Words a, Words b) {
    return {vmaxq_u32(a.low, b.low), vmaxq_u32(a.high, b.high)};
  }
  static Words largest_i16(Words a, Words b) {
    const auto larger = [](uint32x4_t x, uint32x4_t y) {
      return vreinterpretq_u32_s16(vmaxq_s16(vreinterpretq_s16_u32(x), vreinterpretq_s16_u32(y)));
    };
    return {larger(a.low, b.low), larger(a.high, b.high)};
  }
  static Words largest_u16(Words a, Words b) {
    const auto larger = [](uint32x4_t x, uint32x4_t y) {
      return vreinterpretq_u32_u16(vmaxq_u16(vreinterpretq_u16_u32(x), vreinterpretq_u16_u32(y)));
    };
    return {larger(a.low, b.low), larger(a.high, b.high)};
  }
  static Words least_u16(Words a, Words b) {
    const auto less = [](uint32x4_t x, uint32x4_t y) {
      return vreinterpretq_u32_u16(vminq_u16(vreinterpretq_u16_u32(x), vreinterpretq_u16_u32(y)));
    };
    return {less(a.low, b.low), less(a.high, b.high)};
  }
  static bool any(Words v) { return vmaxvq_u32(vorrq_u32(v.low, v.high)) != 0; }
  static bool every_below(Words v, uint32_t bound) {
    return vmaxvq_u32(vmaxq_u32(v.low, v.high)) < bound;
  }
  static bool every_less(Floats a, Floats b) {
    return vminvq_u32(vandq_u32(vcltq_f32(a.low, b.low), vcltq_f32(a.high, b.high))) != 0;
  }
  static Floats of_larger_magnitude(Floats a, Floats b) {
    return where_less({vabsq_f32(b.low), vabsq_f32(b.high)}, {vabsq_f32(a.low), vabsq_f32(a.high)},
                      a, b);
  }
  static Floats capped_magnitude(Floats v, Floats most) {
    return least({vabsq_f32(v.low), vabsq_f32(v.high)}, most);
  }
  static Words bits_of(uint32_t mask, Words a, Words b) {
    return {vbslq_u32(vdupq_n_u32(mask), a.low, b.low),
            vbslq_u32(vdupq_n_u32(mask), a.high, b.high)};
  }
  template <class At, class F>
  static Words fold(At&& at, F&& f) {
    const auto pair = [&](int i) {
      const Words a = at(i), b = at(4 + i);
      return f(Words{a.low, b.low}, Words{a.high, b.high});
    };
    const auto within = [&](Words a, Words b) {
      return f(Words{vuzp1q_u32(a.low, b.low), vuzp1q_u32(a.high, b.high)},
               Words{vuzp2q_u32(a.low, b.low), vuzp2q_u32(a.high, b.high)});
    };
    const Words a = pair(0), b = within(a, pair(1)), c = pair(2);
    return within(b, within(c, pair(3)));
  }
  static void store_bytes(const Words (&v)[4], uint8_t* p) {
    for (int i = 0; i < 4; ++i) {
      const uint16x8_t narrow = vcombine_u16(vqmovun_s32(vreinterpretq_s32_u32(v[i].low)),
                                             vqmovun_s32(vreinterpretq_s32_u32(v[i].high)));
      vst1_u8(p + 8 * i, vqmovn_u16(narrow));
    }
  }
  static void store_bytes_of_pairs(const Words (&v)[4], uint8_t* p) {
    for (int i = 0; i < 4; i += 2) {
      const Words both = either(v[i], shift_left<16>(v[i + 1]));
      vst1_u8(p + 8 * i, vqmovn_u16(vreinterpretq_u16_u32(both.low)));
      vst1_u8(p + 8 * i + 8, vqmovn_u16(vreinterpretq_u16_u32(both.high)));
    }
  }
  template <int Bits>
  static void pack_bytes(const uint8_t* codes, uint8_t* p) {
    const uint8x8_t most = vdup_n_u8((1 << Bits) - 1);
    for (int i = 0; i < 4; ++i) {
      uint64_t octet = vget_lane_u64(vreinterpret_u64_u8(vmin_u8(vld1_u8(codes + 8 * i), most)), 0);
      if constexpr (Bits < 8) {  // two codes together, then four, then all
        octet = (octet | octet >> (8 - Bits)) & 0x0001000100010001u * ((1u << 2 * Bits) - 1);
        octet = (octet | octet >> (16 - 2 * Bits)) & 0x0000000100000001u * ((1u << 4 * Bits) - 1);
        octet |= octet >> (32 - 4 * Bits);
      }
      __builtin_memcpy(p + i * Bits, &octet, Bits);
    }
  }
  static Words halves(bool to_f16, bool, Floats low, Floats high) {
    return {vreinterpretq_u32_u16(to_f16 ? f16(low) : bf16(low)),
            vreinterpretq_u32_u16(to_f16 ? f16(high) : bf16(high))};
  }
  static void store_past_cache(void* p, Words v) { store_words(p, v); }
  static constexpr bool kHalfTables = false;

 private:
  static uint16x8_t f16(Floats v) {
    return vcombine_u16(vreinterpret_u16_f16(vcvt_f16_f32(v.low)),
                        vreinterpret_u16_f16(vcvt_f16_f32(v.high)));
  }
  static uint16x8_t bf16(Floats v) {
    const auto rounded = [](float32x4_t f) {
      const uint32x4_t u = vreinterpretq_u32_f32(f), upper = vshrq_n_u32(u, 16);
      const uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
      const uint32x4_t up = vshrq_n_u32(vaddq_u32(vaddq_u32(u, odd), vdupq_n_u32(0x7fff)), 16);
      const uint32x4_t quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
      return vmovn_u32(vbslq_u32(vceqq_f32(f, f), up, quiet));
    };
    return vcombine_u16(rounded(v.low), rounded(v.high));
  }
  // For each of four octets: which bytes of a table become its word, from byte First of it on;
  // 0xff is none.
  struct OctetBytes {
    alignas(16) uint8_t at[16];
  };
  template <int Bits>
  static constexpr int kLast = 4 * Bits - 16;  // where the last 16 bytes of four octets begin
  template <int Bits, int First>
  static constexpr OctetBytes octets() {
    OctetBytes o{};
    for (int i = 0; i < 16; ++i) {
      const int within = First + i % 4, byte = i / 4 * Bits + within;
      o.at[i] = static_cast<uint8_t>(within >= Bits ? 0xff
                                     : byte < 16    ? byte
                                                    : 16 + byte - kLast<Bits>);
    }
    return o;
  }
  template <int Bits, int First>
  static constexpr OctetBytes kOctets = octets<Bits, First>();

  static uint8x16_t bytes(const void* p, int at = 0) {
    return vld1q_u8(static_cast<const uint8_t*>(p) + at);
  }
  static Words words(uint16x8_t halves) {
    return {vmovl_u16(vget_low_u16(halves)), vmovl_u16(vget_high_u16(halves))};
  }
  static Floats from_f16(uint16x8_t halves) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves))),
            vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves)))};
  }
  // The bytes of floats by their numbers, of which the low bits count.
  static uint8x16_t floats_at(uint32x4_t numbers, uint32_t floats) {
    const uint32x4_t number = vandq_u32(numbers, vdupq_n_u32(floats - 1));
    return vreinterpretq_u8_u32(
        vmlaq_u32(vdupq_n_u32(0x03020100), number, vdupq_n_u32(0x04040404)));
  }
  static uint16x8_t halves(const void* p, int count) {
    uint16_t buffer[kLanes] = {};
    if (count >= kLanes) return vreinterpretq_u16_u8(bytes(p));
    __builtin_memcpy(buffer, p, static_cast<unsigned>(count) * sizeof(uint16_t));
    return vld1q_u16(buffer);
  }
  static void store_halves(void* p, uint16x8_t halves, int count) {
    uint16_t buffer[kLanes];
    if (count >= kLanes) return vst1q_u8(static_cast<uint8_t*>(p), vreinterpretq_u8_u16(halves));
    vst1q_u16(buffer, halves);
    __builtin_memcpy(p, buffer, static_cast<unsigned>(count) * sizeof(uint16_t));
  }
};

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
