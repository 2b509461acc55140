// Instructions that CUDA C++ has no function for, one thin function each: barriers in shared memory
// on which bulk copies report, the copies themselves, matrix fragments and products. What each of
// them does is said by the PTX ISA manual under the name in its text.
//
// Copies in bulk and their barriers need sm_90. Nothing here is compiled unless a kernel uses it.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace moeblas::cuda::device {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- barriers in shared memory

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After barrier_init, before the copies that will report there.
__device__ __forceinline__ void barrier_init_visible() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// One arrival, and so many bytes to come.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A barrier of `threads` of the block, a multiple of 32; 0 is __syncthreads'.
__device__ __forceinline__ void named_barrier(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same; whether any of the threads says so.
__device__ __forceinline__ bool named_barrier_any(uint32_t id, uint32_t threads, bool says) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred says, any;\n"
      "setp.ne.u32 says, %3, 0;\n"
      "barrier.red.or.pred any, %1, %2, says;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(says))
      : "memory");
  return any != 0;
}

// Counts as an arrival of this warp's, without waiting.
__device__ __forceinline__ void named_barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- copies in bulk, global to shared memory

// For data that is read once.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box of `map` from these coordinates on (innermost first) to `to`; its bytes report at
// `barrier`. What lies outside the tensor is written as zeros and counts as bytes.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int32_t x, int32_t y,
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int32_t x, int32_t y,
                                         int32_t z, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int32_t x, int32_t y,
                                         int32_t z, int32_t w, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int32_t x, int32_t y,
                                         int32_t z, int32_t w, int32_t v, uint32_t barrier,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(barrier), "l"(policy)
      : "memory");
}

// 128 bytes on their way into the L2 cache.
__device__ __forceinline__ void prefetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// The same of `bytes` neighbours, a multiple of 16 from an address that is.
__device__ __forceinline__ void prefetch_run(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// `bytes` neighbours, a multiple of 16 from and to addresses that are.
__device__ __forceinline__ void copy_run(uint32_t to, const void* from, uint32_t bytes,
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// ---- shared memory

// The part whose size the launch says.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ unsigned char dynamic_memory[];
  return dynamic_memory;
}

__device__ __forceinline__ uint2 load_shared_2(uint32_t from) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from));
  return v;
}
__device__ __forceinline__ uint4 load_shared_4(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from));
  return v;
}
// To memory, or not at all: without a branch, so that several are under way.
__device__ __forceinline__ void store_global_4_if(bool wanted, uint64_t to, uint4 v) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %0, 0;\n"
      "@wanted st.global.v4.u32 [%1], {%2, %3, %4, %5};\n"
      "}" ::"r"(static_cast<uint32_t>(wanted)),
      "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}
// Neighbours, as many at a time as their address, a multiple of 4 * kWords, allows.
template <uint32_t kWords>
constexpr uint32_t kSharedLoad = kWords % 4 == 0   ? 4
                                 : kWords % 2 == 0 ? 2
                                                   : 1;
template <uint32_t kWords>
__device__ __forceinline__ void load_shared_words(uint32_t from, uint32_t (&words)[kWords]) {
#pragma unroll
  for (uint32_t i = 0; i < kWords; i += kSharedLoad<kWords>) {
    if constexpr (kSharedLoad<kWords> == 4) {
      const uint4 v = load_shared_4(from + i * 4);
      words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
    } else if constexpr (kSharedLoad<kWords> == 2) {
      const uint2 v = load_shared_2(from + i * 4);
      words[i] = v.x, words[i + 1] = v.y;
    } else {
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[i]) : "r"(from + i * 4));
    }
  }
}
// The same into x, where `wanted`; else x stays.
__device__ __forceinline__ void load_shared_4_if(bool wanted, uint4& x, uint32_t from) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
      : "r"(from), "r"(static_cast<uint32_t>(wanted)));
}
__device__ __forceinline__ uint32_t load_shared_u32(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_u16(uint32_t from) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from));
  return v;
}
// Four bytes if `wide`, else two.
__device__ __forceinline__ uint32_t load_shared_2_or_4(bool wide, uint32_t from) {
  uint32_t v;
  asm volatile(
      "{\n"
      ".reg .pred wide;\n"
      "setp.ne.u32 wide, %2, 0;\n"
      "@wide ld.shared.u32 %0, [%1];\n"
      "@!wide ld.shared.u16 %0, [%1];\n"
      "}"
      : "=r"(v)
      : "r"(from), "r"(static_cast<uint32_t>(wide)));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_u8(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from));
  return v;
}
__device__ __forceinline__ float load_shared_float(uint32_t from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from));
  return v;
}
__device__ __forceinline__ void store_shared_u32(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared_2(uint32_t to, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_shared_4(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
// Four matrices of 8 rows of 16 bytes; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ uint4 load_matrices(uint32_t row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row)
               : "memory");
  return v;
}

// ---- global memory

// What other thread blocks have written during this launch.
__device__ __forceinline__ float load_written(const float* from) { return __ldcg(from); }

// ---- words that thread blocks hand to each other during a launch: each word comes whole, and says
// by itself whether it has come

__device__ __forceinline__ void store_word(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
__device__ __forceinline__ uint4 load_words(const uint32_t* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_word(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
// Adds; whoever sees the sum by load_acquire sees what this thread had written or seen before.
__device__ __forceinline__ uint32_t add_release(uint32_t* to, uint32_t v) {
  uint32_t before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(to), "r"(v)
               : "memory");
  return before;
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
// Between two looks at what another thread block will write.
__device__ __forceinline__ void look_again() {}

// ---- products of fragments: sums += a * b

// 16 x 16 float16 by 16 x 8; a: rows g and g + 8 of columns 2t, 2t + 1, then of 2t + 8, 2t + 9.
__device__ __forceinline__ void multiply_f16(float (&sums)[4], uint4 a, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

// The same of bfloat16.
__device__ __forceinline__ void multiply_bf16(float (&sums)[4], uint4 a, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

// 16 x 32 unsigned by 32 x 8 signed bytes; a: rows g and g + 8 of columns 4t to 4t + 3, then of
// those 16 further on.
__device__ __forceinline__ void multiply_bytes(int32_t (&sums)[4], uint4 a, uint2 b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32"
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

// 0, but not before `values` is known: an arrival at a barrier does not wait for loads that stand
// before it; one whose address depends on what they brought does.
__device__ __forceinline__ uint32_t nothing_of(uint32_t values) {
  uint32_t none;
  asm volatile("{\n.reg .b32 ones;\npopc.b32 ones, %1;\nshr.u32 %0, ones, 6;\n}"
               : "=r"(none)
               : "r"(values));
  return none;
}

// The same value, of which the compiler knows nothing: what follows from it is not kept in
// registers from a time when it was known already.
__device__ __forceinline__ uint32_t forgotten(uint32_t value) {
  uint32_t same;
  asm volatile("mov.u32 %0, %1;" : "=r"(same) : "r"(value));
  return same;
}

// ---- launches that follow each other early

// From here on, once every block of the grid has said so, blocks of the next launch may begin.
__device__ __forceinline__ void let_next_launch_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Until all that the previous launch does is done and can be seen.
__device__ __forceinline__ void wait_for_previous_launch() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ---- registers (sm_90a)

// The registers of each thread of the warpgroup, four warps from a multiple of four on, from here
// on. What all warpgroups ask for must fit in what the launch gave the block, or they wait for
// ever.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void leave_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace moeblas::cuda::device
