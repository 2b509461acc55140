// Reading and writing single elements of any dtype that the operations take.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/mm_kernels.h"
#include "dispatch/ids.h"
#include "dispatch/problem.h"
#include "formats/float16.h"

namespace moeblas::cpu {

template <class T>
T load_as(const void* p, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(p) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void store_as(void* p, int64_t i, T value) {
  std::memcpy(static_cast<char*>(p) + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// Element i of a float32, float16 or bfloat16 array.
inline float load_float(const void* p, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::f16:
      return formats::float16_to_float(load_as<uint16_t>(p, i));
    case DType::bf16:
      return formats::bfloat16_to_float(load_as<uint16_t>(p, i));
    default:
      return load_as<float>(p, i);
  }
}

// One rounding to the dtype.
inline void store_float(void* p, DType dtype, int64_t i, float value) {
  switch (dtype) {
    case DType::f16:
      return store_as(p, i, formats::float_to_float16(value));
    case DType::bf16:
      return store_as(p, i, formats::float_to_bfloat16(value));
    default:
      return store_as(p, i, value);
  }
}

// count elements from `first`, `stride` apart, as float32. The dtype is decided outside the loop,
// and rows without gaps have a loop of their own: both let it be vectorized.
inline void load_floats(const void* p, DType dtype, int64_t first, int64_t stride, int64_t count,
                        float* out) {
  const auto load = [&](auto element) {
    if (stride == 1) {
      for (int64_t i = 0; i < count; ++i) out[i] = element(first + i);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = element(first + i * stride);
    }
  };
  switch (dtype) {
    case DType::f16:
      return load([&](int64_t i) { return formats::float16_to_float(load_as<uint16_t>(p, i)); });
    case DType::bf16:
      return load([&](int64_t i) { return formats::bfloat16_to_float(load_as<uint16_t>(p, i)); });
    default:
      return load([&](int64_t i) { return load_as<float>(p, i); });
  }
}

// count elements from `first` on, each rounded once to the dtype.
inline void store_floats(void* p, DType dtype, int64_t first, int64_t count, const float* values) {
  switch (dtype) {
    case DType::f16:
      for (int64_t i = 0; i < count; ++i)
        store_as(p, first + i, formats::float_to_float16(values[i]));
      return;
    case DType::bf16:
      for (int64_t i = 0; i < count; ++i)
        store_as(p, first + i, formats::float_to_bfloat16(values[i]));
      return;
    default:
      std::memcpy(static_cast<char*>(p) + first * static_cast<int64_t>(sizeof(float)), values,
                  static_cast<size_t>(count) * sizeof(float));
  }
}

// A float dtype in tables of kernels, which know it as Element.
inline int element_index(DType dtype) {
  return static_cast<int>(dtype == DType::f32   ? Element::f32
                          : dtype == DType::f16 ? Element::f16
                                                : Element::bf16);
}

// A format in tables of kernels, which know it as Codes.
inline int code_index(const QuantSpec& spec) {
  if (spec.mode == Mode::mxfp8) return static_cast<int>(Codes::e4m3);
  if (spec.mode != Mode::affine) return static_cast<int>(Codes::e2m1);
  constexpr Codes kByBits[] = {Codes::u2, Codes::u2, Codes::u2, Codes::u3, Codes::u4,
                               Codes::u5, Codes::u6, Codes::u8, Codes::u8};
  return static_cast<int>(kByBits[spec.bits]);
}

using dispatch::load_integer;

inline float load_tensor_scale(const dispatch::TensorScale& scale, int64_t matrix) {
  return scale.data != nullptr ? load_as<float>(scale.data, matrix * scale.stride) : scale.host;
}

}  // namespace moeblas::cpu
