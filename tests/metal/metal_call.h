// One call of an operation that tests of the Metal backend make by hand.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "moeblas/kernels.h"

namespace moeblas::test {

inline constexpr Device kMetal{MOEBLAS_METAL, 0};

// Memory of the library's, which the GPU and the CPU share.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) {
    check(moeblas_buffer_alloc({kMetal.type, kMetal.id}, bytes, &data_));
  }
  ~SharedMemory() { moeblas_buffer_free({kMetal.type, kMetal.id}, data_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// Waits for the device, as a copy does.
inline void wait_for_metal() {
  char from = 0, to = 0;
  check(moeblas_buffer_copy({MOEBLAS_CPU, 0}, &to, {kMetal.type, kMetal.id}, &from, 1));
}

// to_fp8 of ones: codes 0x38.
struct Ones {
  static constexpr int64_t kCount = 100;
  static constexpr uint8_t kCode = 0x38, kBefore = 0xcc;

  float* x;
  uint8_t* out;

  Ones(float* x_memory, uint8_t* out_memory) : x(x_memory), out(out_memory) {
    for (int64_t i = 0; i < kCount; ++i) x[i] = 1.0f;
    std::memset(out, kBefore, kCount);
  }
  void call(const Options& options = {}) const {
    to_fp8({x, DType::f32, {kCount}, kMetal}, {out, DType::u8, {kCount}, kMetal}, options);
  }
  bool all(uint8_t code) const {
    for (int64_t i = 0; i < kCount; ++i) {
      if (out[i] != code) return false;
    }
    return true;
  }
};

struct SharedOnes {
  SharedMemory x{Ones::kCount * sizeof(float)}, out{Ones::kCount};
  Ones ones{x.as<float>(), out.as<uint8_t>()};
};

}  // namespace moeblas::test
