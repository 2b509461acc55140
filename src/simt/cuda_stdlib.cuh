// What metal_stdlib is to Metal, for kernel text under nvcc: positions, functions across a warp,
// barriers, atomics. A simdgroup is a warp, and every collective is of all its 32 lanes.
#pragma once

#include <cstring>

#include "simt/cuda_math.cuh"
#include "simt/cuda_registry.h"

namespace moeblas {
namespace simt {

__device__ __forceinline__ metal::uint3 vector_of(uint3 v) { return metal::uint3(v.x, v.y, v.z); }
__device__ __forceinline__ metal::uint3 vector_of(dim3 v) { return metal::uint3(v.x, v.y, v.z); }
__device__ __forceinline__ uint thread_index() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

}  // namespace simt
}  // namespace moeblas

// On Metal these are a kernel's arguments (MB_GRID), hence no parentheses.
#define mb_group (::moeblas::simt::vector_of(blockIdx))
#define mb_groups (::moeblas::simt::vector_of(gridDim))
#define mb_thread (::moeblas::simt::vector_of(threadIdx))
#define mb_threads (::moeblas::simt::vector_of(blockDim))
#define mb_simdgroup (::moeblas::simt::thread_index() / 32u)
#define mb_lane (::moeblas::simt::thread_index() % 32u)

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
__device__ constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) | uint(b));
}
__device__ __forceinline__ void threadgroup_barrier(mem_flags) { __syncthreads(); }
__device__ __forceinline__ void simdgroup_barrier(mem_flags) { __syncwarp(); }

namespace detail {

// Moves any value of whole bytes up to sixteen, word by word.
template <class T, class Shuffle>
__device__ __forceinline__ T move(T value, Shuffle shuffle) {
  static_assert(sizeof(T) <= 16, "a simdgroup function moves scalars and vectors");
  constexpr int words = (int(sizeof(T)) + 3) / 4;
  uint w[words] = {};
  memcpy(w, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < words; ++i) w[i] = shuffle(w[i]);
  memcpy(&value, w, sizeof(T));
  return value;
}

constexpr uint all_lanes = 0xffffffffu;

}  // namespace detail

template <class T>
__device__ __forceinline__ T simd_shuffle(T value, ushort lane) {
  return detail::move(value, [=](uint w) { return __shfl_sync(detail::all_lanes, w, lane); });
}
template <class T>
__device__ __forceinline__ T simd_broadcast(T value, ushort lane) {
  return simd_shuffle(value, lane);
}
template <class T>
__device__ __forceinline__ T simd_broadcast_first(T value) {
  return simd_shuffle(value, ushort(0));
}
template <class T>
__device__ __forceinline__ T simd_shuffle_xor(T value, ushort mask) {
  return detail::move(value, [=](uint w) { return __shfl_xor_sync(detail::all_lanes, w, mask); });
}
template <class T>
__device__ __forceinline__ T simd_shuffle_up(T value, ushort delta) {
  return detail::move(value, [=](uint w) { return __shfl_up_sync(detail::all_lanes, w, delta); });
}
template <class T>
__device__ __forceinline__ T simd_shuffle_down(T value, ushort delta) {
  return detail::move(value, [=](uint w) { return __shfl_down_sync(detail::all_lanes, w, delta); });
}

// A butterfly: every lane adds the same pairs, so all lanes hold the same bits.
#define MB_CUDA_REDUCTION(name, expression)                    \
  template <class T>                                           \
  __device__ __forceinline__ T name(T a) {                     \
    for (ushort distance = 16; distance > 0; distance >>= 1) { \
      const T b = simd_shuffle_xor(a, distance);               \
      a = T(expression);                                       \
    }                                                          \
    return a;                                                  \
  }
MB_CUDA_REDUCTION(simd_sum, a + b)
MB_CUDA_REDUCTION(simd_product, a* b)
MB_CUDA_REDUCTION(simd_min, min(a, b))
MB_CUDA_REDUCTION(simd_max, max(a, b))
MB_CUDA_REDUCTION(simd_and, a& b)
MB_CUDA_REDUCTION(simd_or, a | b)
MB_CUDA_REDUCTION(simd_xor, a ^ b)
#undef MB_CUDA_REDUCTION

template <class T>
__device__ __forceinline__ T simd_prefix_inclusive_sum(T value) {
  const uint lane = mb_lane;
  for (ushort distance = 1; distance < 32; distance <<= 1) {
    const T before = simd_shuffle_up(value, distance);
    if (lane >= distance) value = T(before + value);
  }
  return value;
}
template <class T>
__device__ __forceinline__ T simd_prefix_exclusive_sum(T value) {
  const T before = simd_shuffle_up(simd_prefix_inclusive_sum(value), ushort(1));
  return mb_lane == 0 ? T(0) : before;
}

class simd_vote {
 public:
  typedef ulong vote_t;
  __device__ explicit constexpr simd_vote(vote_t votes = 0) : votes_(votes) {}
  __device__ explicit constexpr operator vote_t() const { return votes_; }
  __device__ constexpr bool all() const { return votes_ == detail::all_lanes; }
  __device__ constexpr bool any() const { return votes_ != 0; }

 private:
  vote_t votes_;
};
__device__ __forceinline__ simd_vote simd_ballot(bool vote) {
  return simd_vote(__ballot_sync(detail::all_lanes, vote));
}
__device__ __forceinline__ bool simd_all(bool vote) {
  return __all_sync(detail::all_lanes, vote) != 0;
}
__device__ __forceinline__ bool simd_any(bool vote) {
  return __any_sync(detail::all_lanes, vote) != 0;
}

enum memory_order { memory_order_relaxed };

template <class T>
struct atomic {
  T value_do_not_touch;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

#define MB_CUDA_FETCH(name, function)                                                         \
  template <class T>                                                                          \
  __device__ __forceinline__ T name(atomic<T>* object, decltype(T()) operand, memory_order) { \
    return function(&object->value_do_not_touch, operand);                                    \
  }
MB_CUDA_FETCH(atomic_fetch_add_explicit, ::atomicAdd)
MB_CUDA_FETCH(atomic_fetch_min_explicit, ::atomicMin)
MB_CUDA_FETCH(atomic_fetch_max_explicit, ::atomicMax)
MB_CUDA_FETCH(atomic_fetch_and_explicit, ::atomicAnd)
MB_CUDA_FETCH(atomic_fetch_or_explicit, ::atomicOr)
MB_CUDA_FETCH(atomic_fetch_xor_explicit, ::atomicXor)
MB_CUDA_FETCH(atomic_exchange_explicit, ::atomicExch)
#undef MB_CUDA_FETCH

template <class T>
__device__ __forceinline__ T atomic_fetch_sub_explicit(atomic<T>* object, decltype(T()) operand,
                                                       memory_order) {
  return ::atomicAdd(&object->value_do_not_touch, T(0) - operand);
}
template <class T>
__device__ __forceinline__ T atomic_load_explicit(const atomic<T>* object, memory_order) {
  return *static_cast<const volatile T*>(&object->value_do_not_touch);
}
template <class T>
__device__ __forceinline__ void atomic_store_explicit(atomic<T>* object, decltype(T()) desired,
                                                      memory_order) {
  *static_cast<volatile T*>(&object->value_do_not_touch) = desired;
}

}  // namespace metal
