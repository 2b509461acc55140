// Mathematical and common functions for float, half and their vectors; min, max, clamp and select
// for integers too. There is none for bfloat: kernels convert, as they must on a Mac.
#pragma once

#include "types.h"

namespace metal {
namespace detail {

template <class T>
struct floating {
  enum { value = kind<T>::floating };
};
template <class T>
struct single_precision {
  enum { value = same<typename shape<T>::scalar, float>::value };
};
template <class T>
struct arithmetic {
  enum { value = kind<T>::floating || kind<T>::integer };
};

// A function of scalars on each component.
template <class F, class T, require<shape<T>::size == 1> = 0>
inline T map(T a) {
  return F::apply(a);
}
template <class F, class T, require<(shape<T>::size > 1)> = 0>
inline T map(T a) {
  for (int i = 0; i < shape<T>::size; ++i) a[i] = F::apply(typename shape<T>::scalar(a[i]));
  return a;
}
template <class F, class T, require<shape<T>::size == 1> = 0>
inline T map(T a, T b) {
  return F::apply(a, b);
}
template <class F, class T, require<(shape<T>::size > 1)> = 0>
inline T map(T a, T b) {
  typedef typename shape<T>::scalar S;
  for (int i = 0; i < shape<T>::size; ++i) a[i] = F::apply(S(a[i]), S(b[i]));
  return a;
}

struct Max {
  template <class S, require<kind<S>::integer> = 0>
  static S apply(S a, S b) {
    return a < b ? b : a;
  }
  // A NaN loses against a number, as fmax has it.
  template <class S, require<kind<S>::floating> = 0>
  static S apply(S a, S b) {
    return static_cast<S>(__builtin_fmaxf(float(a), float(b)));
  }
};
struct Min {
  template <class S, require<kind<S>::integer> = 0>
  static S apply(S a, S b) {
    return b < a ? b : a;
  }
  template <class S, require<kind<S>::floating> = 0>
  static S apply(S a, S b) {
    return static_cast<S>(__builtin_fminf(float(a), float(b)));
  }
};

}  // namespace detail

// half computes in float and rounds once; for these functions that is within the language's bounds.
#define MOEBLAS_EMU_UNARY(name, expression)                                   \
  namespace detail {                                                          \
  struct name##_of {                                                          \
    template <class S>                                                        \
    static S apply(S s) {                                                     \
      const float x = float(s);                                               \
      return static_cast<S>(expression);                                      \
    }                                                                         \
  };                                                                          \
  }                                                                           \
  template <class T, detail::require<detail::floating<T>::value> = 0>         \
  inline T name(T x) {                                                        \
    return detail::map<detail::name##_of>(x);                                 \
  }                                                                           \
  namespace precise {                                                         \
  template <class T, detail::require<detail::single_precision<T>::value> = 0> \
  inline T name(T x) {                                                        \
    return detail::map<detail::name##_of>(x);                                 \
  }                                                                           \
  }                                                                           \
  namespace fast {                                                            \
  template <class T, detail::require<detail::single_precision<T>::value> = 0> \
  inline T name(T x) {                                                        \
    return detail::map<detail::name##_of>(x);                                 \
  }                                                                           \
  }

MOEBLAS_EMU_UNARY(acos, __builtin_acosf(x))
MOEBLAS_EMU_UNARY(asin, __builtin_asinf(x))
MOEBLAS_EMU_UNARY(atan, __builtin_atanf(x))
MOEBLAS_EMU_UNARY(ceil, __builtin_ceilf(x))
MOEBLAS_EMU_UNARY(cos, __builtin_cosf(x))
MOEBLAS_EMU_UNARY(cosh, __builtin_coshf(x))
MOEBLAS_EMU_UNARY(exp, __builtin_expf(x))
MOEBLAS_EMU_UNARY(exp2, __builtin_exp2f(x))
MOEBLAS_EMU_UNARY(fabs, __builtin_fabsf(x))
MOEBLAS_EMU_UNARY(floor, __builtin_floorf(x))
MOEBLAS_EMU_UNARY(log, __builtin_logf(x))
MOEBLAS_EMU_UNARY(log2, __builtin_log2f(x))
MOEBLAS_EMU_UNARY(log10, __builtin_log10f(x))
MOEBLAS_EMU_UNARY(rint, __builtin_rintf(x))
MOEBLAS_EMU_UNARY(round, __builtin_roundf(x))
MOEBLAS_EMU_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))
MOEBLAS_EMU_UNARY(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))
MOEBLAS_EMU_UNARY(sin, __builtin_sinf(x))
MOEBLAS_EMU_UNARY(sinh, __builtin_sinhf(x))
MOEBLAS_EMU_UNARY(sqrt, __builtin_sqrtf(x))
MOEBLAS_EMU_UNARY(tan, __builtin_tanf(x))
MOEBLAS_EMU_UNARY(tanh, __builtin_tanhf(x))
MOEBLAS_EMU_UNARY(trunc, __builtin_truncf(x))
#undef MOEBLAS_EMU_UNARY

template <class T, detail::require<detail::floating<T>::value> = 0>
inline T abs(T x) {
  return fabs(x);
}

#define MOEBLAS_EMU_BINARY(name, expression)                          \
  namespace detail {                                                  \
  struct name##_of {                                                  \
    template <class S>                                                \
    static S apply(S s, S t) {                                        \
      const float x = float(s), y = float(t);                         \
      return static_cast<S>(expression);                              \
    }                                                                 \
  };                                                                  \
  }                                                                   \
  template <class T, detail::require<detail::floating<T>::value> = 0> \
  inline T name(T x, T y) {                                           \
    return detail::map<detail::name##_of>(x, y);                      \
  }
MOEBLAS_EMU_BINARY(copysign, __builtin_copysignf(x, y))
MOEBLAS_EMU_BINARY(fmax, __builtin_fmaxf(x, y))
MOEBLAS_EMU_BINARY(fmin, __builtin_fminf(x, y))
MOEBLAS_EMU_BINARY(fmod, __builtin_fmodf(x, y))
MOEBLAS_EMU_BINARY(pow, __builtin_powf(x, y))
MOEBLAS_EMU_BINARY(powr, __builtin_powf(x, y))
MOEBLAS_EMU_BINARY(step, y < x ? 0.0f : 1.0f)
#undef MOEBLAS_EMU_BINARY

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// The product of two halves is exact in float; the sum is rounded to odd there so that the last
// rounding sees what the exact sum would show it.
inline half fma(half a, half b, half c) {
  const float p = float(a) * float(b), s = p + float(c);
  const float d = s - p, e = (p - (s - d)) + (float(c) - d);
  uint u = as_type<uint>(s);
  if (e != 0.0f && e == e && (u & 1u) == 0u) u += ((e > 0.0f) == (s > 0.0f)) ? 1u : ~0u;
  return static_cast<half>(as_type<float>(u));
}
template <class T, detail::require<(detail::shape<T>::size > 1) && detail::floating<T>::value> = 0>
inline T fma(T a, T b, T c) {
  typedef typename detail::shape<T>::scalar S;
  for (int i = 0; i < detail::shape<T>::size; ++i) a[i] = fma(S(a[i]), S(b[i]), S(c[i]));
  return a;
}

inline float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
inline half ldexp(half x, int e) { return static_cast<half>(__builtin_ldexpf(float(x), e)); }

inline bool isnan(float x) { return x != x; }
inline bool isnan(half x) { return x != x; }
inline bool isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }
inline bool isinf(half x) { return isinf(float(x)); }
inline bool isfinite(float x) { return !isnan(x) && !isinf(x); }
inline bool isfinite(half x) { return isfinite(float(x)); }
inline bool signbit(float x) { return (as_type<uint>(x) >> 31) != 0; }
inline bool signbit(half x) { return (as_type<ushort>(x) >> 15) != 0; }

template <class T, detail::require<detail::arithmetic<T>::value> = 0>
inline T max(T a, T b) {
  return detail::map<detail::Max>(a, b);
}
template <class T, detail::require<detail::arithmetic<T>::value> = 0>
inline T min(T a, T b) {
  return detail::map<detail::Min>(a, b);
}
template <class T, detail::require<detail::arithmetic<T>::value> = 0>
inline T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <class T, detail::require<detail::floating<T>::value> = 0>
inline T mix(T x, T y, T a) {
  return x + (y - x) * a;
}

// b where the condition holds. Scalars only: vectors of bool are not emulated.
template <class T, detail::require<detail::arithmetic<T>::value && detail::shape<T>::size == 1> = 0>
inline T select(T a, T b, bool condition) {
  return condition ? b : a;
}

template <class T, detail::require<(detail::shape<T>::size > 1) && detail::floating<T>::value> = 0>
inline typename detail::shape<T>::scalar dot(T a, T b) {
  typename detail::shape<T>::scalar sum = 0;
  for (int i = 0; i < detail::shape<T>::size; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace metal
