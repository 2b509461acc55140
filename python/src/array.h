// Arrays of any library as the core's tensors, without a copy: numpy's through the buffer protocol
// (which, asked for no format, also gives those whose dtypes it cannot name: ml_dtypes'), all
// others through DLPack, by its table of C functions where they have one. And results, new arrays
// of the library that the first argument is of.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "call.h"
#include "exchange.h"

namespace moeblas::python {

struct DLPackTensor;  // DLPack's managed tensors, of either version

// Whether the object can be the tensor of an argument.
bool is_array(nb::handle object);

enum class Access { read, write };

// The tensor of an argument, for the duration of a call; absent for None.
class Array {
 public:
  Array() = default;
  // By the default constructor first: what was bound when bind throws is let go.
  Array(Call& call, const char* name, nb::handle object, Access access = Access::read) : Array() {
    bind(call, name, object, access);
  }
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  void bind(Call& call, const char* name, nb::handle object, Access access = Access::read);
  // An 8-bit float dtype that stands for the bytes which the core takes as uint8: codes and scales.
  // Every other dtype stays what it is, for the core to judge.
  void accept_as_bytes(uint8_t dlpack_code);

  operator const moeblas_tensor*() const { return present_ ? &tensor_ : nullptr; }

 private:
  friend class Result;
  void bind_numpy(const Call& call, const char* name, nb::handle object, Access access);
  // False where the array has to be asked for in the other way.
  bool bind_exchange(Call& call, const char* name, nb::handle object);
  void bind_dlpack(Call& call, const char* name, nb::handle object, Access access);
  bool view(const Exchange& exchange, nb::handle object);

  moeblas_tensor tensor_{};
  int64_t strides_[MOEBLAS_MAX_NDIM];
  bool present_ = false;
  bool has_buffer_ = false;
  Py_buffer buffer_;
  nb::object borrowed_;  // whose sizes and strides tensor_ points to
  DLPackTensor* dlpack_ = nullptr;
};

// An output: the caller's array (out=), or a new one.
class Result {
 public:
  // `spec` says what a new array has to be; it is not looked at where one was given.
  Result(Call& call, const char* name, nb::handle given, const moeblas_spec& spec);
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;

  void accept_as_bytes(uint8_t dlpack_code) { array_.accept_as_bytes(dlpack_code); }
  operator const moeblas_tensor*() const { return array_; }
  // What the caller gets.
  nb::object take();

 private:
  Call& call_;
  Array array_;
  nb::object object_;
  bool adopted_ =
      false;  // memory of the core's, which the library of the first argument takes over
  int64_t shape_[MOEBLAS_MAX_NDIM];
};

// The arrays of out=, where a function returns several; all None where it was not given.
class Parts {
 public:
  Parts(const Call& call, nb::handle given, size_t count);
  const nb::object& operator[](size_t i) const { return parts_[i]; }

 private:
  nb::object parts_[3] = {nb::none(), nb::none(), nb::none()};
};

// Where no array was given, the operation infers what a new one has to be.
template <class Infer>
moeblas_spec infer_unless(nb::handle given, Infer&& infer) {
  moeblas_spec spec{};
  if (given.is_none()) check(infer(&spec));
  return spec;
}

}  // namespace moeblas::python
