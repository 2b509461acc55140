// The CUDA clock's own kernels: data by position, and loops that do nothing but read, copy or
// multiply and add.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "bench/source.h"

namespace moeblas::bench::cuda_loops {

// Throws Error: "[bench] <what>: <CUDA's words>".
void check(cudaError_t status, const char* what);

// to[0 .. count) = elements [first, first + count).
void generate(void* to, const Source& source, int64_t first, int64_t count, cudaStream_t stream);

// Of 16-byte words; `sink` is a word of device memory.
void read(const void* from, int64_t words, void* sink, cudaStream_t stream);
void copy(void* to, const void* from, int64_t words, cudaStream_t stream);

// What one launch of an arithmetic loop does, as the loop that was compiled for this device says.
struct Arithmetic {
  double flop;
  int32_t instruction;  // of kInstructions; 0: this device has none
};
inline constexpr const char* kInstructions[] = {"none", "fma", "mma.sync m16n8k16",
                                                "wgmma m64n256k16", "wgmma m64n256k32"};
enum class Unit : int32_t { f32, bf16, f16, fp8 };
// `done`: an Arithmetic in device memory.
void arithmetic(Unit unit, int32_t steps, Arithmetic* done, cudaStream_t stream);

}  // namespace moeblas::bench::cuda_loops
