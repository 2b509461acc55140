// Generated cases of what quantize writes beyond rows: swizzled scales, and quantize_dual. They are
// right if they hold the numbers of plain quantize in other places.
#pragma once

#include "support/seeds.h"

namespace moeblas::test {

// Matrices to quantize, in one format and layout.
struct SourceCase {
  uint64_t seed = 0;
  QuantSpec spec;
  Shape batch;
  int64_t rows = 0, cols = 0;
  bool swizzled = false;
  bool dual = false;
  DType scale_dtype = DType::u8;
  Layout w, tensor_scale;
  std::optional<float> host_tensor_scale;
  int threads = 1;
};

SourceCase make_source_case(uint64_t seed, bool dual);
SeededCase seeded(const SourceCase& c);

}  // namespace moeblas::test
