// The inner loops of the ceilings, one set per instruction set, chosen at run time.
#include <cstring>

#include "bench/cpu_ceilings.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace moeblas::bench::cpu_loops {
namespace {

// Keeps a result alive without storing it.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

// Plain C++, for machines that have no loop of their own here.
float read_plain(const float* from, int64_t count) {
  constexpr int kSums = 32;
  float sum[kSums] = {};
  for (int64_t i = 0; i + kSums <= count; i += kSums) {
    for (int j = 0; j < kSums; ++j) sum[j] += from[i + j];
  }
  for (int j = 1; j < kSums; ++j) sum[0] += sum[j];
  return sum[0];
}

void copy_plain(float* to, const float* from, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

[[maybe_unused]] double f32_plain(int64_t steps) {
  constexpr int kSums = 64;
  float sum[kSums];
  for (int j = 0; j < kSums; ++j) sum[j] = static_cast<float>(j);
  for (int64_t i = 0; i < steps; ++i) {
    for (int j = 0; j < kSums; ++j) sum[j] = sum[j] * 0.75f + 0.25f;
  }
  keep(sum);
  return 2.0 * kSums * static_cast<double>(steps);
}

#if defined(__x86_64__)

// Sixteen sums hide a latency of four cycles on two pipes twice over and fit the registers.
constexpr int kSums512 = 16;
constexpr int kSums256 = 12;

[[gnu::target("avx512f")]] float read_avx512(const float* from, int64_t count) {
  __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 64 <= count; i += 64) {
    a = _mm512_add_ps(a, _mm512_loadu_ps(from + i));
    b = _mm512_add_ps(b, _mm512_loadu_ps(from + i + 16));
    c = _mm512_add_ps(c, _mm512_loadu_ps(from + i + 32));
    d = _mm512_add_ps(d, _mm512_loadu_ps(from + i + 48));
  }
  float sums[16];
  _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)));
  float sum = 0;
  for (float s : sums) sum += s;
  return sum;
}

[[gnu::target("avx512f")]] void copy_avx512(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
  }
  _mm_sfence();
}

[[gnu::target("avx512f")]] double f32_avx512(int64_t steps) {
  __m512 sum[kSums512];
  __m512 scale = _mm512_set1_ps(0.75f), step = _mm512_set1_ps(0.25f);
  for (int j = 0; j < kSums512; ++j) sum[j] = _mm512_set1_ps(static_cast<float>(j));
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kSums512; ++j) sum[j] = _mm512_fmadd_ps(sum[j], scale, step);
  }
  keep(sum);
  return 2.0 * 16 * kSums512 * static_cast<double>(steps);
}

[[gnu::target("avx512f,avx512bf16")]] double bf16_dot_avx512(int64_t steps) {
  __m512 sum[kSums512];
  // Two bfloat16 in each word: 1 and 2^-10, times 2^-10 each.
  const auto a = (__m512bh)_mm512_set1_epi32(0x3f803a80),
             b = (__m512bh)_mm512_set1_epi32(0x3a803a80);
  for (int j = 0; j < kSums512; ++j) sum[j] = _mm512_set1_ps(static_cast<float>(j));
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kSums512; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], a, b);
  }
  keep(sum);
  return 4.0 * 16 * kSums512 * static_cast<double>(steps);
}

[[gnu::target("avx512f,avx512vnni")]] double int8_dot_avx512(int64_t steps) {
  // Of the intrinsic g++ 12 makes copies.
  constexpr int kSums = 12;
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
  __m512i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a;
  __m512i s6 = b, s7 = b, s8 = b, s9 = b, s10 = b, s11 = b;
  for (int64_t i = 0; i < steps; ++i) {
    asm("vpdpbusd %7, %6, %0\n vpdpbusd %7, %6, %1\n vpdpbusd %7, %6, %2\n"
        "vpdpbusd %7, %6, %3\n vpdpbusd %7, %6, %4\n vpdpbusd %7, %6, %5"
        : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5)
        : "v"(a), "v"(b));
    asm("vpdpbusd %7, %6, %0\n vpdpbusd %7, %6, %1\n vpdpbusd %7, %6, %2\n"
        "vpdpbusd %7, %6, %3\n vpdpbusd %7, %6, %4\n vpdpbusd %7, %6, %5"
        : "+v"(s6), "+v"(s7), "+v"(s8), "+v"(s9), "+v"(s10), "+v"(s11)
        : "v"(a), "v"(b));
  }
  for (const __m512i& s : {s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11}) keep(s);
  return 8.0 * 16 * kSums * static_cast<double>(steps);
}

// Four tiles of sums hide the latency.
[[gnu::target("amx-tile,amx-bf16")]] double bf16_tiles(int64_t steps) {
  // Of g++'s intrinsic the first eight bytes are the operand: what stands there must not be stored
  // just before.
  alignas(64) static constexpr uint8_t kConfig[64] = {
      1,  0, 0,  0, 0,  0, 0,  0, 0,  0,  0,  0,  0,  0,  0, 0,  // palette 1; then bytes of rows
      64, 0, 64, 0, 64, 0, 64, 0, 64, 0,  64, 0,  0,  0,  0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
      0,  0, 0,  0, 0,  0, 0,  0, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};  // rows
  alignas(64) uint16_t numbers[512];
  for (int i = 0; i < 512; ++i) numbers[i] = static_cast<uint16_t>(0x3a80 + i * 37 % 127);
  asm volatile("" : : "m"(numbers));
  _tile_loadconfig(kConfig);
  _tile_loadd(4, numbers, 64);
  _tile_loadd(5, numbers, 64);
  for (int64_t i = 0; i < steps; ++i) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  return 2.0 * 16 * 16 * 32 * 4 * static_cast<double>(steps);
}
// Linux wants to be asked for the tiles' room.
bool has_tiles() {
#if defined(__linux__)
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // CPUID 7, EDX
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0 && (d & kTile) != 0 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

[[gnu::target("avx2,fma")]] float read_avx2(const float* from, int64_t count) {
  __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 32 <= count; i += 32) {
    a = _mm256_add_ps(a, _mm256_loadu_ps(from + i));
    b = _mm256_add_ps(b, _mm256_loadu_ps(from + i + 8));
    c = _mm256_add_ps(c, _mm256_loadu_ps(from + i + 16));
    d = _mm256_add_ps(d, _mm256_loadu_ps(from + i + 24));
  }
  float sums[8];
  _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
  float sum = 0;
  for (float s : sums) sum += s;
  return sum;
}

[[gnu::target("avx2,fma")]] void copy_avx2(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i + 8 <= count; i += 8) _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
  _mm_sfence();
}

[[gnu::target("avx2,fma")]] double f32_avx2(int64_t steps) {
  __m256 sum[kSums256];
  __m256 scale = _mm256_set1_ps(0.75f), step = _mm256_set1_ps(0.25f);
  for (int j = 0; j < kSums256; ++j) sum[j] = _mm256_set1_ps(static_cast<float>(j));
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kSums256; ++j) sum[j] = _mm256_fmadd_ps(sum[j], scale, step);
  }
  keep(sum);
  return 2.0 * 8 * kSums256 * static_cast<double>(steps);
}

#elif defined(__aarch64__)

double f32_neon(int64_t steps) {
  constexpr int kSums = 24;  // four pipes of latency four, and room
  float32x4_t sum[kSums];
  const float32x4_t scale = vdupq_n_f32(0.75f), step = vdupq_n_f32(0.25f);
  for (int j = 0; j < kSums; ++j) sum[j] = vdupq_n_f32(static_cast<float>(j));
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < kSums; ++j) sum[j] = vfmaq_f32(step, sum[j], scale);
  }
  keep(sum);
  return 2.0 * 4 * kSums * static_cast<double>(steps);
}

#endif

}  // namespace

Loops best() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    const bool dot = __builtin_cpu_supports("avx512bf16") > 0;
    if (dot && has_tiles()) {
      return {"AVX-512 + BF16 + AMX",
              read_avx512,
              copy_avx512,
              f32_avx512,
              bf16_tiles,
              __builtin_cpu_supports("avx512vnni") ? int8_dot_avx512 : nullptr};
    }
    return {dot ? "AVX-512 + BF16" : "AVX-512",
            read_avx512,
            copy_avx512,
            f32_avx512,
            dot ? bf16_dot_avx512 : nullptr,
            __builtin_cpu_supports("avx512vnni") ? int8_dot_avx512 : nullptr};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"AVX2 + FMA", read_avx2, copy_avx2, f32_avx2, nullptr, nullptr};
  }
  return {"plain C++", read_plain, copy_plain, f32_plain, nullptr, nullptr};
#elif defined(__aarch64__)
  return {"NEON", read_plain, copy_plain, f32_neon, nullptr, nullptr};
#else
  return {"plain C++", read_plain, copy_plain, f32_plain, nullptr, nullptr};
#endif
}

}  // namespace moeblas::bench::cpu_loops
