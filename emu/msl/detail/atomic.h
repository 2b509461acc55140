// Atomic functions with relaxed order: int and uint in device and threadgroup memory, float in
// device memory only (add and sub besides load, store and exchange).
#pragma once

#include "address_space.h"
#include "runtime.h"
#include "types.h"

namespace metal {

enum memory_order { memory_order_relaxed };

template <class T>
struct atomic;

// The members are no part of the language: an atomic is touched by the functions below alone.
#define MOEBLAS_EMU_ATOMIC(T, tag)                                                             \
  template <>                                                                                  \
  struct atomic<T> {                                                                           \
    T value_do_not_touch;                                                                      \
  };                                                                                           \
  namespace detail {                                                                           \
  template <>                                                                                  \
  struct atomic_tag<T> {                                                                       \
    static constexpr moeblas::emu::AtomicType type() { return moeblas::emu::AtomicType::tag; } \
  };                                                                                           \
  }
namespace detail {
template <class T>
struct atomic_tag;
template <class T>
struct atomic_integer {
  enum { value = same<T, int>::value || same<T, uint>::value };
};
template <class T>
struct atomic_number {
  enum { value = atomic_integer<T>::value || same<T, float>::value };
};
template <class T>
struct atomic_in_device_only {
  enum { value = same<T, float>::value };
};
}  // namespace detail
MOEBLAS_EMU_ATOMIC(int, int32)
MOEBLAS_EMU_ATOMIC(uint, uint32)
MOEBLAS_EMU_ATOMIC(float, float32)
#undef MOEBLAS_EMU_ATOMIC

typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

// One template per address space; in execute mode the spaces are one type.
#if defined(MOEBLAS_EMU_CHECK)
#define MOEBLAS_EMU_ATOMIC_SPACES(X, listed) \
  X(device, listed, false)                   \
  X(threadgroup, listed, true)
#define MOEBLAS_EMU_ATOMIC_BODY(...) ;
#else
#define MOEBLAS_EMU_ATOMIC_SPACES(X, listed) X(device, listed, false)
#define MOEBLAS_EMU_ATOMIC_BODY(...) {__VA_ARGS__}
#endif

#define MOEBLAS_EMU_ATOMIC_REQUIRE(listed, in_threadgroup) \
  detail::require<detail::listed<T>::value &&              \
                  !(in_threadgroup && detail::atomic_in_device_only<T>::value)> = 0

#define MOEBLAS_EMU_FETCH(space, listed, in_threadgroup)                                        \
  template <class T, MOEBLAS_EMU_ATOMIC_REQUIRE(listed, in_threadgroup)>                        \
  inline T MOEBLAS_EMU_FETCH_NAME(volatile space atomic<T>* object,                             \
                                  typename detail::enable<true, T>::type operand, memory_order, \
                                  moeblas::emu::Site site = moeblas::emu::here())               \
      MOEBLAS_EMU_ATOMIC_BODY(return as_type<T>(moeblas::emu::atomic(                           \
          moeblas::emu::AtomicOperation::MOEBLAS_EMU_FETCH_OPERATION,                           \
          detail::atomic_tag<T>::type(), object, as_type<uint>(operand), site));)

#define MOEBLAS_EMU_FETCH_NAME atomic_fetch_add_explicit
#define MOEBLAS_EMU_FETCH_OPERATION add
MOEBLAS_EMU_ATOMIC_SPACES(MOEBLAS_EMU_FETCH, atomic_number)
#undef MOEBLAS_EMU_FETCH_NAME
#undef MOEBLAS_EMU_FETCH_OPERATION
#define MOEBLAS_EMU_FETCH_NAME atomic_fetch_sub_explicit
#define MOEBLAS_EMU_FETCH_OPERATION sub
MOEBLAS_EMU_ATOMIC_SPACES(MOEBLAS_EMU_FETCH, atomic_number)
#undef MOEBLAS_EMU_FETCH_NAME
#undef MOEBLAS_EMU_FETCH_OPERATION
#define MOEBLAS_EMU_FETCH_NAME atomic_fetch_min_explicit
#define MOEBLAS_EMU_FETCH_OPERATION min
MOEBLAS_EMU_ATOMIC_SPACES(MOEBLAS_EMU_FETCH, atomic_integer)
#undef MOEBLAS_EMU_FETCH_NAME
#undef MOEBLAS_EMU_FETCH_OPERATION
#define MOEBLAS_EMU_FETCH_NAME atomic_fetch_max_explicit
#define MOEBLAS_EMU_FETCH_OPERATION max
MOEBLAS_EMU_ATOMIC_SPACES(MOEBLAS_EMU_FETCH, atomic_integer)
#undef MOEBLAS_EMU_FETCH_NAME
#undef MOEBLAS_EMU_FETCH_OPERATION
#define MOEBLAS_EMU_FETCH_NAME atomic_fetch_and_explicit
#define MOEBLAS_EMU_FETCH_OPERATION bit_and
MOEBLAS_EMU_ATOMIC_SPACES(MOEBLAS_EMU_FETCH, atomic_integer)
#undef MOEBLAS_EMU_FETCH_NAME
#undef MOEBLAS_EMU_FETCH_OPERATION
#define MOEBLAS_EMU_FETCH_NAME atomic_fetch_or_explicit
#define MOEBLAS_EMU_FETCH_OPERATION bit_or
MOEBLAS_EMU_ATOMIC_SPACES(MOEBLAS_EMU_FETCH, atomic_integer)
#undef MOEBLAS_EMU_FETCH_NAME
#undef MOEBLAS_EMU_FETCH_OPERATION
#define MOEBLAS_EMU_FETCH_NAME atomic_fetch_xor_explicit
#define MOEBLAS_EMU_FETCH_OPERATION bit_xor
MOEBLAS_EMU_ATOMIC_SPACES(MOEBLAS_EMU_FETCH, atomic_integer)
#undef MOEBLAS_EMU_FETCH_NAME
#undef MOEBLAS_EMU_FETCH_OPERATION
#define MOEBLAS_EMU_FETCH_NAME atomic_exchange_explicit
#define MOEBLAS_EMU_FETCH_OPERATION exchange
MOEBLAS_EMU_ATOMIC_SPACES(MOEBLAS_EMU_FETCH, atomic_number)
#undef MOEBLAS_EMU_FETCH_NAME
#undef MOEBLAS_EMU_FETCH_OPERATION
#undef MOEBLAS_EMU_FETCH

#define MOEBLAS_EMU_ATOMIC_ACCESS(space, listed, in_threadgroup)                                 \
  template <class T, MOEBLAS_EMU_ATOMIC_REQUIRE(listed, in_threadgroup)>                         \
  inline T atomic_load_explicit(const volatile space atomic<T>* object, memory_order,            \
                                moeblas::emu::Site site = moeblas::emu::here())                  \
      MOEBLAS_EMU_ATOMIC_BODY(return as_type<T>(moeblas::emu::atomic(                            \
          moeblas::emu::AtomicOperation::load, detail::atomic_tag<T>::type(),                    \
          const_cast<volatile atomic<T>*>(object), 0u,                                           \
          site));) template <class T, MOEBLAS_EMU_ATOMIC_REQUIRE(listed, in_threadgroup)>        \
      inline void atomic_store_explicit(                                                         \
          volatile space atomic<T>* object, typename detail::enable<true, T>::type desired,      \
          memory_order, moeblas::emu::Site site = moeblas::emu::here())                          \
          MOEBLAS_EMU_ATOMIC_BODY(                                                               \
              moeblas::emu::atomic(                                                              \
                  moeblas::emu::AtomicOperation::store, detail::atomic_tag<T>::type(), object,   \
                  as_type<uint>(desired),                                                        \
                  site);) template <class T, MOEBLAS_EMU_ATOMIC_REQUIRE(listed, in_threadgroup)> \
          inline bool atomic_compare_exchange_weak_explicit(                                     \
              volatile space atomic<T>* object, thread T* expected,                              \
              typename detail::enable<true, T>::type desired, memory_order, memory_order,        \
              moeblas::emu::Site site = moeblas::emu::here())                                    \
              MOEBLAS_EMU_ATOMIC_BODY(uint bits = as_type<uint>(*expected);                      \
                                      const bool done = moeblas::emu::atomic_compare_exchange(   \
                                          object, &bits, as_type<uint>(desired), site);          \
                                      *expected = as_type<T>(bits); return done;)
MOEBLAS_EMU_ATOMIC_SPACES(MOEBLAS_EMU_ATOMIC_ACCESS, atomic_number)
#undef MOEBLAS_EMU_ATOMIC_ACCESS
#undef MOEBLAS_EMU_ATOMIC_REQUIRE
#undef MOEBLAS_EMU_ATOMIC_BODY
#undef MOEBLAS_EMU_ATOMIC_SPACES

}  // namespace metal
