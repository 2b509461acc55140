// What the structs of kernel parameters are made of, in text that the host and every device share.
#pragma once

#if !defined(__METAL_VERSION__)
#include <cstdint>
#endif

namespace moeblas {
namespace simt {

#if !defined(__METAL_VERSION__)
using std::int64_t;
using std::uint32_t;
#endif

enum { kMaxDims = 8 };

// dispatch's DType by its number (products.cpp holds the two together).
enum ElementType {
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
  kI8 = 4,
  kI16 = 5,
  kI32 = 6,
  kI64 = 7,
  kU8 = 8,
  kU16 = 9,
  kU32 = 10,
  kU64 = 11
};

}  // namespace simt
}  // namespace moeblas
