// 8x8 matrices spread over a simdgroup: fill, load, store, multiply-accumulate. Which lane holds
// which element is undocumented, so there is no thread_elements() here: text that needs it would
// rest on a guess.
#pragma once

namespace metal {

template <class T, int columns, int rows>
class simdgroup_matrix;

namespace detail {

template <class T>
struct matrix_scalar {
  enum { value = same<T, half>::value || same<T, float>::value || same<T, bfloat>::value };
};

// Lane l holds elements 2l and 2l + 1 of the row-major matrix: this emulator's own choice.
template <class T>
struct MatrixAccess {
  typedef simdgroup_matrix<T, 8, 8> Matrix;
  static T get(const Matrix& m, int i) { return m.element_[i]; }
  static void set(Matrix& m, int i, T value) { m.element_[i] = value; }
};

}  // namespace detail

template <class T>
class simdgroup_matrix<T, 8, 8> {
  static_assert(detail::matrix_scalar<T>::value, "matrices are of half, bfloat or float");

 public:
  simdgroup_matrix() {}
  explicit simdgroup_matrix(T diagonal) {
    const int lane = int(moeblas::emu::lane_index());
    for (int i = 0; i < 2; ++i) {
      const int at = 2 * lane + i;
      element_[i] = at / 8 == at % 8 ? diagonal : T(0);
    }
  }

 private:
  friend struct detail::MatrixAccess<T>;
  T element_[2];
};

typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

template <class T, int columns, int rows>
inline simdgroup_matrix<T, columns, rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, columns, rows> m;
  for (int i = 0; i < 2; ++i) detail::MatrixAccess<T>::set(m, i, value);
  return m;
}

#define MOEBLAS_EMU_MATRIX_MEMORY(space)                                                    \
  template <class T>                                                                        \
  inline void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& d, const space T* source,    \
                             ulong elements_per_row = 8, ulong2 origin = ulong2(0),         \
                             bool transpose = false,                                        \
                             moeblas::emu::Site site = moeblas::emu::here()) {              \
    moeblas::emu::exchange("simdgroup_load", site, &elements_per_row, 8, uint(transpose));  \
    for (uint i = 0; i < 2; ++i) {                                                          \
      const uint at = 2 * moeblas::emu::lane_index() + i;                                   \
      const ulong row = transpose ? at % 8 : at / 8, column = transpose ? at / 8 : at % 8;  \
      detail::MatrixAccess<T>::set(                                                         \
          d, int(i), source[(origin.y + row) * elements_per_row + origin.x + column]);      \
    }                                                                                       \
  }                                                                                         \
  template <class T>                                                                        \
  inline void simdgroup_store(simdgroup_matrix<T, 8, 8> a, space T* destination,            \
                              ulong elements_per_row = 8, ulong2 origin = ulong2(0),        \
                              bool transpose = false,                                       \
                              moeblas::emu::Site site = moeblas::emu::here()) {             \
    moeblas::emu::exchange("simdgroup_store", site, &elements_per_row, 8, uint(transpose)); \
    for (uint i = 0; i < 2; ++i) {                                                          \
      const uint at = 2 * moeblas::emu::lane_index() + i;                                   \
      const ulong row = transpose ? at % 8 : at / 8, column = transpose ? at / 8 : at % 8;  \
      destination[(origin.y + row) * elements_per_row + origin.x + column] =                \
          detail::MatrixAccess<T>::get(a, int(i));                                          \
    }                                                                                       \
  }
MOEBLAS_EMU_MATRIX_MEMORY(device)
#if defined(MOEBLAS_EMU_CHECK)
MOEBLAS_EMU_MATRIX_MEMORY(threadgroup)
#endif
#undef MOEBLAS_EMU_MATRIX_MEMORY

// d = a * b + c, summed in float and rounded once; the order over k is ascending.
template <class D, class A, class B>
inline void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d,
                                          simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                                          simdgroup_matrix<D, 8, 8> c,
                                          moeblas::emu::Site site = moeblas::emu::here()) {
  float4 mine;
  for (int i = 0; i < 2; ++i) {
    mine[i] = float(detail::MatrixAccess<A>::get(a, i));
    mine[2 + i] = float(detail::MatrixAccess<B>::get(b, i));
  }
  const detail::Lanes<float4> lanes("simdgroup_multiply_accumulate", site, mine);
  for (uint i = 0; i < 2; ++i) {
    const uint at = 2 * moeblas::emu::lane_index() + i, row = at / 8, column = at % 8;
    float sum = float(detail::MatrixAccess<D>::get(c, int(i)));
    for (uint k = 0; k < 8; ++k) {
      const uint in_a = row * 8 + k, in_b = k * 8 + column;
      sum = __builtin_fmaf(lanes[in_a / 2][in_a % 2], lanes[in_b / 2][2 + in_b % 2], sum);
    }
    detail::MatrixAccess<D>::set(d, int(i), static_cast<D>(sum));
  }
}

}  // namespace metal
