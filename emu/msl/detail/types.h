// Scalar and vector types, their constructors, as_type.
#pragma once

#include "address_space.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;

static_assert(sizeof(int) == 4 && sizeof(long) == 8,
              "the language fixes int at 32, long at 64 bits");

namespace metal {

// A vector of three takes the room of four, as the language has it.
#define MOEBLAS_EMU_VECTORS(T)                        \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
#define MOEBLAS_EMU_EACH_VECTOR_SCALAR(X) \
  X(char) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong) X(half) X(float) X(bfloat)
MOEBLAS_EMU_EACH_VECTOR_SCALAR(MOEBLAS_EMU_VECTORS)
#undef MOEBLAS_EMU_VECTORS

namespace detail {

template <bool condition, class T = void>
struct enable {};
template <class T>
struct enable<true, T> {
  typedef T type;
};
template <bool condition>
using require = typename enable<condition, int>::type;

template <class A, class B>
struct same {
  enum { value = false };
};
template <class A>
struct same<A, A> {
  enum { value = true };
};

// What a type is made of: its scalar and its number of components.
template <class T>
struct shape {
  typedef T scalar;
  enum { size = 1 };
};
template <class T, int n>
struct vector_of;
#define MOEBLAS_EMU_SHAPE(T, n) \
  template <>                   \
  struct shape<T##n> {          \
    typedef T scalar;           \
    enum { size = n };          \
  };                            \
  template <>                   \
  struct vector_of<T, n> {      \
    typedef T##n type;          \
  };
#define MOEBLAS_EMU_SHAPES(T) \
  MOEBLAS_EMU_SHAPE(T, 2) MOEBLAS_EMU_SHAPE(T, 3) MOEBLAS_EMU_SHAPE(T, 4)
MOEBLAS_EMU_EACH_VECTOR_SCALAR(MOEBLAS_EMU_SHAPES)
#undef MOEBLAS_EMU_SHAPES
#undef MOEBLAS_EMU_SHAPE

template <class T>
struct scalar_kind {
  enum { integer = 0, floating = 0, bits = 0 };
};
#define MOEBLAS_EMU_KIND(T, is_integer, is_floating)                                  \
  template <>                                                                         \
  struct scalar_kind<T> {                                                             \
    enum { integer = is_integer, floating = is_floating, bits = int(sizeof(T)) * 8 }; \
  };
MOEBLAS_EMU_KIND(char, 1, 0)
MOEBLAS_EMU_KIND(signed char, 1, 0)
MOEBLAS_EMU_KIND(uchar, 1, 0)
MOEBLAS_EMU_KIND(short, 1, 0)
MOEBLAS_EMU_KIND(ushort, 1, 0)
MOEBLAS_EMU_KIND(int, 1, 0)
MOEBLAS_EMU_KIND(uint, 1, 0)
MOEBLAS_EMU_KIND(long, 1, 0)
MOEBLAS_EMU_KIND(ulong, 1, 0)
// bfloat is a storage type to the standard library: no mathematical or simdgroup function lists it.
MOEBLAS_EMU_KIND(half, 0, 1)
MOEBLAS_EMU_KIND(float, 0, 1)
#undef MOEBLAS_EMU_KIND

template <class T>
struct kind : scalar_kind<typename shape<T>::scalar> {};

template <class T>
struct is_unsigned_scalar {
  enum { value = T(-1) > T(0) };
};

// One component after another, as the constructors of the language take them.
template <class V>
struct Filler {
  typedef typename shape<V>::scalar Scalar;
  V value;
  int at;
  template <class A>
  void add(A a, int (*)[1]) {
    value[at++] = static_cast<Scalar>(a);
  }
  template <class A, int n>
  void add(A a, int (*)[n]) {
    for (int i = 0; i < n; ++i) value[at++] = static_cast<Scalar>(a[i]);
  }
};

constexpr int total() { return 0; }
template <class... N>
constexpr int total(int first, N... rest) {
  return first + total(rest...);
}

template <class V>
struct Maker {
  typedef typename shape<V>::scalar Scalar;
  static V make() { return V(Scalar(0)); }
  template <class A, require<shape<A>::size == 1> = 0>
  static V make(A a) {
    return V(static_cast<Scalar>(a));
  }
  template <class A, require<(shape<A>::size > 1)> = 0>
  static V make(A a) {
    static_assert(int(shape<A>::size) == int(shape<V>::size),
                  "a vector converts only to a vector of its own length");
    return __builtin_convertvector(a, V);
  }
  template <class A, class B, class... Rest>
  static V make(A a, B b, Rest... rest) {
    static_assert(total(shape<A>::size, shape<B>::size, shape<Rest>::size...) == shape<V>::size,
                  "the components given are not the components of the vector");
    Filler<V> f = {V(Scalar(0)), 0};
    f.add(a, static_cast<int(*)[shape<A>::size]>(nullptr));
    f.add(b, static_cast<int(*)[shape<B>::size]>(nullptr));
    const int dummy[] = {0, (f.add(rest, static_cast<int(*)[shape<Rest>::size]>(nullptr)), 0)...};
    (void)dummy;
    return f.value;
  }
};

}  // namespace detail

template <class T, int n>
using vec = typename detail::vector_of<T, n>::type;

// clang's own functional cast between its vectors reinterprets bits; the language converts values.
// vector_constructors.h leads float4(...) to make_float4(...).
#define MOEBLAS_EMU_MAKE(V)              \
  template <class... A>                  \
  inline V make_##V(A... a) {            \
    return detail::Maker<V>::make(a...); \
  }
#define MOEBLAS_EMU_MAKES(T) MOEBLAS_EMU_MAKE(T##2) MOEBLAS_EMU_MAKE(T##3) MOEBLAS_EMU_MAKE(T##4)
MOEBLAS_EMU_EACH_VECTOR_SCALAR(MOEBLAS_EMU_MAKES)
#undef MOEBLAS_EMU_MAKES
#undef MOEBLAS_EMU_MAKE

}  // namespace metal

template <class To, class From>
inline To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  return __builtin_bit_cast(To, from);
}
