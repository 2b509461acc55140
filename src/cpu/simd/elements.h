// Rows of floats of any dtype, a vector at a time.
#pragma once

#include "cpu/mm_kernels.h"
#include "cpu/simd/simd.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

inline int in_vector(int64_t left) {
  return static_cast<int>(left < Simd::kLanes ? left : Simd::kLanes);
}

template <Element kElement>
inline Simd::Floats load_elements(const void* from, int64_t at, int count) {
  if constexpr (kElement == Element::f32) {
    return Simd::load_f32(static_cast<const float*>(from) + at, count);
  } else if constexpr (kElement == Element::f16) {
    return Simd::load_f16(static_cast<const uint16_t*>(from) + at, count);
  } else {
    return Simd::load_bf16(static_cast<const uint16_t*>(from) + at, count);
  }
}

template <Element kElement>
inline void store_elements(void* to, int64_t at, Simd::Floats v, int count) {
  if constexpr (kElement == Element::f32) {
    Simd::store_f32(static_cast<float*>(to) + at, v, count);
  } else if constexpr (kElement == Element::f16) {
    Simd::store_f16(static_cast<uint16_t*>(to) + at, v, count);
  } else {
    Simd::store_bf16(static_cast<uint16_t*>(to) + at, v, count);
  }
}

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
