// What a tensor map can be made of. Tests, which have no driver, make maps of their own.
#include "cuda/tensor_map.h"

namespace moeblas::cuda {

using dispatch::Reason;

namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 32;
constexpr uint64_t kMostStride = uint64_t{1} << 40;
constexpr uint64_t kUnit = 16;

}  // namespace

Reason why_no_tensor_map(const TensorMapShape& shape, const char* what) {
  if (const uint64_t off = reinterpret_cast<uintptr_t>(shape.data) % kUnit; off != 0) {
    return Reason::of("%s begin %llu bytes past a multiple of 16", what,
                      static_cast<unsigned long long>(off));
  }
  for (size_t d = 0; d < shape.dims; ++d) {
    const auto size = static_cast<unsigned long long>(shape.size[d]);
    const auto stride = static_cast<unsigned long long>(shape.stride[d]);
    if (size > kMostElements) {
      return Reason::of("%s have %llu elements along one dimension, more than 2^32", what, size);
    }
    if (d > 0 && (stride % kUnit != 0 || stride >= kMostStride)) {
      return Reason::of("%s lie %llu bytes apart, not a multiple of 16 below 2^40", what, stride);
    }
  }
  return {};
}

}  // namespace moeblas::cuda
