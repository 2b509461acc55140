// Problems through the portable kernels on the emulator, next to the same call on the CPU backend.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/elements.h"
#include "moeblas/ops.h"
#include "simt/emulator_queue.h"

namespace moeblas::test {

// Results are compared bit for bit with those of the CPU's portable rows: the faster ones of this
// machine may sum in another order, and write another NaN.
inline const bool kPortableTier = setenv("MOEBLAS_CPU_TIER", "portable", 1) == 0;

// Memory with a strided view; what lies between the view's elements stays poisoned.
class Strided {
 public:
  Strided() = default;
  Strided(DType dtype, const Shape& shape, const Shape& strides, int64_t offset = 0) {
    int64_t extent = offset + 1;
    for (int i = 0; i < shape.ndim(); ++i)
      extent += std::max<int64_t>(shape[i] - 1, 0) * strides[i];
    bytes_.assign(static_cast<size_t>(shape.numel() > 0 ? extent : offset) * size_of(dtype),
                  kEmulatorPoison);
    view_ = TensorView(bytes_.data() + static_cast<size_t>(offset) * size_of(dtype), dtype, shape,
                       strides);
  }
  Strided(DType dtype, const Shape& shape) : Strided(dtype, shape, contiguous_strides(shape)) {}
  Strided(const Strided& other) { *this = other; }
  Strided& operator=(const Strided& other) {
    const auto offset = static_cast<uint8_t*>(other.view_.data) - other.bytes_.data();
    bytes_ = other.bytes_;
    view_ = other.view_;
    if (view_) view_.data = bytes_.data() + offset;
    return *this;
  }

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  std::vector<uint8_t>& bytes() { return bytes_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  int64_t numel() const { return view_.numel(); }
  // Element `flat` in row-major order.
  int64_t at(int64_t flat) const {
    return dispatch::strided_offset(flat, view_.shape, view_.strides);
  }
  float get(int64_t flat) const { return cpu::load_float(view_.data, view_.dtype, at(flat)); }
  void set(int64_t flat, float v) { cpu::store_float(view_.data, view_.dtype, at(flat), v); }
  int64_t integer(int64_t flat) const {
    return cpu::load_integer(view_.data, view_.dtype, at(flat));
  }
  void set_integer(int64_t flat, int64_t v) {
    std::memcpy(
        static_cast<char*>(view_.data) + at(flat) * static_cast<int64_t>(size_of(view_.dtype)), &v,
        size_of(view_.dtype));
  }
  template <class F>
  Strided& fill(F&& f) {
    for (int64_t i = 0; i < numel(); ++i) set(i, f(i));
    return *this;
  }
  template <class F>
  Strided& fill_integers(F&& f) {
    for (int64_t i = 0; i < numel(); ++i) set_integer(i, f(i));
    return *this;
  }

 private:
  std::vector<uint8_t> bytes_;
  TensorView view_;
};

inline constexpr emu::Schedule kSchedules[] = {emu::Schedule::forward, emu::Schedule::reverse,
                                               emu::Schedule::random, emu::Schedule::greedy};

// Both outputs were poisoned alike, so this also says that nothing around the view was touched.
inline void expect_same_bytes(const Strided& got, const Strided& expected, const char* what) {
  ASSERT_EQ(got.bytes().size(), expected.bytes().size());
  if (got.bytes() == expected.bytes()) return;
  size_t i = 0;
  while (got.bytes()[i] == expected.bytes()[i]) ++i;
  ADD_FAILURE() << what << ": byte " << i << " of " << got.bytes().size() << " is "
                << int(got.bytes()[i]) << ", expected " << int(expected.bytes()[i]);
}

}  // namespace moeblas::test
