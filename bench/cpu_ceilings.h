// The CPU's ceilings: loops that do nothing but read, copy or multiply and add, in the best
// instruction set that this machine has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/clock.h"

namespace moeblas::bench {

class CpuStreams;

Ceilings measure_cpu_ceilings(int threads, CpuStreams& streams);

namespace cpu_loops {

// Each loop runs on one thread. read: the sum of count floats (so that none can be skipped); copy:
// to <- from, past the caches where the ISA can; f32, bf16_dot, int8_dot: `steps` rounds of
// independent multiply-adds, returning FLOP done. A null entry: not on this machine.
struct Loops {
  const char* isa;
  float (*read)(const float* from, int64_t count);
  void (*copy)(float* to, const float* from, int64_t count);
  double (*f32)(int64_t steps);
  double (*bf16_dot)(int64_t steps);
  double (*int8_dot)(int64_t steps);
};
Loops best();

}  // namespace cpu_loops
}  // namespace moeblas::bench
