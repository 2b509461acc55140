// Rows of a block-quantized x, packed or quantized on the fly.
#pragma once

#include "cpu/decode.h"
#include "cpu/encode.h"
#include "cpu/pairs.h"

namespace moeblas::cpu {

// Row `row` of the pair's matrix of a block-quantized x, as float32.
inline void quantized_x_row(const dispatch::MatmulProblem& p, const Pair& pair, int64_t row,
                            float* out) {
  formats::visit_format(p.x.spec->mode, p.x.spec->bits, [&]<class Format>() {
    if (p.x.form == dispatch::Form::packed) {
      decode_row<Format>(packed_row(p.x, pair.x, row, pair.w), p.x.spec->group_size, 0, p.k, out,
                         1);
    } else if constexpr (!formats::kIsAffine<Format>) {
      const dispatch::Matrices& x = p.x.values;
      load_floats(x.data, x.dtype, x.offset(pair.x) + row * x.row_stride, x.col_stride, p.k, out);
      round_trip<Format>(out, p.k, load_tensor_scale(p.x.tensor_scale, pair.w));
    }
  });
}

}  // namespace moeblas::cpu
