// Arrays for tests: memory of a given shape and dtype, filled and read element by element.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/elements.h"
#include "moeblas/tensor.h"

namespace moeblas::test {

// Row-major memory with a view of it.
class Array {
 public:
  Array() = default;
  Array(DType dtype, const Shape& shape, uint8_t fill = 0)
      : bytes_(static_cast<size_t>(shape.numel()) * size_of(dtype), fill),
        dtype_(dtype),
        shape_(shape) {}

  TensorView view() const { return {bytes_.data(), dtype_, shape_}; }
  operator TensorView() const { return view(); }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t numel() const { return shape_.numel(); }
  std::vector<uint8_t>& bytes() { return bytes_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

  // Float dtypes.
  float get(int64_t i) const { return cpu::load_float(bytes_.data(), dtype_, i); }
  void set(int64_t i, float v) { cpu::store_float(bytes_.data(), dtype_, i, v); }
  // Integer dtypes.
  int64_t get_integer(int64_t i) const { return cpu::load_integer(bytes_.data(), dtype_, i); }
  void set_integer(int64_t i, int64_t v) {
    std::memcpy(bytes_.data() + static_cast<size_t>(i) * size_of(dtype_), &v, size_of(dtype_));
  }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes_.data());
  }

 private:
  std::vector<uint8_t> bytes_;
  DType dtype_ = DType::f32;
  Shape shape_;
};

}  // namespace moeblas::test
