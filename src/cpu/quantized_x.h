// Rows of a block-quantized x, packed or quantized on the fly.
#pragma once

#include "cpu/decode.h"
#include "cpu/encode.h"
#include "cpu/pairs.h"

namespace moeblas::cpu {

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
      load_floats(x.data, x.dtype, at, x.col_stride, count, out);
      const float scale = load_tensor_scale(p.x.tensor_scale, pair.w);
      round_trip<Format>(out, count, scale, scaled ? scale : 1.0f);
    }
  });
}

}  // namespace moeblas::cpu
