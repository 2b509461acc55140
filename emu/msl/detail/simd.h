// Functions across a simdgroup of 32 lanes, for scalars and vectors of half, float and the integer
// types up to 32 bits. Neither bool, nor 64-bit integers, nor bfloat are listed.
#pragma once

#include "math.h"
#include "runtime.h"

namespace metal {
namespace detail {

template <class T>
struct simd_data {
  enum { value = kind<T>::floating || (kind<T>::integer && kind<T>::bits <= 32) };
};
template <class T>
struct simd_integer {
  enum { value = kind<T>::integer && kind<T>::bits <= 32 };
};

// The 32 values of one exchange.
template <class T>
struct Lanes {
  const unsigned char* base;
  Lanes(const char* operation, const moeblas::emu::Site& site, const T& value,
        unsigned parameter = 0)
      : base(moeblas::emu::exchange(operation, site, &value, sizeof(T), parameter)) {
    static_assert(sizeof(T) <= moeblas::emu::kSlotBytes, "a slot holds any listed type");
  }
  T operator[](unsigned lane) const {
    T value;
    __builtin_memcpy(&value, base + lane * moeblas::emu::kSlotBytes, sizeof(T));
    return value;
  }
};

// Pairs lanes 16 apart, then 8, 4, 2, 1: the order of a butterfly of shuffles, which is what the
// CUDA expansion does, so that both give the same bits.
template <class T, class F>
inline T reduce(const Lanes<T>& lanes, F f) {
  T v[32];
  for (unsigned i = 0; i < 16; ++i) v[i] = f(lanes[i], lanes[i + 16]);
  for (unsigned half_width = 8; half_width > 0; half_width /= 2)
    for (unsigned i = 0; i < half_width; ++i) v[i] = f(v[i], v[i + half_width]);
  return v[0];
}

// Lane `lane`'s inclusive prefix, in the order of 1, 2, 4, 8, 16 lanes apart (again CUDA's).
template <class T, class F>
inline T scan(const Lanes<T>& lanes, unsigned lane, F f) {
  T v[32];
  for (unsigned i = 0; i < 32; ++i) v[i] = lanes[i];
  for (unsigned distance = 1; distance < 32; distance *= 2)
    for (unsigned i = 31; i >= distance; --i) v[i] = f(v[i - distance], v[i]);
  return v[lane];
}

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Product {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};
struct Lower {
  template <class T>
  T operator()(T a, T b) const {
    return map<Min>(a, b);
  }
};
struct Higher {
  template <class T>
  T operator()(T a, T b) const {
    return map<Max>(a, b);
  }
};
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

}  // namespace detail

#define MOEBLAS_EMU_SIMD_REDUCTION(name, listed, functor)                          \
  template <class T, detail::require<detail::listed<T>::value> = 0>                \
  inline T name(T data, moeblas::emu::Site site = moeblas::emu::here()) {          \
    return detail::reduce(detail::Lanes<T>(#name, site, data), detail::functor()); \
  }
MOEBLAS_EMU_SIMD_REDUCTION(simd_sum, simd_data, Sum)
MOEBLAS_EMU_SIMD_REDUCTION(simd_product, simd_data, Product)
MOEBLAS_EMU_SIMD_REDUCTION(simd_min, simd_data, Lower)
MOEBLAS_EMU_SIMD_REDUCTION(simd_max, simd_data, Higher)
MOEBLAS_EMU_SIMD_REDUCTION(simd_and, simd_integer, And)
MOEBLAS_EMU_SIMD_REDUCTION(simd_or, simd_integer, Or)
MOEBLAS_EMU_SIMD_REDUCTION(simd_xor, simd_integer, Xor)
#undef MOEBLAS_EMU_SIMD_REDUCTION

#define MOEBLAS_EMU_SIMD_SCAN(operation, functor, identity)                                    \
  template <class T, detail::require<detail::simd_data<T>::value> = 0>                         \
  inline T simd_prefix_inclusive_##operation(T data,                                           \
                                             moeblas::emu::Site site = moeblas::emu::here()) { \
    const detail::Lanes<T> lanes("simd_prefix_inclusive_" #operation, site, data);             \
    return detail::scan(lanes, moeblas::emu::lane_index(), detail::functor());                 \
  }                                                                                            \
  template <class T, detail::require<detail::simd_data<T>::value> = 0>                         \
  inline T simd_prefix_exclusive_##operation(T data,                                           \
                                             moeblas::emu::Site site = moeblas::emu::here()) { \
    const detail::Lanes<T> lanes("simd_prefix_exclusive_" #operation, site, data);             \
    const unsigned lane = moeblas::emu::lane_index();                                          \
    return lane == 0 ? T(identity) : detail::scan(lanes, lane - 1, detail::functor());         \
  }
MOEBLAS_EMU_SIMD_SCAN(sum, Sum, 0)
MOEBLAS_EMU_SIMD_SCAN(product, Product, 1)
#undef MOEBLAS_EMU_SIMD_SCAN

template <class T, detail::require<detail::simd_data<T>::value> = 0>
inline T simd_shuffle(T data, ushort lane, moeblas::emu::Site site = moeblas::emu::here()) {
  const detail::Lanes<T> lanes("simd_shuffle", site, data);
  if (lane >= 32)
    moeblas::emu::bad_collective("simd_shuffle", site, "reads a lane that does not exist:", lane);
  return lanes[lane];
}

template <class T, detail::require<detail::simd_data<T>::value> = 0>
inline T simd_broadcast(T data, ushort lane, moeblas::emu::Site site = moeblas::emu::here()) {
  const detail::Lanes<T> lanes("simd_broadcast", site, data, lane);
  if (lane >= 32)
    moeblas::emu::bad_collective("simd_broadcast", site, "reads a lane that does not exist:", lane);
  return lanes[lane];
}

template <class T, detail::require<detail::simd_data<T>::value> = 0>
inline T simd_broadcast_first(T data, moeblas::emu::Site site = moeblas::emu::here()) {
  return detail::Lanes<T>("simd_broadcast_first", site, data)[0];
}

template <class T, detail::require<detail::simd_data<T>::value> = 0>
inline T simd_shuffle_xor(T data, ushort mask, moeblas::emu::Site site = moeblas::emu::here()) {
  const detail::Lanes<T> lanes("simd_shuffle_xor", site, data, mask);
  if (mask >= 32)
    moeblas::emu::bad_collective("simd_shuffle_xor", site, "has a mask past the lanes:", mask);
  return lanes[moeblas::emu::lane_index() ^ mask];
}

// Lanes with no partner keep their own value.
template <class T, detail::require<detail::simd_data<T>::value> = 0>
inline T simd_shuffle_up(T data, ushort delta, moeblas::emu::Site site = moeblas::emu::here()) {
  const detail::Lanes<T> lanes("simd_shuffle_up", site, data, delta);
  const unsigned lane = moeblas::emu::lane_index();
  return lane < delta ? data : lanes[lane - delta];
}
template <class T, detail::require<detail::simd_data<T>::value> = 0>
inline T simd_shuffle_down(T data, ushort delta, moeblas::emu::Site site = moeblas::emu::here()) {
  const detail::Lanes<T> lanes("simd_shuffle_down", site, data, delta);
  const unsigned lane = moeblas::emu::lane_index();
  return lane + delta >= 32 ? data : lanes[lane + delta];
}

template <class T, detail::require<detail::simd_data<T>::value> = 0>
inline T simd_shuffle_rotate_up(T data, ushort delta,
                                moeblas::emu::Site site = moeblas::emu::here()) {
  const detail::Lanes<T> lanes("simd_shuffle_rotate_up", site, data, delta);
  return lanes[(moeblas::emu::lane_index() - delta) & 31u];
}
template <class T, detail::require<detail::simd_data<T>::value> = 0>
inline T simd_shuffle_rotate_down(T data, ushort delta,
                                  moeblas::emu::Site site = moeblas::emu::here()) {
  const detail::Lanes<T> lanes("simd_shuffle_rotate_down", site, data, delta);
  return lanes[(moeblas::emu::lane_index() + delta) & 31u];
}

class simd_vote {
 public:
  typedef ulong vote_t;
  explicit constexpr simd_vote(vote_t votes = 0) : votes_(votes) {}
  explicit constexpr operator vote_t() const { return votes_; }
  constexpr bool all() const { return votes_ == 0xffffffffu; }
  constexpr bool any() const { return votes_ != 0; }

 private:
  vote_t votes_;
};

namespace detail {
inline ulong votes(const char* operation, bool vote, const moeblas::emu::Site& site) {
  const Lanes<uint> lanes(operation, site, uint(vote));
  ulong votes = 0;
  for (unsigned i = 0; i < 32; ++i) votes |= ulong(lanes[i]) << i;
  return votes;
}
}  // namespace detail

inline simd_vote simd_ballot(bool vote, moeblas::emu::Site site = moeblas::emu::here()) {
  return simd_vote(detail::votes("simd_ballot", vote, site));
}
inline bool simd_all(bool vote, moeblas::emu::Site site = moeblas::emu::here()) {
  return detail::votes("simd_all", vote, site) == 0xffffffffu;
}
inline bool simd_any(bool vote, moeblas::emu::Site site = moeblas::emu::here()) {
  return detail::votes("simd_any", vote, site) != 0;
}

}  // namespace metal
