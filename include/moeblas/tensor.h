// TensorView: a non-owning, strided view of memory on a device; what every operation takes.
#pragma once

#if __cplusplus <= 201703L
#error "moeblas's C++ interface needs C++20; <moeblas/moeblas.h>, the C interface, takes C++11"
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>

#include "moeblas/moeblas.h"

namespace moeblas {

enum class DType : uint8_t {
  f32,
  f16,
  bf16,
  f64,
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  boolean,
  other
};

namespace detail {
struct DTypeRow {
  DType dtype;
  moeblas_dtype dlpack;
  const char* name;
};
inline constexpr DTypeRow kDTypes[] = {
    {DType::f32, {MOEBLAS_FLOAT, 32, 1}, "float32"},
    {DType::f16, {MOEBLAS_FLOAT, 16, 1}, "float16"},
    {DType::bf16, {MOEBLAS_BFLOAT, 16, 1}, "bfloat16"},
    {DType::f64, {MOEBLAS_FLOAT, 64, 1}, "float64"},
    {DType::i8, {MOEBLAS_INT, 8, 1}, "int8"},
    {DType::i16, {MOEBLAS_INT, 16, 1}, "int16"},
    {DType::i32, {MOEBLAS_INT, 32, 1}, "int32"},
    {DType::i64, {MOEBLAS_INT, 64, 1}, "int64"},
    {DType::u8, {MOEBLAS_UINT, 8, 1}, "uint8"},
    {DType::u16, {MOEBLAS_UINT, 16, 1}, "uint16"},
    {DType::u32, {MOEBLAS_UINT, 32, 1}, "uint32"},
    {DType::u64, {MOEBLAS_UINT, 64, 1}, "uint64"},
    {DType::boolean, {MOEBLAS_BOOL, 8, 1}, "bool"},
    {DType::other, {0, 0, 0}, "unknown dtype"},
};
}  // namespace detail

constexpr const char* name(DType dtype) { return detail::kDTypes[static_cast<size_t>(dtype)].name; }
constexpr moeblas_dtype to_dlpack(DType dtype) {
  return detail::kDTypes[static_cast<size_t>(dtype)].dlpack;
}
// DType::other for anything that is not in the list, vectors of lanes included.
constexpr DType from_dlpack(moeblas_dtype d) {
  for (const auto& row : detail::kDTypes) {
    if (row.dlpack.code == d.code && row.dlpack.bits == d.bits && row.dlpack.lanes == d.lanes) {
      return row.dtype;
    }
  }
  return DType::other;
}
constexpr size_t size_of(DType dtype) { return to_dlpack(dtype).bits / 8; }
constexpr bool is_float(DType d) { return d == DType::f32 || d == DType::f16 || d == DType::bf16; }
constexpr bool is_integer(DType d) { return d >= DType::i8 && d <= DType::u64; }

struct Device {
  int32_t type = MOEBLAS_CPU;
  int32_t id = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr int kMaxNdim = MOEBLAS_MAX_NDIM;

// A shape of at most kMaxNdim dimensions, by value.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) { assign({sizes.begin(), sizes.size()}); }
  Shape(std::span<const int64_t> sizes) { assign(sizes); }

  int ndim() const { return ndim_; }
  int64_t operator[](int i) const { return size_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) { return size_[static_cast<size_t>(i)]; }
  const int64_t* data() const { return size_.data(); }
  const int64_t* begin() const { return size_.data(); }
  const int64_t* end() const { return size_.data() + ndim_; }
  int64_t back() const { return size_[static_cast<size_t>(ndim_ - 1)]; }

  void push_back(int64_t size) {
    if (ndim_ == kMaxNdim) throw std::length_error("moeblas: more than 8 dimensions");
    size_[static_cast<size_t>(ndim_++)] = size;
  }
  // The first `count` dimensions.
  Shape first(int count) const {
    return Shape(std::span(size_.data(), static_cast<size_t>(count)));
  }
  // The product of all sizes.
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t size : *this) n *= size;
    return n;
  }
  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.ndim_ != b.ndim_) return false;
    for (int i = 0; i < a.ndim_; ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

 private:
  void assign(std::span<const int64_t> sizes) {
    for (int64_t size : sizes) push_back(size);
  }
  std::array<int64_t, kMaxNdim> size_{};
  int ndim_ = 0;
};

// The strides, in elements, of a row-major tensor without gaps.
inline Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t step = 1;
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

// A view; the memory belongs to the caller and must outlive the call and, on a device with streams,
// the work that the call has put on one. Default-constructed: absent, which is how an optional
// argument is left out.
struct TensorView {
  TensorView() = default;
  // Row-major without gaps. The device by its type's name, Device{MOEBLAS_CUDA, 0}: braces alone
  // could be strides, and do not compile.
  TensorView(const void* memory, DType type, const Shape& sizes, Device where = {})
      : TensorView(memory, type, sizes, contiguous_strides(sizes), where) {}
  // Strides in elements.
  TensorView(const void* memory, DType type, const Shape& sizes, const Shape& steps,
             Device where = {})
      : data(const_cast<void*>(memory)),
        dtype(type),
        device(where),
        shape(sizes),
        strides(steps),
        present(true) {}

  explicit operator bool() const { return present; }
  int ndim() const { return shape.ndim(); }
  int64_t numel() const { return shape.numel(); }

  // A view with DLPack's layout; its pointers lead into this object.
  moeblas_tensor c_view() const {
    moeblas_tensor t{};
    t.data = data;
    t.device = {device.type, device.id};
    t.ndim = shape.ndim();
    t.dtype = to_dlpack(dtype);
    t.shape = shape.data();
    t.strides = strides.data();
    return t;
  }
  // From a DLPack DLTensor or a moeblas_tensor.
  template <class DLTensorLike>
  static TensorView from(const DLTensorLike& t) {
    TensorView v;
    v.data = static_cast<char*>(t.data) + t.byte_offset;
    v.dtype =
        from_dlpack(moeblas_dtype{static_cast<uint8_t>(t.dtype.code), t.dtype.bits, t.dtype.lanes});
    v.device = from_device(t.device);
    const auto ndim = static_cast<size_t>(t.ndim);
    v.shape = Shape(std::span<const int64_t>(t.shape, ndim));
    v.strides =
        t.strides ? Shape(std::span<const int64_t>(t.strides, ndim)) : contiguous_strides(v.shape);
    v.present = true;
    return v;
  }

  void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  Shape shape;
  Shape strides;
  bool present = false;

 private:
  static Device from_device(moeblas_device d) { return {d.type, d.id}; }
  template <class DLDevice>
  static Device from_device(DLDevice d) {
    return {static_cast<int32_t>(d.device_type), static_cast<int32_t>(d.device_id)};
  }
};

// The shape and dtype of an output.
struct Spec {
  DType dtype = DType::f32;
  Shape shape;
};

}  // namespace moeblas
