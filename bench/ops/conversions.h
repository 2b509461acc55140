// What quantize and dequantize share: one matrix (N, K) of values beside its codes, scales, biases.
#pragma once

#include "bench/case.h"
#include "bench/data.h"

namespace moeblas::bench {

class Conversion : public Case {
 public:
  Conversion(Device& device, const CaseSpec& spec);

  // Values on one side, packed rows on the other; the arithmetic is not counted.
  Work work() const override;
  Sizes sizes() const final { return {{"N", n_}, {"K", k_}}; }
  bool copies() const final { return true; }
  int64_t footprint(int64_t sets) const final { return sets * work().bytes(); }
  void prepare(int64_t sets) override;

 protected:
  // Of a set; without data before prepare.
  TensorView values(int64_t set) const;
  Quantized quantized(int64_t set) const;
  // Fills what the operation reads and poisons what it writes.
  virtual void fill(int64_t set) = 0;
  virtual bool reads_values() const = 0;
  Device& device() const { return device_; }
  bool prepared() const { return prepared_; }
  bool affine() const { return spec().format.mode == Mode::affine; }
  // What is stored of the scales: with the padding of swizzled ones, which is not counted as work.
  Shape scales_shape() const;
  int64_t groups() const { return n_ * k_ / spec().format.group_size; }
  // Group i of the check's samples.
  int64_t sampled_group(int64_t i, int64_t samples) const;

  int64_t n_, k_;
  QuantizedData data_;
  Slab values_, codes_, scales_, biases_, tensor_scale_;

 private:
  Device& device_;
  bool prepared_ = false;
};

}  // namespace moeblas::bench
