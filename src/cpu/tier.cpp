#include "cpu/tier.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include <cstdlib>
#include <cstring>

namespace moeblas::cpu {
namespace {

// Of this architecture.
#if defined(__x86_64__)
constexpr Tier kTiers[] = {Tier::portable, Tier::avx2, Tier::avx512, Tier::avx512_bf16, Tier::amx};
constexpr const char* kExpected = "portable, avx2, avx512, avx512_bf16 or amx";
#elif defined(__aarch64__)
constexpr Tier kTiers[] = {Tier::portable, Tier::neon};
constexpr const char* kExpected = "portable or neon";
#else
constexpr Tier kTiers[] = {Tier::portable};
constexpr const char* kExpected = "portable";
#endif

#if defined(__x86_64__)
// Tiles are a process's to use only after Linux has been asked for their room in its threads.
bool has_amx() {
#if defined(__linux__)
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // CPUID 7, EDX
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

Tier tier_of_machine() {
#if defined(__x86_64__)
  // Compilers disagree on whether __builtin_cpu_supports knows F16C.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  if (!f16c || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi2")) {
    return Tier::portable;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Tier::avx2;
  }
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bf16") ||
      !__builtin_cpu_supports("avx512vbmi")) {
    return Tier::avx512;
  }
  return has_amx() ? Tier::amx : Tier::avx512_bf16;
#elif defined(__aarch64__)
  return Tier::neon;  // a part of the architecture
#else
  return Tier::portable;
#endif
}

struct Decision {
  Tier tier = Tier::portable;
  dispatch::Reason why_not;
};

Decision decide() {
  const Tier machine = tier_of_machine();
  const char* wanted = std::getenv("MOEBLAS_CPU_TIER");
  if (wanted == nullptr || *wanted == '\0') return {machine, {}};
  for (Tier tier : kTiers) {
    if (std::strcmp(wanted, name(tier)) != 0) continue;
    if (tier <= machine) return {tier, {}};
    return {machine, dispatch::Reason::of("MOEBLAS_CPU_TIER=%s, but this machine has %s", wanted,
                                          name(machine))};
  }
  return {machine, dispatch::Reason::of("MOEBLAS_CPU_TIER=%.32s, expected %s", wanted, kExpected)};
}

}  // namespace

const char* name(Tier tier) {
  constexpr const char* kNames[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx", "neon"};
  return kNames[static_cast<int>(tier)];
}

bool made_by_intel() {
#if defined(__x86_64__)
  static const bool intel = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_INTEL_ebx &&
           c == signature_INTEL_ecx && d == signature_INTEL_edx;
  }();
  return intel;
#else
  return false;
#endif
}

Tier current_tier(dispatch::Reason& why_not) {
  static const Decision decision = decide();
  why_not = decision.why_not;
  return decision.tier;
}

}  // namespace moeblas::cpu
