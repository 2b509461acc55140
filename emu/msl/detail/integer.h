// Integer functions: scalars and vectors of every integer type.
#pragma once

#include "math.h"

namespace metal {
namespace detail {

template <class U>
inline int leading_zeros(U u) {
  int n = 0;
  for (int bit = int(sizeof(U)) * 8 - 1; bit >= 0 && ((u >> bit) & 1) == 0; --bit) ++n;
  return n;
}

template <class T>
inline int trailing_zeros(T t) {
  const int bits = int(sizeof(T)) * 8;
  int n = 0;
  while (n < bits && ((t >> n) & 1) == 0) ++n;
  return n;
}

template <class T>
inline int ones(T t) {
  int n = 0;
  for (int bit = 0; bit < int(sizeof(T)) * 8; ++bit) n += int((t >> bit) & 1);
  return n;
}

template <class T>
struct integer {
  enum { value = kind<T>::integer };
};

struct Clz {
  template <class S>
  static S apply(S a) {
    return static_cast<S>(leading_zeros(a));
  }
};
struct Ctz {
  template <class S>
  static S apply(S a) {
    return static_cast<S>(trailing_zeros(a));
  }
};
struct Popcount {
  template <class S>
  static S apply(S a) {
    return static_cast<S>(ones(a));
  }
};
struct ReverseBits {
  template <class S>
  static S apply(S a) {
    S r = 0;
    for (int bit = 0; bit < int(sizeof(S)) * 8; ++bit)
      r = static_cast<S>((ulong(r) << 1) | ((a >> bit) & 1));
    return r;
  }
};
struct IntegerAbs {
  template <class S>
  static S apply(S a) {
    return a < S(0) ? static_cast<S>(0 - a) : a;
  }
};

}  // namespace detail

#define MOEBLAS_EMU_UNARY_INTEGER(name, functor)                     \
  template <class T, detail::require<detail::integer<T>::value> = 0> \
  inline T name(T x) {                                               \
    return detail::map<detail::functor>(x);                          \
  }
MOEBLAS_EMU_UNARY_INTEGER(clz, Clz)
MOEBLAS_EMU_UNARY_INTEGER(ctz, Ctz)
MOEBLAS_EMU_UNARY_INTEGER(popcount, Popcount)
MOEBLAS_EMU_UNARY_INTEGER(reverse_bits, ReverseBits)
MOEBLAS_EMU_UNARY_INTEGER(abs, IntegerAbs)
#undef MOEBLAS_EMU_UNARY_INTEGER

inline uint mulhi(uint a, uint b) { return uint((ulong(a) * ulong(b)) >> 32); }
inline int mulhi(int a, int b) { return int((long(a) * long(b)) >> 32); }

template <class T, detail::require<detail::integer<T>::value && detail::shape<T>::size == 1> = 0>
inline T extract_bits(T x, uint offset, uint bits) {
  const int width = detail::kind<T>::bits;
  if (bits == 0) return T(0);
  const ulong field = (ulong(x) >> offset) << (64 - bits);
  const bool is_unsigned = detail::is_unsigned_scalar<T>::value;
  return width && is_unsigned ? static_cast<T>(field >> (64 - bits))
                              : static_cast<T>(long(field) >> (64 - bits));
}

template <class T, detail::require<detail::integer<T>::value && detail::shape<T>::size == 1> = 0>
inline T insert_bits(T base, T insert, uint offset, uint bits) {
  if (bits == 0) return base;
  const ulong mask = (~ulong(0) >> (64 - bits)) << offset;
  return static_cast<T>((ulong(base) & ~mask) | ((ulong(insert) << offset) & mask));
}

}  // namespace metal
