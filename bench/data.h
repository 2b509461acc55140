// Tensors of a case, for all of its buffer sets at once.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/clock.h"
#include "bench/source.h"

namespace moeblas::bench {

// One tensor per buffer set, in one allocation.
class Slab {
 public:
  Slab() = default;
  Slab(Device& device, DType dtype, const Shape& shape, int64_t sets);

  // What a slab takes.
  static int64_t footprint(DType dtype, const Shape& shape, int64_t sets);

  TensorView view(int64_t set) const;
  int64_t bytes() const { return shape_.numel() * static_cast<int64_t>(size_of(dtype_)); }
  // Elements [first, first + count) of a set from `source`, whose positions count on from set to
  // set: set * numel + i.
  void fill(int64_t set, int64_t first, int64_t count, const Source& source);
  void fill(int64_t set, const Source& source) { fill(set, 0, shape_.numel(), source); }
  void upload(int64_t set, const void* from);
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

// `work(first, count)` over [0, total) in parts, on the machine's CPUs.
void parallel_parts(int64_t total, int64_t part,
                    const std::function<void(int64_t first, int64_t count)>& work);

}  // namespace moeblas::bench
