// Device code: reading and writing single elements of any dtype that the operations take. The dtype
// is uniform over a launch, so the choice costs a branch that every lane takes alike.
#pragma once

#include "formats/float16.h"
#include "simt/portable_kernel.h"
#include "simt/shared.h"

namespace moeblas {
namespace simt {

// By a name of its own, which declarations of arrays need where the language's vectors are macros.
typedef float4 Quad;

// The number of a floating type.
template <typename T>
struct TypeOf;
template <>
struct TypeOf<float> {
  enum { value = kF32 };
};
template <>
struct TypeOf<half> {
  enum { value = kF16 };
};
template <>
struct TypeOf<bfloat> {
  enum { value = kBf16 };
};

// Element i of a float32, float16 or bfloat16 array.
MB_GPU_FN float load_float(MB_DEVICE const uchar* p, int dtype, int64_t i) {
  if (dtype == kBf16) return float(((MB_DEVICE const bfloat*)p)[i]);
  if (dtype == kF16) return float(((MB_DEVICE const half*)p)[i]);
  return ((MB_DEVICE const float*)p)[i];
}

// What a word of memory holds, as floats: two halves or one float.
template <typename T>
MB_GPU_FN void floats_of(uint word, MB_THREAD float* v) {
  v[0] = float(as_type<T>(ushort(word & 0xffffu)));
  v[1] = float(as_type<T>(ushort(word >> 16)));
}
template <>
MB_GPU_FN void floats_of<float>(uint word, MB_THREAD float* v) {
  v[0] = formats::bits_to_float(word);
}

// One rounding to the dtype, by the CPU backend's definition: devices differ in the NaN they write.
MB_GPU_FN void store_float(MB_DEVICE uchar* p, int dtype, int64_t i, float value) {
  if (dtype == kBf16) {
    ((MB_DEVICE ushort*)p)[i] = formats::float_to_bfloat16(value);
  } else if (dtype == kF16) {
    ((MB_DEVICE ushort*)p)[i] = formats::float_to_float16(value);
  } else {
    ((MB_DEVICE float*)p)[i] = value;
  }
}

// Element i of an integer array; unsigned values beyond int64 become its largest value, which is
// out of every range.
MB_GPU_FN int64_t load_integer(MB_DEVICE const uchar* p, int dtype, int64_t i) {
  switch (dtype) {
    case kI8:
      return ((MB_DEVICE const char*)p)[i];
    case kI16:
      return ((MB_DEVICE const short*)p)[i];
    case kI32:
      return ((MB_DEVICE const int*)p)[i];
    case kU8:
      return p[i];
    case kU16:
      return ((MB_DEVICE const ushort*)p)[i];
    case kU32:
      return ((MB_DEVICE const uint*)p)[i];
    case kU64: {
      const ulong u = ((MB_DEVICE const ulong*)p)[i];
      return int64_t(u < 0x7fffffffffffffff ? u : 0x7fffffffffffffff);
    }
    default:
      return ((MB_DEVICE const int64_t*)p)[i];
  }
}

}  // namespace simt
}  // namespace moeblas
