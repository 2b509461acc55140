// Tensors of a case, for all of its buffer sets at once, and what fills them.
#pragma once

#include <cstdint>
#include <functional>

#include "bench/clock.h"
#include "bench/random.h"
#include "moeblas/quant.h"

namespace moeblas::bench {

// Writes elements [first, first + count) of a tensor's dtype to host memory. Called from several
// threads at once.
using Source = std::function<void(int64_t first, int64_t count, void* to)>;

// One tensor per buffer set, in one allocation.
class Slab {
 public:
  Slab() = default;
  Slab(Device& device, DType dtype, const Shape& shape, int64_t sets);

  TensorView view(int64_t set) const;
  int64_t bytes() const { return shape_.numel() * static_cast<int64_t>(size_of(dtype_)); }
  // Elements [first, first + count) of a set from `source`, whose positions count on from set to
  // set: set * numel + i.
  void fill(int64_t set, int64_t first, int64_t count, const Source& source);
  void fill(int64_t set, const Source& source) { fill(set, 0, shape_.numel(), source); }
  void poison(int64_t set);
  std::vector<uint8_t> download(int64_t set) const;

 private:
  char* at(int64_t set) const { return static_cast<char*>(memory_.get()) + set * pitch_; }

  Device* device_ = nullptr;
  Memory memory_;
  DType dtype_ = DType::f32;
  Shape shape_;
  int64_t pitch_ = 0;
};

// Element of a float dtype.
float load_float(const void* from, DType dtype, int64_t i);
void store_float(void* to, DType dtype, int64_t i, float value);

// Values of mean 0 and this standard deviation, rounded to the dtype.
Source bell_values(const Random& random, DType dtype, float deviation);

// Codes, scales, biases and multiplier of random weights in a format: all codes equally likely,
// scales spread over a factor of two, weights of mean 0. By position, like everything random here.
class QuantizedData {
 public:
  QuantizedData(const QuantSpec& spec, DType scale_dtype, const Random& random);

  DType scale_dtype() const { return scale_dtype_; }
  Source codes() const;          // uint32
  Source scales() const;         // of scale_dtype()
  Source biases() const;         // affine
  Source tensor_scales() const;  // nvfp4: float32, one per matrix
  // Values [first, first + count) in float64, exactly as the format defines them, and |scale| *
  // code
  // + |bias|, the magnitudes that a kernel sums if it applies scale and bias after summing codes.
  // first and count are multiples of the group; `matrix` counts matrices from the start.
  void reference(int64_t first, int64_t count, int64_t matrix, double* value,
                 double* magnitude) const;

 private:
  float scale(int64_t group) const;
  float bias(int64_t group) const;
  uint8_t scale_byte(int64_t group) const;
  uint32_t code_word(int64_t i) const;
  float tensor_scale(int64_t matrix) const;

  QuantSpec spec_;
  DType scale_dtype_;
  Random codes_, scales_, tensor_scales_;
};

// `work(first, count)` over [0, total) in parts, on the machine's CPUs.
void parallel_parts(int64_t total, int64_t part,
                    const std::function<void(int64_t first, int64_t count)>& work);

}  // namespace moeblas::bench
