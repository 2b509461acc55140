// In the place of src/cuda/device/ptx.cuh: the same functions on a thread block of the host, and
// what CUDA C++ has built in.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "block/block.h"
#include "block/tensor_map.h"
#include "formats/float16.h"

#undef __forceinline__
#undef __noinline__
#undef __shared__
#define __forceinline__ inline
#define __noinline__
// Entry functions are functions.
#undef __global__
#undef __launch_bounds__
#undef __cluster_dims__
#undef __grid_constant__
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
// Of a thread block, each of which has a thread of its own where they run together.
#define __shared__ static thread_local

#define threadIdx (::uint3{::moeblas::test::thread_index(), 0, 0})
#define blockIdx (::uint3{::moeblas::test::block_index(), 0, 0})
#define gridDim (::uint3{::moeblas::test::block_count(), 1, 1})

namespace moeblas::cuda::device {

using std::max;
using std::min;

template <class T>
T from_lane(const unsigned char* all, uint32_t lane) {
  T value;
  std::memcpy(&value, all + 32 * lane, sizeof value);
  return value;
}
inline uint32_t lane_index() { return test::thread_index() % 32; }

template <class T>
T __shfl_xor_sync(uint32_t, T value, uint32_t mask) {
  return from_lane<T>(test::meet("shfl_xor", &value, sizeof value), lane_index() ^ mask);
}
template <class T>
T __shfl_up_sync(uint32_t, T value, uint32_t delta) {
  const unsigned char* all = test::meet("shfl_up", &value, sizeof value);
  return lane_index() < delta ? value : from_lane<T>(all, lane_index() - delta);
}
template <class T>
T __shfl_sync(uint32_t, T value, uint32_t lane) {
  return from_lane<T>(test::meet("shfl", &value, sizeof value), lane % 32);
}
inline uint32_t __ballot_sync(uint32_t, bool vote) {
  const unsigned char* all = test::meet("ballot", &vote, sizeof vote);
  uint32_t votes = 0;
  for (uint32_t i = 0; i < 32; ++i) votes |= uint32_t{from_lane<bool>(all, i)} << i;
  return votes;
}
inline uint32_t __match_any_sync(uint32_t, int32_t value) {
  const unsigned char* all = test::meet("match_any", &value, sizeof value);
  uint32_t same = 0;
  for (uint32_t i = 0; i < 32; ++i) same |= uint32_t{from_lane<int32_t>(all, i) == value} << i;
  return same;
}
inline bool __any_sync(uint32_t mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(uint32_t mask, bool vote) { return __ballot_sync(mask, vote) == mask; }
inline uint32_t __reduce_or_sync(uint32_t, uint32_t value) {
  const unsigned char* all = test::meet("reduce_or", &value, sizeof value);
  uint32_t any = 0;
  for (uint32_t i = 0; i < 32; ++i) any |= from_lane<uint32_t>(all, i);
  return any;
}
inline void __syncthreads() { test::numbered_wait(0, test::block_threads()); }
inline void __syncwarp() {
  const char nothing = 0;
  test::meet("syncwarp", &nothing, 1);
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>(((uint64_t{high} << 32) | low) >> (shift & 31));
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t select) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t bytes = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    bytes |= static_cast<uint32_t>(both >> 8 * (select >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return bytes;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}
inline int __popc(uint32_t v) { return std::popcount(v); }
inline int __clz(uint32_t v) { return std::countl_zero(v); }
inline int __ffs(uint32_t v) { return v == 0 ? 0 : std::countr_zero(v) + 1; }
inline uint32_t atomicAdd(uint32_t* to, uint32_t v) { return std::exchange(*to, *to + v); }
inline void __threadfence() {}
inline float load_written(const float* from) { return *from; }
inline float4 __ldcg(const float4* from) { return *from; }
inline void __stcg(float4* to, float4 v) { *to = v; }
inline void store_word(uint32_t* to, uint32_t word) { *to = word; }
inline uint4 load_words(const uint32_t* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) test::block_fails("words are not aligned");
  return {from[0], from[1], from[2], from[3]};
}
inline uint32_t load_word(const uint32_t* from) { return *from; }
inline uint32_t add_release(uint32_t* to, uint32_t v) { return std::exchange(*to, *to + v); }
inline uint32_t load_acquire(const uint32_t* from) { return *from; }
inline void look_again() { test::look_again(); }
inline uint32_t __float_as_uint(float f) { return std::bit_cast<uint32_t>(f); }
inline float __uint_as_float(uint32_t u) { return std::bit_cast<float>(u); }
inline float __int_as_float(int32_t i) { return std::bit_cast<float>(i); }
inline int32_t __float2int_rn(float f) {
  return std::isnan(f) ? 0 : static_cast<int32_t>(std::nearbyint(f));
}
inline uint32_t __vmaxu2(uint32_t a, uint32_t b) {
  return max(a & 0xffff0000u, b & 0xffff0000u) | max(a & 0xffffu, b & 0xffffu);
}

inline uint32_t shared_address(const void* p) { return test::shared_address_of(p); }
inline unsigned char* dynamic_shared() { return test::dynamic_memory(); }

inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  test::barrier_init_at(barrier, arrivals);
}
inline void barrier_init_visible() {}
inline void barrier_arrive(uint32_t barrier) { test::barrier_arrive_at(barrier, 0); }
inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  test::barrier_arrive_at(barrier, bytes);
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  test::barrier_wait_at(barrier, parity);
}
inline void named_barrier(uint32_t id, uint32_t threads) { test::numbered_wait(id, threads); }
inline bool named_barrier_any(uint32_t id, uint32_t threads, bool says) {
  static thread_local std::array<bool, 16> any;
  if (says) any[id] = true;
  named_barrier(id, threads);
  const bool result = any[id];
  named_barrier(id, threads);
  any[id] = false;
  named_barrier(id, threads);
  return result;
}
inline void named_barrier_arrive(uint32_t id, uint32_t threads) {
  test::numbered_arrive(id, threads);
}

inline uint64_t evict_first_policy() { return 0; }
inline void prefetch_tensor_map(const CUtensorMap*) {}
// What is somebody's can be read.
inline void prefetch_line(const void* from) {
  static_cast<void>(*static_cast<const volatile unsigned char*>(from));
}
inline void prefetch_run(const void* from, uint32_t bytes) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0 || bytes == 0) std::abort();
  prefetch_line(from);
  prefetch_line(static_cast<const unsigned char*>(from) + bytes - 1);
}
// How many lines of 128 bytes a swizzled pattern goes through, in 16 bytes.
inline uint32_t swizzled_lines(uint32_t swizzle) {
  return swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 8
         : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 4
         : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 2
                                                : 1;
}
// The box of elements of any size from these coordinates on: its bytes, and what brings them.
struct Box {
  size_t bytes;
  std::function<void(unsigned char*)> write;
};
template <size_t kDims>
Box box_at(uint32_t to, const CUtensorMap* map, const std::array<int32_t, kDims>& at) {
  const test::MapOfHost m = test::on_host(map);
  if (m.dims != kDims) test::block_fails("a copy in other dimensions than its map's");
  const auto element = static_cast<uint32_t>(m.stride[0]);
  const uint32_t width = m.box[0] * element, lines = swizzled_lines(m.swizzle);
  if (to % 128 != 0) test::block_fails("a box goes to an address that is not a multiple of 128");
  if (at[0] * static_cast<int64_t>(element) % 16 != 0 || width % 16 != 0) {
    test::block_fails("a box begins or ends within 16 bytes");
  }
  if (lines > 1 && width > lines * 16) test::block_fails("a box is wider than its pattern");
  size_t rows = 1;
  for (size_t d = 0; d < kDims; ++d) {
    if (m.box[d] > 256) test::block_fails("a box is too wide");
    if (d > 0) rows *= m.box[d];
  }
  const auto write = [=](unsigned char* memory) {
    uint32_t put = 0;
    for (size_t r = 0; r < rows; ++r) {
      // What lies outside the tensor reads as zeros.
      bool inside = true;
      const auto* from = static_cast<const unsigned char*>(m.data);
      size_t left = r;
      for (size_t d = 1; d < kDims; ++d) {
        const auto place = at[d] + static_cast<int64_t>(left % m.box[d]);
        left /= m.box[d];
        inside = inside && place >= 0 && static_cast<uint64_t>(place) < m.size[d];
        from += place * static_cast<int64_t>(m.stride[d]);
      }
      const int64_t begin = at[0] * static_cast<int64_t>(element);
      const auto end = static_cast<int64_t>(m.size[0] * element);
      for (int64_t i = begin; i < begin + width; i += 16, put += 16) {
        unsigned char* sixteen = memory + (put ^ (to + put) / 128 % lines << 4);
        const int64_t exist = inside && i >= 0 ? std::clamp<int64_t>(end - i, 0, 16) : 0;
        if (exist > 0) std::memcpy(sixteen, from + i, static_cast<size_t>(exist));
        std::memset(sixteen + exist, 0, static_cast<size_t>(16 - exist));
      }
    }
  };
  return {rows * width, write};
}
template <size_t kDims>
void copy_box_of(uint32_t to, const CUtensorMap* map, const std::array<int32_t, kDims>& at,
                 uint32_t barrier) {
  const Box box = box_at(to, map, at);
  test::copy_later(to, box.bytes, box.write, barrier);
}
inline void copy_box(uint32_t to, const CUtensorMap* map, int32_t x, int32_t y, uint32_t barrier,
                     uint64_t) {
  copy_box_of<2>(to, map, {x, y}, barrier);
}
inline void copy_box(uint32_t to, const CUtensorMap* map, int32_t x, int32_t y, int32_t z,
                     uint32_t barrier, uint64_t) {
  copy_box_of<3>(to, map, {x, y, z}, barrier);
}
inline void copy_box(uint32_t to, const CUtensorMap* map, int32_t x, int32_t y, int32_t z,
                     int32_t w, uint32_t barrier, uint64_t) {
  copy_box_of<4>(to, map, {x, y, z, w}, barrier);
}
inline void copy_box(uint32_t to, const CUtensorMap* map, int32_t x, int32_t y, int32_t z,
                     int32_t w, int32_t v, uint32_t barrier, uint64_t) {
  copy_box_of<5>(to, map, {x, y, z, w, v}, barrier);
}
inline void copy_run(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    test::block_fails("a run begins or ends within 16 bytes");
  }
  test::copy_later(
      to, bytes, [=](unsigned char* memory) { std::memcpy(memory, from, bytes); }, barrier);
}

template <class T>
T load_shared(uint32_t from) {
  T v;
  std::memcpy(&v, test::at_shared(from, sizeof v), sizeof v);
  return v;
}
inline uint2 load_shared_2(uint32_t from) { return load_shared<uint2>(from); }
inline uint4 load_shared_4(uint32_t from) { return load_shared<uint4>(from); }
inline void store_global_4_if(bool wanted, uint64_t to, uint4 v) {
  if (wanted) std::memcpy(reinterpret_cast<void*>(to), &v, sizeof v);
}
inline void load_shared_4_if(bool wanted, uint4& x, uint32_t from) {
  if (wanted) x = load_shared_4(from);
}
inline uint32_t load_shared_u32(uint32_t from) { return load_shared<uint32_t>(from); }
inline uint32_t load_shared_u16(uint32_t from) { return load_shared<uint16_t>(from); }
inline uint32_t load_shared_2_or_4(bool wide, uint32_t from) {
  return wide ? load_shared_u32(from) : load_shared_u16(from);
}
inline uint32_t load_shared_u8(uint32_t from) { return load_shared<uint8_t>(from); }
inline float load_shared_float(uint32_t from) { return load_shared<float>(from); }
// As many words at once as a row of so many has whole.
template <uint32_t kWords>
constexpr uint32_t kSharedLoad = std::gcd(kWords, 4u);
template <uint32_t kWords>
void load_shared_words(uint32_t from, uint32_t (&words)[kWords]) {
  test::at_shared(from, 4 * kSharedLoad<kWords>);
  for (uint32_t i = 0; i < kWords; ++i) words[i] = load_shared_u32(from + 4 * i);
}
inline void store_shared_u32(uint32_t to, uint32_t v) {
  std::memcpy(test::at_shared(to, sizeof v), &v, sizeof v);
}
inline void store_shared_2(uint32_t to, uint2 v) {
  std::memcpy(test::at_shared(to, sizeof v), &v, sizeof v);
}
inline void store_shared_4(uint32_t to, uint4 v) {
  std::memcpy(test::at_shared(to, sizeof v), &v, sizeof v);
}

inline uint4 load_matrices(uint32_t row) {
  const unsigned char* all = test::meet("load_matrices", &row, sizeof row);
  const uint32_t lane = lane_index();
  uint32_t word[4];
  for (uint32_t i = 0; i < 4; ++i) {
    const auto from = from_lane<uint32_t>(all, i * 8 + lane / 4);
    test::at_shared(from, 16);
    word[i] = load_shared<uint32_t>(from + lane % 4 * 4);
  }
  return {word[0], word[1], word[2], word[3]};
}

// The products are exact; a sum is rounded once, which hardware does not promise.
template <class ValueOf>
void multiply_halves(const char* name, float (&sums)[4], uint4 a, uint2 b, ValueOf&& value_of) {
  const uint32_t words[6] = {a.x, a.y, a.z, a.w, b.x, b.y};
  const unsigned char* all = test::meet(name, words, sizeof words);
  const uint32_t g = lane_index() / 4, t = lane_index() % 4;
  const auto value = [&](uint32_t lane, uint32_t word, uint32_t half) -> double {
    uint32_t w;
    std::memcpy(&w, all + 32 * lane + 4 * word, 4);
    return value_of(static_cast<unsigned short>(w >> 16 * half));
  };
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = g, column = 2 * t + i % 2, lower = i / 2;
    double sum = static_cast<double>(sums[i]);
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t lane_of_k = k % 8 / 2, second = k / 8;
      sum += value(row * 4 + lane_of_k, 2 * second + lower, k % 2) *
             value(column * 4 + lane_of_k, 4 + second, k % 2);
    }
    sums[i] = static_cast<float>(sum);
  }
}
inline void multiply_f16(float (&sums)[4], uint4 a, uint2 b) {
  multiply_halves("multiply", sums, a, b, formats::float16_to_float);
}
inline void multiply_bf16(float (&sums)[4], uint4 a, uint2 b) {
  multiply_halves("multiply_bf16", sums, a, b,
                  [](unsigned short half) { return formats::bfloat16_to_float(half); });
}

inline void multiply_bytes(int32_t (&sums)[4], uint4 a, uint2 b) {
  const uint32_t words[6] = {a.x, a.y, a.z, a.w, b.x, b.y};
  const unsigned char* all = test::meet("multiply_bytes", words, sizeof words);
  const uint32_t g = lane_index() / 4, t = lane_index() % 4;
  const auto byte = [&](uint32_t lane, uint32_t word, uint32_t i) {
    return all[32 * lane + 4 * word + i];
  };
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = g, column = 2 * t + i % 2, lower = i / 2;
    int64_t sum = sums[i];
    for (uint32_t k = 0; k < 32; ++k) {
      const uint32_t lane_of_k = k % 16 / 4, second = k / 16;
      sum += int64_t{byte(row * 4 + lane_of_k, 2 * second + lower, k % 4)} *
             static_cast<int8_t>(byte(column * 4 + lane_of_k, 4 + second, k % 4));
    }
    if (sum != static_cast<int32_t>(sum)) test::block_fails("a sum of integers overflows");
    sums[i] = static_cast<int32_t>(sum);
  }
}

inline void let_next_launch_begin() {}
inline void wait_for_previous_launch() {}
inline uint32_t forgotten(uint32_t value) { return value; }
inline uint32_t nothing_of(uint32_t) { return 0; }
template <int registers>
void leave_registers() {}
template <int registers>
void take_registers() {}

}  // namespace moeblas::cuda::device

// What CUDA C++ has built in is everybody's.
namespace moeblas::cuda {
using device::min, device::max, device::atomicAdd, device::__clz, device::__all_sync,
    device::__any_sync, device::__ballot_sync, device::__byte_perm, device::__expf,
    device::__fadd_rn, device::__fdividef, device::__ffs, device::__float2int_rn,
    device::__float_as_uint, device::__fmaf_rn, device::__funnelshift_r, device::__int_as_float,
    device::__ldcg, device::__ldg, device::__match_any_sync, device::__popc,
    device::__reduce_or_sync, device::__shfl_sync, device::__shfl_up_sync, device::__shfl_xor_sync,
    device::__stcg, device::__syncthreads, device::__syncwarp, device::__threadfence,
    device::__uint_as_float, device::__umulhi, device::__vmaxu2;
using std::isfinite;
}  // namespace moeblas::cuda
