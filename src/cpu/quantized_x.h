// Rows of a block-quantized x, packed or quantized on the fly.
#pragma once

#include <algorithm>

#include "cpu/decode.h"
#include "cpu/encode.h"
#include "cpu/pairs.h"
#include "cpu/quantize_kernels.h"

namespace moeblas::cpu {

// round_trip of floats without gaps, by a tier's kernels.
inline void round_trip(const QuantizeKernels& kernels, const QuantSpec& spec, const void* values,
                       DType dtype, int64_t count, float tensor_scale, float decoded_with,
                       float* out) {
  constexpr int64_t kPart = 1024;
  uint8_t codes[kPart], scales[kPart / 16];
  const int code = code_index(spec), from = element_index(dtype), f32 = element_index(DType::f32);
  for (int64_t i = 0; i < count; i += kPart) {
    const char* part = static_cast<const char*>(values) + i * static_cast<int64_t>(size_of(dtype));
    Groups g{.values = const_cast<char*>(part),
             .codes = codes,
             .scales = scales,
             .stored_as = spec.mode == Mode::nvfp4 ? Scales::e4m3 : Scales::e8m0,
             .tensor_scale = tensor_scale,
             .count = std::min(kPart, count - i) / spec.group_size,
             .size = spec.group_size};
    kernels.quantize.of[code][from](g);
    g.values = out + i;
    g.tensor_scale = decoded_with;
    kernels.dequantize.of[code][f32](g);
  }
}

// Values [first, first + count), whole groups, of row `row` of the pair's matrix of a
// block-quantized x, as float32; without the matrix's tensor_scale unless `scaled`.
inline void quantized_x_row(const dispatch::MatmulProblem& p, const Pair& pair, int64_t row,
                            int64_t first, int64_t count, bool scaled, float* out) {
  formats::visit_format(p.x.spec->mode, p.x.spec->bits, [&]<class Format>() {
    if (p.x.form == dispatch::Form::packed) {
      PackedRow packed = packed_row(p.x, pair.x, row, pair.w);
      if (!scaled) packed.tensor_scale = 1.0f;
      decode_row<Format>(packed, p.x.spec->group_size, first, count, out, 1);
    } else if constexpr (!formats::kIsAffine<Format>) {
      const dispatch::Matrices& x = p.x.values;
      const int64_t at = x.offset(pair.x) + row * x.row_stride + first * x.col_stride;
      const float scale = load_tensor_scale(p.x.tensor_scale, pair.w), by = scaled ? scale : 1.0f;
      const QuantizeKernels* kernels = quantize_kernels();
      if (kernels != nullptr && x.col_stride == 1) {
        const auto size = static_cast<int64_t>(size_of(x.dtype));
        return round_trip(*kernels, *p.x.spec, static_cast<const char*>(x.data) + at * size,
                          x.dtype, count, scale, by, out);
      }
      load_floats(x.data, x.dtype, at, x.col_stride, count, out);
      round_trip<Format>(out, count, scale, by);
    }
  });
}

}  // namespace moeblas::cpu
