// The weighted sum that ends an expert layer.
#pragma once

#include <algorithm>

#include "cpu/elements.h"
#include "cpu/row_kernels.h"

namespace moeblas::cpu {

// What one expert computed for a token; data null: nothing.
struct ExpertRow {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t first = 0;
  int64_t stride = 1;
};

// out[t] = sum over j of weights[t, j] * row_of(j), added in float32 in the order of j and rounded
// once; absent weights are 1.
template <class RowOf>
void combine_rows(const TensorView& out, int64_t t, int64_t top_k, const TensorView& weights,
                  RowOf&& row_of) {
  constexpr int64_t kBlock = 256;
  const int64_t hidden = out.shape[1];
  const RowKernels* kernels = row_kernels();
  for (int64_t begin = 0; begin < hidden; begin += kBlock) {
    const int64_t count = std::min(kBlock, hidden - begin);
    float sums[kBlock] = {};
    for (int64_t j = 0; j < top_k; ++j) {
      const ExpertRow row = row_of(j);
      if (row.data == nullptr) continue;
      const float weight =
          weights ? load_as<float>(weights.data, t * weights.strides[0] + j * weights.strides[1])
                  : 1.0f;
      if (kernels != nullptr && row.stride == 1) {
        const int64_t first = (row.first + begin) * static_cast<int64_t>(size_of(row.dtype));
        kernels->add_row[element_index(row.dtype)](static_cast<const char*>(row.data) + first,
                                                   weight, count, sums);
        continue;
      }
      float values[kBlock];
      load_floats(row.data, row.dtype, row.first + begin * row.stride, row.stride, count, values);
      for (int64_t h = 0; h < count; ++h) sums[h] += weight * values[h];
    }
    const int64_t first = t * out.strides[0] + begin;
    if (kernels != nullptr) {
      kernels->store_row[element_index(out.dtype)](
          sums, count,
          static_cast<char*>(out.data) + first * static_cast<int64_t>(size_of(out.dtype)));
    } else {
      store_floats(out.data, out.dtype, first, count, sums);
    }
  }
}

}  // namespace moeblas::cpu
