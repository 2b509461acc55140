// A quantized argument: its arrays and what their bits mean, as the core's struct.
#pragma once

#include "array.h"

namespace moeblas::python {

// The arguments' names in messages about what the core never gets to see.
struct WeightsNames {
  const char* codes = "w";
  const char* scales = "scales";
  const char* biases = "biases";
  const char* tensor_scale = "tensor_scale";
};

// What the arrays mean.
struct Format {
  Format(const Call& call, nb::handle mode_, nb::handle bits_, nb::handle group_size_)
      : mode(mode_of(call.op(), "mode", mode_)),
        bits(integer_of(call.op(), "bits", bits_)),
        group_size(integer_of(call.op(), "group_size", group_size_)) {}
  int32_t mode, bits, group_size;
};

// A tensor_scale: a number, or an array on the tensors' device; absent for None.
class Scale {
 public:
  Scale() = default;
  Scale(Call& call, const char* name, nb::handle value) { bind(call, name, value); }
  void bind(Call& call, const char* name, nb::handle value);
  void set(moeblas_quantized& q) const {
    q.tensor_scale = array_;
    q.host_tensor_scale = is_number_ ? &number_ : nullptr;
  }

 private:
  Array array_;
  float number_ = 0;
  bool is_number_ = false;
};

class Weights {
 public:
  Weights(Call& call, const WeightsNames& names, const Format& format, nb::handle codes,
          nb::handle scales, nb::handle biases, nb::handle tensor_scale,
          nb::handle scale_layout = {});
  // A moeblas.Quantized, or a dense array; absent for None. `name` is the argument's.
  Weights(Call& call, const char* name, nb::handle weights);
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  bool present() const { return present_; }
  operator const moeblas_quantized*() const { return present_ ? &c_ : nullptr; }

 private:
  void bind(Call& call, const WeightsNames& names, nb::handle codes, nb::handle scales,
            nb::handle biases, nb::handle tensor_scale);

  Array codes_, scales_, biases_;
  Scale tensor_scale_;
  bool present_ = true;
  moeblas_quantized c_ = MOEBLAS_QUANTIZED_INIT;
};

// The codes of formats whose bytes other libraries know as floats of 8 bits, in DLPack's numbers.
inline constexpr uint8_t kE4M3 = 10, kE8M0 = 14;
constexpr uint8_t scale_code(int32_t mode) { return mode == MOEBLAS_NVFP4 ? kE4M3 : kE8M0; }

int32_t scale_layout_of(const Call& call, nb::handle value);

}  // namespace moeblas::python
