// Tiers: the instruction sets that kernels of the CPU are compiled for, each in translation units
// and a namespace of its own (cpu/simd). A row of the table names the tier that it needs; the
// machine's tier is decided once, at the first use.
#pragma once

#include "dispatch/row.h"

namespace moeblas::cpu {

// Of each architecture in ascending order: a machine of one tier runs the rows of all below it.
enum class Tier : int { portable, avx2, avx512, avx512_bf16, amx, neon };

// The column of the table.
constexpr dispatch::Arch needs(Tier tier) {
  constexpr const char* kNeeds[] = {"any",
                                    "AVX2, FMA, F16C, BMI2",
                                    "AVX-512 (F, BW, DQ, VL)",
                                    "AVX-512, VNNI, BF16, VBMI",
                                    "AMX (TILE, BF16)",
                                    "NEON"};
  return {static_cast<int>(tier), kNeeds[static_cast<int>(tier)]};
}

// As MOEBLAS_CPU_TIER and messages have it: portable, avx2, avx512, avx512_bf16, amx;
// portable, neon.
const char* name(Tier tier);

// The machine's tier or, where the environment's MOEBLAS_CPU_TIER names a lower one, that. A name
// that is none, or a tier that this machine lacks, is told in `why_not`.
Tier current_tier(dispatch::Reason& why_not);

// Intel's, where (family 6, model 207)
// - pairs of bfloat16 products come at half the rate of float32 multiply-adds;
// - lines that were fetched kilobytes ahead past the L2 cache are gone before they are used.
// By the maker and not by a measurement: results must not depend on what else a machine did.
bool made_by_intel();

}  // namespace moeblas::cpu
